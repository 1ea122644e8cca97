# SPDX-License-Identifier: Apache-2.0
"""Missing ranks where several rails are used as one: every other rank names them, whichever looks first."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.missing_ranks import MissingRankDetector
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rank_state import AgreementOutcome, Question, QuestionKind, RankState
from support.hosts.rails import FakeChannels, Plane, Ranks, on_ranks

pytestmark = pytest.mark.timeout(60)
SIZES = [1000, 1_500_000]
"""Elements of a call on one rail, and of one that is split."""


def impatient(world: int, seconds: float, stall: float = 0.05) -> Ranks:
    """Ranks with a timeout of ``seconds`` that starts to hold only once they are all together, however busy the machine
    is."""
    ranks = Ranks([Plane(world, quiet=True), Plane(world, quiet=True)], stall=stall)
    for rails in ranks.rails:
        rails.detector.timeout = seconds
    return ranks


def fails(rails: MultiRail, size: int) -> NetFoldError:
    """The error that an allreduce raises."""
    with pytest.raises(NetFoldError) as caught:
        rails.allreduce(
            AllreduceRequest(np.ones(size, np.int32), np.empty(size, np.int32), Reduction("sum", "int32"), 17)
        )
    return caught.value


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("lost", "kind", "says"),
    [
        ("gone", PeerLost, "rank 2 is gone: nobody listens there any more"),
        ("deaf", CollectiveTimeout, r"rank 2 does not answer \(stopped, or cut off\)"),
        ("", CollectiveTimeout, "rank 2 answers, and has not called this operation"),
    ],
)
def test_a_missing_rank_is_named_with_operation_size_and_rails(
    size: int, lost: str, kind: type[NetFoldError], says: str
) -> None:
    """Every other rank names it, and no other rank is blamed."""
    ranks = impatient(3, 1000.0)
    if lost:
        getattr(ranks.channels, lost).add(2)
    callers = ranks.channels.states[:2]
    before = [state.place[0] for state in callers]

    def call(rank: int) -> NetFoldError | None:
        if rank < 2:
            return fails(ranks.rails[rank], size)
        while any(state.place[0] == place for state, place in zip(callers, before, strict=True)):
            time.sleep(0.01)
        for rails in ranks.rails:  # now that both have called
            rails.detector.timeout = 0.3
        return None

    errors = on_ranks(3, call)
    for rank, error in enumerate(errors[:2]):
        assert isinstance(error, kind)
        said = error.args[0].removeprefix("Timed out: ")
        assert said.startswith(f"rank {rank} of 3, operation 17 ({size} x int32, {4 * size} bytes): ")
        assert "Timed out" not in said
        with pytest.raises(kind, match=says):
            raise error
        assert f"rank {1 - rank} " not in str(error).partition("(so rank")[0].partition("bytes): ")[2]
        assert "rails: rail0 up, " in str(error)
        assert "rail1 up, " in str(error)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_came_later_gets_the_first_ones_verdict(size: int) -> None:
    """Rank 0 gives up and would be gone soon; rank 1, whose own timeout is long, names rank 2 all the same."""
    ranks = impatient(3, 0.6)
    ranks.rails[1].detector.timeout = 1000.0
    over = threading.Event()

    def call(rank: int) -> str:
        if rank == 2:
            return ""
        if rank == 1:
            assert over.wait(20)
        error = fails(ranks.rails[rank], size)
        over.set()
        return str(error)

    first, later, _ = on_ranks(3, call)
    assert "rank 2 answers, and has not called this operation" in first
    assert "rank 2 answers, and has not called this operation (so rank 0 found)" in later


def test_a_closing_rank_that_gave_up_keeps_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that gave up answers longer than after success, long enough for ranks that ask for the first time after
    the rails' stall time, and then every quarter of a second."""
    slept: list[float] = []
    own_time = SimpleNamespace(monotonic=time.monotonic, sleep=slept.append)  # other threads sleep as they like
    monkeypatch.setattr("netfold.host.rails.multirail.time", own_time)
    good, bad = impatient(2, 0.3), impatient(2, 0.3, stall=2.0)
    good.rails[0].close()
    fails(bad.rails[0], 1000)
    slept_before = list(slept)
    bad.rails[0].close()
    assert all(seconds <= 0.3 for seconds in slept_before)
    assert slept[-1] > 2.5


def test_a_rank_that_is_behind_is_not_to_blame() -> None:
    """Rank 1 still waits for rank 2 in the stripes, so to rank 0, which is at the agreement after them, it is
    behind."""
    states = [RankState(), RankState(), RankState()]
    for state in states[:2]:
        state.enter_stripes(1, [0, 1])
    states[0].place = 2, 0, time.monotonic(), 0
    question = Question(QuestionKind.AGE, 2, 0)
    assert [state.answer(question).outcome for state in states[1:]] == [
        AgreementOutcome.BEHIND,
        AgreementOutcome.ABSENT,
    ]
    detector = MissingRankDetector(states[0], FakeChannels(3), [1, 2], timeout=1.0)
    answers = {rank: states[rank].answer(question) for rank in (1, 2)}
    with pytest.raises(CollectiveTimeout, match=r"^Timed out: nothing moved for 1 s: rank 2 answers, and has not"):
        detector.check(answers, [1, 2], 1.5)
    detector.check({1: answers[1]}, [1], 1.5)
    with pytest.raises(CollectiveTimeout, match="rank 1 is behind"):
        detector.check({1: answers[1]}, [1], 2.5)
    assert states[0].gave_up

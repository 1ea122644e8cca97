# SPDX-License-Identifier: Apache-2.0
"""Brief allreduces over several rails of a kind that has been carried before: they go the short way, and end as any
other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from netfold.host import rails as rails_package
from netfold.host.api.communicator import Communicator
from netfold.host.operation.reduction import INT32_SUM
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.brief_calls import BriefCalls
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.shares import Figure, RailShares, Split
from support.hosts.loopback_rails import loopback_rails
from support.hosts.rails import Death, FakeRail, Plane, Ranks

pytestmark = pytest.mark.timeout(120)
FIGURES = [Figure(0.001, 1e8), Figure(0.002, 1e8)]
LONG = 1_500_000
"""Elements of a call that is split, after which figures are exchanged."""
STEPS = 7
"""Python functions of the rails' own that a repeated call runs, beside the rail that carries it and what the test
gives: the entry, its kind, the agreement, what that tells other ranks before and after, its number, and the account."""


def test_a_kind_of_brief_call_is_planned_once_until_figures_are_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated sums of two sizes ask for shares once each, and once more after a long call."""
    ranks = Ranks([Plane(2), Plane(2)], known_by={0: FIGURES, 1: FIGURES})
    planned: list[int] = []
    split = RailShares.split

    def watched(shares: RailShares, nbytes: int, *args: object) -> Split:
        planned.append(nbytes)
        return split(shares, nbytes, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(RailShares, "split", watched)
    for seed in range(4):
        ranks.sum(1000, seed)
        ranks.sum(500, seed)
    assert sorted(planned) == [2000, 2000, 4000, 4000]
    ranks.sum(LONG, 5)
    planned.clear()
    ranks.sum(1000, 6)
    ranks.sum(1000, 7)
    assert planned == [4000, 4000]
    assert ranks.rails[0].stats().operations == 11
    assert sum(use.nbytes for use in ranks.rails[0].use()) == 6 * 4000 + 4 * 2000 + 4 * LONG
    ranks.close()


def test_a_repeated_call_runs_few_functions() -> None:
    """A repeated call runs ``STEPS`` functions of the modules of several rails, and nothing of their shares."""
    ranks = Ranks([Plane(2), Plane(2)], known_by={0: FIGURES, 1: FIGURES})
    folder, ran = str(Path(rails_package.__file__).parent), list[str]()

    def record(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            above, names = frame.f_back, list[str]()
            while above is not None:
                names.append(above.f_code.co_qualname)
                above = above.f_back
            # not what watches a rail that waits, nor what a call that took long has more, since it may have repeated
            aside = {FakeRail.allreduce.__qualname__, MultiRail._count.__qualname__}
            if aside.isdisjoint((frame.f_code.co_qualname, *names)):
                ran.append(frame.f_code.co_qualname)

    def call(rail: MultiRail, rank: int) -> None:
        ones, out = np.ones(1000, np.int32), np.empty(1000, np.int32)
        for number in range(1, 4):
            if rank == 0 and number == 3:
                rail.schedule.due = rail.schedule.sample = 1e9  # no call that is measured
                sys.setprofile(record)
            carry = rail.brief.repeat if number > 1 else rail.allreduce
            try:
                assert carry(AllreduceRequest(ones, out, INT32_SUM, number)) == 0
            finally:
                if rank == 0:
                    sys.setprofile(None)
            assert out.tolist() == [2] * 1000

    ranks.each(call)
    assert len(ran) == STEPS, ran
    ranks.close()


@pytest.mark.parametrize(("told", "errors"), [((), (0, 1, 2)), ((), (1,)), ((0,), (1,)), ((1, 2), (0,)), ((0, 1), ())])
def test_a_rail_that_dies_in_a_repeated_call_is_replaced_as_in_any_other(
    told: tuple[int, ...], errors: tuple[int, ...]
) -> None:
    """Whichever ranks got the result, saw an error or wait, the sums are exact on all, the ranks agree which rail died,
    and the record of a rank that lost it says what carried the call."""
    plane, notes = Plane(3, [Death(3, told=told, errors=errors)]), list[str]()
    plane.up.clear()
    ranks = Ranks(
        [plane, Plane(3)], known_by=dict.fromkeys(range(3), FIGURES),
        note=lambda rank, path: notes.append(path) if rank == 1 else None,
    )
    for seed in range(6):
        ranks.sum(1000, seed, in_place=seed % 2 == 1)
    assert [[use.deaths for use in rails.use()] for rails in ranks.rails] == [[1, 0]] * 3
    assert len({tuple(use.nbytes for use in rails.use()) for rails in ranks.rails}) == 1
    assert [rails.stats().operations for rails in ranks.rails] == [6] * 3
    assert any(note.startswith("then rail1, died: rail0: ") for note in notes), notes
    ranks.close()


def test_a_pinned_rail_and_closed_rails_repeat_nothing() -> None:
    """While a rail is pinned no kind is known, so that it alone carries; the kinds are known again afterwards."""
    ranks = Ranks([Plane(2), Plane(2)], known_by={0: FIGURES, 1: FIGURES})
    ranks.sum(1000, 1)
    for rail in ranks.rails:
        assert rail.brief.known
        rail.pin(1)
        assert not rail.brief.known
    carried = [use.nbytes for use in ranks.rails[0].use()]
    ranks.sum(1000, 2)
    assert [use.nbytes for use in ranks.rails[0].use()] == [carried[0], carried[1] + 4000]
    for rail in ranks.rails:
        rail.pin(None)
        assert rail.brief.known
    ranks.sum(1000, 3)
    ranks.close()
    assert not ranks.rails[0].brief.known


def _alike(comm: Communicator, rank: int) -> None:
    """Makes calls of one size and type that ask for different things, each after a plain sum of that size."""
    top = np.iinfo(np.int32).max
    whole, small = np.full(1000, top, np.int32), np.full(1000, rank + 2, np.int32)
    for _ in range(2):
        assert comm.allreduce(whole).tolist() == [-2] * 1000
        assert comm.allreduce(small, op="product").tolist() == [6] * 1000
        assert comm.allreduce(small, op="max").tolist() == [3] * 1000
        assert comm.allreduce(small, op="product", algorithm="ring").tolist() == [6] * 1000
        assert comm.allreduce(whole, saturate=True).tolist() == [top] * 1000
        assert comm.allreduce(small, algorithm="ring").tolist() == [5] * 1000
        assert comm.allreduce(whole, saturate=True, algorithm="ring").tolist() == [top] * 1000
        halves = np.full(2000, 0x3FC0, np.uint16)  # 1.5, and 3.0
        assert comm.allreduce(halves, dtype="bfloat16").tolist() == [0x4040] * 2000
        assert comm.allreduce(np.full(2000, 1.5, np.float16)).tolist() == [3.0] * 2000
    assert comm.stats().saturated == 4 * 1000


def _laid_out(comm: Communicator, rank: int) -> None:
    """Makes sums of one size and type in arrays of any layout."""
    plain = np.arange(1000, dtype=np.int32)
    wanted = (2 * plain).tolist()
    for _ in range(2):
        assert comm.allreduce(plain).tolist() == wanted
        wide = np.repeat(plain, 2)[::2]
        assert comm.allreduce(wide).tolist() == wanted
        assert comm.allreduce(plain.reshape(10, 100)).reshape(-1).tolist() == wanted
        assert comm.allreduce(plain.astype(">i4")).tolist() == wanted
        fixed = plain.copy()
        fixed.flags.writeable = False
        assert comm.allreduce(fixed).tolist() == wanted
        out = np.zeros(2000, np.int32)
        comm.allreduce(plain, out[::2])
        assert out[::2].tolist() == wanted
        assert not out[1::2].any()
        room = np.zeros(1001, np.int32)
        room[:1000] = plain
        comm.allreduce(room[:1000], room[1:])  # which overlap in part
        assert room[1:].tolist() == wanted
        own = plain.copy()
        comm.allreduce(own, own)
        assert own.tolist() == wanted


@pytest.mark.filterwarnings("ignore:.*saturating sum")
@pytest.mark.parametrize("calls", [_alike, _laid_out])
def test_a_call_that_only_looks_like_one_before_gets_what_it_asks_for(
    calls: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another operation, algorithm, saturation, type or layout of the same bytes is no repetition of a sum before."""
    assert callable(calls)
    remembered: set[BriefCalls] = set()  # whose calls may be forgotten again by the end, on a busy machine
    remember = BriefCalls.remember

    def watched(brief: BriefCalls, *args: object) -> None:
        remembered.add(brief)
        remember(brief, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(BriefCalls, "remember", watched)
    with loopback_rails(["innet", "innet"], 2) as comms, ThreadPoolExecutor(2) as pool:
        list(pool.map(calls, comms, range(2)))
        assert all(comm.rails is not None and comm.rails.brief in remembered for comm in comms)

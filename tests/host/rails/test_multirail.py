# SPDX-License-Identifier: Apache-2.0
"""Several rails as one, over planes that die at any moment: every sum is exact, and all ranks agree on what
happened."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netfold.host.errors import PeerLost, RailDown
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import INT32_SUM, Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rank_state import AgreementOutcome, Question, QuestionKind
from netfold.host.rails.shares import Figure
from netfold.testing import on_every_rank
from support.hosts.loopback_rails import loopback_planes
from support.hosts.rails import Death, Plane, Ranks, on_ranks
from switch_support.ports import wait_for

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
LONG = 1_500_000
"""Elements of a call that is split over the rails; one of 1000 is not."""


def test_long_and_short_sums_are_exact_in_place_or_not() -> None:
    """Sums are exact for sizes around every border: none, one, a block, an agreement, several chunks."""
    ranks = Ranks([Plane(3), Plane(3)])
    for seed, size in enumerate([0, 1, 255, 257, 10_000, 524_288, 524_289, LONG]):
        ranks.sum(size, seed, in_place=seed % 2 == 1)
    assert ranks.rails[0].stats().operations == 8
    ranks.close()


def test_averages_are_the_same_bits_on_every_rank() -> None:
    """Averages of float32 over two rails have the same bits on all ranks."""
    ranks = Ranks([Plane(4), Plane(4)])

    def call(rail: MultiRail, rank: int) -> bytes:
        data = np.random.default_rng(rank).standard_normal(LONG).astype(np.float32)
        rail.allreduce(AllreduceRequest(data, data, Reduction("average", "float32"), 1))
        return data.tobytes()

    assert len(set(ranks.each(call))) == 1
    ranks.close()


deaths = st.builds(
    Death,
    call=st.integers(0, 8),
    told=st.sets(st.integers(0, 2), max_size=2),
    errors=st.sets(st.integers(0, 2), max_size=2),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deaths, st.integers(0, 1), st.lists(st.sampled_from([1000, LONG]), min_size=2, max_size=5), st.booleans())
def test_a_rail_may_die_at_any_moment(death: Death, dead: int, sizes: list[int], in_place: bool) -> None:
    """Whichever ranks got the result, saw an error or wait, all sums are exact and all ranks agree which rail died."""
    planes = [Plane(3, [death] if i == dead else []) for i in range(2)]
    planes[dead].up.clear()
    ranks = Ranks(planes)
    for seed, size in enumerate(sizes):
        ranks.sum(size, seed, in_place=in_place)
    uses = [rail.use() for rail in ranks.rails]
    assert len({tuple((use.state, use.deaths) for use in use_) for use_ in uses}) == 1
    assert uses[0][1 - dead].state == "up"
    ranks.close()


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deaths, st.lists(st.sampled_from([1000, LONG]), min_size=3, max_size=3))
def test_residuals_are_whole_again_when_a_rail_dies(death: Death, sizes: list[int]) -> None:
    """A rail that dies leaves garbage in the residual; what is done again begins with the one from before, so that sums
    and residuals together are what all ranks gave, on every rank."""
    planes = [Plane(3), Plane(3, [death])]
    planes[1].up.clear()
    ranks = Ranks(planes, narrows=True)
    size = max(sizes)
    given = [np.random.default_rng([rank]).uniform(-9, 9, size).astype(np.float32) for rank in range(3)]
    residuals = [np.zeros(size, np.float32) for _ in range(3)]
    total = np.zeros(size, np.float64)

    def call(rail: MultiRail, rank: int, n: int, number: int) -> bytes:
        out = np.empty(n, np.float32)
        rail.allreduce(AllreduceRequest(
            given[rank][:n], out, Reduction("sum", "float32"), number, Coding(16), feedback=residuals[rank][:n]
        ))
        return out.tobytes()

    want = np.zeros(size, np.float64)
    for number, n in enumerate(sizes, 1):
        sums = ranks.each(lambda rail, rank, n=n, number=number: call(rail, rank, n, number))
        assert len(set(sums)) == 1
        total[:n] += np.frombuffer(sums[0], np.float32)
        want[:n] += np.sum([part[:n] for part in given], axis=0, dtype=np.float64)
    np.testing.assert_allclose(total + np.sum(residuals, axis=0, dtype=np.float64), want, atol=1e-4)
    ranks.close()


def test_a_rail_that_is_back_is_used_again_and_may_die_again() -> None:
    """A reopened rail carries bytes; it fails as well, in a later call, which succeeds too."""
    plane = Plane(3, [Death(1, told=[0]), Death(2, errors=[1])])
    ranks = Ranks([Plane(3), plane])
    for seed in range(1000):  # a thread of its own opens it anew, which takes as long as it takes
        ranks.sum(LONG, seed, in_place=True)
        use = ranks.rails[0].use()[1]
        if (use.deaths, use.state) == (2, "up"):
            break
    assert (use.deaths, use.state) == (2, "up")
    assert use.nbytes > LONG
    ranks.close()


def test_while_a_rail_is_down_the_other_carries_all() -> None:
    """No call tries a dead rail."""
    plane = Plane(2, [Death(0)])
    plane.up.clear()
    ranks = Ranks([Plane(2), plane])
    before = ranks.rails[0].use()[1].nbytes
    for seed in range(3):
        ranks.sum(LONG, seed)
    assert ranks.rails[0].use()[1].nbytes == before
    assert "rail1 is down" in ranks.rails[0].describe(1 << 20)
    plane.up.set()
    ranks.sum(LONG, 3)
    ranks.sum(LONG, 4)
    assert ranks.rails[0].use()[1].state == "up"
    ranks.close()


def test_a_rail_may_fail_while_it_is_measured() -> None:
    """A failure at the start is like a later one: the other rail carries everything, and the dead one is reopened."""
    plane = Plane(2, [Death(2, errors=[0])])
    plane.armed = 0
    plane.up.clear()
    ranks = Ranks([Plane(2), plane])
    ranks.sum(LONG, 1)
    assert [use.state for use in ranks.rails[0].use()] == ["up", "down"]
    plane.up.set()
    ranks.sum(LONG, 2)
    ranks.sum(LONG, 3)
    assert [(use.state, use.deaths) for use in ranks.rails[0].use()] == [("up", 0), ("up", 1)]
    ranks.close()


def test_three_rails_lose_two() -> None:
    """Two of three rails fail in one call."""
    planes = [Plane(3), Plane(3, [Death(1, errors=[2])]), Plane(3, [Death(1, told=[1])])]
    for plane in planes:
        plane.up.clear()
    ranks = Ranks(planes)
    for seed in range(3):
        ranks.sum(LONG, seed, in_place=True)
    assert [use.state for use in ranks.rails[1].use()] == ["up", "down", "down"]
    ranks.close()


@pytest.mark.parametrize("other", [-1, 1])
def test_a_result_that_comes_after_its_fence_is_not_taken_whatever_is_fenced_beside_it(other: int) -> None:
    """Both ranks have answered ABORTED for a call, then a question about the one before or after it, and then the rail
    delivers: the call is repeated over the other rail on both."""
    armed, asked = threading.Event(), list[Question]()

    def ask() -> None:
        if armed.is_set():
            at, rail, _, call = ranks.channels.states[0].place
            asked.append(Question(QuestionKind.FENCE, at, rail, call))
            for question in (asked[0], replace(asked[0], position=at + other)):
                for state in ranks.channels.states:
                    state.answer(question)

    delivered = threading.Barrier(2, ask)  # no rank has stored its result before both have been asked

    def wait(nbytes: int) -> None:
        delivered.wait(20.0)

    figures = [Figure(0.001, 1e8), Figure(0.002, 1e8)]
    ranks = Ranks(
        [Plane(2), Plane(2)], known_by={0: figures, 1: figures},
        charges=[wait, lambda nbytes: None],
    )
    ranks.sum(1000, 1)
    armed.set()
    ranks.sum(1000, 2)
    assert len(asked) == 1
    for state in ranks.channels.states:
        assert state.answer(asked[0]).outcome is AgreementOutcome.ABORTED
    assert [[use.deaths for use in rails.use()] for rails in ranks.rails] == [[1, 0]] * 2
    ranks.close()


@pytest.mark.parametrize("dying", range(14))
def test_ranks_exchange_figures_after_the_same_calls_whoever_saw_a_rail_fail(
    dying: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one of many brief calls a rank gets the result from another one, whose rail delivered it: it exchanges no
    figures in a call after which the others make their next one.  An exchange is due in the 12th, between two whose
    figures count."""
    figures = [Figure(0.0001, 49_300.0), Figure(0.0001, 2_000.0)]
    plane = Plane(3, [Death(dying, told=[1, 2], errors=[0])])
    plane.up.clear()
    ranks = Ranks([plane, Plane(3)], known_by=dict.fromkeys(range(3), figures))
    after: list[list[int]] = [[], [], []]

    def exchange(rails: MultiRail, *args: object, **options: object) -> None:
        after[rails.rank].append(rails.stats().operations)

    monkeypatch.setattr(MultiRail, "_exchange", exchange)
    for seed in range(16):
        ranks.sum(256, seed)
    assert after[0] == after[1] == after[2]
    assert after[0], "no exchange was due"
    assert [[use.deaths for use in rails.use()] for rails in ranks.rails] == [[1, 0]] * 3
    assert len({tuple(use.nbytes for use in rails.use()) for rails in ranks.rails}) == 1
    ranks.close()


def test_no_rail_left_is_an_error_on_every_rank() -> None:
    """The error names both rails, and the cause of each failure."""
    ranks = Ranks([Plane(2, [Death(0, errors=[0, 1])]), Plane(2, [Death(0, errors=[0, 1])])])

    def call(rail: MultiRail, rank: int) -> str:
        with pytest.raises(RailDown, match=r"no rail is left: rail0: the fake plane is dead; rail1: ") as caught:
            rail.allreduce(AllreduceRequest(np.ones(LONG, np.int32), np.empty(LONG, np.int32), INT32_SUM, 1))
        return str(caught.value).partition(", ")[2]

    assert len(set(ranks.each(call))) == 1
    ranks.close()


def test_a_late_rank_is_no_dead_rail() -> None:
    """One rank comes when the others have found both rails quiet for longer than a stall, and have asked several times:
    no rail is given up, and the sum is exact."""
    ranks = Ranks([Plane(3, quiet=True), Plane(3, quiet=True)])
    data = np.ones(LONG, np.int32)
    before = len(ranks.channels.asked)

    def call(rank: int) -> int:
        if rank == 2:
            wait_for(lambda: len(ranks.channels.asked) >= before + 20)
        out = np.empty_like(data)
        ranks.rails[rank].allreduce(AllreduceRequest(data, out, Reduction("sum", data.dtype.name), 1))
        return int(out.min())

    assert on_ranks(3, call) == [3, 3, 3]
    assert [use.deaths for use in ranks.rails[0].use()] == [0, 0]
    ranks.close()


def test_a_rank_that_is_gone_is_named() -> None:
    """Its rails are dead and nobody listens there: PeerLost, long before the timeout."""
    ranks = Ranks([Plane(3, [Death(0)]), Plane(3, [Death(0)])], timeout=30.0)
    ranks.channels.gone.add(2)

    def call(rank: int) -> None:
        if rank == 2:
            return
        ones, total = np.ones(LONG, np.int32), np.empty(LONG, np.int32)
        with pytest.raises(PeerLost, match=r"rank 2 is gone"):
            ranks.rails[rank].allreduce(AllreduceRequest(ones, total, INT32_SUM, 1))

    on_ranks(3, call)


def test_a_rank_that_leaves_in_order_is_not_lost() -> None:
    """The others hear after which operation it has left, from the controllers of all planes."""
    with loopback_planes(["innet", "innet"], 2) as planes:
        comms = planes.join(timeout=30.0)
        try:
            on_every_rank(comms, lambda comm: comm.allreduce(np.ones(9, np.int32)))
            comms[1].close()
            with pytest.raises(PeerLost, match=r"rank 1 at .* left after operation 1\b"):
                comms[0].allreduce(np.ones(9, np.int32))
        finally:
            for comm in comms:
                comm.close()


def test_cold_and_hot_starts_both_end_with_known_rates() -> None:
    """A cold start begins on one rail with trials, and knows both rails' rates after the first long call."""
    ranks = Ranks([Plane(2), Plane(2)], start="cold")
    assert all(use.bandwidth is None for use in ranks.rails[0].use())
    ranks.sum(LONG, 1)
    assert all(use.bandwidth is not None for use in ranks.rails[0].use())
    ranks.close()


def test_all_ranks_split_alike_whatever_each_measured() -> None:
    """After calls that took every rank another time, predictions, shares and the split overhead are the same on all
    ranks."""
    known = [Figure(0.001, 3e6)] * 2
    ranks = Ranks([Plane(4), Plane(4)], known_by={0: known})
    for seed in range(4):
        ranks.sum(LONG + seed, seed)
        ranks.sum(20_000 + seed, seed)
        assert len({rail.describe(4 * 20_000) for rail in ranks.rails}) == 1
    assert len({rail.describe(64 << 20) for rail in ranks.rails}) == 1
    ranks.close()


def test_figures_of_the_last_run_need_no_measurement() -> None:
    """If only one rank knows the figures, all begin with the shares that follow from them, and no rail is measured."""
    kept: list[list[Figure]] = []
    first = Ranks([Plane(3), Plane(3)], keep=kept.append)
    first.close()
    assert len(kept) == 3
    known = [Figure(0.001, 3e8), Figure(0.002, 1e8)]
    again = Ranks([Plane(3), Plane(3)], known_by={1: known})
    for rails in again.rails:
        assert [(use.latency, use.bandwidth) for use in rails.use()] == [
            (figure.latency, pytest.approx(figure.bandwidth, rel=0.01)) for figure in known
        ]
        assert [use.nbytes for use in rails.use()] == [0, 0]
        assert "75% rail0 + 25% rail1" in rails.describe(64 << 20)
    again.sum(LONG, 1)
    again.close()


def test_the_flight_recorder_has_shares_and_reasons() -> None:
    """It records a short call's rail and why, a long one's shares, and after a failure what was sent again over which
    rail."""
    known = [Figure(0.001, 1e8), Figure(0.001, 1e8)]
    notes: list[str] = []
    ranks = Ranks(
        [Plane(2), Plane(2, [Death(0, errors=[0])])], known_by={0: known, 1: known},
        note=lambda rank, path: notes.append(path) if rank == 0 else None,
    )
    ranks.planes[1].up.clear()
    ranks.sum(1000, 1)
    ranks.sum(LONG, 2)
    assert notes == [
        "rail0 (soonest, 1.04 ms predicted)",
        "50% rail0 + 50% rail1 (32.3 ms predicted, 61 ms on rail0 alone)",
        "2999680 bytes again over rail0 (soonest, 31 ms predicted), died: rail1: the fake plane is dead",
    ]
    ranks.close()

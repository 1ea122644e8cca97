# SPDX-License-Identifier: Apache-2.0
"""The ranks' reports on their rails: costs without waits for other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.operation.reduction import INT32_SUM
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails import rail_report
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rail_set import RailSet
from netfold.host.rails.shares import LONG_BYTES, WINDOW, Estimate, Figure
from netfold.host.selection.cost import RailCost
from support.hosts.rails import Plane, RankClock, Ranks

RAILS = [RailCost(0.0005, 2e7), RailCost(0.0008, 1e7)]
UNKNOWN = [Figure(0.0, None)] * len(RAILS)


class QuietRails:
    """Rails on which nothing has failed, as far as a report looks at them."""

    broken: Sequence[int] = ()

    def __len__(self) -> int:
        return len(RAILS)

    def epoch(self, index: int) -> int:
        return 0


def agreed(estimates: Sequence[Sequence[Estimate]], figures: Sequence[Figure] = UNKNOWN) -> list[Figure]:
    """The figures on which ranks agree that have measured this, by rank and rail."""
    world, rails = len(estimates), cast(RailSet, QuietRails())
    tables = [rail_report.encode(rank, world, rails, {}, own, figures) for rank, own in enumerate(estimates)]
    return rail_report.decode(np.sum(tables, axis=0, dtype=np.int32), world, [0, 1], {}).figures


arrivals = st.lists(
    st.lists(st.floats(0, 0.05), min_size=3, max_size=3), min_size=WINDOW, max_size=3 * WINDOW
)


@given(arrivals)
def test_no_wait_for_another_rank_is_part_of_a_latency(calls: list[list[float]]) -> None:
    """Whichever rank comes last to each call, and however late, the latency is that of the rail: each rank's own
    calls may all have waited, as behind a barrier after which one rank had more to do."""
    estimates = [[Estimate() for _ in RAILS] for _ in range(3)]
    for late in calls:
        for rail, cost in enumerate(RAILS):
            for own, came in zip(estimates, late, strict=True):
                own[rail].add(4, max(late) - came + cost.seconds(4))
    for figure, cost in zip(agreed(estimates), RAILS, strict=True):
        assert figure.latency == pytest.approx(cost.seconds(4), abs=2e-6)


def test_ranks_that_are_late_in_turn_do_not_hide_the_quicker_rail() -> None:
    """Each rank in its turn comes 5 ms late to the calls of the quicker rail alone: it stays the quicker one."""
    estimates = [[Estimate() for _ in RAILS] for _ in range(4)]
    for call in range(8):
        for rank, own in enumerate(estimates):
            own[0].add(1024, RAILS[0].seconds(1024) + (0.0 if rank == call % 4 else 0.005))
            own[1].add(1024, RAILS[1].seconds(1024))
    first, second = agreed(estimates)
    assert first.latency < second.latency


def test_a_rank_that_finds_all_messages_there_does_not_make_a_rail_look_quicker() -> None:
    """Over TCP the last rank may find in its socket what it needs: three of five calls that seem to have taken next to
    nothing do not count, and neither does one in which no rank got the processor."""
    estimates = [[Estimate() for _ in RAILS] for _ in range(3)]
    for seconds in (1e-5, 0.0008, 1e-5, 0.02, 1e-5):
        for rank, own in enumerate(estimates):
            own[1].add(4, seconds + 0.01 * rank)
    assert agreed(estimates)[1].latency == pytest.approx(0.0008, abs=2e-6)


def test_calls_in_which_a_rail_failed_on_one_rank_are_told_by_the_others() -> None:
    """A rank on which the rail failed in a call has no duration of it, and its other calls stay beside those of the
    same operations on the other ranks."""
    estimates = [[Estimate() for _ in RAILS] for _ in range(2)]
    for call in range(WINDOW):
        for rank, own in enumerate(estimates):
            late = 0.005 if call % 2 == rank else 0.0
            own[0].add(4, 0.0 if call == WINDOW - 1 and rank == 0 else RAILS[0].latency + late)
    assert agreed(estimates)[0].latency == pytest.approx(RAILS[0].latency, abs=2e-6)


def test_figures_that_one_rank_knows_from_an_earlier_run_do_not_move_the_others_calls() -> None:
    """A rank that begins with known figures has more calls than the rest; the newest ones are compared all the same."""
    known = Figure(0.001, 2e7)
    estimates = [[Estimate(known), Estimate(known)], [Estimate(), Estimate()]]
    assert agreed(estimates)[0].latency == pytest.approx(0.001)
    for call in range(WINDOW):
        for rank, own in enumerate(estimates):
            own[0].add(4, 0.0005 + (0.01 if call % 2 == rank else 0.0))
    assert agreed(estimates)[0].latency == pytest.approx(0.0005, abs=2e-6)


def test_a_busy_rail_and_its_idle_like_have_the_same_latency() -> None:
    """Of two rails alike the one that carries calls of 8 KB, where the other carries reports alone, has the same
    figures, once the rate is agreed: calls would else move to the other rail and back."""
    cost = RAILS[1]
    estimates = [[Estimate() for _ in RAILS] for _ in range(2)]
    for _ in range(WINDOW):
        for own in estimates:
            own[0].add(8192, cost.seconds(8192))
            own[1].add(200, cost.seconds(200))
            for rail in own:
                rail.add(LONG_BYTES, cost.seconds(LONG_BYTES))
    busy, idle = agreed(estimates, agreed(estimates))
    assert busy.latency == pytest.approx(idle.latency, rel=0.05)
    assert busy.bandwidth == pytest.approx(idle.bandwidth, rel=0.01)


def test_short_calls_go_over_the_quicker_rail_though_ranks_come_late_to_all_of_them() -> None:
    """MultiRails whose ranks are busy between calls, each for up to 20 ms, measure both rails when they start and on
    the way: short calls go over the quicker one throughout, with its cost, whatever each rank's own calls lasted."""
    seed = 7
    print(f"seed {seed}")
    clocks = [RankClock(np.random.default_rng([seed, rank]).uniform(0, 0.02, 10_000)) for rank in range(4)]
    quick, slow = RailCost(0.0005, 1.2e7), RailCost(0.0009, 1.2e7)
    ranks = Ranks([Plane(4, cost=slow), Plane(4, cost=quick)], clocks=clocks)

    def calls(rails: MultiRail, rank: int) -> None:
        data = np.ones(1024, np.int32)
        for number in range(2000):
            rails.allreduce(AllreduceRequest(data, np.empty_like(data), INT32_SUM, number))

    before = [use.nbytes for use in ranks.rails[0].use()]
    exchanges = len(ranks.planes[0].meetings)
    ranks.each(calls)
    for rails in ranks.rails:
        first, second = rails.use()
        assert second.latency == pytest.approx(quick.latency, abs=1e-4)
        assert first.latency == pytest.approx(slow.latency, abs=1e-4)
        assert second.nbytes - before[1] >= 2000 * 4096
        assert first.nbytes - before[0] < 10 * 4096, "only reports of what the rails cost go over the slower one"
    assert len(ranks.planes[0].meetings) > exchanges, "the slower rail was measured on the way"
    ranks.close()

# SPDX-License-Identifier: Apache-2.0
"""Long collectives of rows over several rails go the way that the rails' measured costs predict to be the sooner."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.reduction import Reduction
from netfold.host.rails.cut import CutCollective, CutOperation
from netfold.host.rails.ledger import Ledger
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rail_peers import RailPeers
from netfold.host.rails.shares import LONG_BYTES, Figure, RailShares
from netfold.host.rails.striping import Stripe, StripeThreads
from netfold.host.rails.ways import AGAIN_INTERVAL, TRIALS, Ways
from netfold.host.selection.cost import RailCost
from netfold.host.selection.peers import Peers
from support.hosts.rails import FakeRail, Plane, Ranks

pytestmark = pytest.mark.timeout(120)
AGREED = [Figure(0.001, 1e8)] * 2
BYTES = 4 << 20
LIVE = [0, 1]


def ledger(*rates: float) -> Ledger:
    """The costs of two rails for which the ranks have exchanged these rates."""
    made = Ledger(["a", "b"], (), 0.0003, agreed=AGREED)
    if rates:
        made.shares.learn([Figure(0.001, rate) for rate in rates], LIVE)
    return made


@pytest.mark.parametrize(("folded", "between"), [((1e8, 1e8), (1.05e8, 1.05e8)), ((1e8, 2e7), (0.9e8, 0.9e8))])
def test_each_way_is_tried_and_the_sooner_one_taken(
    folded: tuple[float, float], between: tuple[float, float]
) -> None:
    """The hosts are taken where they are 5 % quicker on all rails alike, which moves no share, or on one of them."""
    ways = Ways(ledger(*folded), ledger(*between))
    tried = [ways.choose(BYTES, LIVE) for _ in range(2 * TRIALS)]
    assert tried == [True] * TRIALS + [False] * TRIALS
    assert [ways.choose(BYTES, LIVE) for _ in range(5)] == [False] * 5
    other = Ways(ledger(*between), ledger(*folded))
    assert [other.choose(BYTES, LIVE) for _ in range(2 * TRIALS + 5)] == tried + [True] * 5


def test_the_way_that_is_not_taken_carries_a_call_now_and_then() -> None:
    """One of AGAIN_INTERVAL calls goes the other way; once its costs are lower, so do all that follow."""
    folded, between = ledger(1e8, 1e8), ledger(0.5e8, 0.5e8)
    ways = Ways(folded, between)
    chosen = [ways.choose(BYTES, LIVE) for _ in range(2 * AGAIN_INTERVAL)]
    assert [number for number, through in enumerate(chosen, 1) if not through] == [
        *range(TRIALS + 1, 2 * TRIALS + 1), AGAIN_INTERVAL, 2 * AGAIN_INTERVAL
    ]
    between.shares.learn([Figure(0.001, 2e8)] * 2, LIVE)
    assert not ways.choose(BYTES, LIVE)


def test_of_calls_that_teach_nothing_none_is_a_trial() -> None:
    """Calls too short for a rate stay with the switches, however many; after longer ones they follow their costs."""
    ways = Ways(ledger(1e8, 1e8), ledger(2e8, 2e8))
    short = 2 * LONG_BYTES - 1
    assert all(ways.choose(short, LIVE) for _ in range(AGAIN_INTERVAL))
    for _ in range(2 * TRIALS):
        ways.choose(BYTES, LIVE)
    assert not ways.choose(short, LIVE)


def test_costs_are_those_of_the_last_exchange_even_where_shares_stay() -> None:
    """Rails that all became twice as quick are cut alike, and expected to take about half."""
    shares = RailShares(["a", "b"], figures=AGREED)
    before = shares.expected(BYTES, LIVE)
    assert not shares.learn([Figure(0.001, 2e8)] * 2, LIVE)
    after = shares.expected(BYTES, LIVE)
    assert before is not None
    assert after is not None
    assert after == pytest.approx((before - 0.001) / 2 + 0.001)
    assert shares.expected(BYTES, [1]) == pytest.approx(0.001 + BYTES / 2e8)


def carried(
    monkeypatch: pytest.MonkeyPatch, costs: dict[bool, float], world: int = 3
) -> tuple[Ranks, list[list[bool]]]:
    """Ranks over two rails that carry rows, whose stripes take the time of these rates, bytes per second by whether the
    switches carry them; and by rank, which way each call went."""
    went: list[list[bool]] = [[] for _ in range(world)]

    def stripes(threads: StripeThreads, parts: Mapping[int, Stripe], cut: CutOperation) -> None:
        assert isinstance(cut, CutCollective)
        through = cut.folded is not None
        rails = threads.rails
        threads.state.enter_stripes(rails.advance(), list(parts))
        for rail, part in parts.items():
            part.done = len(part.chunks)
            part.seconds = RailCost(0.001, costs[through]).seconds(part.elements * cut.unit)
            part.saturated = [0] * part.done
            threads.state.leave_rail(rail)
        went[ranks.channels.states.index(threads.state)].append(through)

    monkeypatch.setattr(FakeRail, "carries_rows", True)
    monkeypatch.setattr(StripeThreads, "run", stripes)
    ranks = Ranks([Plane(world), Plane(world)], known_by=dict.fromkeys(range(world), AGREED))
    return ranks, went


def peers(rails: MultiRail, rank: int, world: int = 3) -> RailPeers:
    """The ranks over these rails, without a mesh: nothing is carried."""
    made = RailPeers.__new__(RailPeers)
    made.rails = rails
    made.__dict__.update(rank=rank, size=world, number=1)
    return made


def _all_gather(to: Peers) -> None:
    data = np.zeros(3 * (BYTES // 3), np.uint8)
    each = data.size // 3
    to.all_gather(data, [slice(each * rank, each * (rank + 1)) for rank in range(3)])


def _reduce_scatter(to: Peers, coding: Coding = PLAIN) -> None:
    data = np.zeros(BYTES // 4, np.float32)
    each = data.size // 3
    pieces = [slice(each * rank, each * (rank + 1)) for rank in range(3)]
    to.reduce_scatter(data, pieces, Reduction("sum", "float32"), coding=coding)


@pytest.mark.parametrize("call", [_all_gather, _reduce_scatter])
@pytest.mark.parametrize(("folded", "between"), [(1e8, 1.05e8), (1.05e8, 1e8)])
def test_ranks_take_the_sooner_way_together(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[Peers], None], folded: float, between: float
) -> None:
    """All ranks make the same calls the same way: after the trials the one that their rails carried quicker."""
    ranks, went = carried(monkeypatch, {True: folded, False: between})
    for _ in range(2 * TRIALS + 4):
        ranks.each(lambda rails, rank: call(peers(rails, rank)))
    assert went[0] == went[1] == went[2]
    assert went[0] == [True] * TRIALS + [False] * TRIALS + [folded >= between] * 4
    kind = "all_gather" if call is _all_gather else "reduce_scatter"
    told = ranks.rails[0].describe_cut(kind, BYTES, folded=True)
    assert ("hosts of" in told) == (folded < between)
    ranks.close()


def test_narrow_lanes_are_the_switches_whatever_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that asks for narrow lanes gets them, though the hosts would be faster."""
    ranks, went = carried(monkeypatch, {True: 1e8, False: 9e8})
    for _ in range(2 * TRIALS + 2):
        ranks.each(lambda rails, rank: _reduce_scatter(peers(rails, rank), Coding(16)))
    assert went == [[True] * (2 * TRIALS + 2)] * 3
    ranks.close()

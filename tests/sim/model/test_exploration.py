# SPDX-License-Identifier: Apache-2.0
"""The protocol, exhaustively: no wrong sum, no wrong acknowledgement, nobody stuck; and what each broken rule does."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product

import pytest

from netfold.sim.model.exploration import ExplorationReport, explore
from netfold.sim.model.fabric import Departure, ModelFabric, Rules
from netfold.sim.model.system import NotKept, WrongAcknowledgement, WrongSum

pytestmark = pytest.mark.slow

WINDOWED = [
    ModelFabric(("ww",), window=1, slots=2, psns=4),
    ModelFabric(("ww",), window=2, slots=4, psns=7),
    ModelFabric(("ww",), window=3, slots=6, psns=7),
    ModelFabric(("www",), window=1, slots=2, psns=4),
    ModelFabric(("www",), window=2, slots=4, psns=5),
    ModelFabric(("w", "w"), window=1, slots=2, psns=4),
    ModelFabric(("ww", "w"), window=1, slots=2, psns=4),
    ModelFabric(("ww", "ww"), window=1, slots=2, psns=3),
]
RC = [
    ModelFabric(("rr",), message=1, slots=4, psns=6),
    ModelFabric(("rr",), message=2, slots=8, psns=5),
    ModelFabric(("rrr",), message=1, slots=4, psns=4),
    ModelFabric(("r", "r"), message=1, slots=4, psns=2),
    ModelFabric(("rr",), message=2, slots=8, psns=5, goes_back="all"),
    ModelFabric(("r", "r"), message=1, slots=4, psns=2, goes_back="all"),
]
MIXED = [
    ModelFabric(("rrw",), message=1, window=2, slots=4, psns=5),
    ModelFabric(("rr", "w"), message=1, window=2, slots=4, psns=2),
    ModelFabric(("rw", "r"), message=1, window=2, slots=4, psns=2),
    ModelFabric(("rr", "w"), message=1, window=2, slots=4, psns=2, immediate=frozenset({0, 1})),
    ModelFabric(("rrw",), message=1, window=2, slots=4, psns=3, goes_back="all"),
]
ROLES = [
    ModelFabric(("ww",), window=2, slots=4, psns=5, lanes=(1, 2, 0, 3, 1), content=(1, 1, 2, 3, 2)),
    ModelFabric(("www",), window=2, slots=4, psns=5, lanes=(7, 1, 2, 0, 6), content=(6, 1, 7, 0, 3)),
    ModelFabric(("ww", "w"), window=1, slots=2, psns=4, lanes=(7, 1, 4, 0), content=(6, 3, 1, 5)),
    ModelFabric(("ww", "ww"), window=1, slots=2, psns=3, lanes=(3, 9, 0), content=(14, 3, 5)),
    ModelFabric(("rr", "w"), message=1, window=2, slots=4, psns=2, lanes=(3, 7), content=(4, 4)),
    ModelFabric(("w", "w"), window=1, slots=2, psns=11, psn_bits=3, lanes=(1, 2, 3, 0) * 2 + (2, 1, 0),
                content=(1, 1, 2) * 3 + (3, 0)),
    ModelFabric(("w", "w"), window=1, slots=2, psns=3, restarts=1, lanes=(1, 2, 3), content=(1, 1, 2)),
    ModelFabric(("ww",), window=1, slots=2, psns=3, replans=2, lanes=(1, 2, 0), content=(1, 2, 3)),
    ModelFabric(("w", "w"), window=1, slots=2, psns=3, replans=1, lanes=(1, 2, 0), content=(1, 1, 3)),
    ModelFabric(("ww",), window=1, slots=2, psns=2, each=1, replans=1, lanes=(1, 2), content=(1, 3)),
]
"""Some contribute lanes and others are present, and to some the acknowledgement is enough, PSN by PSN."""
explored = cache(explore)  # of fabrics that several tests look at
CHEAT = ModelFabric(("rrw",), message=1, window=2, slots=4, psns=5, unbounded=frozenset({2}))


def named(value: object) -> str:
    """The name of a case: only what is not the default."""
    if not isinstance(value, ModelFabric | Rules):
        return str(getattr(value, "__name__", value))
    given = [field for field in fields(value) if getattr(value, field.name) != field.default]
    return ",".join(f"{field.name}={getattr(value, field.name)}" for field in given)


def explained(report: ExplorationReport) -> str:
    """The error, and the steps to it."""
    return "\n".join([*report.path, str(report.wrong or report.stuck[:1])])


@pytest.mark.parametrize("fabric", [*WINDOWED, *RC, *MIXED, *ROLES], ids=named)
def test_the_protocol_is_safe_and_live(fabric: ModelFabric) -> None:
    """Whatever is lost, repeated or late: with two windows of slots, four messages of RC ranks, all ranks finish."""
    report = explored(fabric)
    assert report.states > 30
    assert report.live, explained(report)


@pytest.mark.parametrize("leaves", [("ww",), ("w", "w")], ids=str)
def test_any_two_roles_may_follow_each_other(leaves: tuple[str, ...]) -> None:
    """Of two PSNs in one slot, any ranks contribute, and to any the acknowledgement is enough: slots are taken over
    from lanes by presence and from presence by lanes.  What the ranks do in each other's place is explored once."""
    for roles in product(range(4), repeat=4):
        if roles <= tuple((0, 2, 1, 3)[ranks] for ranks in roles):
            lanes, content = (0, *roles[:2]), (0, *roles[2:])
            report = explore(ModelFabric(leaves, window=1, slots=2, psns=3, lanes=lanes, content=content))
            assert report.live, f"lanes {lanes}, content {content}: {explained(report)}"


@pytest.mark.parametrize(
    "fabric",
    [
        ModelFabric(("ww",), window=1, slots=1, psns=3),
        ModelFabric(("ww",), window=2, slots=3, psns=5),
        ModelFabric(("w", "w"), window=1, slots=1, psns=3),
        ModelFabric(("rr",), message=1, slots=3, psns=6),
        ModelFabric(("rrr",), message=1, slots=3, psns=4),
        ModelFabric(("rrw",), message=1, window=2, slots=3, psns=4),
        ModelFabric(("rrw",), message=1, window=2, slots=3, psns=4, goes_back="all"),
    ],
    ids=named,
)
def test_one_slot_less_leaves_a_rank_stuck(fabric: ModelFabric) -> None:
    """A rank that runs ahead takes over a slot that another still needs."""
    report = explored(fabric)
    assert report.wrong is None
    assert report.stuck


@pytest.mark.parametrize(
    "fabric",
    [
        ModelFabric(("ww",), window=1, slots=2, psns=11, psn_bits=3),
        ModelFabric(("w", "w"), window=1, slots=2, psns=11, psn_bits=3),
        ModelFabric(("rr",), message=1, slots=4, psns=19, psn_bits=4),
    ],
    ids=named,
)
def test_psns_may_wrap(fabric: ModelFabric) -> None:
    """With so few bits that the numbers wrap on the way, serial arithmetic keeps every property."""
    assert fabric.psns > 1 << fabric.psn_bits
    report = explored(fabric)
    assert report.live, explained(report)


STUCK = [
    (ModelFabric(("ww",), window=1, slots=2, psns=4), Rules(checks_age=False)),
    (ModelFabric(("ww",), window=1, slots=2, psns=2), Rules(tells_what_is_missing=False)),
    (ModelFabric(("rrw",), message=1, window=2, slots=4, psns=2), Rules(tells_what_is_missing=False)),
    (ModelFabric(("w", "w"), window=1, slots=2, psns=2), Rules(passes_asks_on=False)),
    (ModelFabric(("rr", "w"), message=1, window=2, slots=4, psns=2), Rules(passes_asks_on=False)),
    (
        ModelFabric(("w", "w"), window=1, slots=2, psns=2, immediate=frozenset({1})),
        Rules(asks_the_child_for_what_cannot_be_made=False),
    ),
    (ModelFabric(("rr",), message=1, slots=4, psns=2), Rules(repeat="asker")),
    (ModelFabric(("r", "r"), message=1, slots=4, psns=2), Rules(repeat="asker")),
    (ModelFabric(("rr",), message=1, slots=4, psns=2, goes_back="all"), Rules(repeat="asker")),
    (ModelFabric(("rr",), message=2, slots=8, psns=3), Rules(on_the_way_back="none")),
    (ModelFabric(("rr",), message=1, slots=4, psns=5), Rules(waits_for_acknowledgement=False)),
    (ModelFabric(("rr",), message=1, slots=4, psns=2, each=1), Rules(ends_acknowledged=True)),
    (ModelFabric(("ww",), window=1, slots=2, psns=3, replans=1), Rules(new_queue_pairs=False)),
    (ModelFabric(("ww",), window=1, slots=2, psns=2, lanes=(1, 1), content=(1, 1)), Rules(keeps_content=False)),
    (ModelFabric(("ww", "w"), window=1, slots=2, psns=2, lanes=(1, 1), content=(1, 1)), Rules(content_if_all=False)),
]


@pytest.mark.parametrize(("fabric", "rules"), STUCK, ids=named)
def test_without_the_rule_a_rank_is_stuck(fabric: ModelFabric, rules: Rules) -> None:
    """Each of these rules is needed for liveness: without it there is a state that no lossless network leads out of."""
    assert explored(fabric).live
    report = explore(fabric, rules)
    assert report.wrong is None
    assert report.stuck


WRONG = [
    (ModelFabric(("rr",), message=2, slots=8, psns=3), Rules(nak="expected"), WrongAcknowledgement),
    (ModelFabric(("r", "r"), message=2, slots=8, psns=3), Rules(nak="expected"), WrongAcknowledgement),
    (ModelFabric(("rr",), message=2, slots=8, psns=3, goes_back="all"), Rules(nak="expected"), WrongAcknowledgement),
    (ModelFabric(("rr",), message=1, slots=4, psns=3, replans=1), Rules(new_queue_pairs=False), WrongAcknowledgement),
    (CHEAT, Rules(late="pass on"), WrongSum),
    (ModelFabric(("rrw",), message=1, window=2, slots=2, psns=4), Rules(late="pass on"), WrongSum),
    (ModelFabric(("w", "w"), window=1, slots=2, psns=2), Rules(sum_only_until_done=False), WrongSum),
    (ModelFabric(("rr",), message=1, slots=4, psns=2, restarts=1), Rules(guarded=False), WrongSum),
    (ModelFabric(("ww",), window=1, slots=2, psns=1, lanes=(1,)), Rules(stores_first_lanes=False), WrongSum),
    (ModelFabric(("ww",), window=1, slots=2, psns=1, lanes=(1,)), Rules(presence_adds_nothing=False), WrongSum),
    (ModelFabric(("ww", "w"), window=1, slots=2, psns=1, lanes=(1,)), Rules(presence_goes_on_with_lanes=False),
     WrongSum),
    (ModelFabric(("w", "w"), window=1, slots=2, psns=2, lanes=(1, 1), content=(1, 1)), Rules(keeps_content=False),
     WrongSum),
    (ModelFabric(("ww", "w"), window=1, slots=2, psns=2, lanes=(4, 4), content=(1, 1)), Rules(content_if_all=False),
     WrongSum),
]


@pytest.mark.parametrize(("fabric", "rules", "wrong"), WRONG, ids=named)
def test_without_the_rule_something_wrong_is_believed(
    fabric: ModelFabric, rules: Rules, wrong: type[Exception]
) -> None:
    """Each of these rules is needed for safety: without it words or an acknowledgement go out that are not true."""
    report = explore(fabric, rules)
    assert isinstance(report.wrong, wrong), explained(report)


@pytest.mark.parametrize(
    "fabric",
    [
        pytest.param(CHEAT, marks=pytest.mark.long),  # 40,000 states
        replace(CHEAT, slots=2, psns=3),
        ModelFabric(("rr",), message=1, slots=2, psns=5),
    ],
    ids=named,
)
def test_a_rank_without_credits_and_too_few_slots_make_no_wrong_sum(fabric: ModelFabric) -> None:
    """A rank that ignores its credits, and a range with too few slots, can leave others stuck, but no sum is ever
    wrong."""
    assert explore(fabric, live=False).wrong is None


@pytest.mark.parametrize("fabric", [RC[0], MIXED[0]], ids=named)
def test_no_slot_moves_on_before_its_packet_is_acknowledged(fabric: ModelFabric) -> None:
    """Credits that wait for acknowledgements keep every slot until the RC child's sender needs it no more: what finds
    its slot moved on is a late copy, and it does not matter whether it is answered."""
    report = explore(fabric, Rules(late="drop"))
    assert report.live, explained(report)
    assert report.states == explored(fabric).states


@pytest.mark.parametrize(
    ("fabric", "rules"),
    [
        (ModelFabric(("rr",), message=2, slots=8, psns=3, goes_back="all"), Rules(on_the_way_back="none")),
        (ModelFabric(("rr",), message=1, slots=4, psns=5, goes_back="all"), Rules(waits_for_acknowledgement=False)),
        (ModelFabric(("rr",), message=2, slots=8, psns=3), Rules(on_the_way_back="all")),
    ],
    ids=named,
)
def test_these_rules_are_needed_by_nics_that_repeat_one_packet_alone(fabric: ModelFabric, rules: Rules) -> None:
    """A NIC that goes back over all that is not acknowledged finishes without them; and to take all that it repeats on
    its way back to a gap, rather than the first alone, would cost packets, but nobody would be stuck."""
    report = explore(fabric, rules)
    assert report.live, explained(report)


LOSING = [
    ModelFabric(("ww",), window=1, slots=2, psns=3, replans=2),
    ModelFabric(("ww",), window=2, slots=4, psns=4, replans=1),
    ModelFabric(("www",), window=1, slots=2, psns=3, replans=1),
    ModelFabric(("w", "w"), window=1, slots=2, psns=3, replans=1),
    ModelFabric(("rr",), message=1, slots=4, psns=3, replans=1),
]


@pytest.mark.parametrize("fabric", LOSING, ids=named)
def test_switches_may_lose_all_they_hold(fabric: ModelFabric) -> None:
    """At any moment: from the lowest PSN that any rank lacks, under a new epoch, every rank still gets every sum."""
    report = explored(fabric)
    assert report.states > 150
    assert report.live, explained(report)


@pytest.mark.parametrize("message", [1, 2])
def test_ranks_keep_two_windows_and_the_rest_of_a_message(message: int) -> None:
    """A new epoch begins where a message does, up to L - 1 packets below what any rank lacks: so much more is kept."""
    enough = ModelFabric(("ww",), window=2, message=message, slots=4, psns=6, replans=1, kept=4 + message - 1)
    report = explore(enough)
    assert report.live, explained(report)
    assert isinstance(explore(replace(enough, kept=enough.kept - 1)).wrong, NotKept)


@pytest.mark.parametrize("fabric", LOSING, ids=named)
def test_each_from_its_own_place_is_not_enough(fabric: ModelFabric) -> None:
    """A rank that has a result must repeat its part for one that lacks it: else the explorer finds that one stuck."""
    assert explore(fabric, Rules(one_start=False)).stuck


@pytest.mark.parametrize(
    "fabric",
    [
        ModelFabric(("ww",), window=1, slots=2, psns=3, restarts=1),
        ModelFabric(("w", "w"), window=1, slots=2, psns=3, restarts=1),
        ModelFabric(("rr",), message=1, slots=4, psns=2, restarts=1),
        ModelFabric(("rr",), message=1, slots=4, psns=1, restarts=1, each=1),
    ],
    ids=named,
)
def test_a_switch_that_restarts_under_its_old_entries_makes_no_wrong_sum(fabric: ModelFabric) -> None:
    """Empty slots and flows under entries of the running epoch, until the ranks are told: nothing wrong is believed,
    and all finish once they begin again."""
    report = explored(fabric)
    assert report.states > 150
    assert report.live, explained(report)


BOTH = [
    ModelFabric(("ww",), window=1, slots=2, psns=3, restarts=1, replans=1),
    ModelFabric(("w", "w"), window=1, slots=2, psns=2, restarts=1, replans=1),
    ModelFabric(("rr",), message=1, slots=4, psns=1, restarts=1, replans=1),
    ModelFabric(("ww",), window=1, slots=2, psns=2, restarts=1, replans=1, each=1),
]
"""A switch may lose its state under its old entries before, after or between the losses of all, or not at all."""


@pytest.mark.parametrize("fabric", BOTH, ids=named)
def test_a_switch_may_restart_before_and_after_trees_are_planned_anew(fabric: ModelFabric) -> None:
    """Both kinds of loss in one run, in any order and at any moment: every rank gets every sum, and can leave."""
    report = explored(fabric)
    assert report.states > 150
    assert report.live, explained(report)


@pytest.mark.parametrize(
    ("fabric", "rules"),
    [
        (ModelFabric(("ww",), window=1, slots=1, psns=3, restarts=1, replans=1), Rules()),
        (BOTH[2], Rules(repeat="asker")),
        (BOTH[0], Rules(one_start=False)),
    ],
    ids=named,
)
def test_what_is_needed_without_losses_is_needed_with_both(fabric: ModelFabric, rules: Rules) -> None:
    """With one slot less, an answer to the asker, or places of their own where the ranks begin again, one is stuck."""
    report = explore(fabric, rules)
    assert report.wrong is None
    assert report.stuck


def test_no_guard_is_a_wrong_sum_with_both_kinds_of_losses() -> None:
    """Where routes let a contribution through after a restart, a NIC takes it for the result."""
    assert isinstance(explore(BOTH[2], Rules(guarded=False)).wrong, WrongSum)


LEAVING = [
    ModelFabric(("ww",), window=1, slots=2, psns=3, each=1, replans=2),
    ModelFabric(("ww",), window=2, slots=4, psns=4, each=2, replans=1),
    ModelFabric(("www",), window=1, slots=2, psns=2, each=1, replans=1),
    ModelFabric(("w", "w"), window=1, slots=2, psns=2, each=1, replans=1),
    ModelFabric(("rr",), message=1, slots=4, psns=3, each=1, replans=1),
    ModelFabric(("rrw",), message=1, window=2, slots=4, psns=2, each=1),
]


@pytest.mark.parametrize("fabric", LEAVING, ids=named)
def test_ranks_leave_only_when_nobody_needs_them(fabric: ModelFabric) -> None:
    """Once all others have said, when asked, that they lack nothing of what they have begun, a rank may go, whatever
    the switches lose later: everybody gets every sum, and can leave in the end."""
    report = explored(fabric)
    assert report.states > 300
    assert report.live, explained(report)


@pytest.mark.parametrize("fabric", LEAVING[4:], ids=named)
def test_operations_may_end_acknowledged_where_ranks_settle_so(fabric: ModelFabric) -> None:
    """An RC rank whose operations wait for the acknowledgements of its sends says no earlier that it lacks nothing."""
    report = explore(fabric, Rules(ends_acknowledged=True, settles_acknowledged=True))
    assert report.live, explained(report)


@pytest.mark.parametrize("fabric", [LEAVING[0], *(replace(LEAVING[i], psns=1) for i in (2, 4))], ids=named)
@pytest.mark.parametrize("departure", ["at once", "unasked"])
def test_leaving_too_early_strands_who_stays(fabric: ModelFabric, departure: Departure) -> None:
    """One that has all it wants and goes, or that believes what the others said before it asked, is missed when the
    switches lose what they hold: the explorer finds who is stuck, with another rank gone."""
    report = explore(fabric, Rules(departure=departure))
    assert any(state.left for state in report.stuck)


def test_a_fabric_that_makes_no_sense_is_refused() -> None:
    """A single RC rank has no successor; a rank needs its credit."""
    with pytest.raises(ValueError, match="no ring"):
        ModelFabric(("rw",), slots=4, psns=2, window=2, message=1)
    with pytest.raises(ValueError, match="window"):
        ModelFabric(("ww",), slots=4, psns=2)
    with pytest.raises(ValueError, match="message"):
        ModelFabric(("rr",), slots=4, psns=2)
    with pytest.raises(ValueError, match="whole number"):
        ModelFabric(("rr",), slots=4, psns=3, message=1, each=2)
    with pytest.raises(ValueError, match="expected 3 each"):
        ModelFabric(("ww",), slots=4, psns=3, window=2, lanes=(1,))
    with pytest.raises(ValueError, match="rank 0 is RC"):
        ModelFabric(("rr",), slots=4, psns=1, message=1, lanes=(2,))


def test_too_many_states_are_an_error() -> None:
    """An exploration that was not finished has proved nothing, and says so."""
    with pytest.raises(OverflowError, match="more than 100 states"):
        explore(RC[0], limit=100)

# SPDX-License-Identifier: Apache-2.0
"""The slot protocol, exhaustively: no wrong sum and no stuck host, and the explorer sees what a broken rule does."""

from __future__ import annotations

import pytest

from netfold.sim.slots import Departure, ModelFabric, explore


@pytest.mark.parametrize(
    "fabric",
    [
        ModelFabric((2,), window=1, slots=2, psns=4),
        ModelFabric((2,), window=2, slots=4, psns=7),
        ModelFabric((2,), window=3, slots=6, psns=7),
        ModelFabric((3,), window=1, slots=2, psns=4),
        ModelFabric((3,), window=2, slots=4, psns=5),
        ModelFabric((1, 1), window=1, slots=2, psns=4),
        ModelFabric((2, 1), window=1, slots=2, psns=4),
        ModelFabric((2, 2), window=1, slots=2, psns=3),
    ],
    ids=str,
)
def test_two_windows_of_slots_are_safe_and_live(fabric: ModelFabric) -> None:
    """With slots = 2 W no order of losses, repeats and delays gives a wrong sum or leaves a host stuck."""
    report = explore(fabric)
    assert report.states > 50
    assert report.live, report.stuck[0]


@pytest.mark.parametrize("leaves", [(2,), (1, 1)])
def test_fewer_slots_leave_a_host_stuck(leaves: tuple[int, ...]) -> None:
    """With 2 W - 1 slots a rank that runs ahead takes over a slot that another still needs: the explorer finds it."""
    assert not explore(ModelFabric(leaves, window=1, slots=1, psns=3)).live


def test_three_slots_do_not_carry_a_window_of_two() -> None:
    """The bound is tight for larger windows as well."""
    assert not explore(ModelFabric((2,), window=2, slots=3, psns=5)).live


@pytest.mark.parametrize("leaves", [(2,), (1, 1)])
def test_psns_may_wrap(leaves: tuple[int, ...]) -> None:
    """With 3-bit PSNs that start near their end, serial arithmetic keeps every property."""
    assert explore(ModelFabric(leaves, window=1, slots=2, psns=5, psn_bits=3, first_psn=5)).live


def test_late_contributions_must_not_take_slots_over() -> None:
    """Without the age check, a delayed repeat undoes a newer slot and strands its host: the explorer reports it."""
    assert not explore(ModelFabric((2,), window=1, slots=2, psns=4), checks_age=False).live


LOSING = [
    ModelFabric((2,), window=1, slots=2, psns=3, replans=2),
    ModelFabric((2,), window=2, slots=4, psns=4, replans=1),
    ModelFabric((3,), window=1, slots=2, psns=3, replans=1),
    ModelFabric((1, 1), window=1, slots=2, psns=3, replans=1),
]


@pytest.mark.parametrize("fabric", LOSING, ids=str)
def test_switches_may_lose_all_they_hold(fabric: ModelFabric) -> None:
    """At any moment: from the lowest PSN that any rank lacks, under a new epoch, every rank still gets every sum."""
    report = explore(fabric)
    assert report.states > 150
    assert report.live, report.stuck[0]


@pytest.mark.parametrize("fabric", LOSING, ids=str)
def test_each_from_its_own_place_is_not_enough(fabric: ModelFabric) -> None:
    """A rank that has a result must repeat its part for one that lacks it: else the explorer finds that one stuck."""
    assert not explore(fabric, resume_apart=True).live


LEAVING = [
    ModelFabric((2,), window=1, slots=2, psns=3, each=1, replans=2),
    ModelFabric((2,), window=2, slots=4, psns=4, each=2, replans=1),
    ModelFabric((3,), window=1, slots=2, psns=2, each=1, replans=1),
    ModelFabric((1, 1), window=1, slots=2, psns=2, each=1, replans=1),
]


@pytest.mark.parametrize("fabric", LEAVING, ids=str)
def test_ranks_leave_only_when_nobody_needs_them(fabric: ModelFabric) -> None:
    """Once all others have said, when asked, that they lack nothing of what they have begun, a rank may go, whatever
    the switches lose later: everybody gets every sum, and can leave in the end."""
    report = explore(fabric)
    assert report.states > 300
    assert report.live, report.stuck[0]


@pytest.mark.parametrize("fabric", LEAVING[::2], ids=str)
@pytest.mark.parametrize("departure", ["at once", "unasked"])
def test_leaving_too_early_strands_who_stays(fabric: ModelFabric, departure: Departure) -> None:
    """One that has all it wants and goes, or that believes what the others said before it asked, is missed when the
    switches lose what they hold: the explorer finds who is stuck, with another rank gone."""
    report = explore(fabric, departure=departure)
    assert not report.live
    assert any(state.left for state in report.stuck)

# SPDX-License-Identifier: Apache-2.0
"""What a rank has heard of the others: told once, and whose fault it is."""

from __future__ import annotations

import pytest

from netfold.host.mesh.failure_reports import FailureReports
from netfold.host.mesh.mesh import culprits


def test_each_thing_is_new_once_and_the_first_reason_stands() -> None:
    """Ranks pass on what is new to them: anything else would go round for ever."""
    reports = FailureReports(0)
    assert [reports.add_lost(3, "died"), reports.add_lost(3, "hung up"), reports.add_lost(4, "died")] == [
        True,
        False,
        True,
    ]
    assert [reports.add_wait(1, 3), reports.add_wait(1, 3), reports.add_wait(1, 2), reports.add_wait(2, 3)] == [
        True,
        False,
        True,
        True,
    ]
    assert sorted(reports.all()) == [(0, 3, "died"), (0, 4, "died"), (1, 2, ""), (1, 3, ""), (2, 3, "")]


def test_told_are_facts_and_our_own_waits_but_not_those_of_others() -> None:
    """A rank that only knows that others wait has not yet said anything of itself."""
    waiting, missing, knowing = FailureReports(0), FailureReports(0), FailureReports(0)
    waiting.add_wait(1, 2)
    missing.set_own_waits([2])
    knowing.add_lost(2, "died")
    assert (waiting.announced, missing.announced, knowing.announced) == (False, True, True)


def test_the_chain_of_waits_leads_to_who_said_nothing() -> None:
    """0 misses 1, 1 misses 2, and 2 is silent."""
    reports = FailureReports(0)
    reports.set_own_waits([1])
    reports.add_wait(1, 2)
    assert reports.culprits() == [2]


@pytest.mark.parametrize(
    ("waits", "rank", "guilty"),
    [
        ({0: {1}}, 0, [1]),
        ({0: {1, 4}, 1: {2}, 2: {3}, 4: {3}}, 0, [3]),
        ({0: {1, 4}, 1: {4}}, 0, [4]),
        ({0: {1, 4}}, 0, [1, 4]),
        ({0: {1}, 1: {2}, 2: {0}}, 0, [1]),
        ({0: {1}, 1: {2}, 2: {1}}, 0, [1]),
    ],
)
def test_chains_of_who_waits_for_whom_end_at_culprits(waits: dict[int, set[int]], rank: int, guilty: list[int]) -> None:
    """Those that wait for nobody; in a circle the neighbours."""
    assert culprits(waits, rank) == guilty

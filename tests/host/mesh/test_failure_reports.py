# SPDX-License-Identifier: Apache-2.0
"""Failure reports: each is passed on once, and the wait-for graph leads to the ranks at fault."""

from __future__ import annotations

import pytest

from netfold.host.mesh.failure_reports import FailureReports
from netfold.host.mesh.mesh import culprits


def test_each_report_is_new_once_and_the_first_reason_stands() -> None:
    """A report is new only once, since a rank passes on what is new and reports would else circulate for ever."""
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


def test_a_rank_has_announced_losses_and_its_own_waits_but_not_those_of_others() -> None:
    """A rank that only knows that others wait has not announced anything itself."""
    waiting, missing, knowing = FailureReports(0), FailureReports(0), FailureReports(0)
    waiting.add_wait(1, 2)
    missing.set_own_waits([2])
    knowing.add_lost(2, "died")
    assert (waiting.announced, missing.announced, knowing.announced) == (False, True, True)


def test_a_rank_that_has_left_announces_nothing() -> None:
    """That somebody left in order is known once, and is no reason to give up."""
    reports = FailureReports(0)
    reports.add_left(2, "after operation 3")
    reports.add_left(2, "later")
    assert (reports.left, reports.announced, list(reports.all())) == ({2: "after operation 3"}, False, [])


def test_the_wait_for_graph_leads_to_the_rank_that_reported_nothing() -> None:
    """Rank 0 waits for 1, rank 1 for 2, and 2 reports nothing: 2 is at fault."""
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
def test_the_wait_for_graph_ends_at_culprits(waits: dict[int, set[int]], rank: int, guilty: list[int]) -> None:
    """The ranks at fault are those that wait for nobody, or in a circle the neighbours."""
    assert culprits(waits, rank) == guilty


def named(
    waits: dict[int, list[int]], heard: dict[int, list[int]], *, stale: int = 0
) -> dict[int, tuple[list[int], bool]]:
    """By rank: whom it names, and whether it warns, where ``waits`` says who waits for whom and ``heard`` whose words
    each has heard."""
    said = {}
    for rank, whom in waits.items():
        reports = FailureReports(rank)
        for who in heard[rank]:
            reports.add_long_wait(who, 17 + stale, ",".join(map(str, waits[who])))
        said[rank] = reports.to_name(17, whom)
    return said


def test_after_a_long_wait_those_name_a_rank_who_wait_for_it() -> None:
    """In a ring in which rank 2 hangs, rank 3 waits for it and warns; rank 0 says that all wait."""
    ring = {0: [4], 1: [0], 3: [2], 4: [3]}
    said = named(ring, {0: [1, 4], 1: [0], 3: [4], 4: [3, 0]})
    assert said[3] == ([2], True)
    assert {rank for rank, (_, warns) in said.items() if warns} == {0, 3}
    assert said[0] == ([], True)


def test_one_of_those_who_wait_for_a_rank_warns() -> None:
    """The first of them that the others have heard of, also where each waits for those that wait, too."""
    waits = {0: [1, 2, 3], 1: [0, 2, 3], 3: [0, 1, 2]}
    assert named(waits, {0: [1, 3], 1: [0, 3], 3: [0, 1]}) == {0: ([2], True), 1: ([2], False), 3: ([2], False)}
    assert named(waits, {0: [], 1: [], 3: []})[3] == ([0, 1, 2], True), "who has heard nothing says all it knows"
    assert named(waits, {0: [1, 3], 1: [0, 3], 3: [0, 1]}, stale=1)[3] == ([0, 1, 2], True), "of another operation"


def test_of_ranks_that_wait_for_each_other_the_first_warns() -> None:
    """A circle has nobody to blame, and is not passed over in silence; what a peer says beside numbers is nothing."""
    assert named({0: [1], 1: [0]}, {0: [1], 1: [0]}) == {0: ([], True), 1: ([], False)}
    reports = FailureReports(1)
    reports.add_long_wait(0, 17, "x,-1,,\u00b2,99999999999999999999")
    assert reports.to_name(17, [0]) == ([], False)

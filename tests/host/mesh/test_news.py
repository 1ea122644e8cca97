# SPDX-License-Identifier: Apache-2.0
"""What a rank has heard of the others: told once, and whose fault it is."""

from __future__ import annotations

import pytest

from netfold.host.mesh.mesh import culprits
from netfold.host.mesh.news import News


def test_each_thing_is_new_once_and_the_first_reason_stands() -> None:
    """Ranks pass on what is new to them: anything else would go round for ever."""
    news = News(0)
    assert [news.lost(3, "died"), news.lost(3, "hung up"), news.lost(4, "died")] == [True, False, True]
    assert [news.waiting(1, 3), news.waiting(1, 3), news.waiting(1, 2), news.waiting(2, 3)] == [True, False, True, True]
    assert sorted(news.all()) == [(0, 3, "died"), (0, 4, "died"), (1, 2, ""), (1, 3, ""), (2, 3, "")]


def test_told_are_facts_and_our_own_waits_but_not_those_of_others() -> None:
    """A rank that only knows that others wait has not yet said anything of itself."""
    waiting, missing, knowing = News(0), News(0), News(0)
    waiting.waiting(1, 2)
    missing.missed([2])
    knowing.lost(2, "died")
    assert (waiting.told, missing.told, knowing.told) == (False, True, True)


def test_the_chain_of_waits_leads_to_who_said_nothing() -> None:
    """0 misses 1, 1 misses 2, and 2 is silent."""
    news = News(0)
    news.missed([1])
    news.waiting(1, 2)
    assert news.culprits() == [2]


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

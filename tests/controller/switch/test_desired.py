# SPDX-License-Identifier: Apache-2.0
"""The desired state of a switch in parts: what is compared after a change, and what contradicts."""

from __future__ import annotations

import random

import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.desired import Desired
from netfold.controller.switch.entities import Conflict, Entry, State, state
from netfold.controller.switch.reconcile import diff


def part(*dsts: int, port: int = 1) -> State:
    """Entries of the routing table to these destinations."""
    return state(Entry(tables.ROUTE, (("dst", (dst, 32)),), tables.FORWARD, (("port", port),)) for dst in dsts)


def test_only_what_a_change_touches_is_compared() -> None:
    """A part of one entity beside one of thousands costs one comparison; what is lacking is what a whole comparison
    finds."""
    desired, actual = Desired(), State()
    desired.put("fabric", part(*range(2000)))
    assert desired.size == 2000
    desired.settle(actual)
    assert actual == desired.all
    desired.put("job", part(5000, port=2))
    assert desired.size == 1
    assert desired.lacking(actual) == diff(actual, desired.all)
    desired.settle(actual)
    assert desired.remove("job")
    assert not desired.remove("job")
    assert [update.verb for update in desired.lacking(actual)] == ["delete"]
    desired.unsettle()
    assert desired.size == 2000
    assert [update.verb for update in desired.lacking(actual)] == ["delete"]


def test_parts_may_say_the_same_and_not_contradict() -> None:
    """An entity that two parts have stays until both are gone; one that contradicts is refused, and changes nothing."""
    desired, actual = Desired(), State()
    desired.put("a", part(1, 2))
    desired.put("b", part(2, 3))
    desired.settle(actual)
    with pytest.raises(Conflict, match="contradicts"):
        desired.put("c", part(4, 3, port=9))
    with pytest.raises(Conflict, match="contradicts"):
        desired.put("a", part(2, port=9))
    assert desired.lacking(actual) == []
    desired.remove("a")
    desired.settle(actual)
    assert actual == part(2, 3)
    desired.rename("b", "d")
    assert desired.lacking(actual) == []
    assert (desired.part("b"), desired.part("d")) == (None, part(2, 3))


def test_a_thousand_random_changes_leave_what_a_whole_comparison_leaves() -> None:
    """After each change the switch lacks what it lacks by a comparison of everything, however often it settles."""
    rng, desired, actual = random.Random(39), Desired(), State()
    for _ in range(1000):
        name = rng.choice("abcd")
        if rng.random() < 0.3:
            desired.remove(name)
        else:
            own = 100 * ord(name)
            desired.put(name, part(*(own + n for n in rng.sample(range(9), 4)), port=rng.randrange(3)))
        assert sorted(map(str, desired.lacking(actual))) == sorted(map(str, diff(actual, desired.all)))
        assert desired.all == state(entity for each in "abcd" for entity in (desired.part(each) or {}).values())
        if rng.random() < 0.5:
            desired.settle(actual)
            assert actual == desired.all

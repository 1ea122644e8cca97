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


class Switch:
    """A switch that holds what it is written."""

    def __init__(self) -> None:
        self.desired, self.held = Desired(), State()
        self.desired.compare(self.held)

    def settle(self) -> None:
        """Write what it lacks."""
        for update in self.desired.lacking():
            if update.verb == "delete":
                del self.held[update.entity.identity]
            else:
                assert (update.verb == "insert") == (update.entity.identity not in self.held)
                self.held[update.entity.identity] = update.entity
        self.desired.settle()
        assert self.held == self.desired.all


def test_only_what_a_change_touches_is_compared() -> None:
    """A part of one entity beside one of thousands costs one comparison; what is lacking is what a whole comparison
    finds."""
    switch = Switch()
    desired = switch.desired
    desired.put({"fabric": part(*range(2000))})
    assert desired.size == 2000
    switch.settle()
    desired.put({"job": part(5000, port=2)})
    assert desired.size == 1
    assert desired.lacking() == diff(switch.held, desired.all)
    switch.settle()
    assert desired.remove("job")
    assert not desired.remove("job")
    assert [update.verb for update in desired.lacking()] == ["delete"]
    desired.unsettle()
    assert not desired.is_compared
    desired.put({"job": part(7)})
    desired.compare(switch.held)
    assert desired.size == 1
    assert [update.verb for update in desired.lacking()] == ["delete"]


def test_what_comes_and_goes_before_it_is_written_is_not_written() -> None:
    """A part that is removed again, or replaced by what was there, leaves nothing to write; nor does one that adopts
    what a comparison found."""
    switch = Switch()
    desired = switch.desired
    desired.put({"a": part(1, 2)})
    switch.settle()
    desired.put({"b": part(3)})
    desired.put({"a": part(2, port=9)})
    desired.remove("b")
    desired.put({"a": part(1, 2)})
    assert desired.lacking() == []
    desired.compare(switch.held | part(4))
    assert [update.verb for update in desired.lacking()] == ["delete"]
    desired.put({"found": part(4)})
    assert desired.lacking() == []


def test_parts_may_say_the_same_and_not_contradict() -> None:
    """An entity that two parts have stays until both are gone; one that contradicts is refused, and changes nothing."""
    switch = Switch()
    desired = switch.desired
    desired.put({"a": part(1, 2)})
    desired.put({"b": part(2, 3)})
    switch.settle()
    with pytest.raises(Conflict, match="contradicts"):
        desired.put({"c": part(4, 3, port=9)})
    with pytest.raises(Conflict, match="contradicts"):
        desired.put({"a": part(2, port=9)})
    assert desired.lacking() == []
    desired.remove("a")
    switch.settle()
    assert switch.held == part(2, 3)
    desired.rename("b", "d")
    assert desired.lacking() == []
    assert (desired.part("b"), desired.part("d")) == (None, part(2, 3))


def test_an_entity_may_move_between_parts_that_are_replaced_together() -> None:
    """It is modified, and neither deleted nor refused; two of them that contradict are, and change nothing."""
    switch = Switch()
    desired = switch.desired
    desired.put({"hosts": part(1, 2), "routes": part(3)})
    switch.settle()
    desired.put({"hosts": part(2), "routes": part(3) | part(1, port=9)})
    assert [update.verb for update in desired.lacking()] == ["modify"]
    switch.settle()
    with pytest.raises(Conflict, match="contradicts"):
        desired.put({"hosts": part(5), "routes": part(5, port=9)})
    assert desired.lacking() == []
    assert desired.all == part(2, 3) | part(1, port=9)


def test_a_thousand_random_changes_leave_what_a_whole_comparison_leaves() -> None:
    """After each change the switch lacks what it lacks by a comparison of everything, however often it settles, and
    however often it is read."""
    rng, switch = random.Random(39), Switch()
    desired = switch.desired
    for _ in range(1000):
        name = rng.choice("abcd")
        if rng.random() < 0.3:
            desired.remove(name)
        else:
            own = 100 * ord(name)
            desired.put({name: part(*(own + n for n in rng.sample(range(9), 4)), port=rng.randrange(3))})
        if rng.random() < 0.2:
            desired.unsettle()
            desired.compare(switch.held)
        assert sorted(map(str, desired.lacking())) == sorted(map(str, diff(switch.held, desired.all)))
        assert desired.all == state(entity for each in "abcd" for entity in (desired.part(each) or {}).values())
        if rng.random() < 0.5:
            switch.settle()

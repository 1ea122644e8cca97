# SPDX-License-Identifier: Apache-2.0
"""Switches with more than 64 children in a tree: each child has a bit of its own, and only all of them together
complete a slot.  The compiled program with the controller's own entries, and BMv2 beside it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.controller.switch.probe import PROBE, SlotState, answer, question
from netfold.fabric.folding.trees import MAX_CHILDREN
from netfold.fabric.graph import CPU_PORT
from netfold.wire import roce
from support.models.nic_packets import Rc, Reth
from support.p4.scene import Out, Scene, compare_with_bmv2, lanes

SIZE = 64
"""Bytes of a payload."""


def value(place: int) -> int:
    """What each lane of a rank holds: no two sets of ranks with the same sum are likely."""
    return place * place * 0x10001 + 1


def contribute(s: Scene, place: int, psn: int, **fields: object) -> Out:
    """A rank's lanes."""
    return s.send(place, psn, lanes(value(place), SIZE), **fields)


def present(s: Scene, place: int, psn: int) -> Out:
    """A rank is there, has no lanes, and needs none."""
    return s.send(place, psn, b"", opcode=Rc.WRITE_ONLY, reth=Reth(0, 0, 0), solicited=True)


def total(s: Scene) -> bytes:
    """The sum of all ranks."""
    return lanes(sum(map(value, range(len(s.ports)))) & 0xFFFFFFFF, SIZE)


def state(s: Scene, psn: int) -> SlotState:
    """What a slot holds, by the controller's probe."""
    index = s.stream.bases[s.here.name] + (psn & s.stream.slots - 1)
    s.engine.packet_out((CPU_PORT << 7 | PROBE).to_bytes(2, "big") + question(index, s.children))
    assert s.engine.take() == []
    return answer(s.engine.events.pop().data[2:], s.children)[1]


def shuffled(s: Scene) -> list[int]:
    """The ranks in some order."""
    places = list(range(len(s.ports)))
    random.Random(len(places)).shuffle(places)
    return places


def finish(s: Scene, psn: int, out: Out) -> None:
    """What the last contribution brought is the sum of all; each rank gets it, once, and again if it repeats."""
    if not s.root:
        assert out == s.up(psn, total(s))
        out = s.parent(psn, total(s))
    assert [to for to, _ in out] == sorted(s.ports)
    assert {packet.payload for _, packet in out} == {total(s)}
    assert {packet.dst for _, packet in out} == {host.address for host in s.hosts[:len(s.ports)]}
    for place in (0, len(s.ports) // 2, len(s.ports) - 1):
        assert [(to, packet.payload) for to, packet in contribute(s, place, psn)] == [(s.ports[place], total(s))]


def all_ranks_fold_into_one_sum(s: Scene) -> None:
    """In any order, each repeating itself before the last is there: it counts once, and nothing leaves before."""
    psn = s.take()
    *first, last = shuffled(s)
    for place in first:
        assert contribute(s, place, psn) == []
        assert contribute(s, place, psn) == [] or place == first[-1]
    finish(s, psn, contribute(s, last, psn))


def ranks_whose_numbers_share_their_lowest_bits_have_bits_of_their_own(s: Scene) -> None:
    """Each of 0, 64, 128 and 192 is missing until it has come itself, however often the others come."""
    psn = s.take()
    alike = range(0, len(s.ports), 64)
    for place in shuffled(s):
        if place not in alike:
            contribute(s, place, psn)
    for count, place in enumerate(alike, 1):
        others = [other for other in alike if other < place]
        for other in others:
            assert contribute(s, other, psn) == []
        assert state(s, psn).bitmap.bit_count() == len(s.ports) - len(alike) + count - 1
        assert state(s, psn).bitmap >> place & 1 == 0
        out = contribute(s, place, psn)
    assert state(s, psn).bitmap == (1 << len(s.ports)) - 1
    finish(s, psn, out)


def who_speaks_for_another_is_not_counted(s: Scene) -> None:
    """A contribution in the name of the last rank, from any other port, sets no bit."""
    psn = s.take()
    last = len(s.ports) - 1
    for place in range(last):
        contribute(s, place, psn)
    forged = s.contribution(last, psn, lanes(value(last), SIZE)).frame()
    for place in (0, last - 64, last - 1):
        s.inject(s.ports[place], forged)
        assert state(s, psn).bitmap == (1 << last) - 1
    finish(s, psn, contribute(s, last, psn))


def a_rank_that_asks_hears_what_is_missing(s: Scene) -> None:
    """Ranks that have contributed hear nothing, others that their contribution is missing."""
    psn = s.take()
    last = len(s.ports) - 1
    for place in range(1, last):
        contribute(s, place, psn)
    assert s.ask(last - 1, psn) == []
    for place in (0, last):
        ((to, packet),) = s.ask(place, psn)
        assert (to, packet.opcode, packet.psn) == (s.ports[place], roce.Opcode.ACKNOWLEDGE, psn)
    contribute(s, 0, psn)
    finish(s, psn, contribute(s, last, psn))


def the_acknowledgement_is_enough_for_those_who_say_so(s: Scene) -> None:
    """Also for ranks from 64 on: all others get the lanes."""
    psn = s.take()
    content = set(range(0, len(s.ports), 2)) - {0}
    out: Out = []
    for place in range(len(s.ports)):
        fields = {"opcode": Rc.WRITE_MIDDLE, "solicited": place in content}
        out = contribute(s, place, psn, **fields)
    if not s.root:
        out = s.parent(psn, total(s), opcode=Rc.WRITE_MIDDLE)
    assert {to: packet.payload for to, packet in out} == {
        port: b"" if place in content else total(s) for place, port in enumerate(s.ports)}


def a_barrier_is_over_when_all_are_there(s: Scene) -> None:
    """Presence of all ranks, and nothing before."""
    psn = s.take()
    *first, last = shuffled(s)
    for place in first:
        assert present(s, place, psn) == []
    assert state(s, psn).content
    out = present(s, last, psn)
    if not s.root:
        assert [(to, packet.payload, packet.solicited) for to, packet in out] == [(s.fold.parent_port, b"", True)]
        out = s.parent(psn, b"", opcode=Rc.WRITE_ONLY, reth=Reth(0, 0, 0))
    assert [(to, packet.payload) for to, packet in out] == [(port, b"") for port in sorted(s.ports)]


RULES = [
    all_ranks_fold_into_one_sum,
    ranks_whose_numbers_share_their_lowest_bits_have_bits_of_their_own,
    who_speaks_for_another_is_not_counted,
    a_rank_that_asks_hears_what_is_missing,
    the_acknowledgement_is_enough_for_those_who_say_so,
    a_barrier_is_over_when_all_are_there,
]


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Parameters: number of ranks; True if the switch is the tree's root; True if packets may grow."""
    ranks, root, grows = request.param
    made = Scene(ranks=ranks, root=root, nics=False, grows=grows)
    yield made
    made.close()


@pytest.mark.parametrize("scene", [(65, True, True), (MAX_CHILDREN, True, True), (200, False, True)],
                         ids=["65", "256", "200 of a leaf"], indirect=True)
def test_each_of_many_children_counts_once(scene: Scene) -> None:
    """The rules' docstrings say how."""
    for rule in RULES:
        rule(scene)


@pytest.mark.needs("bmv2")
@pytest.mark.parametrize("scene", [(70, True, False)], indirect=True)
def test_bmv2_counts_many_children_byte_for_byte(scene: Scene, tmp_path: Path) -> None:
    """All rules one after another on one switch; the same frames leave BMv2's ports."""
    for rule in RULES:
        rule(scene)
    compare_with_bmv2(scene, tmp_path)

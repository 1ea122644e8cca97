# SPDX-License-Identifier: Apache-2.0
"""The compiled P4 program against the slot model, packet by packet, on schedules that hypothesis draws.

Hosts obey the window and nothing else: they run ahead, lag, and repeat what they miss when the schedule says so.  The
network keeps, loses, repeats and reorders packets as it likes, for as long as it likes.  After every packet each switch
must have sent what the model's switch sends, every result must be the exact sum, and in the end repeats alone must
bring every rank all of its results.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from netfold.controller.jobs import plans
from netfold.controller.switch import fold_tables, tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.generate import parse
from netfold.fabric.graph import End, Fabric
from netfold.host.innet.slot_switch import NO_LANES, Nak
from netfold.host.innet.slot_switch import parse as packet_of
from netfold.testing import Packet, SlotSwitch
from netfold.wire import roce
from netfold.wire.plan import RankStream
from softswitch.engine import local
from support.models.nic_packets import icrc_holds
from support.p4.program import library
from support.p4.wires import as_sent, write

pytestmark = pytest.mark.slow

PSNS = 9
"""How many each rank sends: twice around the slots."""
FLYING = 40
"""Packets in flight that the network keeps at most."""


@cache
def fabric_of(text: str) -> Fabric:
    return parse(text, path_mtu=roce.PATH_MTU)


class Flight(NamedTuple):
    """A frame in flight, which may arrive, or be lost or repeated."""

    node: str
    port: int
    frame: bytes


class Fold(NamedTuple):
    """A switch: the program's and the model's, and who is at which port."""

    engine: local.LocalEngine
    model: SlotSwitch
    children: dict[int, int]
    """Port to place among the children."""
    parent: int


class Machine(RuleBasedStateMachine):
    """Ranks on a tree of P4 switches."""

    topo: ClassVar[str]
    window: ClassVar[int]
    slots: ClassVar[int]
    roles: ClassVar[bool]
    """True if some contribute no lanes, and to some the acknowledgement is enough; else all contribute and want."""

    @initialize(first=st.sampled_from([5, roce.PSN_MASK - 2, roce.PSN_MASK]))
    def build(self, first: int) -> None:
        """A fresh fabric; PSNs begin anywhere, also shortly before their wrap."""
        fabric = fabric_of(self.topo)
        self.hosts = list(fabric.hosts)
        world = len(self.hosts)
        self.first = first
        self.sent = [0] * world
        self.last: dict[int, int] = {}
        """Rank -> the PSN that left it last."""
        self.has: list[set[int]] = [set() for _ in range(world)]
        self.flying: list[Flight] = []
        drawn = random.Random(first)
        every = range(world)
        self.contributes = [{r for r in every if not self.roles or drawn.random() < 0.5} for _ in range(PSNS)]
        """Of each PSN: the ranks that have lanes, none of all in some."""
        self.content = [{r for r in every if self.roles and drawn.random() < 0.5} for _ in range(PSNS)]
        """Of each PSN: the ranks to which the acknowledgement is enough, all of them in some."""
        planned = trees.plan(fabric.graph(), [host.name for host in self.hosts])
        sizes = slots.Sizes(data=self.slots, agreement=1)
        allocator = slots.Allocator([s.name for s in fabric.switches], sizes, random.Random(5))
        stream = allocator.admit(planned[:1], [range(world)])[0]
        self.streams: list[RankStream] = [
            plans.rank_trees(fabric, [(stream, rank)] * 2, self.hosts)[0].data for rank in range(world)
        ]
        self.ends = {end: far for link in fabric.links for end, far in (link.ends, link.ends[::-1])}
        self.folds: dict[str, Fold] = {}
        entries = tables.merge([tables.clone_sessions(fabric), fold_tables.fold_entries(fabric, self.hosts, stream)])
        for fold in stream.tree.folds:
            one = local.LocalEngine.open(library(), cpu_port=510)
            for entity in entries[fold.switch]:
                write(one, entity)
            model = SlotSwitch(len(fold.children), self.slots, root=fold.is_root)
            children = {child.port: place for place, child in enumerate(fold.children)}
            self.folds[fold.switch] = Fold(one, model, children, fold.parent_port)

    def teardown(self) -> None:
        """Whatever happened, it must end well; then the engines go."""
        if not hasattr(self, "folds"):
            return
        try:
            self.finish()
        finally:
            for fold in self.folds.values():
                fold.engine.close()

    # ---- what may happen -------------------------------------------------------------------------------------------

    @rule(rank=st.integers(0, 7), count=st.integers(1, 3))
    def send(self, rank: int, count: int) -> None:
        """A rank sends what its window lets it."""
        rank %= len(self.hosts)
        for _ in range(count):
            if self.sent[rank] < min(PSNS, self.lowest_missing(rank) + self.window):
                self.transmit(rank, self.sent[rank])
                self.sent[rank] += 1

    @rule(rank=st.integers(0, 7))
    def repeat(self, rank: int) -> None:
        """A rank sends all again whose results it misses."""
        rank %= len(self.hosts)
        for psn in sorted(set(range(self.sent[rank])) - self.has[rank]):
            self.transmit(rank, psn)

    @rule(rank=st.integers(0, 7), count=st.integers(1, 3))
    def ask(self, rank: int, count: int) -> None:
        """A rank asks for results that it misses."""
        rank %= len(self.hosts)
        lowest = self.lowest_missing(rank)
        if lowest < self.sent[rank]:
            psn = (self.first + lowest) & roce.PSN_MASK
            end = (psn + min(count, self.sent[rank] - lowest)) & roce.PSN_MASK
            self.leave(rank, Nak(psn, end).build(self.streams[rank].peer_qp))

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, FLYING), keep=st.booleans())
    def arrive(self, which: int, keep: bool) -> None:
        """Any packet in flight arrives; a copy of it may stay in flight."""
        flight = self.flying[which % len(self.flying)]
        if not keep:
            self.flying.remove(flight)
        self.deliver(flight)

    @precondition(lambda self: self.flying)
    @rule()
    def all_arrive(self) -> None:
        """All that is in flight arrives, but not what that sets off."""
        flying, self.flying = self.flying, []
        for flight in flying:
            self.deliver(flight)

    @precondition(lambda self: self.flying)
    @rule(which=st.integers(0, FLYING))
    def lose(self, which: int) -> None:
        """Any packet in flight is lost."""
        self.flying.pop(which % len(self.flying))

    @invariant()
    def the_network_forgets(self) -> None:
        """What is in flight for too long is lost, so that schedules stay small."""
        del self.flying[:-FLYING]

    def finish(self) -> None:
        """No more losses: every rank gets every result by repeating."""
        for _ in range(3 * PSNS):
            for rank in range(len(self.hosts)):
                self.repeat(rank)
                self.send(rank, self.window)
            while self.flying:
                self.deliver(self.flying.pop(0))
            if all(len(has) == PSNS for has in self.has):
                return
        raise AssertionError(f"stuck: results by rank {self.has}, sent {self.sent}")

    # ---- mechanics -------------------------------------------------------------------------------------------------

    def lowest_missing(self, rank: int) -> int:
        return next(psn for psn in range(PSNS + 1) if psn not in self.has[rank])

    def lanes(self, rank: int, psn: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        """A contribution that no other sum contains; its lanes differ, and some carry."""
        return (np.arange(roce.LANES, dtype=np.uint32) << 24) + np.uint32((1 << 28) + (psn << 8) + (1 << rank))

    def transmit(self, rank: int, psn: int) -> None:
        stream = self.streams[rank]
        on_wire = (self.first + psn) & roce.PSN_MASK
        opcode, reth, lanes = roce.Opcode.WRITE_MIDDLE, b"", self.lanes(rank, psn)
        if rank not in self.contributes[psn]:
            opcode, reth, lanes = roce.Opcode.WRITE_ONLY, roce.RETH.pack(7 << 32 | psn * roce.PATH_MTU, 0, 0), NO_LANES
        order = roce.order_of(on_wire, self.last.get(rank, on_wire - 1))
        self.last[rank] = on_wire
        packet = Packet(roce.LaneOperation.SUM32, opcode, 0, on_wire, reth, lanes, content=rank in self.content[psn],
                        order=order)
        self.leave(rank, packet.build(stream.peer_qp))

    def leave(self, rank: int, payload: bytes) -> None:
        stream, host = self.streams[rank], self.hosts[rank]
        whole = as_sent(host.mac, host.address, 0, payload, stream.source_port, stream.peer)
        self.put(host.name, 0, whole[:-4] + roce.icrc(whole[14:-4]))

    def put(self, node: str, port: int, frame: bytes) -> None:
        self.flying.append(Flight(*self.ends[End(node, port)], frame))

    def deliver(self, flight: Flight) -> None:
        packet = packet_of(flight.frame[42:])
        fold = self.folds.get(flight.node)
        if fold is None:
            rank = next(rank for rank, host in enumerate(self.hosts) if host.name == flight.node)
            psn = (packet.psn - self.first) & roce.PSN_MASK
            if isinstance(packet, Nak):
                for lacked in range(psn, psn + ((packet.end - packet.psn) & roce.PSN_MASK)):
                    if lacked < self.sent[rank]:
                        self.transmit(rank, lacked)
                return
            if rank in self.content[psn] or not self.contributes[psn]:
                assert packet.presence, f"rank {rank}, PSN {psn}: lanes that it does not want, or that nobody has sent"
            else:
                total = sum(self.lanes(other, psn) for other in self.contributes[psn])
                assert not packet.presence, f"rank {rank}, PSN {psn}: no lanes"
                assert (packet.lanes == total).all(), f"rank {rank}, PSN {psn}: a wrong sum"
            assert not packet.content, f"rank {rank}, PSN {psn}: a result that says what only contributions say"
            assert psn < self.sent[rank], f"rank {rank} got a result that it never asked for"
            self.has[rank].add(psn)
            return
        out = fold.engine.inject(flight.port, flight.frame)
        sender: int | Literal["parent"] = fold.children.get(flight.port, "parent")
        # the program takes a question for several packets apart, as those who ask would
        asked = [packet] if isinstance(packet, Packet) else [
            Nak(psn & roce.PSN_MASK, (psn + 1) & roce.PSN_MASK)
            for psn in range(packet.psn, packet.psn + ((packet.end - packet.psn) & roce.PSN_MASK))
        ]
        places = {place: port for port, place in fold.children.items()}
        expected: list[tuple[int, object]] = []
        for one in asked:
            for target, answer in fold.model.take(sender, one):
                several = {"all": sorted(fold.children), "parent": [fold.parent]}
                ports = several.get(str(target)) or [places[int(target)]]
                expected += [(port, shown(answer)) for port in ports]
        got = [(port, shown(packet_of(frame[42:]))) for port, frame in out]
        same = sorted(got, key=repr) == sorted(expected, key=repr)
        assert same, f"{flight.node}, PSN {packet.psn}: sent to {[pair[0] for pair in got]}, other lanes or other ports"
        for port, frame in out:
            assert icrc_holds(frame), f"{flight.node}, PSN {packet.psn}: ICRC"
            self.put(flight.node, port, frame)


def shown(packet: Packet | Nak) -> object:
    """The compared fields of a packet."""
    if isinstance(packet, Nak):
        return packet
    return packet.psn, packet.opcode, packet.content, packet.order, packet.lanes.tobytes()


def machine(topo: str, window: int, slots: int, *, roles: bool = False) -> type[Machine]:
    """The state machine for a topology, a window and a number of slots."""
    name = f"{topo}, window {window}, {slots} slots"
    return type(name, (Machine,), {"topo": topo, "window": window, "slots": slots, "roles": roles})


def explore(kind: type[Machine], examples: int, *, shrink: bool = True) -> None:
    """Run schedules; the same ones each time."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        kind,
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None, database=None, phases=phases,
                          derandomize=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize(
    ("topo", "window", "slots"),
    [
        ("leafspine,1,0,2", 1, 2),
        ("leafspine,1,0,3", 2, 4),
        ("leafspine,2,1,3", 1, 2),
        ("leafspine,2,1,4", 2, 4),
        ("threetier,2,1,1,1,3", 2, 4),
    ],
)
def test_the_program_does_what_the_model_does(
    topo: str, window: int, slots: int, thorough: Callable[[int], int]
) -> None:
    """One to three levels: the same packets as the model, exact sums, and no rank stuck, on any schedule."""
    explore(machine(topo, window, slots), thorough(30))


@pytest.mark.parametrize(
    ("topo", "window", "slots"),
    [("leafspine,1,0,3", 2, 4), ("leafspine,2,1,4", 2, 4), ("threetier,2,1,1,1,3", 2, 4)],
)
def test_the_program_does_what_the_model_does_without_lanes(
    topo: str, window: int, slots: int, thorough: Callable[[int], int]
) -> None:
    """Some contribute and others are there, some want the lanes and to others the acknowledgement is enough, in any
    mixture: the same packets as the model, exact sums to who wants them and to nobody else, and no rank stuck."""
    explore(machine(topo, window, slots, roles=True), thorough(20))


@pytest.mark.parametrize(("topo", "window", "slots"), [("leafspine,1,0,2", 1, 1), ("leafspine,2,1,3", 2, 2)])
def test_fewer_slots_than_two_windows_are_found_out(topo: str, window: int, slots: int) -> None:
    """Broken on purpose: a rank that runs ahead takes over a slot that another still needs, and strands it."""
    with pytest.raises(AssertionError, match="stuck"):
        explore(machine(topo, window, slots), 200, shrink=False)


def test_a_switch_that_forgets_its_children_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: against a model that loses its bitmap, the program's packets differ."""
    honest = SlotSwitch.up

    def forgetful(self: SlotSwitch, child: int, packet: Packet) -> object:
        for slot in self.slots:
            slot.children -= {child}
        return honest(self, child, packet)

    monkeypatch.setattr(SlotSwitch, "up", forgetful)
    with pytest.raises(AssertionError, match=r"other lanes|other ports"):
        explore(machine("leafspine,1,0,3", 2, 4), 200, shrink=False)

# SPDX-License-Identifier: Apache-2.0
"""The compiled program with NICs and windowed ranks as children, beside plain rules in Python, on drawn schedules.

Hypothesis draws which packet arrives, is lost or comes twice, and which timer fires, for as long as it likes.  After
every packet that a switch gets it must have sent what the rules of tests/support/models/fold_model.py say, headers and
lanes; whatever a rank takes must be the sum; and in the end timers and repeats alone must bring every rank all results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

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

from netfold.controller.switch.entities import Clone, Entity, Entry, Multicast
from netfold.fabric.graph import End
from netfold.wire import roce
from softswitch.engine import entities
from softswitch.engine.local import LocalEngine
from support.models import fold_model
from support.models.nic_packets import Packet, Rc, opcode_of
from support.models.slot_model import MICROSECOND, SECOND, TerribleNetwork
from support.p4.modelled import ModelledFabric, Schedule
from support.p4.program import library, native, on_bmv2
from support.p4.rc_fabric import Exact, Sender, allreduce
from switch_support.bmv2 import by_port

FLYING = 60
"""Packets in flight that the network keeps at most."""


class Machine(RuleBasedStateMachine):
    """NICs and windowed ranks on a tree of P4 switches."""

    shape: ClassVar[tuple[int, int, int]]
    rc: ClassVar[tuple[int, ...]]
    bmv2: ClassVar[bool] = False
    """True if the program is the one that BMv2 gets."""

    @initialize(psn=st.sampled_from([5, roce.PSN_MASK - 3, roce.PSN_MASK]), seed=st.integers(0, 3))
    def build(self, psn: int, seed: int) -> None:
        """A fresh fabric with 8 slots: messages of two packets; PSNs begin anywhere, also shortly before their wrap."""
        rng = random.Random(seed)
        self.network = Schedule(rng)
        self.fabric = ModelledFabric(*self.shape, self.network, rc=self.rc, size=8, psn=psn, bmv2=self.bmv2)
        payloads = [[rng.randbytes(size) for size in self.sizes()] for _ in range(self.shape[2])]
        self.fabric.give(payloads, 1)
        for rank in self.fabric.windowed.values():
            rank.opcodes = self.opcodes()
        whole = {rank: [b"".join(payloads[rank][first:end]) for first, end in self.messages()] for rank in self.rc}
        exact = Exact(self.fabric, whole)
        exact.expected = self.fabric.sums
        self.senders = [Sender(self.fabric, rank, own) for rank, own in whole.items()]

    def messages(self) -> list[tuple[int, int]]:
        """Messages end where a packet is short, and after two packets."""
        return [(0, 2), (2, 4), (4, 5), (5, 7), (7, 8), (8, 10)]

    def sizes(self) -> list[int]:
        """Bytes of each packet: full-size but for the last of a message."""
        return [1024, 700, 1024, 1024, 3, 1024, 1024, 256, 1024, 8]

    def opcodes(self) -> list[Rc]:
        """The opcodes that these messages have."""
        found = []
        for first, end in self.messages():
            for number in range(first, end):
                found.append(opcode_of("send", first=number == first, last=number == end - 1,
                                                  immediate=False))
        return found

    def teardown(self) -> None:
        """Whatever happened, it must end well; then the engines go."""
        if not hasattr(self, "senders"):
            return
        try:
            self.finish()
        finally:
            self.fabric.close()

    # ---- what may happen -------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 7))
    def act(self, which: int) -> None:
        """A rank sends what its credits or its window let it."""
        if self.fabric.windowed and which % 2:
            list(self.fabric.windowed.values())[which % len(self.fabric.windowed)].send()
        else:
            self.senders[which % len(self.senders)].step()

    @precondition(lambda self: self.fabric.windowed)
    @rule(which=st.integers(0, 7))
    def ask(self, which: int) -> None:
        """A windowed rank asks for what it misses."""
        list(self.fabric.windowed.values())[which % len(self.fabric.windowed)].ask()

    @precondition(lambda self: self.network.flying)
    @rule(which=st.integers(0, FLYING), keep=st.booleans())
    def arrive(self, which: int, keep: bool) -> None:
        """Any packet in flight arrives; a copy of it may stay in flight."""
        self.network.arrive(which, keep=keep)

    @precondition(lambda self: self.network.flying)
    @rule()
    def all_arrive(self) -> None:
        """All that is in flight arrives, but not what that sets off."""
        for _ in range(len(self.network.flying)):
            self.network.arrive(0)

    @precondition(lambda self: self.network.flying)
    @rule(which=st.integers(0, FLYING))
    def lose(self, which: int) -> None:
        """Any packet in flight is lost."""
        self.network.flying.pop(which % len(self.network.flying))

    @precondition(lambda self: self.network.timers)
    @rule()
    def fire(self) -> None:
        """The next timer fires."""
        self.network.fire()

    @invariant()
    def the_network_forgets(self) -> None:
        """What is in flight for too long is lost, so that schedules stay small; and no queue pair breaks."""
        if hasattr(self, "senders"):
            del self.network.flying[:-FLYING]
            assert not any(sender.mine.out.error or sender.mine.into.error for sender in self.senders)

    def finish(self) -> None:
        """No more losses: every rank gets every result."""
        for _ in range(400):
            for sender in self.senders:
                sender.step()
            for rank in self.fabric.windowed.values():
                rank.send()
                rank.ask()
            while self.network.flying:
                self.network.arrive(0)
            done = all(rank.missing() == len(rank.payloads) for rank in self.fabric.windowed.values())
            if done and all(sender.done for sender in self.senders):
                return
            if self.network.timers:
                self.network.fire()
        raise AssertionError(f"stuck: {self.fabric.states()}; {[r.has for r in self.fabric.windowed.values()]}")


def explore(shape: tuple[int, int, int], rc: tuple[int, ...], examples: int, *, shrink: bool = True) -> None:
    """Run schedules; the same ones each time."""
    kind = type(f"{shape} with NICs {rc}", (Machine,), {"shape": shape, "rc": rc})
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        kind,
        settings=settings(max_examples=examples, stateful_step_count=50, deadline=None, database=None, phases=phases,
                          derandomize=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize(
    ("shape", "rc"),
    [((1, 0, 2), (0, 1)), ((1, 0, 3), (0, 2)), ((2, 1, 4), (0, 1, 2, 3)), ((2, 1, 4), (1, 2))],
    ids=str,
)
@pytest.mark.slow
def test_the_program_does_what_the_rules_say(
    shape: tuple[int, int, int], rc: tuple[int, ...], thorough: Callable[[int], int]
) -> None:
    """NICs alone and beside windowed ranks, one and two levels: the same packets, exact sums, nobody stuck."""
    explore(shape, rc, thorough(20))


def test_an_answer_to_the_asker_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: against rules by which a NIC's repeat is answered to the NIC, the program differs."""
    honest = fold_model.ModelSwitch.leaves

    def to_the_asker(self: fold_model.ModelSwitch, to: int, form: fold_model.Form, slot: fold_model.Slot, *,
                     ack_req: bool | None = None) -> fold_model.Out:
        return honest(self, to, "result" if form == "onward" else form, slot, ack_req=ack_req)

    monkeypatch.setattr(fold_model.ModelSwitch, "leaves", to_the_asker)
    with pytest.raises(AssertionError, match="expected"):
        explore((1, 0, 2), (0, 1), 200, shrink=False)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", [(1, 0, 4), (2, 1, 5)], ids=str)
def test_long_runs_beside_the_rules(shape: tuple[int, int, int], seed: int) -> None:
    """Thousands of packets over a network of its own will, slots used again many times, WRITE and immediate data."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    network = TerribleNetwork(rng, loss=0.03, duplicate=0.03, reorder=0.03, packet_time=2 * MICROSECOND)
    fabric = ModelledFabric(*shape, network, size=32, psn=roce.PSN_MASK - 20)
    try:
        sizes = [8 * 1024] * 6 + [rng.randrange(1, 8 * 1024) for _ in range(8)]
        allreduce(fabric, {rank: [rng.randbytes(size) for size in sizes] for rank in range(shape[2])}, verb="write",
                  immediate=seed == 1, limit=20 * SECOND)
        assert {"result", "onward", "nak", "ack", "routed"} <= set(fabric.compared)
    finally:
        fabric.close()


def asks_for_one_at_most(data: bytes) -> bool:
    """True if a frame is no question for several packets."""
    packet = Packet.parse(data)
    assert packet is not None
    return packet.syndrome is None or packet.pkey != roce.PKEY_WINDOWED or packet.msn - packet.psn == 1


@pytest.mark.needs("bmv2")
def test_bmv2_sends_the_same_bytes(tmp_path: Path) -> None:
    """A leaf with two NICs and a parent: what it got in a run of losses and repeats goes into BMv2 too, which sends the
    same bytes.  Questions for several packets are left out, as their copies go round after other packets on BMv2."""
    rng = random.Random(4)
    network = TerribleNetwork(rng, loss=0.05, duplicate=0.05, reorder=0.05, packet_time=2 * MICROSECOND)
    fabric = ModelledFabric(2, 1, 4, network, size=16)
    frames: list[tuple[int, bytes]] = []
    honest = fabric.deliver

    def record(end: object, data: bytes) -> None:
        if getattr(end, "node", "") == "leaf1":
            frames.append((getattr(end, "port", 0), data))
        honest(end, data)  # type: ignore[arg-type]

    fabric.arrive = {end: (lambda data, end=end: record(end, data)) for end in fabric.ends}  # type: ignore[misc]
    try:
        sizes = [4 * 1024, 4 * 1024, 1, 1030, 3000, 2048, 77, 4000]
        allreduce(fabric, {rank: [rng.randbytes(size) for size in sizes] for rank in range(4)}, verb="write",
                  immediate=True, limit=20 * SECOND)
        made = [*fabric.fixed["leaf1"], *fabric.entries()["leaf1"]]
    finally:
        fabric.close()
    same_bytes(frames, made, tmp_path)


@pytest.mark.parametrize(
    ("shape", "rc", "seed"),
    [((1, 0, 3), (0, 2), 1), ((1, 0, 2), (0, 1), 2), ((2, 1, 4), (1, 2), 3)],
    ids=str,
)
def test_schedules_of_the_program_for_bmv2_beside_the_rules(
    shape: tuple[int, int, int], rc: tuple[int, ...], seed: int
) -> None:
    """The program in the form that BMv2 gets, where no question becomes a packet: drawn schedules to their end, with
    what each switch sends compared with the rules."""
    assert sum(map(len, drawn(shape, rc, seed)[0].values())) > 60


@pytest.mark.needs("bmv2")
@pytest.mark.parametrize(
    ("shape", "rc", "seed", "switch"),
    [((1, 0, 3), (0, 2), 1, "leaf1"), ((2, 1, 4), (1, 2), 3, "leaf1"), ((2, 1, 4), (1, 2), 3, "spine1")],
    ids=str,
)
def test_bmv2_does_on_drawn_schedules_what_the_rules_say(
    shape: tuple[int, int, int], rc: tuple[int, ...], seed: int, switch: str, tmp_path: Path
) -> None:
    """The same schedules, whose packets were compared with the rules on softswitch, go into BMv2: the same bytes
    leave.  NICs beside windowed ranks, one level and two."""
    frames, made = drawn(shape, rc, seed)
    same_bytes(frames[switch], made[switch], tmp_path, least=30)


def drawn(
    shape: tuple[int, int, int], rc: tuple[int, ...], seed: int
) -> tuple[dict[str, list[tuple[int, bytes]]], dict[str, list[Entity]]]:
    """A schedule beside the rules, of the program for BMv2: the frames that each switch got, (port, frame), and its
    entries."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    machine = type("Drawn", (Machine,), {"shape": shape, "rc": rc, "bmv2": True})()
    got: dict[str, list[tuple[int, bytes]]] = {}
    machine.build(psn=rng.choice([5, roce.PSN_MASK - 3]), seed=seed)
    try:
        honest = machine.fabric.deliver

        def record(end: End, data: bytes) -> None:
            if end.node in machine.fabric.engines:
                got.setdefault(end.node, []).append((end.port, data))
            honest(end, data)

        machine.fabric.arrive = {end: partial(record, end) for end in machine.fabric.ends}
        for _ in range(120):
            step = rng.randrange(8)
            if step < 3:
                machine.act(which=rng.randrange(8))
            elif step == 3 and machine.fabric.windowed:
                machine.ask(which=rng.randrange(8))
            elif step == 4 and machine.network.timers:
                machine.fire()
            elif machine.network.flying:
                if step == 5:
                    machine.lose(which=rng.randrange(FLYING))
                else:
                    machine.arrive(which=rng.randrange(FLYING), keep=rng.random() < 0.3)
        fabric = machine.fabric
        made = {switch: [*fabric.fixed[switch], *entries] for switch, entries in fabric.entries().items()}
    finally:
        machine.teardown()
    return got, made


def same_bytes(
    frames: Sequence[tuple[int, bytes]], made: Sequence[Entity], folder: Path, *, least: int = 150
) -> None:
    """Hands frames to the program for BMv2, on BMv2 and on softswitch, with these entries: the same bytes leave."""
    frames = [one for one in frames[:400] if asks_for_one_at_most(one[1])]
    with LocalEngine.open(library(bmv2=True), cpu_port=510) as engine, on_bmv2(folder, ports=4) as bmv2:
        for one in made:
            if isinstance(one, Entry):
                entry = native(engine, one)
                engine.insert(entry)
                assert bmv2.write_entry("insert", entry)
        groups = [entities.Multicast(one.group, one.replicas) for one in made if isinstance(one, Multicast)]
        sessions = [entities.CloneSession(one.session, ((one.port, 0),)) for one in made if isinstance(one, Clone)]
        for group in groups:
            engine.write_multicast("insert", group)
        for session in sessions:
            engine.write_clone_session("insert", session)
        bmv2.replicate(groups, sessions)
        sent = [engine.inject(port, data) for port, data in frames]
        ours = by_port(sent)
        bmv2.inject(frames, sent)
        theirs = bmv2.outputs({port: len(left) for port, left in ours.items()})
    assert sum(map(len, ours.values())) > least
    for port in range(4):
        assert sorted(f.hex() for f in ours[port]) == sorted(f.hex() for f in theirs.get(port, [])), f"port {port}"

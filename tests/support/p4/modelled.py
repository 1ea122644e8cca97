# SPDX-License-Identifier: Apache-2.0
"""The compiled program beside the plain-Python switch of tests/support/models/fold_model.py, packet by packet.

``ModelledFabric`` hands every frame that a switch gets to both, and compares what they send.  ``Schedule`` is a network
on which nothing happens by itself: packets arrive and timers fire when a test says so.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from netfold.fabric.folding.trees import Fold
from netfold.fabric.graph import End
from netfold.wire import roce
from support.models.fold_model import PARENT, Child, Kind, ModelSwitch, Out, answer_of
from support.models.nic_packets import ACKNOWLEDGE, SEQUENCE, Packet, Rc, opcode_of
from support.models.slot_model import TerribleNetwork
from support.p4.rc_fabric import RcFabric, total


class Sent(NamedTuple):
    """What a packet on a wire says, as far as the model knows it.  ``port`` is None for what goes to a fold address, to
    which its address alone leads, and ``address`` is the receiver's, where it is a NIC."""

    port: int | None
    address: tuple[str, str, int] | None
    opcode: int
    psn: int
    ack_req: bool
    answer: tuple[int, int] | None
    payload: bytes
    write: tuple[int, int, int] | None


class Schedule(TerribleNetwork):
    """A network that keeps packets in flight and timers set until it is told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flying: list[tuple[Any, Callable[[Any], None]]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []

    def send(self, packet: Any, deliver: Callable[[Any], None]) -> None:
        """Puts a packet into flight."""
        self.flying.append((packet, deliver))

    def at(self, when: int, call: Callable[[], None]) -> None:
        """Sets a timer."""
        self.timers.append((when, call))

    def arrive(self, which: int, *, keep: bool = False) -> None:
        """A packet in flight arrives; a copy of it may stay in flight."""
        which %= len(self.flying)
        packet, deliver = self.flying[which] if keep else self.flying.pop(which)
        deliver(packet)

    def fire(self) -> None:
        """The next timer fires."""
        self.timers.sort(key=lambda timer: timer[0])
        self.now, call = self.timers.pop(0)
        call()


class WindowedRank:
    """A rank of ours at its simplest: sends within its window, repeats what it is asked for, asks when told to."""

    def __init__(self, fabric: ModelledFabric, rank: int, payloads: Sequence[bytes], opcodes: Sequence[Rc]) -> None:
        self.fabric, self.rank, self.payloads, self.opcodes = fabric, rank, payloads, opcodes
        self.immediates: Sequence[int | None] = [None] * len(payloads)
        self.has: set[int] = set()
        self.sent = 0

    def missing(self) -> int:
        """The lowest result that is missing."""
        return next(number for number in range(len(self.payloads) + 1) if number not in self.has)

    def send(self) -> None:
        """Sends what the window lets it."""
        end = min(len(self.payloads), self.missing() + self.fabric.stream.slots // 2)
        for number in range(self.sent, end):
            self.put(number)
        self.sent = max(self.sent, end)

    def ask(self) -> None:
        """Asks for all results that are missing."""
        for number in range(self.sent):
            if number not in self.has:
                self.put(number, ask=True)

    def put(self, number: int, *, ask: bool = False) -> None:
        """Sends a contribution, or the question for its result."""
        stream, hosts = self.fabric.stream, self.fabric.hosts
        peer = stream.successor(self.rank)
        psn = stream.psn + number & roce.PSN_MASK
        payload = b"" if ask else self.payloads[number] + bytes(-len(self.payloads[number]) & 3)
        packet = Packet(
            hosts[self.rank].address, hosts[peer].address, ACKNOWLEDGE if ask else self.opcodes[number],
            stream.connections[peer] << roce.OPERATION_BITS, psn, payload, pkey=roce.PKEY_WINDOWED,
            pad=-len(self.payloads[number]) & 3 if not ask else 0,
            immediate=None if ask else self.immediates[number],
            source_port=stream.source_ports[self.rank], syndrome=SEQUENCE if ask else None, msn=psn + 1 & roce.PSN_MASK)
        self.fabric.transmit(End(hosts[self.rank].name, 0), packet.frame())

    def hear(self, packet: Packet) -> None:
        """Takes a result, or repeats what the switch says it lacks."""
        number = packet.psn - self.fabric.stream.psn & roce.PSN_MASK
        if packet.syndrome is None:
            size = len(self.payloads[number])
            expected = self.fabric.sums[number]
            assert packet.payload[:size] == expected, f"windowed rank {self.rank}: packet {number} is no sum"
            assert packet.immediate == self.immediates[number], f"windowed rank {self.rank}: packet {number}: immediate"
            self.has.add(number)
            return
        for ahead in range(packet.msn - packet.psn & roce.PSN_MASK):
            if number + ahead < self.sent:
                self.put(number + ahead)


class ModelledFabric(RcFabric):
    """A fabric whose switches are compared with the model, packet by packet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.models: dict[str, ModelSwitch] = {}
        self.compared: Counter[str] = Counter()
        """Packets that left, by what the model calls them."""
        self.windowed: dict[int, WindowedRank] = {}
        self.sums: list[bytes] = []
        self.grows = not options.get("bmv2", False)
        super().__init__(*arguments, **options)

    def admit(self, *, entries: bool = True) -> None:
        """Admits the job, and makes the model's switches anew under its epoch; slots and flows keep what they hold."""
        super().admit(entries=entries)
        stream = self.stream
        self.folds = {fold.switch: fold for fold in stream.tree.folds}
        for name, fold in self.folds.items():
            children = [self._child(child.rank) for child in fold.children]
            self.models[name] = ModelSwitch(children, stream.slots, stream.epoch, fold.is_root, self.grows)

    def restart(self, switch: str) -> None:
        """Both lose everything."""
        super().restart(switch)
        self.models.pop(switch, None)

    def give(self, payloads: Sequence[Sequence[bytes]], message: int) -> None:
        """Makes the windowed ranks, with these payloads of packets by rank, and the sums that all are to get."""
        self.sums = [total(parts) for parts in zip(*payloads, strict=True)]
        count = len(self.sums)
        opcodes = [opcode_of("send", first=n % message == 0, last=n % message == message - 1 or n == count - 1,
                             immediate=False) for n in range(count)]
        self.windowed = {rank: WindowedRank(self, rank, payloads[rank], opcodes)
                         for rank in range(len(self.hosts)) if rank not in self.rc_ranks}

    def _child(self, rank: int | None) -> Child:
        if rank is None or rank not in self.stream.rc_ranks:
            return Child()
        after = self.stream.successor(rank)
        return Child(Kind.RC, self.stream.psn, self.stream.rc[after].address)

    def deliver(self, end: End, data: bytes) -> None:
        if end.node not in self.engines:
            rank = next((rank for rank in self.windowed if self.hosts[rank].name == end.node), None)
            packet = Packet.parse(data)
            if rank is None or packet is None:
                super().deliver(end, data)
            elif packet.pkey == roce.PKEY_WINDOWED:
                self.windowed[rank].hear(packet)
            return
        self.seen.append((end.node, data))
        out = self.engines[end.node].inject(end.port, data, now_us=self.network.now // 1000)
        if end.node in self.models:
            self._compare(end, data, out)
        for port, frame in out:
            self.transmit(End(end.node, port), frame)

    def _compare(self, end: End, data: bytes, out: Sequence[tuple[int, bytes]]) -> None:
        packet, fold, model = Packet.parse(data), self.folds[end.node], self.models[end.node]
        assert packet is not None
        sender = next((n for n, child in enumerate(fold.children) if child.port == end.port),
                      PARENT if end.port == fold.parent_port else None)
        rank = fold.children[sender].rank if sender is not None and sender != PARENT else None
        folded = sender is not None and (
            packet.pkey == roce.PKEY_WINDOWED or (rank in self.stream.rc_ranks and packet.syndrome is None)
        ) and socket.inet_aton(packet.src) != b"" and self._is_childs(rank, packet)
        if not folded:
            for number, child in enumerate(fold.children):
                if child.rank in self.rc_ranks and packet.syndrome is not None and child.rank is not None and (
                    packet.queue_pair == self.ranks[child.rank].out.number
                    and packet.dst == self.hosts[child.rank].address
                ):
                    model.acknowledged(number, packet)
            ((_, left),) = out  # routed
            routed = Packet.parse(left)
            assert routed is not None
            assert (routed.psn, routed.payload, routed.dst, routed.ttl) == (
                packet.psn, packet.payload, packet.dst, packet.ttl - 1)
            self.compared["routed"] += 1
            return
        assert sender is not None
        expected = model.receive(sender, packet)
        self.compared.update(one.form for one in expected)
        got = sorted((self._sent(fold, port, frame) for port, frame in out), key=repr)
        wanted = sorted((self._wanted(fold, one) for one in expected), key=repr)
        assert got == wanted, f"{end.node} from {sender}: {packet}: expected {wanted}, got {got}"

    def _is_childs(self, rank: int | None, packet: Packet) -> bool:
        if rank is None or rank not in self.stream.rc_ranks:
            return True
        mine = self.ranks[rank].out
        return (packet.src, packet.dst, packet.queue_pair) == (mine.local, mine.peer, mine.peer_number)

    def _sent(self, fold: Fold, port: int, frame: bytes) -> Sent:
        packet = Packet.parse(frame)
        assert packet is not None
        to_fold = packet.dst in {self.fold_address_of(rank) for rank in self.rc_ranks}
        windowed = packet.pkey == roce.PKEY_WINDOWED
        answer = None if packet.syndrome is None else (packet.syndrome, packet.msn if windowed else 0)
        return Sent(None if to_fold else port, None if windowed else (packet.src, packet.dst, packet.queue_pair),
                    packet.opcode, packet.psn, packet.ack_req, answer, packet.payload,
                    None if packet.reth is None or windowed else (packet.reth.address, packet.reth.rkey,
                                                                  packet.reth.length))

    def _wanted(self, fold: Fold, out: Out) -> Sent:
        child = None if out.to == PARENT else fold.children[out.to]
        port = fold.parent_port if child is None else child.port
        rank = None if child is None or child.rank not in self.stream.rc_ranks else child.rank
        answer = None if out.opcode != ACKNOWLEDGE else (answer_of(out), out.end if out.form == "ask" else 0)
        if rank is None:
            return Sent(port, None, out.opcode, out.psn, out.ack_req, answer, out.lanes, None)
        mine, stream = self.ranks[rank], self.stream
        after, before = stream.successor(rank), stream.predecessor(rank)
        own, other = self.hosts[rank].address, self.fold_address_of(after)
        if answer is not None:
            return Sent(port, (other, own, mine.out.number), out.opcode, out.psn, False, answer, b"", None)
        receiver = after if out.form == "onward" else rank
        address = (own if out.form == "onward" else self.hosts[before].address, self.fold_address_of(receiver),
                   self.ranks[receiver].into.number)
        region = self.ranks[receiver].region
        write = (out.offset + region.address, region.rkey, out.length) if Rc(out.opcode).has_reth else None
        return Sent(None, address, out.opcode, out.psn, out.ack_req, None, out.lanes, write)

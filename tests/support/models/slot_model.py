# SPDX-License-Identifier: Apache-2.0
"""Trees of switches in plain Python, and a network that loses, repeats and reorders.

``Fabric`` joins switches (``netfold.testing.SlotSwitch``, the slot protocol of docs/protocol.md) to trees of any depth
over ``TerribleNetwork``; ``run`` drives native cores over it in simulated time.  Everything draws from one seeded RNG.
"""

from __future__ import annotations

import heapq
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.host.innet.core import Core, Credits
from netfold.host.innet.slot_switch import Nak, Packet, Sender, SlotSwitch, parse
from netfold.host.native.library import NEVER, Origin, dotted
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.rail import Op
from netfold.host.operation.request import RowsRequest
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
Layout = int | list["Layout"]
"""A tree: a rank, or a switch with its children."""
Deliver = Callable[[Packet | Nak], None]
"""Takes what arrives at one end of a link."""


@dataclass
class TerribleNetwork:
    """Delivers calls later, or never, or twice, and out of order.  Probabilities are per link and packet."""

    rng: random.Random
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    mark: float = 0.0
    delay: int = 20 * MICROSECOND
    packet_time: int = 0
    """Time that a packet takes a link for; 0: links are infinitely fast."""
    late: int = 500 * MICROSECOND
    """Extra delay of a packet that is reordered, at most."""
    now: int = 0
    lost: int = 0
    spoil: float = 0.0
    """Probability that a bit of what reaches a host changes, behind all that has made or checked an ICRC."""
    spoiled: int = 0

    def __post_init__(self) -> None:
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        """The events to come: time, order among equals, and call."""
        self._order = count()
        self._free: dict[Callable[[Any], None], int] = {}
        self.disturbed = False
        """True if anything but packets has happened, which may have changed any core; who has looked resets it."""

    def send(self, packet: Any, deliver: Callable[[Any], None]) -> None:
        """Puts a packet on a link."""
        time = self.packet_time // 16 if isinstance(packet, Nak) else self.packet_time  # 64 bytes for some 1,100
        leaves = max(self.now, self._free.get(deliver, 0)) + time
        self._free[deliver] = leaves
        if self.rng.random() < self.loss:
            self.lost += 1
            return
        if self.rng.random() < self.mark and not isinstance(packet, Nak):
            packet = packet._replace(marked=True)
        for _ in range(2 if self.rng.random() < self.duplicate else 1):
            late = self.rng.randrange(self.late) if self.rng.random() < self.reorder else 0
            heapq.heappush(self.queue, (leaves + self.delay + late, next(self._order), partial(deliver, packet)))

    def last_hop(self, payload: bytes) -> bytes:
        """The UDP payload as it reaches its host.  What the ICRC masks stays as it is."""
        if not self.spoil or self.rng.random() >= self.spoil:
            return payload
        self.spoiled += 1
        end = len(payload) if self.rng.random() < 0.5 else roce.BTH_BYTES
        bent = bytearray(payload)
        bent[self.rng.choice([at for at in range(end) if at != 4])] ^= 1 << self.rng.randrange(8)
        return bytes(bent)

    def at(self, when: int, call: Callable[[], None]) -> None:
        """Calls ``call`` once the clock says ``when``."""

        def disturb() -> None:
            self.disturbed = True
            call()

        heapq.heappush(self.queue, (when, next(self._order), disturb))

    def next_time(self) -> int:
        """The time of the next event, or NEVER."""
        return self.queue[0][0] if self.queue else NEVER

    def step(self, until: int) -> None:
        """Lets everything happen that is due by then."""
        while self.queue and self.queue[0][0] <= until:
            self.now, _, call = heapq.heappop(self.queue)
            call()
        self.now = max(self.now, until)


def address(rank: int) -> str:
    """The IPv4 address of a rank's host."""
    return f"10.0.{rank >> 8}.{rank & 255}"


def udp_port(rank: int) -> int:
    """The UDP port at which a rank receives: that of every second one is RoCEv2's."""
    return roce.UDP_PORTS[rank] if rank % 2 else roce.UDP_PORT


def plan_trees(
    rank: int, world: int, *, trees: int = 1, slots: int = 64, psn: int = 0, weights: Sequence[float] = (),
    again: int = 0,
) -> list[RankTree]:
    """The trees that a controller would plan, and plan again: queue pair = 0x10000 * (tree + 1) + 0x8000 for sums + 8 *
    rank."""

    def stream(tree: int, base: int) -> RankStream:
        qp = 0x10000 * (tree + 1 + again * trees) + base
        peer = (rank + 1) % world
        return RankStream(
            peer=address(peer), peer_qp=qp + 8 * peer, qp=qp + 8 * rank, source_port=50000 + tree, psn=psn, slots=slots,
            predecessor=address((rank - 1) % world), predecessor_port=50000 + tree,
            peer_port=udp_port(peer),
        )

    return [
        RankTree(
            name=f"spine{t}", weight=weights[t] if weights else 1.0, data=stream(t, 0x8000), agreement=stream(t, 0)
        )
        for t in range(trees)
    ]


class Fabric:
    """Switches of one shape for every tree and stream, with the cores as leaves."""

    def __init__(self, layout: list[Layout], network: TerribleNetwork, cores: Sequence[Core], slots: int) -> None:
        self.network = network
        self.cores = list(cores)
        self.entry: dict[int, Callable[[bytes, int, str, int, str, int], None]] = {}
        """The function that takes each rank's packets: its leaf switch's port."""
        self.switches: list[SlotSwitch] = []
        self.left: Counter[type] = Counter()
        """Data packets and NAKs that switches have sent."""
        self.frozen: set[int] = set()
        """Ranks that wait for new trees: nothing leaves them, nothing reaches them."""
        self.reached: set[int] = set()
        """Ranks at which a packet has arrived since somebody has looked."""
        self._ports = {(core.address, core.port) for core in cores}
        self._layout, self.slots = layout, slots
        self.grow()

    def die(self, staying: Collection[int] = ()) -> None:
        """Nothing that a rank sends arrives any more, but over trees that stay; what is on its way already does."""
        for core in self.cores:
            for tree in [tree for number, tree in enumerate(core.trees) if number not in staying]:
                self.entry |= dict.fromkeys((tree.data.qp, tree.agreement.qp), lambda *_: None)

    def grow(self) -> None:
        """Switches without state for those of the cores' present trees that do not stay; those before them are gone."""
        self.entry = {stream.qp: self.entry[stream.qp] for core in self.cores for tree in core.trees if tree.stays
                      for stream in (tree.data, tree.agreement)}
        layout, slots = self._layout, self.slots
        for core in self.cores[:1]:
            for tree in [tree for tree in core.trees if not tree.stays]:
                for stream in (tree.data, tree.agreement):
                    self._grow(layout, stream.qp & ~0x7FFF, stream.source_port, slots)

    def _grow(self, layout: list[Layout], base: int, source_port: int, slots: int) -> None:
        up_from: dict[int, Deliver] = {}
        down_to: dict[int, Deliver] = {}
        for rank, core in enumerate(self.cores):
            origin = Origin.of(address((rank - 1) % len(self.cores)), source_port, roce.RESULT_TTL)
            down_to[rank] = self._to_host(rank, core, base + 8 * rank, origin)

        def build(node: list[Layout], send_up: Deliver | None) -> Deliver:
            """Returns how a packet enters this switch from above."""
            switch = SlotSwitch(len(node), slots, root=send_up is None)
            self.switches.append(switch)
            child_down: list[Deliver] = []

            def enter(sender: Sender, packet: Packet | Nak) -> None:
                for target, out in switch.take(sender, packet):
                    self.left[type(out)] += len(child_down) if target == "all" else 1
                    if target == "parent":
                        assert send_up is not None, "a root has no parent"
                        self.network.send(out, send_up)
                    else:
                        for down in child_down if target == "all" else [child_down[target]]:
                            self.network.send(out, down)

            for index, child in enumerate(node):
                entry = partial(enter, index)
                if isinstance(child, int):
                    up_from[child] = entry
                    child_down.append(down_to[child])
                else:
                    child_down.append(build(child, entry))
            return partial(enter, "parent")

        build(layout, None)
        for rank in range(len(self.cores)):
            self.entry[base + 8 * ((rank + 1) % len(self.cores))] = self._from_host(up_from[rank])

    def _to_host(self, rank: int, core: Core, connection: int, origin: Origin) -> Deliver:
        def deliver(packet: Packet | Nak) -> None:
            if rank in self.frozen:
                return
            marked = isinstance(packet, Packet) and packet.marked
            self.reached.add(rank)
            payload = self.network.last_hop(as_result(packet.build(connection), origin, core.address, core.port))
            core.receive(payload, self.network.now, origin, marked=marked)

        return deliver

    def _from_host(self, up: Deliver) -> Callable[[bytes, int, str, int, str, int], None]:
        def enter(payload: bytes, ip_id: int, source: str, source_port: int, destination: str, port: int) -> None:
            assert (destination, port) in self._ports
            check_icrc(payload, ip_id, source, source_port, destination, port)
            self.network.send(parse(payload), up)

        return enter

    def drain(self, rank: int, source: str) -> None:
        """Puts on the wire what a core has to send."""
        while run := self.cores[rank].send(self.network.now):
            for ip_id, payload in enumerate(run.packets()):
                qp = struct.unpack_from("!I", payload, 4)[0] & 0xFFFFFF
                self.entry[qp & ~7](payload, ip_id, source, run.source_port, run.destination, run.destination_port)


def ip_packet(
    payload: bytes, ip_id: int, source: str, source_port: int, destination: str, port: int = roce.UDP_PORT
) -> bytes:
    """The IPv4 packet that a kernel makes of a UDP payload (checksums left zero: the ICRC does not cover them)."""
    udp = struct.pack("!HHHH", source_port, port, roce.UDP_BYTES + len(payload), 0)
    length = roce.IPV4_BYTES + len(udp) + len(payload)
    ip = struct.pack("!BBHHHBBH", 0x45, roce.ECN_ECT0, length, ip_id, 0x4000, 64, 17, 0)
    return ip + socket.inet_aton(source) + socket.inet_aton(destination) + udp + payload


def as_result(payload: bytes, origin: Origin, destination: str, port: int = roce.UDP_PORT) -> bytes:
    """The UDP payload with the ICRC that a switch writes: its IPv4 ID is the low half of the PSN."""
    return roce.sealed(payload, dotted(origin.source), origin.source_port, destination,
                       int.from_bytes(payload[10:12], "big"), port)


def check_icrc(
    payload: bytes, ip_id: int, source: str, source_port: int, destination: str, port: int = roce.UDP_PORT
) -> None:
    """Fails where a contribution's ICRC is not what its kernel-made IP header asks for."""
    packet = ip_packet(payload, ip_id, source, source_port, destination, port)
    assert packet[-4:] == roce.icrc(packet[:-4]), f"ICRC of a packet with IPv4 ID {ip_id}"


@dataclass
class Call:
    """One allreduce of one rank."""

    source: NDArray[Any]
    out: NDArray[Any]
    divisor: float = 1.0
    number: int = 0
    op: Op = "sum"
    coding: Coding = PLAIN
    feedback: NDArray[Any] | None = None


def run(
    fabric: Fabric, calls: Sequence[Sequence[Call | RowsRequest]], *, late: Sequence[int] = (), limit: int = 60 * SECOND
) -> Iterator[int]:
    """Runs every rank's calls, one after another, in simulated time; yields that time as ranks finish or fail.

    late: nanoseconds by which each rank starts its first call later.  Ends when all are done; fails at the limit.
    """
    network, cores = fabric.network, fabric.cores
    todo = [list(own) for own in calls]
    busy = [False] * len(cores)
    start = [late[rank] if late else 0 for rank in range(len(cores))]

    active = [True] * len(cores)
    """Ranks that are not done; one that is may have to repeat what others lack, over trees that were planned anew."""
    due = [network.now] * len(cores)
    """The time at which each has something to do, if nothing arrives before."""
    network.disturbed = True
    while True:
        if network.disturbed:
            network.disturbed, due = False, [network.now] * len(cores)
        for rank, core in enumerate(cores):
            if due[rank] > network.now and rank not in fabric.reached:
                continue
            if busy[rank] and core.failure().error:
                busy[rank], todo[rank] = False, []
                network.disturbed = True
                yield network.now
            if busy[rank] and core.finished() and rank not in fabric.frozen:
                busy[rank] = False
                network.disturbed = True
                yield network.now
            if not busy[rank] and todo[rank] and network.now >= start[rank] and core.finished():
                call = todo[rank].pop(0)
                if isinstance(call, RowsRequest):
                    core.start_rows(call, rank, network.now)
                else:
                    core.start(
                        call.number, call.source, call.out, call.divisor, network.now, op=call.op, coding=call.coding,
                        feedback=call.feedback, rank=rank,
                    )
                busy[rank] = True
            active[rank] = rank not in fabric.frozen and (busy[rank] or not (core.finished() or core.failure().error))
            due[rank] = NEVER
            if active[rank]:
                core.tick(network.now)
                fabric.drain(rank, address(rank))
                due[rank] = core.deadline()
            if todo[rank] and not busy[rank]:
                due[rank] = min(due[rank], start[rank])
        fabric.reached.clear()
        if not any(busy) and not any(todo) and not any(active):
            return
        then = network.now if network.disturbed else max(min(network.next_time(), *due), network.now)
        assert then < limit, f"not done after {limit / SECOND:g} s: {[c.state(0, 1).results for c in cores]}"
        network.step(then)


def fold(
    fabric: Fabric, sources: Sequence[NDArray[Any]], *, divisor: float = 1.0, number: int = 1
) -> list[NDArray[Any]]:
    """One allreduce of every rank's array; returns every rank's result."""
    outs = [np.empty_like(source) for source in sources]
    calls = [[Call(source, out, divisor, number)] for source, out in zip(sources, outs, strict=True)]
    for _ in run(fabric, calls):
        pass
    return outs


def make_fabric(
    layout: list[Layout], network: TerribleNetwork, *, trees: int = 1, slots: int = 64, psn: int = 0,
    weights: Sequence[float] = (), max_run: int = 60, path_mtu: int = roce.PATH_MTU, credits: Credits | None = None,
    presence: bool = True, message: int = 0,
) -> Fabric:
    """A fabric with a core for every rank that the layout names; ``message``: as beside RC queue pairs."""
    world = count_ranks(layout)
    cores = [
        Core(
            address(rank), world, plan_trees(rank, world, trees=trees, slots=slots, psn=psn, weights=weights),
            port=udp_port(rank), max_run=max_run, path_mtu=path_mtu, credits=credits, presence=presence,
            message=message,
        )
        for rank in range(world)
    ]
    return Fabric(layout, network, cores, slots)


def plan_anew(
    fabric: Fabric, network: TerribleNetwork, at: int, trees: int, *, again: int, staying: Collection[int] = ()
) -> None:
    """At a given time the switches lose all they hold, but of trees that are staying; ranks halt one by one, and go on
    together, over new trees in the others' place."""
    missing: dict[int, dict[int, int]] = {}

    def stop(rank: int) -> None:
        fabric.frozen.add(rank)
        missing[rank] = fabric.cores[rank].missing()

    def go_on() -> None:
        reported = [list(missing[rank].values()) for rank in range(len(fabric.cores))]
        starts = [min(column, key=lambda psn: roce.psn_age(psn, column[0])) for column in zip(*reported, strict=True)]
        for rank, core in enumerate(fabric.cores):
            planned = plan_trees(rank, len(fabric.cores), trees=trees, slots=fabric.slots, again=again)
            core.resume([
                msgspec.structs.replace(core.trees[t], stays=True) if t in staying else
                msgspec.structs.replace(tree, agreement=msgspec.structs.replace(tree.agreement, psn=starts[2 * t]),
                                        data=msgspec.structs.replace(tree.data, psn=starts[2 * t + 1]))
                for t, tree in enumerate(planned)
            ], network.now)
        fabric.grow()
        fabric.frozen.clear()

    network.at(at, partial(fabric.die, staying))
    for rank in range(len(fabric.cores)):
        network.at(at + network.rng.randrange(MILLISECOND), lambda rank=rank: stop(rank))
    network.at(at + 2 * MILLISECOND, go_on)


def count_ranks(layout: Layout) -> int:
    """The number of ranks below a node."""
    return 1 if isinstance(layout, int) else sum(count_ranks(child) for child in layout)

# SPDX-License-Identifier: Apache-2.0
"""Software NICs and native cores on the compiled program within one process, with the controller's own entries.

``RcFabric`` has the switches, the job's entries and the ranks' end points; ``Sender`` gives a NIC's queue pair
messages as the verbs rail does: two outstanding, the next one when the result of the one before last is here and that
is acknowledged.  Everything that a NIC takes into memory is compared at once with the sum that belongs there.
"""

from __future__ import annotations

import contextlib
import random
import socket
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import numpy as np

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.slots import RcEnd, Stream
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import CPU_PORT, End
from netfold.host.native.library import Origin
from netfold.wire import roce
from softswitch.engine import errors, local
from support.models.nic import Nic, QueuePair, Region, Work
from support.models.nic_packets import ETHERTYPE, Rc
from support.models.slot_model import SECOND, TerribleNetwork
from support.p4.program import mac
from support.p4.wires import Wires, remove, write

OUTSTANDING: Final = 2
"""Messages that a rank has outstanding."""


def total(sources: Sequence[bytes]) -> bytes:
    """The lane-by-lane sum of payloads of one length; what is short of a lane counts as its high bytes."""
    padded = [np.frombuffer(one + bytes(-len(one) & 3), ">u4").astype(np.uint32) for one in sources]
    return np.sum(padded, axis=0, dtype=np.uint32).astype(">u4").tobytes()[: len(sources[0])]


class RcRank:
    """A rank whose NIC folds: its queue pairs, and its memory for results."""

    def __init__(self, nic: Nic, own: str, fold: str) -> None:
        self.nic = nic
        self.out, self.into = nic.create(own), nic.create(fold)
        self.region: Region = nic.register(0)


class RcFabric(Wires):
    """Leaf-spine switches, a job of all hosts on one tree, and the end points of its data stream.

    rc      the ranks whose NICs fold; the others are windowed
    shared  all regions begin at address 0, else each where its NIC put it
    region  bytes of each NIC's region
    psn     the first PSN of the stream; by default the allocator draws it
    bmv2    the switches' program is as it is compiled for BMv2
    """

    def __init__(
        self, leaves: int, spines: int, hosts: int, network: TerribleNetwork, *, rc: Sequence[int] | None = None,
        size: int = 64, path_mtu: int = roce.PATH_MTU, shared: bool = False, region: int = 1 << 20, seed: int = 5,
        retries: int = 7, timeout: int = 12, corrupt: float = 0.0,
        psn: int | None = None, bmv2: bool = False,
    ) -> None:
        self.corrupt, self.first_psn = corrupt, psn
        self.sent: list[tuple[End, bytes]] = []
        """(end of a link, frame) of every frame that was sent."""
        super().__init__(leafspine(leaves, spines, hosts, path_mtu=path_mtu, rdma=True), network, bmv2=bmv2)
        self.path_mtu, self.shared, self.region, self.seed = path_mtu, shared, region, seed
        self.retries, self.timeout = retries, timeout
        self._names = {host.name for host in self.hosts}
        self.rc_ranks = tuple(range(hosts)) if rc is None else tuple(rc)
        self.allocator = slots.Allocator(self.engines, slots.Sizes(data=size, agreement=size), random.Random(seed))
        self.nics = {
            rank: Nic(network, partial(self.transmit, End(host.name, 0)),
                      (host.address, self.fabric.fold_address(host)),
                      mac=mac(host.mac), path_mtu=path_mtu, first_number=17 + 40 * rank)
            for rank, host in enumerate(self.hosts) if rank in self.rc_ranks
        }
        self.epoch = 0
        self.ranks: dict[int, RcRank] = {}
        self.stream: Stream
        self.agreement: Stream
        self.fixed = tables.merge([tables.guard_entries(self.fabric), tables.clone_sessions(self.fabric),
                                   Steering(self.fabric).base(self.fabric.graph())])
        self.write(self.fixed)
        self.admit()

    def admit(self, *, entries: bool = True) -> None:
        """Admits the job, under a new epoch; NICs make their queue pairs anew."""
        if self.epoch:
            self.allocator.release(self.epoch)
        planned = trees.plan(self.fabric.graph(), [host.name for host in self.hosts])[:1]
        world = len(self.hosts)
        self.stream, self.agreement = (
            self._connected(stream) for stream in
            self.allocator.admit(planned, [range(world)], rc=self.rc_ranks)
        )
        self.epoch = self.stream.epoch
        self._pair(self.stream)
        if entries:
            self.write(self.entries())

    def entries(self) -> tables.BySwitch:
        """The entries of the job's data stream, by switch."""
        return fold_tables.fold_entries(self.fabric, self.hosts, self.stream)

    def _connected(self, stream: Stream) -> Stream:
        if stream.kind != "data":
            return stream
        if self.first_psn is not None:
            stream = replace(stream, psn=self.first_psn)
        ends = {}
        for rank in self.rc_ranks:
            host, nic = self.hosts[rank], self.nics[rank]
            nic.pairs.clear()
            mine = self.ranks[rank] = RcRank(nic, host.address, self.fabric.fold_address(host))
            mine.region = nic.register(self.region, address=0 if self.shared else None)
            ends[rank] = RcEnd(mine.out.number, mine.into.number, mine.region.address, mine.region.rkey)
        return replace(stream, rc=ends)

    def _pair(self, stream: Stream) -> None:
        for rank, mine in self.ranks.items():
            after, before = stream.successor(rank), stream.predecessor(rank)
            mine.out.retries = mine.into.retries = self.retries
            mine.out.timeout = mine.into.timeout = self.timeout
            mine.out.connect(self.fabric.fold_address(self.hosts[after]), self.ranks[after].into.number, stream.psn, 0)
            mine.into.connect(self.hosts[before].address, self.ranks[before].out.number, 0, stream.psn)

    def withdraw(self) -> None:
        """The job's entries and groups go from all switches that have them, as when its epoch ends."""
        for switch, made in self.entries().items():
            for entity in made:
                with contextlib.suppress(errors.NotFound):
                    remove(self.engines[switch], entity)

    def fold_address_of(self, rank: int) -> str:
        """The fold address of a rank's host."""
        return self.fabric.fold_address(self.hosts[rank])

    def successor(self, rank: int) -> RcRank:
        """The RC rank to which an RC rank sends."""
        return self.ranks[self.stream.successor(rank)]

    def restart(self, switch: str) -> None:
        """A switch loses its state and its tables."""
        self.engines[switch].close()
        self.engines[switch] = local.LocalEngine.open(self.library, cpu_port=CPU_PORT)

    def route_again(self, switch: str) -> None:
        """A switch that was restarted gets what does not depend on jobs."""
        for entity in self.fixed.get(switch, ()):
            write(self.engines[switch], entity)

    def transmit(self, end: End, data: bytes) -> None:
        """Sends a frame to the other end of a link, if ``bend`` leaves anything of it."""
        self.sent.append((end, data))
        bent = self.bend(end, data)
        if bent is not None:
            super().transmit(end, bent)

    def bend(self, end: End, data: bytes) -> bytes | None:
        """What becomes of a frame that leaves this end of a link; None: it is lost.  Links with a host at an end flip a
        bit of some; what runs between switches is not checked by them (docs/softswitch.md says why)."""
        if data[12:14] == ETHERTYPE and {end.node, self.ends[end].node} & self._names and (
            self.network.rng.random() < self.corrupt
        ):
            at = self.network.rng.randrange(42, len(data))
            return data[:at] + bytes([data[at] ^ 1 << self.network.rng.randrange(8)]) + data[at + 1 :]
        return data

    def hear(self, rank: int, payload: bytes, origin: Origin, *, marked: bool) -> None:
        """Nobody windowed hears anything, unless a derived class has somebody."""

    def deliver(self, end: End, data: bytes) -> None:
        if end.node in self.engines:
            super().deliver(end, data)
            return
        self.seen.append((end.node, data))
        rank, host = next((rank, host) for rank, host in enumerate(self.hosts) if host.name == end.node)
        if rank in self.nics:
            assert data[:6] == mac(host.mac)
            assert socket.inet_ntoa(data[30:34]) in self.nics[rank].addresses
            self.nics[rank].receive(data)
        else:
            self.seen.pop()
            super().deliver(end, data)

    def run(self, until: Callable[[], bool], limit: int = 60 * SECOND) -> None:
        """Lets time pass until the condition holds; fails at the limit."""
        while not until():
            then = self.network.next_time()
            assert then < limit, f"stuck at {self.network.now} ns: {self.states()}"
            self.network.step(then)

    def states(self) -> str:
        """All queue pairs in words, for failures."""
        return "; ".join(
            f"{rank}: {mine.out.comp}/{mine.out.req}/{mine.out.limit} out, {mine.into.expected} in, "
            f"{mine.out.error or mine.into.error or 'ok'} {dict(mine.out.counts)}"
            for rank, mine in self.ranks.items()
        )


class Sender:
    """Messages of one RC rank, posted as credits come.

    messages  what it contributes, each of at most ``slots // 4`` packets
    verb      SEND, or WRITE into the successor's region, message after message
    """

    def __init__(
        self, fabric: RcFabric, rank: int, messages: Sequence[bytes], *, verb: Literal["send", "write"] = "send",
        immediate: bool = False, late: int = 0,
    ) -> None:
        self.fabric, self.rank, self.messages, self.verb = fabric, rank, list(messages), verb
        self.immediate = immediate
        self.mine = fabric.ranks[rank]
        self.packets = [max(1, -(-len(message) // fabric.path_mtu)) for message in messages]
        self.ends = np.cumsum(self.packets).tolist()
        self.offsets = [0, *np.cumsum([len(message) for message in messages]).tolist()]
        assert max(self.packets, default=0) <= fabric.stream.slots // 4
        assert verb == "send" or self.offsets[-1] <= fabric.region
        self.posted = 0
        self.late = fabric.network.now + late
        for number in range(len(messages)):
            self.mine.into.post_receive(Work(number))

    def results(self) -> int:
        """How many results are here."""
        return bisect_right(self.ends, self.mine.into.expected)

    def sent(self) -> int:
        """How many messages are acknowledged."""
        return self.mine.out.counts["acknowledged"]

    def step(self) -> None:
        """Posts what may be posted."""
        while self.fabric.network.now >= self.late and self.posted < len(self.messages) and (
            self.posted < OUTSTANDING
            or min(self.results(), self.sent()) > self.posted - OUTSTANDING
        ):
            number = self.posted
            self.posted += 1
            after = self.fabric.successor(self.rank).region
            self.mine.out.post(Work(number, self.messages[number], self.verb, after.address + self.offsets[number],
                                    after.rkey, number if self.immediate else None))

    @property
    def done(self) -> bool:
        """True if all results are here and all messages acknowledged."""
        return self.results() == self.sent() == len(self.messages)


class Exact:
    """Compares what each NIC takes with the sum, packet by packet; a wrong word fails at once."""

    def __init__(self, fabric: RcFabric, messages: Mapping[int, Sequence[bytes]]) -> None:
        self.fabric, self.taken = fabric, 0
        mtu = fabric.path_mtu
        self.expected: list[bytes] = []
        for parts in zip(*messages.values(), strict=True):
            whole = total(list(parts))
            self.expected += [whole[at : at + mtu] for at in range(0, len(whole), mtu)]
        for rank, mine in fabric.ranks.items():
            mine.nic.watch = partial(self._take, rank)

    def _take(self, rank: int, pair: QueuePair, psn: int, opcode: Rc, payload: bytes) -> None:
        number = psn - self.fabric.stream.psn & roce.PSN_MASK
        assert payload == self.expected[number], f"rank {rank} took packet {number}, which is no sum ({opcode.name})"
        self.taken += 1


def allreduce(
    fabric: RcFabric, messages: Mapping[int, Sequence[bytes]], *, verb: Literal["send", "write"] = "send",
    immediate: bool = False, late: Mapping[int, int] | None = None, limit: int = 60 * SECOND,
) -> list[Sender]:
    """Sums every NIC's messages; fails where a NIC takes a word that is no sum, where one breaks, or at the limit."""
    Exact(fabric, messages)
    senders = [Sender(fabric, rank, own, verb=verb, immediate=immediate, late=(late or {}).get(rank, 0))
               for rank, own in messages.items()]
    for sender in senders:
        fabric.network.at(max(sender.late, fabric.network.now), sender.step)

    def finished() -> bool:
        for sender in senders:
            sender.step()
            broken = sender.mine.out.error or sender.mine.into.error
            assert not broken, f"rank {sender.rank}: {broken}"
        return all(sender.done for sender in senders)

    fabric.run(finished, limit)
    return senders

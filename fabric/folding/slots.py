# SPDX-License-Identifier: Apache-2.0
"""The allocator of what jobs share on switches: slot ranges, multicast groups, connections and epochs.

Jobs hold disjoint numbers, which keeps their packets apart.  Slots are scarce: where a switch on one of a job's trees
has not enough left, the job is refused with the figures, and runs its ring without the switches.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from netfold.fabric.folding.pools import SLOTS, Cycle, Exhausted, NumberPool, RandomPool, Ranges, Slots, runs
from netfold.fabric.folding.trees import MOST_TREES, Fold, Tree
from netfold.fabric.graph import Engine
from netfold.wire import roce

DATA_SLOTS: Final = {1024: 1024, 4096: 512}
"""Path MTU -> data slots of a job on a switch of softswitch, for all its trees: half of them are in flight, 0.5 MiB or
1 MiB.  More slots fill the caches; with fewer slots, packets of 4096 bytes leave super-packets half empty."""
AGREEMENT_BYTES: Final = 1 << 17
"""Payload bytes of the slots of one agreement stream on softswitch."""
BMV2_QUEUE: Final = 64
"""Packets in an egress queue of BMv2, of whatever length; P4Runtime cannot make it longer."""
BMV2_DATA_BYTES: Final = 1 << 17
"""Payload bytes of the data slots of one tree on BMv2, as far as BMV2_QUEUE packets have them; half are in flight.
With twice as many, at 4096 bytes a packet, operations at 10 Mb/s took up to 1.9 times as long."""
MAX_GROUP: Final = 4094
"""BMv2 accepts multicast groups 1..4095; the last one is that of link probes."""
EPOCHS: Final = 2**31 - 1
"""Greatest epoch: 31 of the program's 32 bits, so that an epoch fits an int32 of a message between ranks.  Epochs begin
at 1; 0 marks a slot that was never used."""
FLOWS: Final = 16384
"""Flows of one switch, each the state of one sender of one stream: FLOWS of p4src/sizes.p4."""
MIN_CONNECTION: Final = 1
"""A connection is a run of queue pairs, one for each operation; queue pairs 0 and 1 are reserved by InfiniBand."""
MAX_CONNECTION: Final = 2 ** (24 - roce.OPERATION_BITS) - 1
SOURCE_PORTS: Final = range(0xC000, roce.PATH_PORT)
"""UDP source ports that are drawn: the ephemeral ones, which RoCEv2 (annex A17.9.3) recommends, without those that name
paths, which are for queue pairs between ranks."""


Kind = Literal["data", "agreement"]
"""The contents of a stream: the data, or the ranks' preceding agreement on block exponents."""


def operation_of(kind: Kind, lane_bits: int) -> roce.LaneOperation:
    """The lane operation of RC ranks' packets on a stream of this kind, in a job with lanes of this width.  Their queue
    pairs do not show it, since the NICs number them."""
    if kind == "agreement":
        return roce.LaneOperation.MAX32
    return {32: roce.LaneOperation.SUM32, 16: roce.LaneOperation.SUM16, 8: roce.LaneOperation.SUM8}[lane_bits]


class OverQuota(Exhausted):
    """A job may not have as many slots as it needs, however many are free.

    Remedy: ask for fewer trees, ranks or lanes in the job, or let the operator raise its tenant's `slots` in the fabric
    file.
    """


@dataclass(frozen=True)
class Sizes:
    """Slots of each kind of stream, powers of two.  A host's window is half of them."""

    data: int
    agreement: int
    quota: int = SLOTS // 2
    """Most slots of any one switch that one job may hold: a job with many trees gets smaller ranges."""
    together: int = SLOTS
    """Most data slots of all trees of a job together: the packets in flight that its machines' links need.  More would
    only take cache memory: at switches for the slots' words, and at hosts for packets that may be sent again."""

    def most_trees(self, groups: int) -> int:
        """Trees at most of a job whose ranks fold in so many groups, each of which has all of them: half as many where
        there are several, and no more than fit into its quota."""
        return max(1, min(MOST_TREES if groups == 1 else MOST_TREES // 2, self.quota // (2 * self.agreement * groups)))

    def fitted(self, trees: int) -> Sizes:
        """The sizes for a job with ``trees`` trees through one switch, those of all local ranks counted."""
        size = self.data
        while size > self.agreement and (trees * size > self.together or trees * (size + self.agreement) > self.quota):
            size //= 2
        return replace(self, data=size)


def sizes_of(engine: Engine, path_mtu: int) -> Sizes:
    """Sizes of streams on an engine: in bytes rather than packets, since links and caches count bytes."""
    if engine == "bmv2":
        data = min(BMV2_QUEUE, BMV2_DATA_BYTES // path_mtu)
        return Sizes(data=data, agreement=16, together=2 * data)
    data = DATA_SLOTS[path_mtu]
    return Sizes(data=data, agreement=AGREEMENT_BYTES // path_mtu, together=data)


@dataclass(frozen=True)
class RcEnd:
    """The values that an RC rank's NIC has chosen for one stream (`wire.jobs.QueuePairs`)."""

    out_qp: int
    """Number of the queue pair whose packets are contributions."""
    in_qp: int
    """Number of the queue pair that takes results."""
    address: int
    """Address of offset 0 of the region into which results are written; 0 if results are sent."""
    rkey: int


@dataclass(frozen=True)
class Stream:
    """One range of slots on one tree of one job, and the numbers by which its packets are known.

    ``ranks`` are the job's ranks that fold here, in ring order; the tree's ``Child.rank`` is an index into them, and
    ``connections``, ``source_ports`` and ``udp_ports`` have the same order.  ``bases`` (first slots) and ``groups``
    (multicast groups) are by switch; ``up`` and ``down`` are the connections between a switch and its parent, by the
    lower switch's name.  A queue pair is a connection's number with the operation in its OPERATION_BITS lowest bits.

    Windowed ranks send to the next of all ranks: the connection of an RC rank is where the windowed rank before it
    sends to, and its source port that of the results which the windowed rank after it gets.  RC ranks send to the next
    RC rank (`successor`).
    """

    tree: Tree
    ranks: tuple[int, ...]
    kind: Kind
    epoch: int
    slots: int
    psn: int
    connections: tuple[int, ...]
    source_ports: tuple[int, ...]
    """UDP source ports of the ranks' contributions: no two jobs and no two ranks share one on a host."""
    udp_ports: tuple[int, ...]
    """UDP ports at which the ranks receive (``Join.udp_port``)."""
    bases: Mapping[str, int]
    groups: Mapping[str, int]
    up: Mapping[str, int]
    """Connection of sums on their way to the parent."""
    down: Mapping[str, int]
    """Connection of results on their way to the lower switch."""
    flows: Mapping[str, int] = field(default_factory=dict)
    """First flow on each switch: child number k has flow + k, the parent, if any, the one after the last child's."""
    operation: int = roce.LaneOperation.SUM32
    """Lane operation of RC ranks' packets."""
    rc_ranks: tuple[int, ...] = ()
    """Places in ``ranks`` of the RC ranks, in ascending order."""
    rc: Mapping[int, RcEnd] = field(default_factory=dict)
    """Place in ``ranks`` -> the values chosen by that RC rank's NIC; empty until all RC ranks have connected."""

    def successor(self, place: int) -> int:
        """The place of the rank to which the one at ``place`` addresses its contributions."""
        ring = self.rc_ranks if place in self.rc_ranks else range(len(self.ranks))
        return ring[(ring.index(place) + 1) % len(ring)]

    def flows_on(self, switch: str) -> range:
        """The flows that it has on a switch of its tree: one for each child, then the parent's if there is one."""
        first = self.flows[switch]
        return range(first, first + _senders(self.tree.fold(switch)))

    def used_connections(self) -> list[int]:
        """The ranks' connections but for those that no windowed rank sends to or receives on."""
        return [connection for place, connection in enumerate(self.connections)
                if place not in self.rc_ranks or (place - 1) % len(self.ranks) not in self.rc_ranks]

    def predecessor(self, place: int) -> int:
        """The place of the rank from which the one at ``place`` gets its results, by their addresses."""
        ring = self.rc_ranks if place in self.rc_ranks else range(len(self.ranks))
        return ring[ring.index(place) - 1]


@dataclass(frozen=True)
class Holding:
    """The numbers of one epoch that one switch holds, whoever allocated them."""

    ranges: frozenset[tuple[int, int]]
    """First slot and length of each range of slots."""
    groups: frozenset[int]
    """Multicast groups."""
    connections: frozenset[int]
    flows: frozenset[int] = frozenset()
    source_ports: frozenset[tuple[str, int]] = frozenset()
    """Hosts, each with the UDP source port of a rank there."""


def holdings(streams: Iterable[Stream]) -> dict[str, Holding]:
    """The resources that these streams hold on each switch of their trees, with the connections of all that fold
    there."""
    found: dict[str, list[Holding]] = {}
    for stream in streams:
        numbers = frozenset((*stream.used_connections(), *stream.up.values(), *stream.down.values()))
        for switch, base in stream.bases.items():
            found.setdefault(switch, []).append(Holding(
                frozenset([(base, stream.slots)]), frozenset([stream.groups[switch]]), numbers,
                frozenset(stream.flows_on(switch)), frozenset(_bound(stream, stream.tree.fold(switch))),
            ))
    return {
        switch: Holding(*(frozenset().union(*parts) for parts in
                          zip(*((h.ranges, h.groups, h.connections, h.flows, h.source_ports) for h in held),
                              strict=True)))
        for switch, held in found.items()
    }


def _bound(stream: Stream, fold: Fold) -> Iterator[tuple[str, int]]:
    """The ranks right below a switch: the host and the source port of each."""
    for child in fold.children:
        if child.rank is not None:
            yield child.node, stream.source_ports[child.rank]


def _senders(fold: Fold) -> int:
    """How many neighbours send a switch packets of a tree."""
    return len(fold.children) + (not fold.is_root)


class Allocator:
    """Allocates slots and numbers of all switches to jobs.

    rng  draws epochs, queue pairs, first PSNs and UDP source ports, so that
         nobody can guess the numbers of a job, and a controller that was restarted does not reuse those of packets that
         are still on their way; default: the operating system's random numbers, which cannot be predicted
    """

    def __init__(
        self, switches: Iterable[str], sizes: Sizes, rng: random.Random | None = None, *, slots: int = SLOTS
    ) -> None:
        self.sizes = sizes
        self._rng = rng = rng or random.SystemRandom()
        self.slots = {name: Slots(slots) for name in switches}
        self.flows = {name: Ranges(FLOWS, "flows") for name in self.slots}
        self._groups = {name: Cycle(1, MAX_GROUP, 1) for name in self.slots}
        self._connections = RandomPool(MIN_CONNECTION, MAX_CONNECTION, rng)
        self.epochs = RandomPool(1, EPOCHS, rng)
        """Epochs are drawn at random, since slots are never cleared.  If clients could predict an epoch, they could
        leave later packets of it in slots, for which the next job would wait for ever."""
        self._source_ports = defaultdict[str, RandomPool](
            lambda: RandomPool(SOURCE_PORTS[0], SOURCE_PORTS[-1], rng)
        )
        """The UDP source ports of each host: a rank binds its own, which the kernel gives once."""
        self.bound: dict[tuple[str, int], set[int]] = {}
        """(Host, source port) -> the epochs that have it: two of them while a job's trees are planned anew."""
        self._held: dict[int, dict[NumberPool, set[int]]] = {}
        """The numbers of each epoch, by their pool."""
        self._binds: dict[int, list[tuple[str, int]]] = {}
        """The hosts and source ports of each epoch."""

    def used(self) -> dict[str, int]:
        """Allocated slots, by switch."""
        return {name: slots.used for name, slots in self.slots.items()}

    def free(self, trees: Iterable[Tree]) -> int:
        """Slots that are free on that switch of these trees which has the fewest."""
        return min(slots.size - slots.used
                   for slots in (self.slots[fold.switch] for tree in trees for fold in tree.folds))

    def draw(self) -> int:
        """A number for a new job, as no stream has one, nor had lately.  Raises Exhausted."""
        epoch = self.epochs.allocate("epochs")
        self.epochs.release(epoch)
        return epoch

    def admit(
        self, trees: Sequence[Tree], groups: Sequence[Sequence[int]], *, like: Sequence[Stream] = (),
        room: int | None = None, rc: Collection[int] = (), lane_bits: int = 32, udp_ports: Sequence[int] = (),
    ) -> list[Stream]:
        """Allocate a job's streams: for each group of ranks that fold together, tree by tree, data then agreement.  The
        streams of a tree have one epoch, by which `release` knows them.

        groups  the job's fold groups (``machines.fold_groups``)
        like    streams that these replace: they have the same sizes and UDP ports, which the ranks have bound, and
                the same RC ranks
        room    most slots of any one switch; None: the quota of a job alone counts
        rc      the job's RC ranks; there is one group of ranks then
        lane_bits  the width of the job's lanes
        udp_ports  UDP ports at which the job's ranks receive; default: roce.UDP_PORT for all
        Raises Exhausted, and OverQuota where it is not for want of free slots; nothing is allocated then.
        """
        epochs: list[int] = []
        try:
            for _ in trees:
                epochs.append(self.epochs.allocate("epochs"))
                self._held[epochs[-1]] = {self.epochs: {epochs[-1]}}
            if like:
                return self._again(epochs, trees, groups, like)
            return self._first(epochs, trees, groups, room, rc, lane_bits, udp_ports)
        except Exhausted:
            self.release(*epochs)
            raise

    def _again(
        self, epochs: Sequence[int], trees: Sequence[Tree], groups: Sequence[Sequence[int]], like: Sequence[Stream]
    ) -> list[Stream]:
        placed = [place for _ in groups for place in zip(epochs, trees, strict=True) for _ in range(2)]
        again = [
            replace(self._stream(epoch, tree, old.kind, old.slots, old.ranks, old.source_ports, old.udp_ports),
                    rc_ranks=old.rc_ranks, operation=old.operation)
            for (epoch, tree), old in zip(placed, like, strict=True)
        ]
        for stream in again:
            for fold in stream.tree.folds:
                for host, port in _bound(stream, fold):
                    self._bind(stream.epoch, host, port)
        return again

    def _first(
        self, epochs: Sequence[int], trees: Sequence[Tree], groups: Sequence[Sequence[int]], room: int | None,
        rc: Collection[int], lane_bits: int, udp_ports: Sequence[int],
    ) -> list[Stream]:
        through = Counter(fold.switch for tree in trees for fold in tree.folds)
        most = max(through.values(), default=0) * len(groups)
        sizes = self.sizes if room is None else replace(self.sizes, quota=min(self.sizes.quota, room))
        sizes = sizes.fitted(most)
        need = most * (sizes.data + sizes.agreement)
        if need > sizes.quota:
            raise OverQuota(f"{most} trees through one switch need {need} slots at the least, a job may have "
                          f"{sizes.quota} of a switch")
        kinds: tuple[tuple[Kind, int], ...] = (("data", sizes.data), ("agreement", sizes.agreement))
        streams: list[Stream] = []
        for group, epoch, tree in ((tuple(group), *place) for group in groups
                                   for place in zip(epochs, trees, strict=True)):
            # Both streams of a tree have the same source ports: their packets can leave as one super-packet.
            hosts = {child.rank: child.node for fold in tree.folds for child in fold.children}
            sources = tuple(self._source_port(epoch, hosts[place]) for place in range(len(group)))
            ports = tuple(udp_ports[rank] if udp_ports else roce.UDP_PORT for rank in group)
            streams += [
                replace(self._stream(epoch, tree, kind, length, group, sources, ports),
                        rc_ranks=tuple(at for at, rank in enumerate(group) if rank in rc),
                        operation=operation_of(kind, lane_bits))
                for kind, length in kinds
            ]
        return streams

    def reserve(self, epoch: int, found: Mapping[str, Holding]) -> bool:
        """Allocate what switches hold of an epoch, by switch, until `release`: numbers that an earlier controller has
        handed out.  May be called again with what another switch holds, or with more.  Returns False if some of it is
        in use by another epoch; the rest is allocated all the same."""
        mine = self._held.setdefault(epoch, {})
        free = True
        connections = frozenset[int]().union(*(holding.connections for holding in found.values()))
        wanted: list[tuple[Cycle | RandomPool, frozenset[int]]] = [
            (self.epochs, frozenset([epoch])), (self._connections, connections),
            *((self._groups[switch], holding.groups) for switch, holding in found.items()),
        ]
        for pool, numbers in wanted:
            held = mine.setdefault(pool, set())
            for number in numbers - held:  # a connection is known at both of its ends
                if pool.take(number):
                    held.add(number)
                else:
                    free = False
        for switch, holding in found.items():
            for host, port in holding.source_ports:
                self._source_ports[host].take(port)
                self._bind(epoch, host, port)
            for cells, ranges in ((self.slots[switch], sorted(holding.ranges)),
                                  (self.flows[switch], runs(holding.flows))):
                held = mine.setdefault(cells, set())
                for base, length in ranges:
                    if base in held and cells.ranges[base] == length:
                        continue
                    if cells.take(base, length):
                        held.add(base)
                    else:
                        free = False
        return free

    def holds(self, epoch: int) -> bool:
        """True if something is allocated to trees of this epoch."""
        return epoch in self._held

    def release(self, *epochs: int) -> None:
        """Free everything that trees with these epochs hold; an unknown epoch holds nothing."""
        for epoch in epochs:
            for pool, numbers in self._held.pop(epoch, {}).items():
                for number in numbers:
                    pool.release(number)
            for host, port in self._binds.pop(epoch, ()):
                epochs_of = self.bound[host, port]
                epochs_of.remove(epoch)
                if not epochs_of:
                    del self.bound[host, port]
                    self._source_ports[host].release(port)

    def _stream(
        self, epoch: int, tree: Tree, kind: Kind, length: int, ranks: tuple[int, ...], source_ports: tuple[int, ...],
        udp_ports: tuple[int, ...],
    ) -> Stream:
        bases, flows, groups = {}, {}, {}
        for fold in tree.folds:
            bases[fold.switch] = self._range(epoch, fold.switch, self.slots, length)
            flows[fold.switch] = self._range(epoch, fold.switch, self.flows, _senders(fold))
            groups[fold.switch] = self._draw(epoch, self._groups[fold.switch], f"multicast groups of {fold.switch}")
        lower = [fold.switch for fold in tree.folds if not fold.is_root]
        return Stream(
            tree, ranks, kind, epoch, length,
            psn=self._rng.randint(0, roce.PSN_MASK),
            connections=tuple(self._draw(epoch, self._connections, "connections") for _ in ranks),
            source_ports=source_ports,
            udp_ports=udp_ports,
            bases=bases,
            groups=groups,
            up={switch: self._draw(epoch, self._connections, "connections") for switch in lower},
            down={switch: self._draw(epoch, self._connections, "connections") for switch in lower},
            flows=flows,
        )

    def _range(self, epoch: int, switch: str, cells: Mapping[str, Ranges], length: int) -> int:
        try:
            base = cells[switch].allocate(length)
        except Exhausted as refusal:
            raise Exhausted(f"{switch} has {refusal}") from None
        self._held[epoch].setdefault(cells[switch], set()).add(base)
        return base

    def _draw(self, epoch: int, pool: Cycle | RandomPool, what: str) -> int:
        number = pool.allocate(what)
        self._held[epoch].setdefault(pool, set()).add(number)
        return number

    def _source_port(self, epoch: int, host: str) -> int:
        port = self._source_ports[host].allocate(f"UDP source ports of {host}")
        self._bind(epoch, host, port)
        return port

    def _bind(self, epoch: int, host: str, port: int) -> None:
        """An epoch has a host's source port, until it is released."""
        epochs = self.bound.setdefault((host, port), set())
        if epoch not in epochs:
            epochs.add(epoch)
            self._binds.setdefault(epoch, []).append((host, port))

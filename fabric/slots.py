# SPDX-License-Identifier: Apache-2.0
"""What a job gets of the switches: slot ranges, multicast groups, connections, an epoch; and their return.

Every number here separates a job from the others.  Slots are the scarce ones: a job is refused, with the figures,
where a switch on one of its trees has not enough left; it then runs its ring without the switches.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

from netfold.fabric.trees import Tree
from netfold.wire import roce

SLOTS: Final = 16384
"""Of one switch: SLOTS of p4src/sizes.p4."""
MAX_GROUP: Final = 4095
"""Multicast groups that BMv2 takes are 1..4095."""
EPOCHS: Final = 2**16 - 1
"""Epochs are 1..65535; 0 is a slot never used."""
MIN_CONNECTION: Final = 1
"""A connection is a queue pair for each operation, in a row; queue pairs 0 and 1 are InfiniBand's own."""
MAX_CONNECTION: Final = 2 ** (23 - roce.OPERATION_BITS) - 1
"""Queue pairs with the highest bit are connections between ranks (host/roce/sockets.py): switches must not fold
them."""
EPHEMERAL: Final = 0xC000
"""UDP source ports are drawn from here upwards, as RoCEv2 (annex A17.9.3) has it."""


Kind = Literal["data", "agreement"]
"""Of a stream: the one of the data, and the one of what ranks agree on first."""


class Refused(Exception):
    """The switches have not enough left for a job; says of what, where, and how much."""


@dataclass(frozen=True)
class Sizes:
    """Slots that each kind of stream asks for, powers of two.  A host's window is half of them."""

    data: int
    agreement: int
    quota: int = SLOTS // 2
    """Of any one switch, for one job: a job of many trees gets smaller ranges rather than all the slots."""
    together: int = SLOTS
    """Of all trees of a job, for the data: a machine's link carries them all, and needs so many in flight.  More only
    fills the caches of whoever keeps the packets: switches their words, hosts what they may have to send again."""

    def fitted(self, trees: int) -> Sizes:
        """The sizes for a job with so many trees through one switch, those of all ranks of a machine counted."""
        size = self.data
        while size > self.agreement and (trees * size > self.together or trees * (size + self.agreement) > self.quota):
            size //= 2
        return replace(self, data=size)


SIZES: Final[Mapping[str, Sizes]] = {
    "softswitch": Sizes(data=1024, agreement=128, together=1024),
    # an egress queue of BMv2 holds 64 packets, and P4Runtime cannot make it longer
    "bmv2": Sizes(data=64, agreement=16, together=128),
}


@dataclass(frozen=True)
class Stream:
    """One range of slots on one tree of one job, and everything that tells its packets from all others.

    ``ranks`` are those of the job that fold here, in the order of their ring: the tree's ``Child.rank`` counts these.
    ``connections`` and ``source_ports`` are theirs, in the same order; ``bases`` and ``groups`` are by switch; ``up``
    and ``down`` are the connections of the link between a switch and its parent, by the lower switch's name.  A
    connection is a queue pair for each operation: its number, and the operation in OPERATION_BITS below.
    """

    tree: Tree
    ranks: tuple[int, ...]
    kind: Kind
    epoch: int
    slots: int
    psn: int
    connections: tuple[int, ...]
    source_ports: tuple[int, ...]
    bases: Mapping[str, int]
    groups: Mapping[str, int]
    up: Mapping[str, int]
    """Destination, at the parent, of sums that go up."""
    down: Mapping[str, int]
    """Destination, at the lower switch, of results that come down."""


@dataclass
class Cycle:
    """Numbers low..high, handed out in a circle, so that one given back is the last to come again."""

    low: int
    high: int
    next: int
    used: set[int] = field(default_factory=set)

    def take(self, what: str, divisor: int = 1, remainder: int = 0) -> int:
        """A number not in use that leaves this remainder.  Raises Refused where all are."""
        size = self.high - self.low + 1
        if len(self.used) < size:
            for _ in range(size):
                number, self.next = self.next, self._after(self.next)
                if number % divisor == remainder and number not in self.used:
                    self.used.add(number)
                    return number
        raise Refused(f"all {size} {what} are in use")

    def _after(self, number: int) -> int:
        return self.low if number == self.high else number + 1


@dataclass
class Slots:
    """The slots of one switch; ranges are powers of two and aligned, since a slot is base + (PSN & mask)."""

    size: int = SLOTS
    ranges: dict[int, int] = field(default_factory=dict)
    """base -> length"""

    @property
    def used(self) -> int:
        """Slots in all ranges."""
        return sum(self.ranges.values())

    def take(self, length: int) -> int:
        """The base of a free range.  Raises Refused with the figures."""
        if length < 1 or length & (length - 1):
            raise ValueError(f"slots: expected a power of two, got {length}")
        for base in range(0, self.size - length + 1, length):
            if not any(b < base + length and base < b + n for b, n in self.ranges.items()):
                self.ranges[base] = length
                return base
        raise Refused(f"no {length} slots in a row, {self.size - self.used} of {self.size} are free in all")


class Ledger:
    """Who holds what, on all switches.  ``rng`` draws where circles and PSNs begin, so that a controller that was
    started anew does not continue with the numbers of packets still on their way."""

    def __init__(self, switches: Iterable[str], sizes: Sizes, rng: random.Random, *, slots: int = SLOTS) -> None:
        self.sizes = sizes
        self._rng = rng
        self._slots = {name: Slots(slots) for name in switches}
        self._groups = {name: Cycle(1, MAX_GROUP, 1) for name in self._slots}
        first = rng.randint(MIN_CONNECTION, MAX_CONNECTION)
        self._connections = Cycle(MIN_CONNECTION, MAX_CONNECTION, first)
        self._epochs = Cycle(1, EPOCHS, rng.randint(1, EPOCHS))
        self._returns: dict[int, list[Callable[[], object]]] = {}

    def used(self) -> dict[str, int]:
        """Slots in use by switch."""
        return {name: slots.used for name, slots in self._slots.items()}

    def open(self) -> int:
        """A new job's epoch, which is also its name here.  Raises Refused."""
        epoch = self._epochs.take("epochs")
        self._returns[epoch] = [partial(self._epochs.used.discard, epoch)]
        return epoch

    def admit(
        self, epoch: int, trees: Sequence[Tree], groups: Sequence[Sequence[int]], *, like: Sequence[Stream] = ()
    ) -> list[Stream]:
        """The job's streams: for each group of ranks that fold together, tree by tree, data and then agreement.

        groups  ranks of the job; group l are those in place l of their machines (``machines.fold_groups``), whose
                connections and source ports leave the remainder l divided by the number of groups: a machine tells its
                ranks' packets apart by that
        like    streams that these take the place of: sizes and source ports, which the ranks have bound, are theirs
        Raises Refused: `release` what it has then.
        """
        if like:
            placed = [(tree, place) for place in range(len(groups)) for tree in trees for _ in range(2)]
            return [
                replace(self._stream(epoch, tree, old.kind, old.slots, old.ranks, (len(groups), place)),
                        source_ports=old.source_ports)
                for (tree, place), old in zip(placed, like, strict=True)
            ]
        through = Counter(fold.switch for tree in trees for fold in tree.folds)
        most = max(through.values(), default=0) * len(groups)
        sizes = self.sizes.fitted(most)
        need = most * (sizes.data + sizes.agreement)
        if need > sizes.quota:
            raise Refused(f"{most} trees through one switch need {need} slots at the least, a job may have "
                          f"{sizes.quota} of a switch")
        kinds: tuple[tuple[Kind, int], ...] = (("data", sizes.data), ("agreement", sizes.agreement))
        return [
            self._stream(epoch, tree, kind, length, tuple(group), (len(groups), place))
            for place, group in enumerate(groups)
            for tree in trees
            for kind, length in kinds
        ]

    def release(self, epoch: int) -> None:
        """Take back all that the job holds; unknown jobs hold nothing."""
        for give_back in self._returns.pop(epoch, ()):
            give_back()

    def _stream(
        self, epoch: int, tree: Tree, kind: Kind, length: int, ranks: tuple[int, ...], place: tuple[int, int]
    ) -> Stream:
        bases, groups = {}, {}
        for fold in tree.folds:
            slots = self._slots[fold.switch]
            try:
                base = slots.take(length)
            except Refused as refusal:
                raise Refused(f"{fold.switch} has {refusal}") from None
            self._returns[epoch].append(partial(slots.ranges.pop, base))
            bases[fold.switch] = base
            groups[fold.switch] = self._take(epoch, self._groups[fold.switch], f"multicast groups of {fold.switch}")
        lower = [fold.switch for fold in tree.folds if not fold.is_root]
        return Stream(
            tree, ranks, kind, epoch, length,
            psn=self._rng.randint(0, roce.PSN_MASK),
            connections=tuple(self._connection(epoch, *place) for _ in ranks),
            source_ports=tuple(self._source_port(*place) for _ in ranks),
            bases=bases,
            groups=groups,
            up={switch: self._connection(epoch) for switch in lower},
            down={switch: self._connection(epoch) for switch in lower},
        )

    def _connection(self, epoch: int, divisor: int = 1, remainder: int = 0) -> int:
        return self._take(epoch, self._connections, "connections", divisor, remainder)

    def _source_port(self, divisor: int, remainder: int) -> int:
        return self._rng.randrange(-(-EPHEMERAL // divisor), 0x10000 // divisor) * divisor + remainder

    def _take(self, epoch: int, cycle: Cycle, what: str, divisor: int = 1, remainder: int = 0) -> int:
        number = cycle.take(what, divisor, remainder)
        self._returns[epoch].append(partial(cycle.used.discard, number))
        return number

# SPDX-License-Identifier: Apache-2.0
"""Makes the entries of p4src/route.p4 and p4src/paths.p4: what a switch does with packets that are not folded.

    Forwarding, planned for each switch (paths/steering.py)  ->  route, uplink, policy, pin, bent

A leaf has no number in these tables (it is leaf 0) as long as a switch sends packets to it the default way up, by the
pins that hold for all.  It gets one, and a route of its own, at those switches where a failure, a mode or an operator
makes it differ.  A block of leaves, such as a pod, has a number as well: a switch that has another route or exceptions
to all of them alike has those of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from netfold.controller.switch.entities import Entry, State, state
from netfold.controller.switch.tables import (
    BENT,
    FORWARD,
    PATHS,
    PIN,
    POLICY,
    ROUTE,
    SPREAD,
    UNREACHABLE,
    UPLINK,
    USE,
    Mode,
    mac_number,
)
from netfold.fabric.graph import Fabric, ip_number
from netfold.fabric.routing.prefixes import Prefix, prefixes_of
from netfold.fabric.routing.routes import NextHop
from netfold.wire import roce

BY_PORT: Final = 0
"""The group of uplinks whose members are ports, for pins."""
RING: Final = 1
"""The group of all uplinks, of which most routes take a part.  It stays as it is whatever goes down: a route takes
another part of it, so that a lost uplink changes a route or two, and not a group."""
NO_PORT: Final = 511
"""Value in place of a port: the packet's uplink is chosen by the hash (p4src/sizes.p4)."""
ALL_BITS: Final = 0xFFFF
"""All bits of a path's number."""
NUMBER_BITS: Final = roce.TCP_PATH_PORT - roce.PATH_PORT - 1
"""The bits of a path's number that one has; others are of ports that name no path."""
PINNED: Final[Mode] = "pinned"
"""The mode that needs no entry."""


class Ports(NamedTuple):
    """Where packets leave whose ports name one path; NO_PORT: where the hash says."""

    roce: int
    connection: int
    """Port for TCP, which takes another way if its path is gone."""


UNPINNED: Final = Ports(NO_PORT, NO_PORT)


@dataclass
class Forwarding:
    """A switch's forwarding of packets that are not folded.  Destinations are leaves and blocks of leaves, by name;
    what a leaf has counts for it, not what its block has.  Paths have numbers."""

    default: tuple[NextHop, ...] = ()
    """Next hops to all leaves that are not in ``routes``; empty: there are no others."""
    routes: dict[str, tuple[NextHop, ...]] = field(default_factory=dict)
    hosts: dict[str, NextHop] = field(default_factory=dict)
    """Hosts of this switch whose links are up."""
    pins: dict[int, Ports] = field(default_factory=dict)
    """Ports of each path to all leaves but those of ``bent``; empty at a switch that has no choice."""
    bent: dict[tuple[str, int], Ports] = field(default_factory=dict)
    mode: Mode = PINNED
    """How packets choose among next hops, to all leaves but those of ``modes``."""
    modes: dict[str, Mode] = field(default_factory=dict)
    names: int = ALL_BITS
    """The bits of a path's number by which ``pins`` and ``bent`` have it."""
    blocks: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The block of each leaf that has one."""

    def hops(self, leaf: str) -> tuple[NextHop, ...]:
        """The next hops to a leaf, or to leaves of a block that have none of their own."""
        found = self.routes.get(leaf)
        return self.routes.get(self.blocks.get(leaf, ""), self.default) if found is None else found

    def ports(self, leaf: str, path: int) -> Ports:
        """Where packets to a leaf leave whose ports name a path."""
        key = path & self.names
        where = leaf if leaf in self._apart else self.blocks.get(leaf, "")
        return self.bent.get((where, key)) or self.pins.get(key, UNPINNED)

    @property
    def _apart(self) -> set[str]:
        return {*self.routes, *self.modes, *(where for where, _ in self.bent)}

    def set_apart(self, leaf: str) -> None:
        """Let a leaf have all of its own that it has of its block."""
        block = self.blocks.get(leaf)
        apart = self._apart
        if block in apart and leaf not in apart:
            self.routes[leaf] = self.hops(leaf)
            self.bent |= {(leaf, key): ports for (where, key), ports in self.bent.items() if where == block}


class PathTables:
    """Makes the entries of one fabric's switches.

    climbs  the neighbours above each switch, in a Clos
    blocks  the block of each leaf that has one
    """

    def __init__(
        self, fabric: Fabric, climbs: Mapping[str, Collection[str]], blocks: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        leaf_of = fabric.leaf_of()
        self.numbers = {where: number for number, where in
                        enumerate(dict.fromkeys((*leaf_of.values(), *blocks.values())), 1)}
        """The numbers of leaves and blocks in the tables, from 1."""
        self._leaves = {*leaf_of.values()}
        switches = [switch.name for switch in fabric.switches]
        macs = {node.name: mac_number(node.mac) for node in fabric.nodes}
        self._source = {switch: ("src_mac", macs[switch]) for switch in switches}
        self._destination = {name: ("dst_mac", mac) for name, mac in macs.items()}
        self._addresses = {host.name: [ip_number(address) for address in (host.address, fold) if address]
                           for host, fold in zip(fabric.hosts, fabric.fold_addresses(), strict=True)}
        """Addresses of each host: its own, and its fold address, which takes the same routes.  Only switches send to
        that, since `guard` lets no host address one."""
        self._prefixes = prefixes_of(fabric, leaf_of)
        if blocks:
            self._prefixes = prefixes_of(
                fabric, {host: blocks.get(leaf, leaf) for host, leaf in leaf_of.items()}) | self._prefixes
        self._uplinks: dict[str, list[NextHop]] = {name: [] for name in switches}
        """All links of a switch to others, by port."""
        for link in fabric.links:
            for end, far in (link.ends, link.ends[::-1]):
                if end.node in self._uplinks and far.node in self._uplinks:
                    self._uplinks[end.node].append(NextHop(end.port, far.node))
        for hops in self._uplinks.values():
            hops.sort()
        self._rings = {switch: [*found, *found[:-1]] for switch in switches
                       if (found := [hop for hop in self._uplinks[switch] if hop.node in climbs.get(switch, ())])}
        """The links of a switch up, by port, one after the other, and once more: if some lack that are side by side,
        what is left is side by side somewhere."""

        # Entries that switches keep while others of theirs change, with what they were made of, which must not change
        self._made_rings: dict[str, tuple[object, State]] = {}
        self._made_ports: dict[str, tuple[object, State]] = {}
        self._made_hosts: dict[str, tuple[object, State]] = {}
        self._made_pins: dict[str, tuple[object, State]] = {}
        self._pins: dict[tuple[int, Ports], Entry] = {}
        """Entries of pins, which switches in like places share."""

    def all_parts(self, ways: Mapping[str, Forwarding]) -> dict[str, dict[str, State]]:
        """The parts of all these switches."""
        return {switch: self.parts(switch, here) for switch, here in ways.items()}

    def parts(self, switch: str, ways: Forwarding) -> dict[str, State]:
        """The entries of one switch, as parts of its desired state; those that stay as they were are the same object as
        before, so that nobody compares their entries."""
        apart = dict.fromkeys((*ways.routes, *ways.modes, *(leaf for leaf, _ in ways.bent)))
        groups = self._groups(switch, ways, apart)
        own = {(address, 32): hop for host, hop in ways.hosts.items() for address in self._addresses[host]}
        routes = [*self._routes(switch, ways, apart, groups, own)]
        for hops, (group, _) in groups.items():
            if group != RING:
                routes += [self._uplink(switch, group, member, hop) for member, hop in enumerate(hops)]
        routes += [Entry(POLICY, (("leaf", number),), f"{PATHS}.{mode}")
                   for number, mode in self._modes(ways, apart) if groups and mode != PINNED]
        routes += [Entry(BENT, (("leaf", self.numbers[leaf]), ("path", path)), USE, _ports(ports))
                   for (leaf, path), ports in ways.bent.items()]
        return {
            "ring": self._kept(self._made_rings, switch, None, lambda: [
                self._uplink(switch, RING, member, hop) for member, hop in enumerate(self._rings[switch])]
            ) if ways.default else {},
            "ports": self._kept(self._made_ports, switch, None, lambda: [
                self._uplink(switch, BY_PORT, hop.port, hop) for hop in self._uplinks[switch]]
            ) if ways.pins or ways.bent else {},
            "hosts": self._kept(self._made_hosts, switch, ways.hosts, lambda: [
                Entry(ROUTE, (("dst", prefix),), FORWARD, self._forward(switch, hop)) for prefix, hop in own.items()]),
            "routes": state(routes),
            "pins": self._kept(self._made_pins, switch, ways.pins, lambda: [
                self._pins.get((path, ports)) or self._pins.setdefault(
                    (path, ports), Entry(PIN, (("path", path),), USE, _ports(ports)))
                for path, ports in ways.pins.items()]),
        }

    @staticmethod
    def _kept(kept: dict[str, tuple[object, State]], switch: str, of: object, make: Callable[[], list[Entry]]
              ) -> State:
        """Entries that were made of the same object before, or new ones."""
        if switch not in kept or kept[switch][0] is not of:
            kept[switch] = of, state(make())
        return kept[switch][1]

    def _modes(self, ways: Forwarding, apart: Mapping[str, None]) -> Iterator[tuple[int, Mode]]:
        """How packets choose, by the leaf's number."""
        yield 0, ways.mode
        for leaf in apart:
            yield self.numbers[leaf], ways.modes.get(leaf, ways.mode)

    def _routes(
        self, switch: str, ways: Forwarding, apart: Mapping[str, None],
        groups: Mapping[tuple[NextHop, ...], tuple[int, int]], own: Collection[Prefix],
    ) -> Iterator[Entry]:
        """Routes to all but the switch's own hosts.

        own  addresses of those
        """
        for prefix in self._prefixes.get(switch, ()):  # of hosts that are down, and of none: they do not go up again
            if prefix not in own:
                yield Entry(ROUTE, (("dst", prefix),), UNREACHABLE)
        if ways.default:
            yield self._route(switch, (0, 0), 0, ways.default, groups, ways.names)
        # what a block and one of its leaves both have is the leaf's
        ours = {*own, *self._prefixes.get(switch, ())}
        wanted = {prefix: where for where in sorted(apart, key=self._leaves.__contains__)
                  for prefix in self._prefixes[where] if prefix not in ours}
        for prefix, where in wanted.items():
            yield self._route(switch, prefix, self.numbers[where], ways.hops(where), groups, ways.names)

    def _route(
        self, switch: str, prefix: Prefix, leaf: int, hops: tuple[NextHop, ...],
        groups: Mapping[tuple[NextHop, ...], tuple[int, int]], names: int,
    ) -> Entry:
        key = (("dst", prefix),)
        if not hops:
            return Entry(ROUTE, key, UNREACHABLE)
        if len(hops) == 1:
            return Entry(ROUTE, key, FORWARD, self._forward(switch, hops[0]))
        group, first = groups[hops]
        return Entry(ROUTE, key, SPREAD,
                     (("leaf", leaf), ("group", group), ("first", first), ("members", len(hops)), ("names", names)))

    def _groups(
        self, switch: str, ways: Forwarding, apart: Mapping[str, None]
    ) -> dict[tuple[NextHop, ...], tuple[int, int]]:
        """The number of each group of uplinks, and which of its members is the first: a part of the ring where it can
        be, and where it cannot a group of its own."""
        wanted = {ways.default: None} | {ways.hops(leaf): None for leaf in apart}
        ring = self._rings[switch] if ways.default else []
        found: dict[tuple[NextHop, ...], tuple[int, int]] = {}
        following = RING + 1
        for hops in sorted(hops for hops in wanted if len(hops) > 1):
            first = _part_of(ring, hops)
            if first is None:
                found[hops] = following, 0
                following += 1
            else:
                found[hops] = RING, first
        return found

    def _uplink(self, switch: str, group: int, member: int, hop: NextHop) -> Entry:
        return Entry(UPLINK, _member(group, member), FORWARD, self._forward(switch, hop))

    def _forward(self, switch: str, hop: NextHop) -> tuple[tuple[str, int], ...]:
        return (_port(hop.port), self._source[switch], self._destination[hop.node])


@lru_cache(maxsize=1 << 13)
def _member(group: int, member: int) -> tuple[tuple[str, int], ...]:
    """A key that the entries of all switches share."""
    return (("group", group), ("member", member))


@lru_cache(maxsize=1 << 9)
def _port(port: int) -> tuple[str, int]:
    """A parameter that the entries of all switches share."""
    return ("port", port)


def _ports(ports: Ports) -> tuple[tuple[str, int], ...]:
    return (("roce", ports.roce), ("connection", ports.connection))


def _part_of(ring: Sequence[NextHop], hops: Sequence[NextHop]) -> int | None:
    """Where in the ring these next hops stand side by side; None: nowhere."""
    if not set(hops) <= set(ring):
        return None
    for first in range((len(ring) + 1) // 2):
        if set(ring[first: first + len(hops)]) == set(hops):
            return first
    return None

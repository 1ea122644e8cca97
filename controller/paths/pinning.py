# SPDX-License-Identifier: Apache-2.0
"""Which path leaves a switch by which port: an entry for each path, and exceptions for single leaves.

    ClimbPins     in a Clos where one climb leads to each switch above: from sets of leaves and paths alone, and once
                  for all switches that pin the same, so that only what a failure or a suspicion touches is looked at
    compressed    anywhere else: from the pins of every pair of leaves

Both say the same for every packet whose port names a path of its pair of leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from netfold.controller.switch.path_tables import NO_PORT, UNPINNED, Forwarding, Ports
from netfold.fabric.routing.climbs import Climbs, LeafSets, members, union
from netfold.fabric.routing.path_names import PathNames

Pins = dict[int, Ports]
Bent = list[tuple[int, Pins]]
"""Exceptions from pins, by sets of leaves."""
Mark = tuple[str, str, int]
"""A switch, the leaf for which one of its uplinks is suspect, and the uplink's number."""


class Left(NamedTuple):
    """The live part of a Clos."""

    reach: LeafSets
    """For RoCE: all that is up."""
    connections: LeafSets
    """For TCP: without links that several suspicions share."""
    suspects: Mapping[tuple[str, str], int]
    """By switch and leaf: paths, by number, that TCP avoids besides."""


def left_of(reach: LeafSets, links: Collection[int], marks: Iterable[Mark], shared: Collection[int]) -> Left:
    """The live part, with as many suspicions as leave a path for TCP between every two connected leaves: all of them,
    or those of single paths, or none.

    links   numbers of the links that are up
    marks   uplinks that are suspect for a leaf
    shared  links that several suspicions share
    """
    suspects: dict[tuple[str, str], int] = defaultdict(int)
    for switch, leaf, link in marks:
        for paths, line in reach.climbs.toward(switch):
            if line.link == link:
                suspects[switch, leaf] |= paths
    if shared:
        found = Left(reach, LeafSets(reach.climbs, set(links) - set(shared), reach.below), suspects)
        if _connects(found):
            return found
    found = Left(reach, reach, suspects)
    return found if _connects(found) else Left(reach, reach, {})


def _connects(left: Left) -> bool:
    """True if any two leaves with a path have one that TCP may take."""
    for (switch, leaf), suspect in left.suspects.items():
        if _shared(left.reach, switch, leaf) and not _shared(left.connections, switch, leaf) & ~suspect:
            return False
    if left.connections is left.reach:
        return True
    masks = {(left.reach.above[leaf], left.connections.above[leaf])
             for leaf in left.reach.climbs.leaf_bit if leaf in left.reach.above}
    return all(mine & theirs or not up & other for up, mine in masks for other, theirs in masks)


def _shared(reach: LeafSets, switch: str, leaf: str) -> int:
    """The paths from a switch to a leaf, by number: they turn at the lowest switches that are above both."""
    return reach.lowest(reach.above.get(switch, 0) & reach.above.get(leaf, 0))


class Name(NamedTuple):
    """A name that a switch pins, or some of them alike."""

    key: int
    """Its number, or that part of the number by which the switch knows it."""
    paths: int
    """The switches where its paths turn, by the bits of `Climbs.name_bit`."""
    port: int


class PinnedNames(NamedTuple):
    """The names that switches pin which have the same neighbours above at the same ports."""

    sets: tuple[tuple[Name, ...], ...]
    """Sets of names in which one may stand in for another."""
    usual: Pins
    """The pins with nothing down."""


def names_of(climbs: Climbs, names: PathNames) -> dict[str, PinnedNames]:
    """The names that each switch with a choice pins; one object for switches that pin the same."""
    alike: dict[tuple[object, ...], PinnedNames] = {}
    found: dict[str, PinnedNames] = {}
    for switch, tier in climbs.tier.items():
        if len(climbs.up[switch]) > 1:
            key = tier, climbs.uppers[switch], tuple([line.hop.port for line in climbs.up[switch]])
            if key not in alike:
                sets = _sets(climbs, names, switch)
                usual = {name.key: Ports(name.port, name.port) for some in sets for name in some}
                alike[key] = PinnedNames(sets, usual)
            found[switch] = alike[key]
    return found


def _sets(climbs: Climbs, names: PathNames, switch: str) -> tuple[tuple[Name, ...], ...]:
    toward = climbs.toward(switch)
    if names.planes and climbs.tier[switch] == 1:
        return tuple([Name(names.digit(names.numbers[line.hop.node]), paths, line.hop.port) for paths, line in toward]),
    return tuple([tuple([Name(names.numbers[climbs.named[path]], 1 << path, line.hop.port)
                         for paths, line in toward for path in members(paths & tier)])
                  for _, tier in sorted(climbs.names_of_tier.items())])


class Class(NamedTuple):
    """Leaves to which the same paths lead."""

    whole: int
    """The paths that lead there with nothing down."""
    reach: int
    """The paths that lead there now."""
    connections: int
    """The paths that TCP may take."""
    leaves: int
    """The leaves' bits."""


def classes(left: Left) -> list[Class]:
    """All leaves that are up, by the paths that lead there."""
    found: dict[tuple[int, int, int], int] = defaultdict(int)
    whole = left.reach.climbs.whole.above
    for leaf, bit in left.reach.climbs.leaf_bit.items():
        if leaf in left.reach.above:
            found[whole[leaf], left.reach.above[leaf], left.connections.above[leaf]] |= bit
    return [Class(*masks, leaves) for masks, leaves in found.items()]


class ClimbPins:
    """The pins of switches that have a choice, in a Clos that `Climbs.is_regular`, and exceptions from them."""

    def __init__(self, left: Left) -> None:
        self._left = left
        self._classes = classes(left)
        self._lacking = [some for some in self._classes if some.whole & ~(some.reach & some.connections)]
        self._known: dict[int, tuple[Pins, Bent]] = {}
        """The answers for switches whose own ways up are whole, by their names."""

    def of(self, switch: str, names: PinnedNames) -> tuple[Pins, Bent]:
        """The pins of a switch, and exceptions by sets of leaves: none for leaves to which its default route leads
        around a failure, by any of its uplinks, since no path leads there."""
        left = self._left
        own = left.reach.below[switch] | left.reach.beyond(switch)
        is_whole = left.reach.above[switch] & left.connections.above[switch] == left.reach.climbs.whole.above[switch]
        suspicious = {leaf: paths for (at, leaf), paths in left.suspects.items() if at == switch}
        if not is_whole or suspicious:
            pins, bent = self._of(switch, names, self._classes, suspicious)
        else:
            if id(names) not in self._known:
                self._known[id(names)] = self._of(switch, names, self._lacking, {})
            pins, bent = self._known[id(names)]
        return pins, [(rest, ports) for leaves, ports in bent if (rest := leaves & ~own)]

    def _of(
        self, switch: str, names: PinnedNames, classes: Collection[Class], suspicious: Mapping[str, int]
    ) -> tuple[Pins, Bent]:
        left, climbs = self._left, self._left.reach.climbs
        alive, usable = left.reach.above[switch], left.connections.above[switch]
        is_whole = alive & usable == climbs.whole.above[switch]
        pins: Pins = {}
        over: dict[int, Name] = {}
        """The name whose path TCP takes by each."""
        for alike in names.sets:
            good = [name for name in alike if usable & name.paths] or [name for name in alike if alive & name.paths]
            for turn, name in enumerate(alike if good else ()):
                over[name.key] = name if name in good else good[turn % len(good)]
                pins[name.key] = Ports(name.port if alive & name.paths else NO_PORT, over[name.key].port)
        if pins == names.usual:
            pins = names.usual
        found: Bent = []
        for some in classes:
            if is_whole and not suspicious and not _touches(some, names.sets, alive):
                continue
            leaves = some.leaves
            for leaf, paths in suspicious.items():
                if leaves & (bit := climbs.leaf_bit[leaf]):
                    leaves &= ~bit
                    found.append((bit, _exceptions(left, switch, some, names.sets, pins, over, paths)))
            if leaves:
                found.append((leaves, _exceptions(left, switch, some, names.sets, pins, over, 0)))
        return pins, [(leaves, bent) for leaves, bent in found if bent]


def _touches(some: Class, names: Sequence[Sequence[Name]], above: int) -> bool:
    """True if leaves lack all paths of a name at a switch that lacks none.

    above  the switches above that one
    """
    left = some.reach & some.connections
    lost = some.whole & ~left & above
    return bool(lost) and any(lost & name.paths and not left & above & name.paths for alike in names for name in alike)


def _exceptions(
    left: Left, switch: str, some: Class, names: Sequence[Sequence[Name]], pins: Pins, over: Mapping[int, Name],
    suspects: int,
) -> dict[int, Ports]:
    reach, climbs = left.reach, left.reach.climbs
    ways = reach.lowest(reach.above[switch] & some.reach)
    good = reach.lowest(left.connections.above[switch] & some.connections) & ~suspects
    whole = reach.lowest(climbs.whole.above[switch] & some.whole)
    leading = [name for alike in names for name in alike if name.paths & whole]
    others = [name.port for name in leading if name.paths & good]
    bent: dict[int, Ports] = {}
    for turn, name in enumerate(leading):
        if good & name.paths:
            connection = name.port
        elif name.key in over and good & over[name.key].paths:
            connection = pins[name.key].connection
        else:
            connection = others[turn % len(others)] if others else NO_PORT
        wanted = Ports(name.port if ways & name.paths else NO_PORT, connection)
        if wanted != pins.get(name.key, UNPINNED):
            bent[name.key] = wanted
    return bent


def by_blocks(switch: str, ways: Forwarding, bent: Bent, reach: LeafSets) -> None:
    """Give a switch its exceptions: a block those of most of its leaves, and what differs, leaves of their own."""
    climbs, left, own = reach.climbs, bent, reach.below[switch]
    for block in reach.blocks_of(union(leaves for leaves, _ in bent)):
        mask = climbs.blocks[block]
        alike: dict[tuple[tuple[int, Ports], ...], int] = defaultdict(int)
        for leaves, some in bent:
            if leaves & mask:
                alike[tuple(some.items())] |= leaves & mask
        live = mask & reach.leaves & ~own
        common, leaves = max(alike.items(), key=lambda part: part[1].bit_count())
        if leaves.bit_count() < 2 or 2 * leaves.bit_count() <= live.bit_count():
            continue
        ways.bent |= {(block, key): ports for key, ports in common}
        for leaf in climbs.leaves_of(live & ~leaves):
            ways.routes[leaf] = ways.hops(leaf)
        for leaf in [leaf for leaf in ways.routes if climbs.leaf_bit.get(leaf, 0) & leaves]:
            ways.bent |= {(leaf, key): ports for key, ports in common}
        left = [(some & ~(leaves & mask), ports) for some, ports in left]
    for leaves, some in left:
        for leaf in climbs.leaves_of(leaves):
            ways.bent |= {(leaf, key): ports for key, ports in some.items()}


def compressed(
    pins: Mapping[tuple[str, int], Ports], leaves: Collection[str],
) -> tuple[Pins, dict[tuple[str, int], Ports]]:
    """Pins of single leaves as pins of all leaves, with exceptions.

    pins    by leaf and path, those of one switch; a packet that has none is hashed
    leaves  those to which the switch has a choice of next hops
    """
    by_path: dict[int, dict[str, Ports]] = defaultdict(dict)
    for (leaf, path), ports in pins.items():
        if leaf in leaves:
            by_path[path][leaf] = ports
    shared: Pins = {}
    bent: dict[tuple[str, int], Ports] = {}
    for path, found in sorted(by_path.items()):
        usual = Counter(found.get(leaf, UNPINNED) for leaf in leaves).most_common(1)[0][0]
        if usual != UNPINNED:
            shared[path] = usual
        bent.update(((leaf, path), ports) for leaf in leaves if (ports := found.get(leaf, UNPINNED)) != usual)
    return shared, bent

# SPDX-License-Identifier: Apache-2.0
"""Which path leaves a switch by which port: an entry for each path, and exceptions for single leaves.

    of_climbs     in a Clos where one climb leads to each switch above: from sets of leaves and paths alone, so that
                  only pairs of switch and leaf that a failure or a suspicion touches are looked at one by one
    compressed    anywhere else: from the pins of every pair of leaves

Both say the same for every packet whose port names a path of its pair of leaves.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from netfold.controller.switch.path_tables import NO_PORT, UNPINNED, Ports
from netfold.fabric.climbs import Climbs, LeafSets, members

Pins = dict[int, Ports]
Bent = dict[tuple[str, int], Ports]
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
        for path, line in reach.climbs.toward[switch].items():
            if line.link == link:
                suspects[switch, leaf] |= 1 << path
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


def lost(left: Left) -> dict[int, list[str]]:
    """The leaves that some paths do not lead to now, by those paths, as numbers of bits."""
    found: dict[int, list[str]] = defaultdict(list)
    whole = left.reach.climbs.whole.above
    for leaf in left.reach.climbs.leaf_bit:
        if leaf in left.reach.above:
            found[whole[leaf] & ~(left.reach.above[leaf] & left.connections.above[leaf])].append(leaf)
    found.pop(0, None)
    return found


def of_climbs(left: Left, switch: str, lost: Mapping[int, Collection[str]]) -> tuple[Pins, Bent]:
    """The pins and exceptions of a switch that has a choice, in a Clos that `Climbs.is_regular`.

    lost  what the function of this name says
    """
    climbs, reach = left.reach.climbs, left.reach
    alive, usable = reach.above[switch], left.connections.above[switch]
    pins: Pins = {}
    over: dict[int, int] = {}
    """The path that TCP takes by each name."""
    for tier in sorted(climbs.names_of_tier):
        names = list(members(climbs.whole.above[switch] & climbs.names_of_tier[tier]))
        good = [path for path in names if usable >> path & 1] or [path for path in names if alive >> path & 1]
        for turn, path in enumerate(names):
            if good:
                over[path] = path if path in good else good[turn % len(good)]
                pins[path] = Ports(_port(climbs, switch, path) if alive >> path & 1 else NO_PORT,
                                   _port(climbs, switch, over[path]))
    bent: Bent = {}
    touched = [leaf for paths, leaves in lost.items() if paths & (alive | usable) for leaf in leaves]
    touched += [leaf for at, leaf in left.suspects if at == switch]
    for leaf in dict.fromkeys(touched):
        if leaf in reach.above and not reach.below[switch] & climbs.leaf_bit[leaf]:
            bent.update(_exceptions(left, switch, leaf, pins, over))
    return pins, bent


def _exceptions(
    left: Left, switch: str, leaf: str, pins: Pins, over: Mapping[int, int]
) -> Iterator[tuple[tuple[str, int], Ports]]:
    climbs = left.reach.climbs
    ways = _shared(left.reach, switch, leaf)
    good = _shared(left.connections, switch, leaf) & ~left.suspects.get((switch, leaf), 0)
    others = list(members(good))
    for turn, path in enumerate(members(_shared(climbs.whole, switch, leaf))):
        if good >> path & 1:
            connection = _port(climbs, switch, path)
        elif path in over and good >> over[path] & 1:
            connection = pins[path].connection
        else:
            connection = _port(climbs, switch, others[turn % len(others)]) if others else NO_PORT
        wanted = Ports(_port(climbs, switch, path) if ways >> path & 1 else NO_PORT, connection)
        if wanted != pins.get(path, UNPINNED):
            yield (leaf, path), wanted


def _port(climbs: Climbs, switch: str, path: int) -> int:
    return climbs.toward[switch][path].hop.port


def compressed(pins: Mapping[tuple[str, int], Ports], leaves: Collection[str]) -> tuple[Pins, Bent]:
    """Pins of single leaves as pins of all leaves, with exceptions.

    pins    by leaf and path, those of one switch; a packet that has none is hashed
    leaves  those to which the switch has a choice of next hops
    """
    by_path: dict[int, dict[str, Ports]] = defaultdict(dict)
    for (leaf, path), ports in pins.items():
        if leaf in leaves:
            by_path[path][leaf] = ports
    shared: Pins = {}
    bent: Bent = {}
    for path, found in sorted(by_path.items()):
        usual = Counter(found.get(leaf, UNPINNED) for leaf in leaves).most_common(1)[0][0]
        if usual != UNPINNED:
            shared[path] = usual
        bent.update(((leaf, path), ports) for leaf in leaves if (ports := found.get(leaf, UNPINNED)) != usual)
    return shared, bent

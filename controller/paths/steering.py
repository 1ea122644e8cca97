# SPDX-License-Identifier: Apache-2.0
"""Steering: which source port takes which path, how packets to each leaf choose, and which uplinks are avoided.

A path is named by the switch in its middle, where it turns in a folded Clos, so its UDP source port is ``PATH_PORT`` +
that switch's number, counted among the switches where paths can turn: the same for every pair of leaves, whatever else
is down.  Switches that have a choice, leaves above all, pin it to the link that leads there (p4src/paths.p4).

TCP's ports name the same paths (``wire.paths.tcp_ports``).  But a connection cannot leave its port, as a queue pair
can, so the names of dead or suspect paths are pinned to others meanwhile.

    operator      modes by destination leaf, pins, drains          `netfold paths`, `netfold drain`
    hosts         suspect paths, which do not answer, for SUSPECT_SECONDS or until probes come through: each bars its
                  uplink for its destination leaf, and two that share a link bar that link for everybody.  Where all
                  paths between two leaves are suspect, those through which probes come are used
    graph         what is left of the fabric                        -> pins, policies, routes without suspects
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from netfold.controller.health.drains import Drains
from netfold.controller.paths import pinning
from netfold.controller.switch.path_tables import (
    ALL_BITS,
    NO_PORT,
    NUMBER_BITS,
    UNPINNED,
    Forwarding,
    PathTables,
    Ports,
)
from netfold.controller.switch.tables import BySwitch, Mode
from netfold.fabric.graph import Fabric, PlannerName, Up
from netfold.fabric.routing import routes
from netfold.fabric.routing.climbs import Climbs, LeafSets
from netfold.fabric.routing.clos import Clos, paths_of
from netfold.fabric.routing.path_graph import Path, PathGraph, Way
from netfold.fabric.routing.path_names import path_names
from netfold.fabric.routing.routes import NextHop
from netfold.wire import roce
from netfold.wire.paths import tcp_ports, udp_port

if TYPE_CHECKING:
    import networkx as nx

SUSPECT_SECONDS: Final = 5.0
"""Seconds that a host's suspicion counts.  By then link probes have found the link down, or it works."""
CLEAR_INTERVAL: Final = 60.0
"""Seconds until a path's suspicion can be cleared again: probes may come through where hosts' packets do not."""
DEFAULT: Final[Mode] = "pinned"

SuspectUplink = tuple[str, int]
"""Destination leaf, number of the uplink that is suspect for it."""
Pin = tuple[str, str, int]
"""Switch, destination leaf, UDP or TCP port that names the path: of those that the switch pins alike, the one of
`Steering.pinned_name`."""


class Inputs(NamedTuple):
    """All that a plan follows from: it is the same wherever this is."""

    up: Up
    drained: tuple[str, ...]
    suspects: frozenset[Path]
    modes: tuple[tuple[str, Mode], ...]
    chosen: tuple[tuple[Pin, int], ...]


class Steering:
    """The steering of one fabric.

    drains  switches and links to avoid; default: none
    clock   monotonic seconds, for suspicions that end
    """

    def __init__(
        self, fabric: Fabric, drains: Drains | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fabric = fabric
        self.drains = drains or Drains(fabric)
        self.leaf_of = fabric.leaf_of()
        self.modes: dict[str, Mode] = dict.fromkeys(dict.fromkeys(self.leaf_of.values()), DEFAULT)
        """Modes by destination leaf."""
        self.planner: PlannerName = fabric.planner
        """How flows are cut over paths."""
        self.chosen: dict[Pin, int] = {}
        """Ports that the operator has chosen for pins; they count while the port has a live link."""
        self.clock = clock
        self._suspected: dict[Path, float] = {}
        self._cleared: dict[Path, float] = {}
        """Path -> time at which its suspicion was last cleared, on ``clock``."""
        self._probed: set[Path] = set()
        """Paths that stay suspect although probes come through their links."""
        graph = fabric.graph()
        self._kind = paths_of(graph)
        self.whole = self._kind(graph)
        """All paths, including those that are down."""
        self.everything = Up.of(graph)
        self.climbs = Climbs(graph) if self._kind is Clos else None
        above = {} if self.climbs is None else self.climbs.up
        self.names = path_names(self.whole, self.climbs)
        """The numbers of paths."""
        self._pinned: dict[str, pinning.PinnedNames] = {}
        """The names that each switch with a choice pins, in a fabric that `plans_quickly`."""
        if self.climbs is not None and self.plans_quickly:
            self._pinned = pinning.names_of(self.climbs, self.names)
        self._blocks = {} if self.climbs is None else self.climbs.block_of
        self.tables = PathTables(fabric, {switch: {line.hop.node for line in lines} for switch, lines in above.items()},
                                 self._blocks)
        """Converts plans to entries."""
        self._port_of = {number: data["ports"] for *_, number, data in graph.edges(keys=True, data=True)}
        self._hosts_of: dict[str, dict[str, NextHop]] = defaultdict(dict)
        """The next hop to each host of a leaf."""
        self._host_at: dict[int, str] = {}
        """The host of each link to one, by the link's number."""
        for host, leaf in self.leaf_of.items():
            for number in graph.adj[leaf][host]:
                self._hosts_of[leaf][host], self._host_at[number] = NextHop(self._port_of[number][leaf], host), host
        self._now: PathGraph | Up = self.whole
        """The paths for which the switches have pins, or the data from which these paths are computed on demand."""
        self._names: dict[tuple[str, str], list[int]] = {}
        """The source ports of all paths from leaf to leaf, including those that are down."""

    @property
    def plans_quickly(self) -> bool:
        """True if plans consider single pairs of leaves only around failures."""
        return self.climbs is not None and self.climbs.is_regular

    # ---- what is known ---------------------------------------------------------------------------------------------
    def suspect(self, path: Path) -> bool:
        """Record or renew the suspicion of a path between leaves without answers.  Returns True if it is new."""
        new = path not in self._active()
        self._suspected[path] = self.clock() + SUSPECT_SECONDS
        return new

    def may_clear(self, path: Path) -> bool:
        """True if a path is suspect and was not cleared within the last CLEAR_INTERVAL."""
        return path in self._active() and self.clock() >= self._cleared.get(path, -CLEAR_INTERVAL) + CLEAR_INTERVAL

    def clear_suspicion(self, path: Path) -> None:
        """End the suspicion of a path: probes come through its links, so that only a long queue delayed answers."""
        self._cleared[path] = self.clock()
        self._suspected.pop(path, None)

    def probed(self, path: Path, came: bool) -> bool:
        """Record whether probes come through the links of a suspect path.  Returns True if that is news."""
        before = path in self._probed
        (self._probed.add if came and path in self._active() else self._probed.discard)(path)
        return before != (path in self._probed)

    def _active(self) -> Iterable[Path]:
        """Suspicions that have not ended."""
        now = self.clock()
        self._suspected = {path: until for path, until in self._suspected.items() if until > now}
        self._probed &= self._suspected.keys()
        return self._suspected

    def _avoided(self, up: Up) -> frozenset[Path]:
        """Suspect paths without those that probes come through and whose leaves have no path that nobody suspects.
        Busy hosts blame good paths, too; without this, a dead one would be used like them then."""
        active = frozenset(self._active())
        if not self._probed:
            return active
        left = Up.of(self.drains.left(up.graph(self.fabric))).links
        blamed = {_links_of(path) for path in active}
        return active - {path for path in self._probed
                         if not any(_links_of(way) <= left and _links_of(way) not in blamed
                                    for way in self.whole.paths(path[0].tail, path[-1].head))}

    def suspects(self) -> frozenset[SuspectUplink]:
        """The uplink of each suspect path, for its destination leaf: hosts cannot know which link is dead."""
        return _uplinks(self._active())

    def shared_links(self) -> frozenset[int]:
        """Numbers of links that several suspect paths share: such a link is probably the dead one, and all leaves can
        avoid it.  A path and its reverse count as one."""
        return _shared_links(self._active())

    def next_end(self) -> float | None:
        """Seconds until the next suspicion ends; None if there is none."""
        ends = [self._suspected[path] for path in self._active()]
        return min(ends) - self.clock() if ends else None

    def usable_parts(self, graph: nx.MultiGraph[str]) -> tuple[nx.MultiGraph[str], set[SuspectUplink], frozenset[int]]:
        """The present inputs of `usable`: the live graph, suspects, and links that several of them share."""
        left = self.drains.left(graph)
        links = {number for *_, number in left.edges(keys=True)}
        avoided = self._avoided(Up.of(graph))
        marks = {mark for mark in _uplinks(avoided) if mark[0] in left and mark[1] in links}
        return left, marks, _shared_links(avoided) & links

    def left(self, graph: nx.MultiGraph[str]) -> PathGraph:
        """The paths of what is up and not drained."""
        return self._kind(self.drains.left(graph))

    def usable(
        self, left: nx.MultiGraph[str], suspects: set[SuspectUplink], shared: frozenset[int],
        carried: Mapping[int, float] = MappingProxyType({}),
    ) -> PathGraph:
        """The paths that planners may use.  Suspicions that would leave two leaves without a path do not count.

        carried  bit/s that trees take of links (`trees.tree_loads`)
        """
        for paths in (self._kind(left, suspects=suspects, barred=shared, carried=carried),
                      self._kind(left, suspects=suspects, carried=carried)):
            if not (suspects or shared) or all(paths.reaches(a, b) for a in paths.leaves for b in paths.leaves):
                return paths
        return self._kind(left, carried=carried)

    # ---- what follows ----------------------------------------------------------------------------------------------
    def ports(self, paths: PathGraph, source: str, destination: str) -> dict[int, Path]:
        """Every path from leaf to leaf by its UDP source port.  Raises PathError where there is none."""
        return {self._port(way): way.path for way in paths.ways(source, destination)}

    def names_path(self, source_port: int) -> bool:
        """True if a UDP or TCP port names a path of the fabric: others share bits with those that do."""
        named = source_port if source_port < roce.TCP_PATH_PORT else udp_port(source_port)
        return source_port in (named, *tcp_ports(named)) and 0 < named - roce.PATH_PORT <= self.names.most

    def _port(self, way: Way) -> int:
        """The UDP source port of a path: its middle switch's, and in each further layer one beyond all of those.
        `fabric.routing.room` sees to it that there are enough."""
        return roce.PATH_PORT + self.names.numbers[way.middle] + way.layer * len(self.names.numbers)

    def pinned_names(self, path: int) -> tuple[int, ...]:
        """The UDP and the TCP port by which operators see a path, by its number or the part of it that a switch knows
        (`Forwarding.names`): where leaves tell planes apart alone, those of the plane's first path."""
        name = roce.PATH_PORT + (path or self.names.planes)
        return name, *tcp_ports(name)[:1]

    def pinned_name(self, ways: Forwarding, source_port: int) -> int:
        """The one of `pinned_names` that stands for a port that names a path: a switch pins both alike."""
        path, kind = path_of(source_port)
        return self.pinned_names(path & ways.names)[Ports._fields.index(kind)]

    def _every_pin(
        self, paths: PathGraph, usable: PathGraph | None
    ) -> dict[str, dict[tuple[str, int], Ports]]:
        """By switch, then by destination leaf and path: where packets leave, at every switch that has a choice.

        usable  the paths that TCP may take, where they are fewer than those of ``paths``
        TCP takes its own path where that is left, else one of the others, in turn.  Where those of two source leaves
        disagree at a switch further on, the first one counts, and a path's own name before all.
        """
        found: dict[str, dict[tuple[str, int], Ports]] = defaultdict(dict)

        def pin(leaf: str, source_port: int, hops: Path, kind: str) -> None:
            for hop in hops:
                here, key = found[hop.tail], (leaf, source_port - roce.PATH_PORT)
                before = here.get(key, UNPINNED)
                if getattr(before, kind) == NO_PORT:
                    here[key] = before._replace(**{kind: self._port_of[hop.link][hop.tail]})

        substitutes: list[tuple[str, int, Path]] = []
        for a, b in permutations(paths.leaves, 2):
            named = self._named(paths, a, b)
            for source_port, hops in named:
                pin(b, source_port, hops, "roce")
            left = named if usable is None else self._named(usable, a, b)
            for source_port, hops in left:
                pin(b, source_port, hops, "connection")
            if left:
                known = {source_port for source_port, _ in left}
                substitutes += [(b, name, left[turn % len(left)][1]) for turn, name in enumerate(self._all_names(a, b))
                                if name not in known]
        for leaf, source_port, hops in substitutes:
            pin(leaf, source_port, hops, "connection")
        return found

    def _named(self, paths: PathGraph, source: str, destination: str) -> list[tuple[int, Path]]:
        """The source port of every path from leaf to leaf, and its hops at switches that have a choice."""
        return [(self._port(way), way.path) for way in paths.choices(source, destination)]

    def _all_names(self, source: str, destination: str) -> list[int]:
        """The source ports of all paths from leaf to leaf, whatever is down."""
        if (source, destination) not in self._names:
            self._names[source, destination] = [port for port, _ in self._named(self.whole, source, destination)]
        return self._names[source, destination]

    def inputs(self, up: Up) -> Inputs:
        """The present inputs of a plan."""
        return Inputs(up, tuple(self.drains.names), self._avoided(up), tuple(self.modes.items()),
                      tuple(sorted(self.chosen.items())))

    def base(self, graph: nx.MultiGraph[str]) -> BySwitch:
        """Entries of routes, policies and pins of every switch in ``graph``."""
        made = self.tables.all_parts(self.plan(self.inputs(Up.of(graph))))
        return {switch: [entity for part in parts.values() for entity in part.values()]
                for switch, parts in made.items()}

    def plan(self, given: Inputs) -> dict[str, Forwarding]:
        """The forwarding of unfolded packets at every switch that is up.  Another thread may call this.

        Routes avoid drained switches and links, and suspect uplinks where others are left.  A drained switch keeps
        routes of its own, for packets that still arrive there.  Suspect paths keep their UDP pins: plans avoid them,
        but a source port must not change its path.  A host that tries a suspect path has no better one; on another
        path it would mistake the answer for one over the suspect path, or, if that was the only live one, lose its
        packets.
        """
        left = Up.of(self.drains.left(given.up.graph(self.fabric))) if given.drained else given.up
        suspects = {(path[0].tail, path[-1].head, path[0].link) for path in given.suspects}
        # answers of TCP take the name by which they were asked for, and silence does not tell which direction is dead
        answers = {(path[-1].head, path[0].tail, path[-1].link) for path in given.suspects}
        shared = _shared_links(given.suspects) & left.links
        self._now = left
        found, reach = self._routed(left)
        if left.nodes < given.up.nodes:
            aside, _ = self._routed(given.up)
            found |= {switch: ways for switch, ways in aside.items() if switch not in left.nodes}
        for switch, leaf, link in suspects:
            if switch in found and leaf in left.nodes:
                hops, suspect = found[switch].hops(leaf), self._port_of[link][switch]
                others = tuple([hop for hop in hops if hop.port != suspect])
                if others and others != hops:
                    found[switch].set_apart(leaf)
                    found[switch].routes[leaf] = others
        marks = {mark for mark in suspects | answers if mark[2] in left.links and mark[1] in left.nodes}
        if reach is not None and self.plans_quickly:
            self._pin_climbs(found, pinning.left_of(reach, left.links, marks, shared))
        else:
            self._pin_each(found, left, {mark[1:] for mark in marks}, shared)
        usual = Counter(mode for _, mode in given.modes).most_common(1)[0][0] if given.modes else DEFAULT
        unusual = {leaf: mode for leaf, mode in given.modes if mode != usual}
        for switch, ways in found.items():
            ways.mode = usual
            modes = {leaf: mode for leaf, mode in unusual.items() if leaf != switch and len(ways.hops(leaf)) > 1}
            for leaf in modes:
                ways.set_apart(leaf)
            ways.modes = modes
        self._choose(found, given.chosen)
        return found

    def _routed(self, left: Up) -> tuple[dict[str, Forwarding], LeafSets | None]:
        """Every switch's next hops; in a Clos, what it reaches as well."""
        reach = None
        if self.climbs is not None:
            reach = LeafSets(self.climbs, left.links, left.nodes)
            hops = {switch: reach.hops(switch) for switch in reach.below}
            found = {switch: Forwarding(default, dict(apart), blocks=self._blocks)
                     for switch, (default, apart) in hops.items()}
        else:
            found = {switch.name: Forwarding() for switch in self.fabric.switches if switch.name in left.nodes}
            for route in routes.plan(left.graph(self.fabric)):
                if route.switch != self.leaf_of[route.host]:
                    found[route.switch].routes[self.leaf_of[route.host]] = route.hops
        for leaf, hosts in self._hosts_of.items():
            if leaf in found:
                found[leaf].hosts = hosts
        gone = {self._host_at[number] for number in self.everything.links - left.links if number in self._host_at}
        gone |= (self.everything.nodes - left.nodes) & self.leaf_of.keys()
        for leaf in {self.leaf_of[host] for host in gone} & found.keys():
            found[leaf].hosts = {host: hop for host, hop in self._hosts_of[leaf].items() if host not in gone}
        return found, reach

    def _pin_climbs(self, found: Mapping[str, Forwarding], left: pinning.Left) -> None:
        """Pin at every switch that has a choice."""
        pins = pinning.ClimbPins(left)
        for switch, names in self._pinned.items():
            if switch in found and switch in left.reach.below:
                ways = found[switch]
                ways.pins, bent = pins.of(switch, names)
                if self.names.planes and left.reach.climbs.tier[switch] == 1:
                    ways.names = ALL_BITS & ~NUMBER_BITS | self.names.planes - 1
                if bent:
                    pinning.by_blocks(switch, ways, bent, left.reach)

    def _pin_each(
        self, found: Mapping[str, Forwarding], left: Up, suspects: set[SuspectUplink], shared: frozenset[int]
    ) -> None:
        """The same by the paths of every pair of leaves."""
        graph = left.graph(self.fabric)
        links = Up.of(graph).links
        suspects, shared = {mark for mark in suspects if mark[1] in links}, shared & links
        pins = self._every_pin(self._kind(graph), self.usable(graph, suspects, shared) if suspects or shared else None)
        for switch, ways in found.items():
            if switch in left.nodes:
                choice = [leaf for leaf in self.modes if leaf != switch and len(ways.hops(leaf)) > 1]
                ways.pins, ways.bent = pinning.compressed(pins.get(switch, {}), choice)

    def _choose(self, found: Mapping[str, Forwarding], chosen: Iterable[tuple[Pin, int]]) -> None:
        """Pin what an operator has chosen, while the port leads to the leaf and the path is pinned at all."""
        for (switch, leaf, source_port), port in chosen:
            ways = found.get(switch)
            if ways is not None and port in [hop.port for hop in ways.hops(leaf)]:
                path, kind = path_of(source_port)
                ports = ways.ports(leaf, path)
                if getattr(ports, kind) != NO_PORT:
                    ways.set_apart(leaf)
                    ways.bent[leaf, path & ways.names] = ports._replace(**{kind: port})

    def path(self, source: str, destination: str, source_port: int) -> Path | None:
        """The path of a source port between two hosts' leaves: by the switches' pins, else as it was before something
        went down; None if it belongs to no path."""
        a, b = self.leaf_of[source], self.leaf_of[destination]
        if isinstance(self._now, Up):
            self._now = self._kind(self._now.graph(self.fabric))
        for paths in (self._now, self.whole):
            if a != b and paths.reaches(a, b):
                found = self.ports(paths, a, b).get(source_port)
                if found is not None:
                    return found
        return None


def path_of(source_port: int) -> tuple[int, str]:
    """The number of the path that a UDP or TCP port names, and the field of `Ports` that holds where its packets go."""
    if source_port < roce.TCP_PATH_PORT:
        return source_port - roce.PATH_PORT, "roce"
    return udp_port(source_port) - roce.PATH_PORT, "connection"


def _links_of(path: Path) -> frozenset[int]:
    """The links of a path, which are those of its reverse as well."""
    return frozenset(hop.link for hop in path)


def _uplinks(suspects: Iterable[Path]) -> frozenset[SuspectUplink]:
    return frozenset((path[-1].head, path[0].link) for path in suspects)


def _shared_links(suspects: Iterable[Path]) -> frozenset[int]:
    paths = {_links_of(path) for path in suspects}
    return frozenset(link for link, times in Counter(link for path in paths for link in path).items() if times > 1)

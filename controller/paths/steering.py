# SPDX-License-Identifier: Apache-2.0
"""Steering: which source port takes which path, how packets to each leaf choose, and which uplinks are avoided.

A path is named by the switch in its middle, where it turns in a folded Clos, so its UDP source port is ``PATH_PORT`` +
that switch's number in the fabric: the same for every pair of leaves, whatever else is down.  Switches that have a
choice, leaves above all, pin it to the link that leads there (p4src/paths.p4).

TCP's ports name the same paths (``wire.paths.tcp_ports``).  But a connection cannot leave its port, as a queue pair
can, so the names of dead or suspect paths are pinned to others meanwhile.

    operator      modes by destination leaf, pins, drains          `netfold paths`, `netfold drain`
    hosts         suspect paths, which do not answer, for SUSPECT_SECONDS or until probes come through: each bars its
                  uplink for its destination leaf, and two that share a link bar that link for everybody
    graph         what is left of the fabric                        -> pins, policies, routes without suspects
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from netfold.controller.health.drains import Drains
from netfold.controller.switch import tables
from netfold.controller.switch.tables import BySwitch, Mode, Pin, Pins
from netfold.fabric import routes
from netfold.fabric.clos import paths_of
from netfold.fabric.graph import Fabric, PlannerName
from netfold.fabric.path_graph import Path, PathError, PathGraph, Way
from netfold.fabric.routes import Route
from netfold.wire import roce
from netfold.wire.paths import tcp_ports

if TYPE_CHECKING:
    import networkx as nx

SUSPECT_SECONDS: Final = 5.0
"""Seconds that a host's suspicion counts.  By then link probes have found the link down, or it works."""
CLEAR_INTERVAL: Final = 60.0
"""Seconds until a path's suspicion can be cleared again: probes may get through where hosts' packets do not."""
DEFAULT: Final[Mode] = "pinned"

SuspectUplink = tuple[str, int]
"""Destination leaf, number of the uplink that is suspect for it."""


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
        self._clock = clock
        self._suspected: dict[Path, float] = {}
        self._cleared: dict[Path, float] = {}
        """When the suspicion of a path was last cleared, on ``clock``."""
        self._numbers = tables.leaf_numbers(fabric)
        self._kind = paths_of(fabric.graph())
        self.whole = self._kind(fabric.graph())
        """All paths, whatever is down."""
        self._now = self.whole
        """The paths that the switches have pins of."""
        self._names: dict[tuple[str, str], list[int]] = {}
        """The source ports of all paths from leaf to leaf, whatever is down."""

    # ---- what is known ---------------------------------------------------------------------------------------------
    def suspect(self, path: Path) -> bool:
        """Record or renew the suspicion of a path between leaves without answers.  Returns True if it is new."""
        new = path not in self._active()
        self._suspected[path] = self._clock() + SUSPECT_SECONDS
        return new

    def may_clear(self, path: Path) -> bool:
        """Whether a path is suspect and was not cleared within the last CLEAR_INTERVAL."""
        return path in self._active() and self._clock() >= self._cleared.get(path, -CLEAR_INTERVAL) + CLEAR_INTERVAL

    def clear_suspicion(self, path: Path) -> None:
        """End the suspicion of a path: probes come through its links, so that only a long queue delayed answers."""
        self._cleared[path] = self._clock()
        self._suspected.pop(path, None)

    def _active(self) -> Iterable[Path]:
        """Suspect paths that still count."""
        now = self._clock()
        self._suspected = {path: until for path, until in self._suspected.items() if until > now}
        return self._suspected

    def suspects(self) -> frozenset[SuspectUplink]:
        """The uplink of each suspect path, for its destination leaf: hosts cannot know which link is dead."""
        return frozenset((path[-1].head, path[0].link) for path in self._active())

    def answering(self) -> frozenset[SuspectUplink]:
        """The first uplink of each suspect path's reverse, for the leaf of its sender: answers of TCP take the name
        by which they were asked for, and silence does not tell which direction is dead."""
        return frozenset((path[0].tail, path[-1].link) for path in self._active())

    def shared_links(self) -> frozenset[int]:
        """Numbers of links that several suspect paths share: such a link is probably the dead one, and all leaves can
        avoid it.  A path and its reverse count as one."""
        paths = {frozenset(hop.link for hop in path) for path in self._active()}
        return frozenset(link for link, times in Counter(link for path in paths for link in path).items() if times > 1)

    def next_end(self) -> float | None:
        """When the next suspicion ends, on ``clock``; None if there is none."""
        return min(self._suspected.values(), default=None)

    def usable_parts(self, graph: nx.MultiGraph[str]) -> tuple[nx.MultiGraph[str], set[SuspectUplink], frozenset[int]]:
        """What `usable` needs, as it is now: the graph that is left, suspects, and links that several of them share."""
        left = self.drains.left(graph)
        links = {number for *_, number in left.edges(keys=True)}
        marks = {mark for mark in self.suspects() if mark[0] in left and mark[1] in links}
        return left, marks, self.shared_links() & links

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
            if not (suspects or shared) or all(self._reaches(paths, a, b) for a in paths.leaves for b in paths.leaves):
                return paths
        return self._kind(left, carried=carried)

    @staticmethod
    def _reaches(clos: PathGraph, a: str, b: str) -> bool:
        try:
            return a == b or bool(clos.paths(a, b))
        except PathError:
            return False

    # ---- what follows ----------------------------------------------------------------------------------------------
    def ports(self, paths: PathGraph, source: str, destination: str) -> dict[int, Path]:
        """Every path from leaf to leaf by its UDP source port.  Raises PathError where there is none."""
        return {self._port(way): way.path for way in paths.ways(source, destination)}

    def _port(self, way: Way) -> int:
        """The UDP source port of a path: its middle switch's, and in each further layer one beyond all of those."""
        port = roce.PATH_PORT + self._numbers[way.middle] + way.layer * len(self._numbers)
        if port >= roce.TCP_PATH_PORT:
            raise PathError(f"path {way.layer} over {way.middle} would have the source port {port}: "
                            f"{len(self._numbers)} switches with so many parallel links are too many")
        return port

    def pins(self, paths: PathGraph, usable: PathGraph | None = None) -> Pins:
        """The port at which a switch sends (destination leaf, source port) on, at every switch that has a choice.

        usable  the paths that TCP may take, where they are fewer than those of ``paths``
        Where paths of two source leaves disagree about it, as a connection's substitutes may, the first one counts.
        """
        graph = self.fabric.graph()
        port_of = {number: data["ports"] for *_, number, data in graph.edges(keys=True, data=True)}
        pins: Pins = {}
        for a, b in permutations(paths.leaves, 2):
            named = self._named(paths, a, b)
            for source_port, hops in chain(named, self._tcp_named(a, b, named if usable is None else
                                                                  self._named(usable, a, b))):
                for hop in hops:
                    pins.setdefault(hop.tail, {}).setdefault((b, source_port), port_of[hop.link][hop.tail])
        wanted = [
            (pins[switch], (leaf, source_port), port) for (switch, leaf, source_port), port in self.chosen.items()
            if (leaf, source_port) in pins.get(switch, {})
            and port in {p for (towards, _), p in pins[switch].items() if towards == leaf}
        ]
        for here, key, port in wanted:
            here[key] = port
        return pins

    def _named(self, paths: PathGraph, source: str, destination: str) -> list[tuple[int, Path]]:
        """The source port of every path from leaf to leaf, and its hops at switches that have a choice."""
        return [(self._port(way), way.path) for way in paths.choices(source, destination)]

    def _tcp_named(self, source: str, destination: str, left: Sequence[tuple[int, Path]]) -> Iterator[tuple[int, Path]]:
        """The TCP port of every path from leaf to leaf, whatever is down, and the hops that it takes: its own where
        that is left, else those of one of the others, in turn."""
        if not left:
            return
        known = dict(left)
        if (source, destination) not in self._names:
            self._names[source, destination] = [port for port, _ in self._named(self.whole, source, destination)]
        for turn, name in enumerate(self._names[source, destination]):
            for port in tcp_ports(name)[:1]:
                yield port, known[name] if name in known else left[turn % len(left)][1]

    def entries(self, graph: nx.MultiGraph[str]) -> BySwitch:
        """Entries of policies and pins of every switch in ``graph``.

        Suspect paths keep their UDP pins: plans avoid them, but a source port must not change its path.  A host that
        tries a suspect path has no better one; on another path it would mistake the answer for one over the suspect
        path, or, if that was the only live one, lose its packets.
        """
        left, suspects, shared = self.usable_parts(graph)
        self._now = paths = self._kind(left)
        links = {number for *_, number in left.edges(keys=True)}
        suspects |= {mark for mark in self.answering() if mark[0] in left and mark[1] in links}
        usable = self.usable(left, suspects, shared) if suspects or shared else None
        return tables.path_entries(self.fabric, self.modes, self.pins(paths, usable), paths.choosers)

    def inputs(self, graph: nx.MultiGraph[str]) -> Hashable:
        """All that `base` follows from: entries are the same wherever this is."""
        return (frozenset(graph), frozenset(number for *_, number in graph.edges(keys=True)),
                tuple(self.drains.names), frozenset(self._active()), tuple(self.modes.items()),
                frozenset(self.chosen.items()))

    def base(self, graph: nx.MultiGraph[str]) -> BySwitch:
        """Entries of routes, policies and pins of every switch in ``graph``."""
        return tables.merge([tables.route_entries(self.fabric, self.routes(graph)), self.entries(graph)])

    def routes(self, graph: nx.MultiGraph[str]) -> Iterator[Route]:
        """Routes that avoid drained switches and links, and suspect uplinks where others are left.  A drained switch
        keeps routes of its own, for packets that still arrive there."""
        left = self.drains.left(graph)
        suspects = self.suspects()
        aside = (route for route in routes.plan(graph) if route.switch not in left) if len(left) < len(graph) else ()
        found = chain(routes.plan(left), aside)
        if not suspects:
            yield from found
            return
        link_at = {(node, port): number
                   for *_, number, data in graph.edges(keys=True, data=True) for node, port in data["ports"].items()}
        for route in found:
            leaf = self.leaf_of[route.host]
            good = tuple(hop for hop in route.hops if (leaf, link_at[route.switch, hop.port]) not in suspects)
            yield route._replace(hops=good or route.hops)

    def path(self, source: str, destination: str, source_port: int) -> Path | None:
        """The path of a source port between two hosts' leaves: by the switches' pins, else as it was before something
        went down; None if it belongs to no path."""
        a, b = self.leaf_of[source], self.leaf_of[destination]
        for paths in (self._now, self.whole):
            if a != b and self._reaches(paths, a, b):
                found = self.ports(paths, a, b).get(source_port)
                if found is not None:
                    return found
        return None

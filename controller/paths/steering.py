# SPDX-License-Identifier: Apache-2.0
"""Which source port takes which path, how each leaf is reached, and which uplinks are to be left alone.

A path of a folded Clos is as good as the name of the switch where it turns, so its UDP source port is
``PATH_PORT`` + that switch's place in the fabric: the same on every pair of leaves, whatever else is down.  Leaves (and
the tier above, in three-tier fabrics) pin it to the uplink that leads there (p4src/paths.p4).

    operator      modes by destination leaf, pins, drains          `netfold paths`, `netfold drain`
    hosts         suspect paths, which do not answer, for SUSPECT_SECONDS or until probes come through: each bars its
                  uplink for its destination leaf, and two that share a link bar that link for everybody
    graph         what is left of the fabric                        -> pins, policies, routes without suspects
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

import networkx as nx

from netfold.controller.health.drains import Drains
from netfold.controller.switch import tables
from netfold.controller.switch.tables import BySwitch, Mode, Pin
from netfold.fabric import routes
from netfold.fabric.clos import Clos, Path, PathError
from netfold.fabric.graph import Fabric
from netfold.fabric.routes import Route
from netfold.wire import roce

SUSPECT_SECONDS: Final = 5.0
"""Seconds that a host's suspicion counts.  By then link probes have found the link down, or there was no reason."""
CLEAR_INTERVAL: Final = 60.0
"""Seconds until a path can be absolved once more: probes may get through where hosts' packets do not."""
DEFAULT: Final[Mode] = "pinned"

SuspectUplink = tuple[str, int]
"""Destination leaf, number of the uplink that is blamed for it."""


class Steering:
    """Of one fabric.

    drains  what must be gone around; default: nothing
    clock   seconds, for suspicions that end
    """

    def __init__(
        self, fabric: Fabric, drains: Drains | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fabric = fabric
        self.drains = drains or Drains(fabric)
        self.leaf_of = fabric.leaf_of()
        self.modes: dict[str, Mode] = dict.fromkeys(dict.fromkeys(self.leaf_of.values()), DEFAULT)
        """By destination leaf."""
        self.chosen: dict[Pin, int] = {}
        """Pins that the operator wants elsewhere than planned, while that port has a live link."""
        self._clock = clock
        self._suspected: dict[Path, float] = {}
        self._cleared: dict[Path, float] = {}
        """When each was absolved."""
        self._numbers = tables.leaf_numbers(fabric)

    # ---- what is known ---------------------------------------------------------------------------------------------
    def suspect(self, path: Path) -> bool:
        """Notes that hosts get no answer over a path from leaf to leaf, or renews it; True where it is new."""
        new = path not in self._active()
        self._suspected[path] = self._clock() + SUSPECT_SECONDS
        return new

    def may_clear(self, path: Path) -> bool:
        """Whether it is blamed, and was not absolved of that a short while ago."""
        return path in self._active() and self._clock() >= self._cleared.get(path, -CLEAR_INTERVAL) + CLEAR_INTERVAL

    def clear_suspicion(self, path: Path) -> None:
        """Probes come through every link of a blamed path: hosts took a long queue for a dead path."""
        self._cleared[path] = self._clock()
        self._suspected.pop(path, None)

    def _active(self) -> Iterable[Path]:
        """Blamed paths that still count."""
        now = self._clock()
        self._suspected = {path: until for path, until in self._suspected.items() if until > now}
        return self._suspected

    def suspects(self) -> frozenset[SuspectUplink]:
        """Whom the blamed paths bar: hosts cannot tell which link of a path is dead, so its uplink, for this leaf."""
        return frozenset((path[-1].head, path[0].link) for path in self._active())

    def shared_links(self) -> frozenset[int]:
        """Numbers of links that several blamed paths share: of a dead link, hosts under few leaves find out by
        themselves, one leaf after the other, and all others can be spared it.  A path and the way back are one."""
        paths = {frozenset(hop.link for hop in path) for path in self._active()}
        return frozenset(link for link, times in Counter(link for path in paths for link in path).items() if times > 1)

    def next_end(self) -> float | None:
        """When the next suspicion ends, on ``clock``; None where there is none."""
        return min(self._suspected.values(), default=None)

    def clos(self, graph: nx.MultiGraph[str]) -> Clos:
        """What planners may use.  Suspicions that would leave a leaf without any path from another do not count."""
        left = self.drains.left(graph)
        links = {number for *_, number in left.edges(keys=True)}
        marks = {mark for mark in self.suspects() if mark[0] in left and mark[1] in links}
        for clos in (Clos(left, suspects=marks, dead_links=self.shared_links() & links), Clos(left, suspects=marks)):
            if all(self._reaches(clos, a, b) for a in clos.leaves for b in clos.leaves):
                return clos
        return Clos(left)

    @staticmethod
    def _reaches(clos: Clos, a: str, b: str) -> bool:
        try:
            return a == b or bool(clos.paths(a, b))
        except PathError:
            return False

    # ---- what follows ----------------------------------------------------------------------------------------------
    def ports(self, clos: Clos, source: str, destination: str) -> dict[int, Path]:
        """UDP source port of every path from leaf to leaf; parallel links between two switches count on from there."""
        found: dict[int, Path] = {}
        for path in clos.paths(source, destination):
            port = roce.PATH_PORT + self._numbers[path[len(path) // 2 - 1].head]
            while port in found:
                port += len(self._numbers)
            if port > 0xFFFF:
                raise PathError(f"path {path} from {source} to {destination} would have the source port {port}: "
                                f"{len(self._numbers)} switches with so many parallel links are too many")
            found[port] = path
        return found

    def pins(self, clos: Clos) -> dict[Pin, int]:
        """The port at which a switch sends (destination leaf, source port) on, at every switch that has a choice.

        Where paths of two source leaves disagree about it (an irregular fabric), the first one counts.
        """
        graph = self.fabric.graph()
        port_of = {number: data["ports"] for *_, number, data in graph.edges(keys=True, data=True)}
        pins: dict[Pin, int] = {}
        for a in clos.leaves:
            for b in clos.leaves:
                if a == b or not self._reaches(clos, a, b):
                    continue
                for source_port, path in self.ports(clos, a, b).items():
                    for hop in path[: len(path) // 2]:
                        pins.setdefault((hop.tail, b, source_port), port_of[hop.link][hop.tail])
        ways: dict[tuple[str, str], set[int]] = {}
        for (switch, leaf, _), port in pins.items():
            ways.setdefault((switch, leaf), set()).add(port)
        return {pin: self.chosen[pin] if self.chosen.get(pin) in ways[pin[:2]] else port for pin, port in pins.items()}

    def entries(self, graph: nx.MultiGraph[str]) -> BySwitch:
        """Policies and pins of every switch in ``graph``.

        Suspect paths keep their pins: plans avoid them, but a port must go on leading where it always led.  A host
        that tries one has found no better; sent another way, it would take that for an answer, or, where hosts were
        wrong about the only path that lives, fall into the hole.
        """
        clos = Clos(self.drains.left(graph))
        spreading = [switch for switch in clos.tier if len(clos.uplinks(switch)) > 1]
        return tables.steering(self.fabric, self.modes, self.pins(clos), spreading)

    def base(self, graph: nx.MultiGraph[str]) -> BySwitch:
        """What every switch holds so that packets get anywhere: routes, policies and pins."""
        return tables.merge([tables.routing(self.fabric, self.routes(graph)), self.entries(graph)])

    def routes(self, graph: nx.MultiGraph[str]) -> Iterator[Route]:
        """Over what is left of the graph, without suspect uplinks where others are left: unpinned packets keep off
        them, too.  A switch that is drained keeps routes of its own, for what still arrives there."""
        left = self.drains.left(graph)
        suspects = self.suspects()
        link_at = {(node, port): number
                   for *_, number, data in graph.edges(keys=True, data=True) for node, port in data["ports"].items()}
        aside = (route for route in routes.plan(graph) if route.switch not in left) if len(left) < len(graph) else ()
        for route in (*routes.plan(left), *aside):
            leaf = self.leaf_of[route.host]
            good = tuple(hop for hop in route.hops if (leaf, link_at[route.switch, hop.port]) not in suspects)
            yield replace(route, hops=good or route.hops)

    def path(self, source: str, destination: str, source_port: int) -> Path | None:
        """The path between two hosts' leaves, whatever is down; None where the port names none."""
        a, b = self.leaf_of[source], self.leaf_of[destination]
        return self.ports(Clos(self.fabric.graph()), a, b).get(source_port) if a != b else None

# SPDX-License-Identifier: Apache-2.0
"""Which switches and links an operator has taken out of use, and what of the fabric is left then.

Nothing new goes over what is drained: routes, pins, paths and trees avoid it, as long as that cuts no host off from
another.  A leaf whose hosts have no other way is drained in another sense: no rank may join from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import networkx as nx

from netfold.fabric.graph import End, Fabric
from netfold.fabric.trees import Tree


class UnknownName(ValueError):
    """What cannot be drained, since it is no switch and no link between switches; says what it is."""


class Drains:
    """Of one fabric.  Names are those of switches, and of links by either end, ``switch:port``."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._switches = {switch.name for switch in fabric.switches}
        self._leaf_of = fabric.leaf_of()
        self._number = {end: number for number, link in enumerate(fabric.links) for end in link.ends}
        self._drained: set[str] = set()

    def known(self, name: str) -> str:
        """The one name of a switch, or of a link between switches: that of its first end.  Raises UnknownName."""
        if name in self._switches:
            return name
        node, _, port = name.rpartition(":")
        number = self._number.get(End(node, int(port))) if port.isdecimal() else None
        if number is None:
            raise UnknownName(f"the fabric {self._fabric.name} has no switch and no link {name!r}; expected the name "
                              "of a switch, or SWITCH:PORT of a link between two (`netfold links` lists them)")
        for end in self._fabric.links[number].ends:
            if end.node in self._leaf_of:
                raise UnknownName(f"{name} is the only link of the host {end.node}: stop its ranks instead")
        return self._fabric.links[number].a

    def mark(self, name: str, drained: bool) -> None:
        """Take it out of use, or into use again.  ``name`` as `known` has it."""
        if drained:
            self._drained.add(name)
        else:
            self._drained.discard(name)

    @property
    def names(self) -> list[str]:
        """What is drained."""
        return sorted(self._drained)

    @property
    def links(self) -> set[int]:
        """Numbers of the links that are avoided, be it only because an end of theirs is."""
        avoided = self._avoided
        return {number for number, link in enumerate(self._fabric.links)
                if link.a in avoided or any(end.node in avoided for end in link.ends)}

    def __contains__(self, name: str) -> bool:
        return name in self._drained

    def hosts_of(self, name: str) -> list[str]:
        """Hosts that have no other switch."""
        return [host for host, leaf in self._leaf_of.items() if leaf == name]

    def leaf_of(self, host: str) -> str:
        """The host's switch where that is drained, else nothing."""
        leaf = self._leaf_of.get(host, "")
        return leaf if leaf in self._drained else ""

    # ---- what is left ------------------------------------------------------------------------------------------------

    def without(self, graph: nx.MultiGraph[str], *more: str) -> nx.MultiGraph[str]:
        """The graph less everything that is drained, and ``more``, but for leaves."""
        names = self._avoided.union(more) - set(self._leaf_of.values())
        left = graph.copy()
        left.remove_edges_from([edge for edge in graph.edges(keys=True) if self._fabric.links[edge[2]].a in names])
        left.remove_nodes_from(names)
        return left

    def left(self, graph: nx.MultiGraph[str]) -> nx.MultiGraph[str]:
        """What is to be used: the graph less what is drained, unless that would cut hosts off."""
        left = self.without(graph) if self._drained else graph
        return graph if self.cut_off(graph, left) else left

    def cut_off(self, before: nx.MultiGraph[str], after: nx.MultiGraph[str]) -> list[str]:
        """Hosts that do not reach most of those any more which they reached before."""
        place = {node: n for n, part in enumerate(nx.connected_components(after)) for node in part}
        lost: list[str] = []
        for part in nx.connected_components(before):
            pieces: dict[int, list[str]] = defaultdict(list)
            for host in sorted(part & self._leaf_of.keys()):
                pieces[place[host]].append(host)
            most = max(pieces.values(), key=len, default=[])
            lost += [host for piece in pieces.values() if piece is not most for host in piece]
        return lost

    def under(self, trees: Sequence[Tree]) -> list[str]:
        """What of these trees is drained."""
        used = {name for tree in trees for fold in tree.folds
                for name in (fold.switch, self._link(fold.switch, fold.parent_port))}
        return sorted(used & self._avoided)

    def _link(self, switch: str, port: int) -> str:
        number = self._number.get(End(switch, port))
        return "" if number is None else self._fabric.links[number].a

    @property
    def _avoided(self) -> set[str]:
        """What is drained and can be gone around: all but leaves."""
        return self._drained - set(self._leaf_of.values())

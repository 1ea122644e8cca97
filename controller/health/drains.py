# SPDX-License-Identifier: Apache-2.0
"""Switches and links that an operator has drained, that is, taken out of use for maintenance.

Routes, pins, paths and trees avoid what is drained, as long as that cuts no host off from another.  A leaf is the only
switch of its hosts and cannot be avoided: if it is drained, no rank may join from its hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from netfold.fabric.folding.trees import Tree
from netfold.fabric.graph import End, Fabric

if TYPE_CHECKING:
    import networkx as nx


class UnknownName(ValueError):
    """A name that cannot be drained: neither a switch nor a link between switches; the message says what it is.

    Remedy: name a switch or link as `netfold links` lists them.
    """


class Drains:
    """The drained switches and links of one fabric.  A link is named by either of its ends, ``switch:port``."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._switches = {switch.name for switch in fabric.switches}
        self._leaf_of = fabric.leaf_of()
        self._leaves = {*self._leaf_of.values()}
        self._number = {end: number for number, link in enumerate(fabric.links) for end in link.ends}
        self._drained: set[str] = set()

    def canonical(self, name: str) -> str:
        """The canonical name of a switch, or of a link between switches: its first end.  Raises UnknownName."""
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
        """Drain a switch or link, or put it back into use.  ``name`` is its `canonical` name."""
        if drained:
            self._drained.add(name)
        else:
            self._drained.discard(name)

    @property
    def names(self) -> list[str]:
        """Names of everything that is drained, sorted."""
        return sorted(self._drained)

    @property
    def links(self) -> set[int]:
        """Numbers of the links that are avoided, because they or a switch at one end are drained."""
        avoided = self._avoided
        if not avoided:
            return set()
        return {number for number, link in enumerate(self._fabric.links)
                if link.a in avoided or any(end.node in avoided for end in link.ends)}

    def __contains__(self, name: str) -> bool:
        return name in self._drained

    def hosts_of(self, name: str) -> list[str]:
        """Hosts whose only switch this is."""
        return [host for host, leaf in self._leaf_of.items() if leaf == name]

    def leaf_of(self, host: str) -> str:
        """The host's leaf if that is drained, otherwise an empty string."""
        leaf = self._leaf_of.get(host, "")
        return leaf if leaf in self._drained else ""

    # ---- what is left ------------------------------------------------------------------------------------------------

    def without(self, graph: nx.MultiGraph[str], *more: str) -> nx.MultiGraph[str]:
        """The graph without what is drained and without ``more``; leaves always stay in it.  Where that is all of it,
        it is the same one."""
        names = self._avoided.union(more) - self._leaves
        if not names:
            return graph
        left = graph.copy()
        left.remove_edges_from([edge for edge in graph.edges(keys=True) if self._fabric.links[edge[2]].a in names])
        left.remove_nodes_from(names)
        return left

    def left(self, graph: nx.MultiGraph[str]) -> nx.MultiGraph[str]:
        """The graph to plan with: without what is drained, or all of it if hosts would be cut off otherwise."""
        if not self._drained:
            return graph
        left = self.without(graph)
        return graph if self.cut_off(graph, left) else left

    def cut_off(self, before: nx.MultiGraph[str], after: nx.MultiGraph[str]) -> list[str]:
        """Hosts that the change from ``before`` to ``after`` separates from the largest part of their component."""
        import networkx as nx

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
        """Drained switches and links that these trees use, sorted."""
        used = {name for tree in trees if self._drained for fold in tree.folds
                for name in (fold.switch, self._link(fold.switch, fold.parent_port))}
        return sorted(used & self._avoided)

    def _link(self, switch: str, port: int) -> str:
        number = self._number.get(End(switch, port))
        return "" if number is None else self._fabric.links[number].a

    @property
    def _avoided(self) -> set[str]:
        """Drained parts that can be avoided: all except leaves."""
        return self._drained - self._leaves

# SPDX-License-Identifier: Apache-2.0
"""The graphs of what is up: each is made once for all who ask while nothing changes, and frozen."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING, Final

from netfold.fabric.graph import Fabric, Up

if TYPE_CHECKING:
    import networkx as nx

MOST_GRAPHS: Final = 4
"""Graphs that are kept: of all that is up, of what can be written to, of what is steady, and one before."""


class LiveGraphs:
    """The graphs of a fabric's live parts that were asked for last."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._graphs: dict[Up, nx.MultiGraph[str]] = {}

    def of(self, up: Up) -> nx.MultiGraph[str]:
        """The graph of a live part."""
        return self._graphs[up] if up in self._graphs else self._keep(up, self._made(up))

    async def prepared(self, up: Up) -> nx.MultiGraph[str]:
        """The same graph, made beside the event loop where nobody has asked for it yet."""
        if up in self._graphs:
            return self._graphs[up]
        made = await asyncio.to_thread(self._made, up)
        return self._graphs[up] if up in self._graphs else self._keep(up, made)

    def _made(self, up: Up) -> nx.MultiGraph[str]:
        return up.graph(self._fabric, self._whole)

    @cached_property
    def _whole(self) -> nx.MultiGraph[str]:
        import networkx as nx

        return nx.freeze(self._fabric.graph())

    def _keep(self, up: Up, graph: nx.MultiGraph[str]) -> nx.MultiGraph[str]:
        """Have a graph for those who ask next, in place of the one that was kept first."""
        while len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[up] = graph
        return graph

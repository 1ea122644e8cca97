# SPDX-License-Identifier: Apache-2.0
"""Fabrics of drawn shape: connected switches with links of unequal rates, some side by side, and a few hosts."""

from __future__ import annotations

import networkx as nx
from hypothesis import strategies as st

from netfold.fabric.generate.graph_file import of_graph
from netfold.fabric.graph import Fabric

RATES = ("100mbit", "250mbit", "1gbit", "4gbit")


@st.composite
def any_fabrics(draw: st.DrawFn, most: int = 9) -> Fabric:
    """A fabric of 2 to ``most`` switches, of which two at least have hosts."""
    n = draw(st.integers(2, most))
    graph: nx.MultiGraph[str] = nx.MultiGraph()
    for switch in range(n):
        graph.add_node(f"s{switch}", kind="switch", hosts=draw(st.integers(0, 2)))
    for switch in draw(st.permutations(range(n)))[:2]:
        graph.nodes[f"s{switch}"]["hosts"] = max(1, graph.nodes[f"s{switch}"]["hosts"])
    pairs = [(draw(st.integers(0, switch - 1)), switch) for switch in range(1, n)]  # a tree, so that all is connected
    both = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    for a, b in [*pairs, *draw(st.lists(both, max_size=2 * n))]:
        graph.add_edge(f"s{a}", f"s{b}", rate=draw(st.sampled_from(RATES)))
    return of_graph(graph, "drawn", rate="1gbit")

# SPDX-License-Identifier: Apache-2.0
"""The live part of a fabric's graph, which shares with the whole one what nothing is missing beside."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.folding import trees
from netfold.fabric.generate import parse
from netfold.fabric.graph import Fabric, Up

FABRICS = [parse("leafspine,3,2,6,uplinks=2:1"), parse("threetier,2,2,2,4,8"), parse("mesh,2,3")]


def drawn(fabric: Fabric, data: st.DataObject) -> Up:
    """All of a fabric but some nodes and links."""
    names = [node.name for node in fabric.nodes]
    links = range(len(fabric.links))
    return Up(frozenset(names) - data.draw(st.sets(st.sampled_from(names), max_size=2)),
              frozenset(links) - data.draw(st.sets(st.sampled_from(links), max_size=4)))


def listed(graph: nx.MultiGraph[str]) -> tuple[list[object], list[object]]:
    """Nodes and neighbours with all that they carry, in the graph's order."""
    return list(graph.nodes(data=True)), [
        (node, [(near, list(links.items())) for near, links in beside.items()]) for node, beside in graph.adjacency()]


@settings(max_examples=60)
@given(st.sampled_from(FABRICS), st.data())
def test_a_part_is_what_is_left_of_the_graph(fabric: Fabric, data: st.DataObject) -> None:
    """Its nodes and links are those that are up, in the same order, and the whole graph stays as it was."""
    up, whole = drawn(fabric, data), nx.freeze(fabric.graph())
    before = listed(whole)
    part = up.graph(fabric, whole)
    wanted = fabric.graph()
    wanted.remove_edges_from([edge for edge in wanted.edges(keys=True) if edge[2] not in up.links])
    wanted.remove_nodes_from([node for node in list(wanted) if node not in up.nodes])
    assert listed(part) == listed(wanted) == listed(up.graph(fabric))
    assert listed(whole) == before
    with pytest.raises(nx.NetworkXError, match="Frozen"):
        part.remove_node(next(iter(part)))


@settings(max_examples=60)
@given(st.sampled_from(FABRICS), st.data())
def test_trees_over_a_part_are_those_over_a_graph_of_its_own(fabric: Fabric, data: st.DataObject) -> None:
    """Planned with what is known of the neighbours in the whole graph, or with nothing: the same trees, or none."""
    up, whole = drawn(fabric, data), nx.freeze(fabric.graph())
    hosts = [host.name for host in fabric.hosts]
    trees.plan(whole, hosts)

    def planned(graph: nx.MultiGraph[str]) -> object:
        try:
            return trees.plan(graph, hosts)
        except trees.NoTree as error:
            return str(error)

    alone = up.graph(fabric, whole).copy()
    alone.graph.clear()
    assert planned(up.graph(fabric, whole)) == planned(alone)

# SPDX-License-Identifier: Apache-2.0
"""Topologies by their text, and any graph from a file: what comes out, and what is said of a text that is wrong."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from netfold.fabric import file as fabric_file
from netfold.fabric.generate import parse
from netfold.fabric.generate.graph_file import of_graph
from netfold.fabric.generate.grids import cycle, mesh_of, neighbours, ring_along
from netfold.fabric.graph import Fabric, FabricError


def between(fabric: Fabric) -> dict[tuple[str, str], list[str | None]]:
    """Rates of the links between switches."""
    names = {switch.name for switch in fabric.switches}
    found: dict[tuple[str, str], list[str | None]] = {}
    for link in fabric.links:
        a, b = (end.node for end in link.ends)
        if {a, b} <= names:
            found.setdefault((a, b), []).append(link.rate)
    return found


def test_uplinks_differ_in_rate_and_number() -> None:
    """Alike from every leaf, and from every pod; what the text does not say is the command's."""
    fabric = parse("leafspine,2,3,4,uplinks=2x250mbit:2:1gbit", rate="500mbit")
    for leaf in ("leaf1", "leaf2"):
        assert [between(fabric)[leaf, f"spine{spine}"] for spine in (1, 2, 3)] == [
            ["250mbit"] * 2, ["500mbit"] * 2, ["1gbit"]]
    pods = between(parse("threetier,2,1,2,2,4,uplinks=1:40mbit,cores=10mbit:2", rate="20mbit"))
    assert pods["leaf2", "agg3"] == ["20mbit"]
    assert pods["leaf2", "agg4"] == ["40mbit"]
    assert pods["agg1", "spine1"] == ["10mbit"]
    assert pods["agg4", "spine2"] == ["20mbit"] * 2


@pytest.mark.parametrize(("text", "links", "degrees"), [
    ("mesh,1,1", 0, {}), ("mesh,1,4", 3, {1: 2, 2: 2}), ("mesh,3,4", 17, {2: 4, 3: 6, 4: 2}),
    ("torus,3,4", 24, {4: 12}), ("torus,2,3", 9, {3: 6}), ("torus,2,2", 4, {2: 4}),
])
def test_places_of_a_mesh_are_linked_to_their_neighbours(text: str, links: int, degrees: dict[int, int]) -> None:
    """One host at each place; a torus closes rows and columns of three places or more, as two have a link already."""
    fabric = parse(text, rate="100mbit")
    inner = between(fabric)
    assert sum(map(len, inner.values())) == links
    assert len(fabric.hosts) == len(fabric.switches)
    count = Counter(node for pair in inner for node in pair)
    assert Counter(count.values()) == degrees
    if links:
        hosts = {link.ends[0].node: link.rate for link in fabric.links if link.ends[1].node.startswith("h")}
        assert hosts == {node: f"{number * 100_000_000}bit" for node, number in count.items()}, "as all others together"


def test_links_of_a_mesh_along_rows_and_columns_may_differ() -> None:
    """Also the hosts' links, and how many hosts there are."""
    fabric = parse("mesh,2,2,hosts=3,rows=1gbit,columns=100mbit,host=2gbit")
    assert between(fabric) == {("r1c1", "r1c2"): ["1gbit"], ("r1c1", "r2c1"): ["100mbit"],
                               ("r1c2", "r2c2"): ["100mbit"], ("r2c1", "r2c2"): ["1gbit"]}
    assert len(fabric.hosts) == 12
    assert {link.rate for link in fabric.links if "h" in link.b} == {"2gbit"}


@pytest.mark.parametrize(("text", "says"), [
    ("ring,3", r"unknown topology 'ring,3': expected leafspine,LEAVES,SPINES,HOSTS\[,uplinks=.*, mesh,ROWS.*file:PATH"),
    ("mesh,2", r"unknown topology 'mesh,2': expected mesh,ROWS,COLUMNS\["),
    ("mesh,2,x", "expected mesh,ROWS,COLUMNS"),
    ("mesh,2,hosts=1,3", "expected mesh,ROWS,COLUMNS"),
    ("mesh,0,3", "mesh: expected at least 1 row"),
    ("torus,2,2,hosts=0", "hosts: expected a whole number of 1..99999, got '0'"),
    ("mesh,2,3,rows=fast", "rows: expected a rate such as"),
    ("mesh,2,3,uplinks=2", r"uplinks: expected mesh,ROWS,COLUMNS\[,hosts=N\]"),
    ("mesh,2,3,host=1gbit,host=1gbit", "host: given twice"),
    ("mesh,2,2,hosts=255", "r1c1 has 255 hosts and 257 links in all: expected at most 254 hosts"),
    ("leafspine,2,2,8,uplinks=1gbit", "leafspine: uplinks: expected one for each spine, 2 in all, got 1"),
    ("leafspine,2,2,8,uplinks=0:1", "uplinks: expected a rate, a number of links or both .* got '0'"),
    ("leafspine,2,2,8,uplinks=2x:65", "uplinks: expected .* at most 64 links; got '65'"),
    ("threetier,2,1,2,2,4,cores=1", "threetier: cores: expected one for each spine, 2 in all, got 1"),
    ("file:/nowhere/x.gml", "file /nowhere/x.gml: cannot read it: No such file"),
    ("file:graph.txt", "expected a name that ends in .toml, .graphml"),
])
def test_a_wrong_text_is_told_what_was_expected(text: str, says: str) -> None:
    """The family's form, and the part that is wrong."""
    with pytest.raises(FabricError, match=says):
        parse(text)


def test_a_graph_is_the_same_in_every_form(tmp_path: Path) -> None:
    """GraphML, GML, node-link JSON and lines give one fabric; where the graph has no hosts, each switch has one."""
    graph = nx.Graph()
    graph.add_edge("a", "b", rate="1gbit")
    graph.add_edge("b", "c")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    nx.write_gml(graph, tmp_path / "g.gml")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    (tmp_path / "g.edges").write_text("# a line\na b 1gbit\n\nb c  # no rate\n")
    fabrics = [parse(f"file:{tmp_path}/g{end}", rate="100mbit") for end in (".graphml", ".gml", ".json", ".edges")]
    assert fabrics == [fabrics[0]] * 4
    assert between(fabrics[0]) == {("a", "b"): ["1gbit"], ("b", "c"): ["100mbit"]}
    assert fabrics[0].leaf_of() == {"h1": "a", "h2": "b", "h3": "c"}


GML = """Creator "Topology Zoo Toolset"
graph [
  label "Lab"
  node [ id 0 label "Gooding" ]
  node [ id 1 label "Gooding" ]
  node [ id 2 label "" hyperedge 1 ]
  node [ id 3 label "Zürich" ]
  edge [ source 0 target 1 LinkLabel "OC-3" ]
  edge [ source 0 target 1 ]
  edge [ source 1 target 2 LinkSpeedRaw 1000000000.0 ]
  edge [ source 2 target 3 ]
]
"""


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_gml_may_repeat_labels_and_links(tmp_path: Path, encoding: str) -> None:
    """The ids are the nodes, the labels become names, and two edges between two nodes are two links."""
    (tmp_path / "g.gml").write_bytes(GML.encode(encoding))
    fabric = parse(f"file:{tmp_path}/g.gml", rate="10mbit")
    assert [switch.name for switch in fabric.switches] == ["Gooding", "Gooding2", "s1", "Zurich"]
    assert between(fabric) == {("Gooding", "Gooding2"): ["10mbit", "10mbit"], ("Gooding2", "s1"): ["1000000000bit"],
                               ("s1", "Zurich"): ["10mbit"]}


def test_graphml_is_read_in_the_encoding_that_it_declares(tmp_path: Path) -> None:
    """An XML declaration may name ISO-8859-1."""
    graph = nx.Graph()
    graph.add_edge("Zürich", "Köln")
    nx.write_graphml(graph, tmp_path / "g.graphml", encoding="iso-8859-1")
    assert b"iso-8859-1" in (tmp_path / "g.graphml").read_bytes()
    fabric = parse(f"file:{tmp_path}/g.graphml")
    assert [switch.name for switch in fabric.switches] == ["Zurich", "Koln"]


def test_defaults_of_graphml_count_where_there_is_no_value(tmp_path: Path) -> None:
    """The keys of edges and of nodes have defaults, which networkx keeps apart."""
    graph = nx.Graph([("a", "b", {"rate": "1gbit"}), ("b", "c")])
    graph.graph.update(edge_default={"rate": "250mbit"}, node_default={"hosts": 2})
    graph.nodes["b"]["hosts"] = 0
    nx.write_graphml(graph, tmp_path / "g.graphml")
    assert b"<default>250mbit</default>" in (tmp_path / "g.graphml").read_bytes()
    fabric = parse(f"file:{tmp_path}/g.graphml", rate="10mbit")
    names = {switch.name for switch in fabric.switches}
    rates = ["/".join(end.node for end in link.ends) + f" {link.rate}" for link in fabric.links
             if {end.node for end in link.ends} <= names]
    assert sorted(rates) == ["a/b 1gbit", "b/c 250mbit"]
    assert len(fabric.hosts) == 4


@pytest.mark.parametrize("end", [".graphml", ".gml", ".json"])
@pytest.mark.parametrize(("edges", "rates"), [
    ([("a", "b", "1gbit"), ("a", "b", "250mbit")], ["1gbit", "250mbit"]),
    ([("a", "b", "1gbit"), ("b", "a", "1gbit")], ["1gbit"]),
    ([("a", "b", ""), ("b", "a", "1000mbit")], ["1000mbit"]),
    ([("a", "b", "1gbit"), ("b", "a", "250mbit"), ("a", "b", "250mbit")], ["1gbit", "250mbit"]),
    ([("b", "a", "1gbit"), ("a", "b", "250mbit"), ("a", "b", "")], ["250mbit", "1gbit"]),
    ([("a", "b", "1gbit"), ("b", "a", ""), ("a", "b", "250mbit"), ("b", "a", "1000mbit")], ["1gbit", "250mbit"]),
])
def test_edges_of_a_directed_graph_there_and_back_are_one_link(
    tmp_path: Path, edges: list[tuple[str, str, str]], rates: list[str], end: str,
) -> None:
    """Two nodes have as many links as there are edges in the direction that has more, and either edge says the rate."""
    graph = nx.MultiDiGraph()
    graph.add_nodes_from("ab")
    for source, target, rate in edges:
        graph.add_edge(source, target, **({"rate": rate} if rate else {}))
    path = tmp_path / f"g{end}"
    match end:
        case ".graphml":
            nx.write_graphml(graph, path)
        case ".gml":
            nx.write_gml(graph, path)
        case _:
            path.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    assert between(parse(f"file:{path}")) == {("a", "b"): rates}


@pytest.mark.parametrize(("back", "says"), [
    ({"rate": "250mbit"}, "link a - b: expected the same .* got rate 250mbit in one direction, .* one rate 1gbit"),
    ({"rate": "1gbit", "loss": 0.5}, "got rate 1gbit, loss 0.5 in one direction"),
    ({"rate": "fast"}, "link a - b: rate: expected a rate such as 100mbit, .* got 'fast'"),
])
def test_a_link_has_one_rate_there_and_back(back: dict[str, Any], says: str) -> None:
    """A directed graph whose edges there and back differ is refused, with what both say."""
    graph = nx.DiGraph()
    graph.add_edge("a", "b", rate="1gbit")
    graph.add_edge("b", "a", **back)
    with pytest.raises(FabricError, match=says):
        of_graph(graph, "lab")


@pytest.mark.parametrize("directed", [False, True])
def test_node_link_json_may_repeat_links(tmp_path: Path, directed: bool) -> None:
    """Two links between two nodes are two, also where the file says that it is no multigraph."""
    links = [{"source": "a", "target": "b", "rate": rate} for rate in ("1gbit", "250mbit")]
    (tmp_path / "g.json").write_text(json.dumps({
        "directed": directed, "multigraph": False, "nodes": [{"id": "a"}, {"id": "b"}], "links": links}))
    assert between(parse(f"file:{tmp_path}/g.json")) == {("a", "b"): ["1gbit", "250mbit"]}


def test_attributes_of_a_graph_say_hosts_roles_places_and_links() -> None:
    """A node that says it is a host keeps its name and link; names that no interface can have are replaced."""
    graph = nx.MultiGraph()
    graph.add_node("left", hosts=2, row=0, column=0)
    graph.add_node("right", row=0, column=1)
    graph.add_node("gpu", kind="host")
    graph.add_edge("left", "right", rate=2.5e9, loss=0.25)
    graph.add_edge("left", "right", LinkSpeedRaw=1e9)
    graph.add_edge("gpu", "right", rate="10mbit", corrupt=0.5)
    fabric = of_graph(graph, "my lab", loss=0.125)
    assert fabric.name == "my-lab"
    assert fabric.leaf_of() == {"h1": "left", "h2": "left", "gpu": "right"}
    assert [switch.place for switch in fabric.switches] == [(0, 0), (0, 1)]
    assert between(fabric) == {("left", "right"): ["2500000000bit", "1000000000bit"]}
    gpu = next(link for link in fabric.links if "gpu" in link.b)
    assert (gpu.rate, gpu.corrupt, gpu.loss) == ("10mbit", 0.5, 0.125)
    zoo = of_graph(nx.path_graph(["New York", "São Paulo", "New Yorkshire", "?", 7]), "zoo")
    assert [switch.name for switch in zoo.switches] == ["NewYork", "SaoPaulo", "NewYorks", "s1", "s2"]
    assert fabric_file.loads(fabric_file.dumps(fabric)) == fabric


@pytest.mark.parametrize("lossy", [0, 1])
def test_links_side_by_side_keep_their_own_faults(lossy: int) -> None:
    """What a graph says of one of two links is of that one alone, and the command's share is on the other."""
    graph = nx.MultiGraph()
    for number in range(2):
        graph.add_edge("a", "b", rate=f"{number + 1}gbit", **({"loss": 0.25} if number == lossy else {}))
    found = {link.rate: link.loss for link in of_graph(graph, "g", loss=0.125).links if link.rate}
    assert found == {f"{number + 1}gbit": 0.25 if number == lossy else 0.125 for number in range(2)}


@pytest.mark.parametrize(("change", "says"), [
    (lambda g: g.add_node("c", kind="router"), "node c: kind: expected switch or host, got 'router'"),
    (lambda g: g.add_node("a", hosts="many"), "node a: hosts: expected a whole number, got 'many'"),
    (lambda g: g.add_node("a", role="core"), "node a: role: expected leaf, agg, spine, got 'core'"),
    (lambda g: g.add_node("a", row=1), "node a: row, column: expected two whole numbers, got 1, none"),
    (lambda g: g.add_edge("a", "b", rate=0), "link a - b: rate: expected bit/s of at least 1, got 0"),
    (lambda g: g.add_edge("a", "b", rate="1 Gb/s"), "rate: expected a rate such as 100mbit"),
    (lambda g: g.add_edge("a", "b", loss="much"), "link a - b: loss: expected a share of 0..1, got 'much'"),
    (lambda g: g.add_node("alone"), "falls apart into 2 pieces that no link connects: a, b, h1, h2 | alone, h3"),
    (lambda g: g.add_node("h", kind="host"), "host h: expected one link, to a switch, got 0"),
    (lambda g: g.add_edges_from([("a", "c"), ("c", "a")]) or g.add_node("c", kind="host") or g.add_edge("c", "b"),
     "host c: expected one link, to a switch, got 2: a, b"),
])
def test_a_graph_that_is_no_fabric_names_node_or_link(change: object, says: str) -> None:
    """The error has the expected and the found value."""
    graph = nx.Graph([("a", "b")])
    change(graph)  # type: ignore[operator]
    with pytest.raises(FabricError, match=says):
        of_graph(graph, "g")


def test_a_fabric_file_gives_its_graph_alone(tmp_path: Path) -> None:
    """Names, addresses, ports, rates and faults of a fabric file stay; sockets, tokens and engine are the command's."""
    fabric = parse("leafspine,2,2,4,uplinks=1gbit:100mbit", loss=0.25)
    text = fabric_file.dumps(fabric).replace("[fabric]", "[fabric]\noperator_token_file = \"secret\"")
    (tmp_path / "lab.toml").write_text(text)
    found = parse(f"file:{tmp_path}/lab.toml", rate="1gbit", engine="bmv2", seed=7, loss=0.5, reorder=0.125,
                  rundir=tmp_path)
    assert found.operator_token_file is None
    assert (found.engine, found.path_mtu, found.seed) == ("bmv2", 4096, 7)
    assert found.hosts == fabric.hosts
    assert [(link.loss, link.reorder) for link in found.links] == [(0.25, 0.125)] * len(fabric.links)
    assert between(found) == between(fabric)
    assert {link.rate for link in found.links} == {"1gbit", "100mbit"}
    assert found.switches[0].grpc == f"unix:{tmp_path}/leaf1.sock"


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (4, 1), (2, 2), (2, 5), (5, 2), (3, 4), (4, 3), (3, 3), (5, 5)])
def test_a_ring_goes_along_the_links_of_a_mesh(rows: int, columns: int) -> None:
    """Each place once, each next to the one before; around, where a side is even."""
    order = cycle(rows, columns)
    assert sorted(order) == [(row, column) for row in range(rows) for column in range(columns)]
    linked = {pair for a, b in neighbours(rows, columns) for pair in ((a, b), (b, a))}
    assert all(pair in linked for pair in pairwise(order))
    if rows % 2 == 0 < columns - 1 or columns % 2 == 0 < rows - 1:
        assert (order[-1], order[0]) in linked


def test_ranks_on_a_whole_mesh_are_told_their_places() -> None:
    """Also on a rectangle of a larger mesh or a torus, in whatever order; not on a part that has a hole, with two ranks
    at a place, with a link that is down, or on other fabrics."""
    mesh = parse("mesh,3,3").graph()
    assert mesh_of(mesh, ["h5", "h4", "h8", "h7"]) == [[1, 0], [3, 2]]
    assert mesh_of(parse("torus,3,3").graph(), [f"h{n}" for n in range(1, 10)]) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert ring_along([[0, 1, 2], [3, 4, 5]]) == [3, 0, 1, 2, 5, 4]
    for ranks in (["h1", "h2", "h4"], ["h1", "h3"], ["h1", "h1"], ["h1"]):
        assert mesh_of(mesh, ranks) == []
    mesh.remove_edge("r1c1", "r1c2")
    assert mesh_of(mesh, ["h1", "h2", "h4", "h5"]) == []
    assert mesh_of(parse("mesh,1,2,hosts=2").graph(), ["h1", "h2", "h3", "h4"]) == []
    assert mesh_of(parse("leafspine,2,2,4").graph(), ["h1", "h2"]) == []

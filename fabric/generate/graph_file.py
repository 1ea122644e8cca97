# SPDX-License-Identifier: Apache-2.0
"""Any graph as a fabric, from a file: `--topo file:PATH`.

    PATH ends in    what it is
    .toml           a fabric file, of which switches, hosts and links count
    .graphml .gml   what networkx, yEd, Gephi and the Topology Zoo write
    .json           node-link JSON, as networkx and d3 have it
    .edges          lines of two names, and a rate where a link has its own:  a b 1gbit

Attributes that count, all optional:

    node    kind          "switch" or "host"; where no node says so, all are switches
            hosts         hosts of a switch that are no nodes of the graph; default: 1 where no node is a host, else 0
            role          "leaf", "agg" or "spine"; default: leaf with hosts, else spine
            row, column   its place in a mesh, from 0
    edge    rate          in tc's units, or a number in bit/s; also as LinkSpeedRaw, the Topology Zoo's; default: --rate
            loss, duplicate, reorder, corrupt   shares of packets, instead of the command's

What the file says of a link goes before what the command says of all links.

Several edges between two nodes are several links.  In a directed graph, an edge there and one back are one link, so two
nodes have as many links as there are edges in the direction that has more.  What one of the two says counts for both;
where both say something, that must be the same, since a link has one rate.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast, get_args

import msgspec

from netfold.disk import files
from netfold.fabric import file as fabric_file
from netfold.fabric.generate.assemble import PATH_MTU, Edge, FabricOptions, Faults, Site, assemble
from netfold.fabric.graph import FAULTS, Fabric, FabricError, Link, Role, bits_per_second

if TYPE_CHECKING:
    import networkx as nx
from netfold.fabric.validity import count as count_of
from netfold.fabric.validity import validate

LONGEST_NAME: Final = 8
"""Most characters of a node's name, so that NAME-eth509 fits an interface's name."""
Stated = tuple[int | None, tuple[tuple[str, object], ...]]
"""The rate in bit/s and the faults of an edge."""
NOTHING: Final[Stated] = (None, ())


def load(path: Path, **options: Unpack[FabricOptions]) -> Fabric:
    """The fabric of a graph's file.  Raises FabricError, which names the file, the node or link, and what is wrong."""
    if path.suffix == ".toml":
        return _of_fabric_file(fabric_file.load(path), **options)
    if path.suffix not in READERS:
        raise FabricError(f"file {path}: expected a name that ends in .toml, {', '.join(READERS)}")
    try:
        graph = READERS[path.suffix](files.read(path))
    except OSError as error:
        raise FabricError(f"file {path}: cannot read it: {error.strerror}") from error
    except Exception as error:  # parsers of networkx raise whatever they meet
        raise FabricError(f"file {path}: not a graph in the form {path.suffix}: {type(error).__name__}: "
                          f"{error}") from error
    try:
        return of_graph(graph, path.stem, **options)
    except FabricError as error:
        raise FabricError(f"file {path}: {error}") from error


def of_graph(graph: nx.Graph[Any], name: str, **options: Unpack[FabricOptions]) -> Fabric:
    """The fabric of a graph whose nodes and edges carry the attributes above.

    Nodes keep their names where those fit interfaces.  Otherwise their labels are shortened to names ("New York" is
    NewYork), and switches and hosts without a label are s1, s2, ... and h1, h2, ....  Raises FabricError.
    """
    import networkx as nx

    kinds = {node: _kind(node, data) for node, data in graph.nodes(data=True)}
    for kind in ("switch", "host"):
        count_of(kind, list(kinds.values()).count(kind))
    count_of("link", graph.number_of_edges())
    stated = any("kind" in data for _, data in graph.nodes(data=True))
    simple = _both_ways(graph) if graph.is_directed() else nx.MultiGraph(graph)
    switches = [node for node, kind in kinds.items() if kind == "switch"]
    if not switches:
        raise FabricError("expected at least one switch, got none")
    names = _names(kinds, {node: str(data.get("label", node)) for node, data in graph.nodes(data=True)})
    usual = 0 if "host" in kinds.values() or stated else 1
    hosts_of = {node: _hosts(node, graph.nodes[node], usual) for node in switches}
    count_of("host", len(kinds) - len(switches) + sum(hosts_of.values()))
    below: dict[Any, list[tuple[str | None, Mapping[str, Any]]]] = {
        node: [(None, {})] * number for node, number in hosts_of.items()
    }
    for node, kind in kinds.items():
        if kind == "host":
            ends = list(simple.edges(node, data=True))
            if len(ends) != 1 or kinds[ends[0][1]] != "switch":
                raise FabricError(f"host {node}: expected one link, to a switch, got {len(ends)}: "
                                  f"{', '.join(str(far) for _, far, _ in ends)}")
            below[ends[0][1]].append((names[node], ends[0][2]))
    sites = [Site(names[node], _role(node, graph.nodes[node], bool(below[node])),
                  tuple(host for host, _ in below[node]), tuple(_rate(node, data) for _, data in below[node]),
                  _place(node, graph.nodes[node])) for node in switches]
    inner = [(a, b, data) for a, b, data in simple.edges(data=True) if kinds[a] == kinds[b] == "switch"]
    cables = [Edge(names[a], names[b], _rate(f"{a} - {b}", data), _faults(f"{a} - {b}", data)) for a, b, data in inner]
    label = re.sub(r"[^\w.-]", "-", name)
    fabric = assemble(label, sites, cables, **options)
    faults = {host: _faults(host, data) for node in switches for host, data in below[node] if host}
    links = [msgspec.structs.replace(link, **faults.get(link.ends[1].node, {})) for link in fabric.links]
    fabric = msgspec.structs.replace(fabric, links=tuple(links))
    validate(fabric)
    return fabric


def _both_ways(graph: nx.Graph[Any]) -> nx.MultiGraph[Any]:
    """A directed graph as an undirected one, with an edge for each link.  Raises FabricError where edges there and back
    say different things of a link."""
    import networkx as nx

    ways: dict[tuple[Any, Any], tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]] = {}
    for a, b, data in graph.edges(data=True):
        if a != b and (b, a) in ways:
            ways[b, a][1].append(data)
        else:
            ways.setdefault((a, b), ([], []))[0].append(data)
    links: nx.MultiGraph[Any] = nx.MultiGraph()
    links.add_nodes_from(graph.nodes(data=True))
    for (a, b), edges in ways.items():
        more, fewer = sorted(edges, key=len, reverse=True)
        links.add_edges_from((a, b, dict(data)) for data in _merged(f"{a} - {b}", more, fewer))
    return links


def _merged(where: str, more: Sequence[Mapping[str, Any]], fewer: Sequence[Mapping[str, Any]]
            ) -> list[Mapping[str, Any]]:
    """The attributes of links between two nodes, of which all are edges in one direction and some in the other."""
    stated = [_stated(where, data) for data in more]
    left = Counter(stated)
    told: list[Mapping[str, Any]] = []
    """Attributes of links whose edge in the direction that has more says nothing."""
    for data in fewer:
        says = _stated(where, data)
        if says == NOTHING:
            continue
        if not left[says]:
            if not left[NOTHING]:
                raise FabricError(
                    f"link {where}: expected the same of the edges there and back, since a link has one rate and one "
                    f"share of each fault; got {_words(data)} in one direction, and in the other one "
                    f"{'; '.join([*dict.fromkeys(_words(other) or 'nothing' for other in more)][:4])}")
            says = NOTHING
            told.append(data)
        left[says] -= 1
    rest = iter(told)
    return [next(rest, data) if says == NOTHING else data for says, data in zip(stated, more, strict=True)]


def _stated(where: str, data: Mapping[str, Any]) -> Stated:
    """The rate and the faults that an edge gives its link, in one unit."""
    rate, faults = _rate(where, data), _faults(where, data)
    try:
        return None if rate is None else bits_per_second(rate), tuple(sorted(faults.items()))
    except FabricError as error:
        raise FabricError(f"link {where}: rate: {error}") from error


def _words(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {data[name]}" for name in ("rate", "LinkSpeedRaw", *FAULTS) if name in data)


def _of_fabric_file(found: Fabric, *, rate: str | None = None, **options: Any) -> Fabric:
    """A generated fabric with the switches, hosts and links of a fabric file; addresses of processes, tokens and
    certificates are not taken over."""
    engine = options.pop("engine", "softswitch")
    path_mtu, seed = options.pop("path_mtu", PATH_MTU), options.pop("seed", 0)
    rundir, base_port, rdma = options.pop("rundir", None), options.pop("base_port", 50050), options.pop("rdma", False)

    def grpc(node: str, number: int) -> str:
        return f"unix:{rundir / node}.sock" if rundir else f"127.0.0.1:{base_port + number}"

    names = {switch.name for switch in found.switches}

    def link(one: Link) -> Link:
        asked = {fault: share for fault, share in options.items() if not getattr(one, fault)}
        if {end.node for end in one.ends} <= names:
            asked.pop("corrupt", None)
        return msgspec.structs.replace(one, rate=one.rate or rate, **asked)

    switches = [msgspec.structs.replace(switch, grpc=grpc(switch.name, n), device_id=n, p4runtime_ca=None,
                                        p4runtime_certificate=None, p4runtime_key=None)
                for n, switch in enumerate(found.switches, 1)]
    fabric = Fabric(
        found.name, engine, grpc("controller", 0), path_mtu,
        planner=found.planner, seed=seed or found.seed, switches=tuple(switches),
        hosts=tuple(msgspec.structs.replace(host, rdma=host.rdma or rdma) for host in found.hosts),
        links=tuple(map(link, found.links)),
    )
    validate(fabric)
    return fabric


def _edges(content: bytes) -> nx.MultiGraph[str]:
    """A graph of lines NAME NAME [RATE]; what follows a # is a comment."""
    import networkx as nx

    graph: nx.MultiGraph[str] = nx.MultiGraph()
    for at, line in enumerate(content.decode().splitlines(), 1):
        words = line.partition("#")[0].split()
        if len(words) not in (0, 2, 3):
            raise ValueError(f"line {at}: expected NAME NAME, or NAME NAME RATE, got {line!r}")
        if words:
            graph.add_edge(words[0], words[1], **({"rate": words[2]} if len(words) == 3 else {}))
    return graph


def _graphml(content: bytes) -> nx.Graph[Any]:
    """A graph of GraphML, in the encoding that its XML declaration names; a key's default counts where a node or edge
    has no value of it."""
    import networkx as nx

    graph = nx.read_graphml(io.BytesIO(content))
    for usual, carriers in (("node_default", graph.nodes), ("edge_default", graph.edges)):
        for carrier in carriers:
            carriers[carrier].update({**graph.graph.get(usual, {}), **carriers[carrier]})
    return graph


def _gml(content: bytes) -> nx.Graph[Any]:
    """A graph of GML (Himsolt, 1996).  Its ids are the nodes and its labels are for display, so that labels may be
    equal or missing.  Two nodes may have several links, also where the file does not say ``multigraph 1``."""
    import networkx as nx

    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = content.decode("latin-1")  # what the format's description asks for
    # blanks of one line alone, each taken once: what follows many of them is not looked for from each anew
    text = re.sub(r"^[ \t\r]*+multigraph[ \t]++[01][ \t\r]*+$", "", text, flags=re.MULTILINE)
    return nx.parse_gml(re.sub(r"\bgraph\s*\[", "graph [\n  multigraph 1", text, count=1), label="id")


def _node_link(content: bytes) -> nx.Graph[Any]:
    """A graph of node-link JSON.  Two nodes may have several links, also where it says that it is no multigraph."""
    import networkx as nx

    found = json.loads(content)
    return nx.node_link_graph({**found, "multigraph": True}, edges="links" if "links" in found else "edges")


READERS: Final[dict[str, Callable[[bytes], Any]]] = {
    ".graphml": _graphml, ".gml": _gml, ".json": _node_link, ".edges": _edges,
}
"""Readers of graphs, by the end of the file's name."""


def _names(kinds: Mapping[Any, str], labels: Mapping[Any, str]) -> dict[Any, str]:
    """The names of all nodes: their own or their labels, if all of these fit, and none is that of a host that is to be
    made.  Otherwise each gets one from its label, as far as that has letters."""
    for own in ({node: str(node) for node in kinds}, labels):
        fits = all(re.fullmatch(rf"[A-Za-z][\w.-]{{0,{LONGEST_NAME - 1}}}", name, re.ASCII) for name in own.values())
        taken = any(re.fullmatch(r"h\d+", own[node]) for node, kind in kinds.items() if kind == "switch")
        if fits and not taken and len(set(own.values())) == len(own):
            return dict(own)
    names: dict[Any, str] = {}
    used: set[str] = set()
    numbers = {"switch": count(1), "host": count(1)}
    others: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(2))
    """Suffixes for a name that several nodes would have, by name: each number is tried once."""
    for node, kind in kinds.items():
        plain = unicodedata.normalize("NFKD", labels[node])
        base = re.sub(r"[^A-Za-z0-9]|^[^A-Za-z]+", "", re.sub(r"[^\x00-\x7f]", "", plain))[:LONGEST_NAME]
        if not re.fullmatch(r"[A-Za-z]{2}.*", base):  # one letter and digits may be another node's s1 or h1
            base = ""
        other = {"switch": "s", "host": "h"}[kind]
        tries = chain([base], (f"{base[: LONGEST_NAME - len(str(n))]}{n}" for n in others[base])) if base else (
            f"{other}{n}" for n in numbers[kind])
        names[node] = next(name for name in tries if name not in used)
        used.add(names[node])
    return names


def _kind(node: Any, data: Mapping[str, Any]) -> str:
    kind = str(data.get("kind", "switch"))
    if kind not in ("switch", "host"):
        raise FabricError(f"node {node}: kind: expected switch or host, got {kind!r}")
    return kind


def _hosts(node: Any, data: Mapping[str, Any], usual: int) -> int:
    number = data.get("hosts", usual)
    if isinstance(number, bool) or not str(number).isdecimal() or len(str(number)) > 5:
        raise FabricError(f"node {node}: hosts: expected a whole number, got {number!r}")
    return int(number)


def _role(node: Any, data: Mapping[str, Any], has_hosts: bool) -> Role:
    role = data.get("role", "leaf" if has_hosts else "spine")
    if role not in get_args(Role):
        raise FabricError(f"node {node}: role: expected {', '.join(get_args(Role))}, got {role!r}")
    return role  # type: ignore[no-any-return]


def _place(node: Any, data: Mapping[str, Any]) -> tuple[int, int] | None:
    if "row" not in data and "column" not in data:
        return None
    place = [str(data.get(axis, "none")) for axis in ("row", "column")]
    if not all(number.isdecimal() and len(number) <= 5 for number in place):
        raise FabricError(f"node {node}: row, column: expected two whole numbers, got {', '.join(place)}")
    return int(place[0]), int(place[1])


def _rate(where: Any, data: Mapping[str, Any]) -> str | None:
    rate = data.get("rate", data.get("LinkSpeedRaw"))
    if rate is None:
        return None
    if isinstance(rate, int | float) and not isinstance(rate, bool):
        if not 1 <= rate < 1e15:
            raise FabricError(f"link {where}: rate: expected bit/s of at least 1, got {rate}")
        return f"{round(rate)}bit"
    return str(rate)


def _faults(where: Any, data: Mapping[str, Any]) -> Faults:
    found = {fault: data[fault] for fault in FAULTS if fault in data}
    for fault, share in found.items():
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise FabricError(f"link {where}: {fault}: expected a share of 0..1, got {share!r}")
    return cast(Faults, found)

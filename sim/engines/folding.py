# SPDX-License-Identifier: Apache-2.0
"""Folds in the packet simulator: a job's aggregation trees, by the controller's planner, on a simulated fabric.

    work, folds = fold(topology, hosts, 1 << 20, machines=False)
    simulate(topology, work, SCHEMES["netfold"], folds=folds)

Ranks keep the host library's rules, whose stream.c is compiled into the simulator, and switches those of
p4src/verdict.p4 (native/folds.c).  A rank's part of a fold is a task like any other: it starts when what it waits for
has ended, and ends when the rank has all results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from netfold.fabric.folding import trees
from netfold.fabric.folding.trees import Tree
from netfold.sim.engines.topology import ClosCable, Topology
from netfold.sim.workloads.workload import Workload

HOST: Final = 2**32 - 1
"""FOLD_HOST of native/packet.h: the end of an edge that is no switch."""

Protocol = Literal["netfold", "switchml", "atp"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("netfold", "switchml", "atp")
"""In the order of enum fold_protocol of native/packet.h."""

EDGE = np.dtype([(name, "u4") for name in ("parent", "place", "node", "first", "count")])
NODE = np.dtype([(name, "u4") for name in ("up", "first", "count", "place")])
CHANNEL = np.dtype([("task", "u4"), ("edge", "u4"), ("packets", "u8"), ("last_bytes", "u8")], align=True)


@dataclass(frozen=True)
class FoldRules:
    """The controller's plan for each stream of a fold."""

    slots: int = 512
    """Slots of all trees of a job together at a switch, a power of two; half of them are its window in packets.  ATP:
    a switch's aggregators for all jobs, any number."""
    message: int = 4096
    """Packets of a message, where there are credits."""
    credits: int = 0
    """NetReduce's messages in flight; 0: the window alone bounds what is in flight."""
    protocol: Protocol = "netfold"
    """Whose rules ranks and switches follow."""
    payload: int = 0
    """Bytes of a full packet's payload; 0: those of `packet.Transport`."""
    header: int = 0
    """Bytes around a payload where ``payload`` is given."""
    timeout: float = 1e-3
    """Seconds until SwitchML's and ATP's workers repeat a packet."""
    window: int = 0
    """Packets in flight of a rank over a tree; 0: half of the slots."""

    def __post_init__(self) -> None:
        if self.payload < 0 or self.header < 0 or self.payload + self.header > 65535 or not self.timeout > 0:
            raise ValueError(f"payload, header, timeout: expected a packet of at most 65535 bytes and seconds above 0, "
                             f"got {self.payload} + {self.header} and {self.timeout}")
        if self.slots < 2 or (self.protocol != "atp" and self.slots & (self.slots - 1)):
            raise ValueError(f"slots: expected a power of two of at least 2, got {self.slots}")
        if not 0 <= self.window <= self.slots:
            raise ValueError(f"window: expected 0 to {self.slots} packets, as many as slots, got {self.window}")
        if self.message < 1 or self.credits < 0:
            raise ValueError(f"message, credits: expected at least 1 packet and 0 messages, got {self.message} and "
                             f"{self.credits}")


@dataclass(frozen=True)
class SimulatedFold:
    """One fold: which task of a workload is each rank's part, and the trees with their shares of the bytes."""

    tasks: tuple[int, ...]
    hosts: tuple[int, ...]
    size: int
    """Bytes that each rank contributes."""
    trees: tuple[Tree, ...]
    machines: bool
    """True if leaves are machines that fold nothing, and hosts their GPUs."""


def fold_graph(topology: Topology, *, machines: bool) -> nx.MultiGraph[str]:
    """The fabric as `fabric.folding.trees.plan` wants it: with roles and ports; ``machines``: with leaves as its
    hosts."""
    graph = topology.graph()
    if machines:
        if topology.aggs != 1:
            raise ValueError(f"machines hang on one switch each: expected 1 agg a pod, got {topology.aggs}")
        graph.remove_nodes_from([f"h{host}" for host in range(topology.size)])
        for leaf in range(topology.leaves * topology.pods):
            graph.nodes[f"leaf{leaf}"]["kind"] = "host"
    top = "core" if topology.pods > 1 else "agg"
    for name, data in graph.nodes(data=True):
        data["role"] = "spine" if name.startswith(top) else "leaf"
    for a, b, data in graph.edges(data=True):
        data["ports"] = {a: 0, b: 0}  # the simulator goes by links
    return graph


def fold(
    topology: Topology, hosts: Sequence[int], size: int, *, machines: bool, planned: Sequence[Tree] = (),
    carried: Mapping[int, float] = MappingProxyType({}), most: int = trees.MOST_TREES,
) -> tuple[Workload, list[SimulatedFold]]:
    """An allreduce of ``size`` bytes on each host, summed by the switches.

    planned   trees of these hosts, where there are some already; else they are planned
    carried   bit/s that others take of links, as in `fabric.folding.trees.plan`
    most      trees at the most, of those that are planned
    Raises ValueError for too few hosts or bytes, trees.NoTree where no switch reaches all.
    """
    if len(set(hosts)) != len(hosts) or len(hosts) < 2 or size < 1:
        raise ValueError(f"fold: expected at least 2 different hosts and 1 byte, got {list(hosts)[:8]}, {size}")
    ranks = [f"leaf{topology.leaf(host)}" if machines else f"h{host}" for host in hosts]
    chosen = planned or trees.plan(fold_graph(topology, machines=machines), ranks, carried=carried, most=most)
    n = len(hosts)
    own = np.array(hosts, np.int64)
    none = np.zeros(n, np.int64)
    work = Workload(own, own, none, np.zeros(n), none, np.zeros((0, 2), np.int64))
    return work, [SimulatedFold(tuple(range(n)), tuple(hosts), size, tuple(chosen), machines)]


def beside(first: tuple[Workload, Sequence[SimulatedFold]], second: tuple[Workload, Sequence[SimulatedFold]]
           ) -> tuple[Workload, list[SimulatedFold]]:
    """Both at the same time."""
    (a, ours), (b, others) = first, second
    return Workload(
        np.concatenate([a.source, b.source]), np.concatenate([a.destination, b.destination]),
        np.concatenate([a.size, b.size]), np.concatenate([a.gap, b.gap]), np.concatenate([a.step, b.step]),
        np.concatenate([a.waits, b.waits + len(a)])), [*ours, *shifted(others, len(a))]


def shifted(folds: Sequence[SimulatedFold], by: int) -> list[SimulatedFold]:
    """Folds whose tasks come ``by`` later in their workload."""
    return [SimulatedFold(tuple(task + by for task in f.tasks), f.hosts, f.size, f.trees, f.machines) for f in folds]


@dataclass(frozen=True)
class FoldTables:
    """All folds of a run as native/packet.h has them."""

    nodes: NDArray[np.void]
    edges: NDArray[np.void]
    channels: NDArray[np.void]
    links: NDArray[np.uint32]


def tables(topology: Topology, folds: Sequence[SimulatedFold], mtu: int) -> FoldTables:
    """Number the switches, edges and channels of all folds.  A short fold is of its first tree alone."""
    nodes: list[tuple[int, int, int, int]] = []
    edges: list[tuple[int, int, int, int, int]] = []
    links: list[int] = []
    places: dict[str, int] = {}
    channels: dict[int, list[tuple[int, int, int, int]]] = {}
    for one in folds:
        packets = -(-one.size // mtu)
        ends = np.rint(np.cumsum([tree.weight for tree in one.trees]) * packets).astype(int)
        begin = 0
        for tree, end in zip(one.trees, ends.tolist(), strict=True):
            if end == begin:
                continue
            last = one.size - (packets - 1) * mtu if end == packets else mtu
            number = {f.switch: len(nodes) + i for i, f in enumerate(tree.folds)}
            nodes += [(HOST, 0, len(f.children), places.setdefault(f.switch, len(places))) for f in tree.folds]
            for f in tree.folds:
                above = number[f.switch]
                nodes[above] = (nodes[above][0], len(edges), *nodes[above][2:])
                for place, child in enumerate(f.children):
                    low = child.node if child.rank is None else one.hosts[child.rank]
                    up, down = _links(topology, low, f.switch, one.machines, child.port)
                    node = HOST if child.rank is not None else number[child.node]
                    if child.rank is None:
                        nodes[node] = (len(edges), *nodes[node][1:])
                    else:
                        task = one.tasks[child.rank]
                        channels.setdefault(task, []).append((task, len(edges), end - begin, last))
                    edges.append((above, place, node, len(links), len(up)))
                    links += [*up, *down]
            begin = end
    flat = [row for task in sorted(channels) for row in channels[task]]
    return FoldTables(np.array(nodes, NODE), np.array(edges, EDGE), np.array(flat, CHANNEL),
                      np.array(links, np.uint32))


def _links(topology: Topology, low: int | str, high: str, machines: bool, path: int) -> tuple[list[int], list[int]]:
    """Directed links from a host or switch to the switch above it, and back; to a server (hN) from its switch, and to
    that switch from those of other racks by ``path``."""
    tier, _, rest = high.partition(".")
    if high.startswith("h"):
        up, down = _links(topology, int(high[1:]), str(low), machines, 0)
        return down, up
    if isinstance(low, int):
        up, down = [low], [topology.size + low]
        if machines:
            there, back = topology.directions(ClosCable("leaf", topology.leaf(low), 0))
            up, down = [*up, there], [back, *down]
        return up, down
    if (low.startswith("agg") and tier.startswith("agg")) or (low.startswith("leaf") and tier.startswith("leaf")):
        return _across(topology, low, high, path), _across(topology, high, low, path)
    if tier.startswith("agg"):
        there, back = topology.directions(ClosCable("leaf", int(low.removeprefix("leaf")), int(rest)))
    else:
        pod, agg = low.removeprefix("agg").split(".")
        there, back = topology.directions(ClosCable("core", int(pod), int(agg), int(rest)))
    return [there], [back]


def _across(topology: Topology, here: str, there: str, path: int) -> list[int]:
    """Directed links between two racks' switches, leaves or aggs, by a path of `Topology.between`."""
    leaf, to = (int(name.removeprefix("leaf").removeprefix("agg").partition(".")[0]) for name in (here, there))
    if here.startswith("leaf"):
        return topology.between(leaf, to, path)
    return topology.between(leaf * topology.leaves, to * topology.leaves, path)[1:-1]

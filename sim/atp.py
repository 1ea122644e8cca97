# SPDX-License-Identifier: Apache-2.0
"""ATP's folds (NSDI 2021): a tree of two levels, the switches of the workers' racks and that of the server's.

    work, folds = fold_at_server(topology, workers, server, 1 << 20, machines=False)
    simulate(topology, work, SCHEMES["netfold"], folds=folds, rules=ATP)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from netfold.fabric.trees import Child, Fold, Tree
from netfold.sim.folding import FoldRules, SimulatedFold, fold
from netfold.sim.topology import Topology
from netfold.sim.workload import Workload

ATP: Final = FoldRules(protocol="atp", slots=40_000, window=100, payload=248, header=58, timeout=1e-3)
"""The numbers of the authors' code (in-ATP/ATP): 40,000 aggregators a switch, at most 100 packets of a rank in flight,
packets of 306 bytes with 62 elements.  The code's time-out, 0.2 ms without a result, is shorter than a round trip of
100 us links: here it is SwitchML's."""
CHILDREN: Final = 32
"""Bits of a packet's bitmap."""


def fold_at_server(topology: Topology, workers: Sequence[int], server: int, size: int, *, machines: bool
                   ) -> tuple[Workload, list[SimulatedFold]]:
    """An allreduce of ``size`` bytes on each worker, by the switches of their racks and host ``server``.

    machines  racks are those of machines below an agg, as in `folding.fold`; else of hosts below a leaf
    Raises ValueError where the server is a worker, or a switch has more than 32 children.
    """
    if server in workers:
        raise ValueError(f"server: host {server} is a worker; expected another")
    racks: dict[int, list[Child]] = {}
    for rank, host in enumerate(workers):
        racks.setdefault(_rack(topology, host, machines), []).append(Child(f"h{host}", 0, rank))
    home = _rack(topology, server, machines)
    others = [rack for rack in racks if rack != home]
    path = topology.aggs * max(1, topology.cores)
    children = [Child(_switch(rack, machines), (rack + server) % path, None) for rack in others]
    folds = [Fold(f"h{server}", (Child(_switch(home, machines), 0, None),), None, 0),
             Fold(_switch(home, machines), (*children, *racks.get(home, [])), f"h{server}", 0),
             *(Fold(_switch(rack, machines), tuple(racks[rack]), _switch(home, machines), 0) for rack in others)]
    for one in folds:
        if len(one.children) > CHILDREN:
            raise ValueError(f"{one.switch} has {len(one.children)} children, expected at most {CHILDREN}")
    return fold(topology, workers, size, machines=machines, planned=[Tree(f"h{server}", 1.0, tuple(folds))])


def _rack(topology: Topology, host: int, machines: bool) -> int:
    return topology.leaf(host) // (topology.leaves if machines else 1)


def _switch(rack: int, machines: bool) -> str:
    return f"agg{rack}.0" if machines else f"leaf{rack}"

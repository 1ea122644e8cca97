# SPDX-License-Identifier: Apache-2.0
"""ATP's folds (NSDI 2021): a tree of two levels, the switches of the workers' racks and that of the server's.

    work, folds = fold_at_server(topology, workers, server, 1 << 20, machines=False)
    simulate(topology, work, SCHEMES["netfold"], folds=folds, rules=ATP)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from netfold.fabric.folding.trees import Child, Fold, Tree
from netfold.sim.engines.folding import FoldRules, SimulatedFold, fold
from netfold.sim.engines.topology import Topology
from netfold.sim.workloads.workload import Workload

ATP: Final = FoldRules(protocol="atp", slots=20_000, window=100, payload=248, header=58, timeout=1e-3)
"""ATP's numbers.  "Code" is that of its authors, in-ATP/ATP at commit ddca27f0; the paper's text was not at hand, and
"paper" is what public notes quote of it.

slots     code: 40,000 aggregators a switch (/p4src/includes/registers.p4), and two for each packet of 62 elements
          (/common/utils.h, MAX_AGTR_COUNT)
window    code: it begins with 100 packets (/client/p4ml_manager.cc, max_agtr_size_per_thread) and has no more
          (/common/CC_manager.h, MAX_BYTES).  The paper, "Congestion control", begins with 200 and names no bound
payload   code: 62 elements (/common/packet.h, MAX_ENTRIES_PER_PACKET)
header    paper: 58 of a packet's 306 bytes; code: 60 of 308 (/common/packet.h, P4ML_PACKET_SIZE)
timeout   ours, SwitchML's.  Code: 0.2 ms (/client/p4ml_manager.cc, timeout_value), less than a round trip of links of
          100 us
"""
CHILDREN: Final = 32
"""Bits of a packet's bitmap.  Code: /p4src/includes/headers.p4, p4ml_t."""


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

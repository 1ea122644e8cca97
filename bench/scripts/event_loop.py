# SPDX-License-Identifier: Apache-2.0
"""How fast the packet simulator's event loop is: packet-hops a second on one core.

    python bench/scripts/event_loop.py [--size BYTES] [--repeat 3]

All-to-all and halving-doubling run on the fabrics of Ethereal's paper; the bar is 3 million hops a second on the
leaf-spine fabric.  Each row is the best of ``--repeat`` runs in processor time, which a busy machine affects less.
Only the event loop is timed, not the building of workloads and plans.
"""

from __future__ import annotations

import argparse
import json

from netfold.sim.engines.packet import simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import leaf_spine, paper_fat_tree
from netfold.sim.workloads.workload import COLLECTIVES

BAR = 3e6
PAPER = "leaf-spine, 256 hosts"


def main() -> int:
    """Print the table and return 0 where every row of the leaf-spine fabric reached the bar, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16 << 20, help="bytes of the buffer on each rank")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    rows = []
    for fabric, topology in ((PAPER, leaf_spine()), ("fat tree, 512 hosts", paper_fat_tree())):
        for collective in ("all-to-all", "halving-doubling"):
            workload = COLLECTIVES[collective](range(topology.size), arguments.size)
            for scheme in ("netfold", "ethereal", "spray", "reps", "ecmp"):
                runs = [simulate(topology, workload, SCHEMES[scheme]) for _ in range(arguments.repeat)]
                best = min(runs, key=lambda run: run.cpu)
                rows.append({"fabric": fabric, "collective": collective, "scheme": scheme, "hops": best.counts["hops"],
                             "seconds": best.cpu, "hops_per_second": best.counts["hops"] / best.cpu})
                if not arguments.json:
                    print(f"{fabric:22} {collective:17} {scheme:9} {best.counts['hops']:>10} hops {best.cpu:7.2f} s "
                          f"{best.counts['hops'] / best.cpu:>12,.0f} hops/s", flush=True)
    slowest = {fabric: min(float(str(row["hops_per_second"])) for row in rows if row["fabric"] == fabric)
               for fabric in dict.fromkeys(str(row["fabric"]) for row in rows)}
    met = slowest[PAPER] >= BAR
    if arguments.json:
        print(json.dumps({"bar": BAR, "met": met, "slowest": slowest, "rows": rows}, indent=1))
    else:
        for fabric, rate in slowest.items():
            print(f"slowest on the {fabric}: {rate:,.0f} hops/s")
        print(f"the bar of {BAR:,.0f} on the {PAPER} is {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())

# SPDX-License-Identifier: Apache-2.0
"""One rank of the test of a group over two planes: exact sums of three of four ranks while a plane dies and comes back.

    python rank_rail_groups.py BYTES    prints "running", "died", then {"why", "folded", "deaths"}; ends with
                                        EXIT_WRONG_DATA where a sum is wrong, and with 1 where nothing dies and comes
                                        back within MOST sums
"""

import json
import sys

import numpy as np

import netfold
from netfold.host.rails.account import RailUse
from netfold.host.rails.multirail import MultiRail
from netfold.topo.processes.rank_program import check_data, run_rank

MOST = 300
MEMBERS = [2, 0, 1]


def main(nbytes: int) -> None:
    with netfold.init() as comm:
        group = comm.group(MEMBERS) if comm.rank in MEMBERS else None
        number = 0

        def use() -> list[RailUse]:
            """The rails of the group; of the job where this rank is in none."""
            team = comm.rails if group is None else group._ranks.dispatch.rails
            assert isinstance(team, MultiRail)
            return team.use()

        def sums(until: str) -> None:
            """Sums of the group and of the job until plane b is in that state for both."""
            nonlocal number
            for _ in range(MOST):
                number += 1
                for ranks in (group, comm):
                    if ranks is None:
                        continue
                    every = range(1, ranks.size + 1)
                    size = nbytes // 4 + number % 3
                    mine = np.full(size, (ranks.rank + 1) * number, np.int32)
                    total = ranks.allreduce(mine, out=mine if number % 2 else None)
                    check_data(total, np.full(size, sum(every) * number, np.int32), rank=comm.rank, operation="a sum")
                if number == 2 and comm.rank == 0:
                    print("running", flush=True)
                states = np.array([int(one.state == until) for one in (use()[1], comm.rails.use()[1])])  # type: ignore[union-attr]
                if comm.allreduce(states, op="min").all():
                    return
            raise AssertionError(f"after {number} sums: {use()}")

        sums("down")
        if comm.rank == 0:
            print("died", flush=True)
        sums("up")
        before = use()[1].nbytes
        for _ in range(4):  # used again
            sums("up")
        if group is not None:
            print(json.dumps({"why": group.explain(nbytes), "folded": use()[1].nbytes - before,
                              "deaths": use()[1].deaths}), flush=True)


run_rank(main, int(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""One rank of a job beside another one on the same hosts: sums of all ranks and of a group of three of them.

    python rank_beside.py FOLDER    prints {"ready"} once both have folded, waits for the file FOLDER/go, then prints
                                    {"job", "group"}: the paths of two sums more, of all ranks and of the group; ends
                                    with EXIT_WRONG_DATA where a sum is wrong
"""

import sys
import time
from pathlib import Path

import numpy as np

import netfold
from netfold.topo.processes.rank_program import check_data, print_message, run_rank

MEMBERS = [2, 0, 1]
ELEMENTS = 100_000


def main(folder: Path) -> None:
    with netfold.init() as comm:
        calls = {"job": comm, "group": comm.group(MEMBERS) if comm.rank in MEMBERS else None}

        def paths() -> dict[str, str]:
            said = {}
            for name, ranks in calls.items():
                if ranks is not None:
                    total = ranks.allreduce(np.full(ELEMENTS, ranks.rank + 1, np.int32))
                    right = np.full(ELEMENTS, ranks.size * (ranks.size + 1) // 2, np.int32)
                    check_data(total, right, rank=comm.rank, operation=f"sum of the {name}")
                    said[name] = comm.flight()[-1].path
            return said

        paths()
        print_message({"ready": comm.rank})
        while not (folder / "go").exists():
            time.sleep(0.05)
        print_message(paths())


run_rank(main, Path(sys.argv[1]))

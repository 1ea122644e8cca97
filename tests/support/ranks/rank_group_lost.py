# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of four, of which the last one dies in the middle of its group's sums.

    python rank_group_lost.py FOLDER    prints {"error", "after", "explain"}: how the group of the dead rank ended (on
                                        rank 1), a sum of a group of the ranks that are left, and what that says of its
                                        path

The last rank dies when both groups fold: until then they ask for trees over the job's mesh, where a loss ends what is
under way, whoever takes part in it.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import netfold
from netfold.host.errors import Closed, PeerLost
from netfold.topo.processes.rank_program import check_data, run_rank

ONES = np.ones(50_000, np.int32)


def main(folder: Path) -> None:
    with netfold.init(rail="innet", timeout=20) as comm:
        rank = comm.rank
        group = comm.group([rank % 2, rank % 2 + 2])
        for _ in range(5):
            check_data(group.allreduce(ONES), 2, rank=rank, operation="sum of the group")
        (folder / f"folds {rank}").touch()
        if rank == 3:
            while len(list(folder.glob("folds *"))) < comm.size:
                time.sleep(0.01)
            os._exit(0)  # whoever launched it takes that for the end of a rank, and the others for a death
        said = ""
        if rank == 1:
            try:
                group.allreduce(ONES)
            except PeerLost as error:
                said = str(error)
        else:  # all of this group are there
            for _ in range(20):
                check_data(group.allreduce(ONES), 2, rank=rank, operation="sum of the group beside a loss")
        change = comm.shrink()
        assert list(change.lost) == [3], change
        with pytest.raises(Closed, match="make the group anew"):
            group.allreduce(ONES)
        again = comm.group([2, 0, 1])
        sums = again.allreduce(ONES * (comm.rank + 1))
        print(json.dumps({"error": said, "after": int(sums[0]), "explain": again.explain(ONES.nbytes)}))


run_rank(main, Path(sys.argv[1]))

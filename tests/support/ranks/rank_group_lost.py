# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of four, of which the last one dies in the middle of its group's sums.

    python rank_group_lost.py   prints {"error", "after", "explain"}: how the group of the dead rank ended (on rank 1),
                                a sum of a group of the ranks that are left, and what that says of its path
"""

import json
import os

import numpy as np
import pytest

import netfold
from netfold.host.errors import Closed, PeerLost
from netfold.topo.rank_program import check_data, run_rank

ONES = np.ones(50_000, np.int32)


def main() -> None:
    with netfold.init(rail="innet", timeout=20) as comm:
        rank = comm.rank
        group = comm.group([rank % 2, rank % 2 + 2])
        for _ in range(5):
            check_data(group.allreduce(ONES), 2, rank=rank, operation="sum of the group")
        if rank == 3:
            group.allreduce(ONES)  # rank 1 is in no earlier operation any more when this one has ended
            os._exit(0)  # whoever launched it takes that for the end of a rank, and the others for a death
        said = ""
        if rank == 1:
            try:
                while True:
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


run_rank(main)

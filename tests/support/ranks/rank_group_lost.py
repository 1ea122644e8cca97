# SPDX-License-Identifier: Apache-2.0
"""One rank of a job of four, of which the last one dies in the middle of its group's sums, and another one comes.

    python rank_group_lost.py FOLDER        prints {"error", "after", "explain"}: how the group of the dead rank ended
                                            (on rank 1), a sum of a group of the ranks that are left, and what that
                                            says of its path; then {"grown"}: the path of a group with the new rank
    python rank_group_lost.py FOLDER new    is that one, and prints the second line alone

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
from netfold import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.errors import Closed, PeerLost
from netfold.topo.processes.rank_program import check_data, run_rank

ONES = np.ones(50_000, np.int32)
RAIL: RailName = "auto" if "NETFOLD_RAILS" in os.environ else "innet"
WITH_THE_NEW = [3, 0, 1]


def sum_with_the_new(comm: Communicator) -> None:
    """A sum of a group of the rank that has come and two others."""
    if comm.rank in WITH_THE_NEW:
        grown = comm.group(WITH_THE_NEW)
        check_data(grown.allreduce(ONES), 3, rank=comm.rank, operation="sum with the new rank")
        print(json.dumps({"grown": comm.flight()[-1].path}), flush=True)
    comm.barrier()


def main(folder: Path, *new: str) -> None:
    if new:
        with Communicator.join_running(os.environ["NETFOLD_JOB"], rail=RAIL, join_timeout=100) as comm:
            sum_with_the_new(comm)
        return
    with netfold.init(rail=RAIL, timeout=20) as comm:
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
        print(json.dumps({"error": said, "after": int(sums[0]), "explain": again.explain(ONES.nbytes)}), flush=True)
        while not comm.grow():
            pass
        with pytest.raises(Closed, match="make the group anew"):
            again.allreduce(ONES)
        sum_with_the_new(comm)


run_rank(main, Path(sys.argv[1]), *sys.argv[2:])

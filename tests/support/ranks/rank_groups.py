# SPDX-License-Identifier: Apache-2.0
"""One rank of the end-to-end tests of groups: the two dimensions of a (2, 2) mesh, groups that overlap, and all ranks.

    python rank_groups.py SEED FOLDER MESHES    prints {"groups": {ranks: {"explain", "bytes"}}, "world", "meshes"};
                                                once its groups fold it waits for the file FOLDER/look; "meshes": of as
                                                many random ones, the groups of each dimension that it was in, and
                                                whether they folded; ends with EXIT_WRONG_DATA where a result is wrong
"""

import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import netfold
from netfold.topo.processes.rank_program import check_data, print_message, run_rank

GROUPS = ((0, 2), (1, 3), (0, 1), (2, 3), (0, 1, 2), (3, 1, 2), (3, 0))
LENGTH = 40_000


def of_meshes(comm: Any, seed: int, count: int) -> list[tuple[list[int], bool]]:
    """Makes the groups of random meshes, sums over each, and closes them."""
    found = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        ints = rng.integers(-(2**31), 2**31, (comm.size, LENGTH), np.int32)
        mesh = rng.permutation(comm.size).reshape([(2, 2), (1, 4), (4, 1)][rng.integers(3)])
        row, column = (int(axis[0]) for axis in np.nonzero(mesh == comm.rank))
        for members in (mesh[row].tolist(), mesh[:, column].tolist()):
            group = comm.group(members)
            exact = np.sum(ints[members], axis=0, dtype=np.int64).astype(np.int32)
            check_data(group.allreduce(ints[comm.rank]), exact, rank=comm.rank, operation=f"sum over {members}")
            found.append((members, bool(group.stats().by_tree)))
            group.close()
    return found


def main(seed: int, folder: Path, meshes: int) -> None:
    with netfold.init(rail="innet") as comm:
        check = partial(check_data, rank=comm.rank)
        groups = {ranks: comm.group(ranks) for ranks in GROUPS if comm.rank in ranks}

        def sums(turn: int) -> None:
            for length in (1, LENGTH):
                rngs = [np.random.default_rng([seed, turn, rank, length]) for rank in range(comm.size)]
                ints = [rng.integers(-(2**31), 2**31, length, np.int32) for rng in rngs]
                floats = [rng.standard_normal(length, np.float32) for rng in rngs]
                for ranks, group in (*groups.items(), (tuple(range(comm.size)), comm)):
                    what = f"of the ranks {ranks}, length {length}, turn {turn}"
                    exact = np.sum([ints[rank] for rank in ranks], axis=0, dtype=np.int64).astype(np.int32)
                    check(group.allreduce(ints[comm.rank]), exact, operation=f"sum of int32 {what}")
                    right = np.sum([floats[rank] for rank in ranks], axis=0, dtype=np.float64)
                    got = group.allreduce(floats[comm.rank])
                    check(got, right, operation=f"sum of float32 {what}", tolerance=1e-5)
                    got = group.allreduce(floats[comm.rank], lane_bits=16)
                    check(got, right, operation=f"sum of float32 in 16 bits {what}", tolerance=0.01)
                    rows = np.repeat(ints[comm.rank][:, None], len(ranks), axis=1).T.reshape(-1).copy()
                    check(group.reduce_scatter(rows), exact, operation=f"reduce_scatter {what}")
                    everyone = np.concatenate([ints[rank] for rank in ranks])
                    check(group.all_gather(ints[comm.rank]), everyone, operation=f"all_gather {what}")
                    group.barrier()

        sums(0)
        print_message({"ready": comm.rank})
        while not (folder / "look").exists():  # the test looks at the status meanwhile
            time.sleep(0.05)
        found = {}
        for ranks, group in groups.items():
            folded = {name: tree.bytes_reduced for name, tree in group.stats().by_tree.items()}
            found[" ".join(map(str, ranks))] = {"explain": group.explain(4 * LENGTH), "bytes": folded}
        groups.pop((3, 0), comm.group([comm.rank])).close()
        sums(1)
        made = of_meshes(comm, seed, meshes)
        world = comm.stats().by_tree["spine1"].bytes_reduced
        print(json.dumps({"groups": found, "world": world, "meshes": made}))


run_rank(main, int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))

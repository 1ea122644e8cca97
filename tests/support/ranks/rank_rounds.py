# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests under faults: many int32 sums, each checked; rank 0 says when each begins.

A round begins PAUSE after the one before, so that ranks that sum until they are ended leave the rest of the test most
of two cores.

    python rank_rounds.py SEED ROUNDS ELEMENTS      prints {"round": n} and at last {"rail", "retransmissions", ...}
"""

import json
import sys
import time

import numpy as np

import netfold
from netfold.topo.processes.rank_program import check_data, run_rank

PAUSE = 0.03
"""Seconds between rounds."""


def main(seed: int, rounds: int, elements: int) -> None:
    with netfold.init(rail="innet") as comm:
        rngs = [np.random.default_rng([seed, rank]) for rank in range(comm.size)]
        base = [rng.integers(-(2**31), 2**31, elements, np.int32) for rng in rngs]
        whole = np.sum(base, axis=0, dtype=np.int32)
        for number in range(rounds):
            if comm.rank == 0:
                print(json.dumps({"round": number}), flush=True)
            total = comm.allreduce(base[comm.rank] + np.int32(number))  # other ones each time; wraps, as int32 does
            expected = whole + np.int32(comm.size * number)
            check_data(total, expected, rank=comm.rank, operation=f"round {number}")
            time.sleep(PAUSE)  # the load's rate, not a wait for anything
        stats = comm.stats()
        marks = sum(tree.ecn_marks for tree in stats.by_tree.values())
        said = {"rail": comm.rail, "retransmissions": stats.retransmissions, "marks": marks}
        print(json.dumps({**said, "trees": sorted(stats.by_tree)}))


run_rank(main, *map(int, sys.argv[1:]))

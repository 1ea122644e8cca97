# SPDX-License-Identifier: Apache-2.0
"""One rank that sums without a break, so that a test can break things under it.

    python rank_steady.py SEED ELEMENTS ENOUGH RAIL

All operations ask to be folded; by RAIL "auto" the communicator may go on over TCP where no trees are left.
Every operation is in place, of alternating dtypes, and checked: int32 exactly, float32 to the bit of what all ranks can
compute.  Once the file ENOUGH is there, rank 0 says so in the last element: all end with the same operation.

Between operations a rank pauses, so that it leaves the controllers and switches under test most of two cores.  Faults
meet operations that run and operations that begin, as they do in training.

Prints {"began"}, when (CLOCK_MONOTONIC) an operation began that is over, ten times a second; at the end {"rail",
"operations", "longest", "median", "rounds", "retransmissions", "trees"}: seconds that operations took, how often the
trees were planned anew, and which carried anything; "fallback": since when and why it goes over TCP instead.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import netfold
from netfold.host.api.join_settings import RailName
from netfold.topo.processes.rank_program import check_data, run_rank

PAUSE = 0.03
"""Seconds between operations: about as long as one takes."""


def main(seed: int, elements: int, enough: Path, rail: RailName) -> None:
    with netfold.init(rail=rail, timeout=60.0) as comm:
        rngs = [np.random.default_rng([seed, rank]) for rank in range(comm.size)]
        base = [rng.integers(-(2**20), 2**20, elements, np.int32) for rng in rngs]
        gaps: list[float] = []
        number, over, told = 0, False, time.monotonic()
        while not over:
            number += 1
            dtype = np.int32 if number % 3 else np.float32
            # whole numbers below 4096, whose sum is exact in float32, and other ones each time
            arrays = [(own + np.int32(number)) & 4095 for own in base]
            data, expected = arrays[comm.rank], np.sum(arrays, axis=0, dtype=np.int32)
            last = comm.rank == 0 and enough.exists()
            array = np.append(data, last).astype(dtype)
            before = time.monotonic()
            comm.allreduce(array, out=array, algorithm="innet")
            gaps.append(time.monotonic() - before)
            check_data(array[:-1], expected, rank=comm.rank, operation=f"sum {number} of {dtype.__name__}")
            over = array[-1] > 0
            if time.monotonic() - told > 0.1:
                told = time.monotonic()
                print(json.dumps({"began": before}), flush=True)
            time.sleep(PAUSE)  # the load's rate, not a wait for anything
        stats = comm.stats()
        print(json.dumps({
            "rail": comm.rail, "operations": number, "longest": max(gaps), "median": statistics.median(gaps),
            "rounds": comm.plan.round, "retransmissions": stats.retransmissions, "trees": sorted(stats.by_tree),
            "fallback": stats.fallback,
        }), flush=True)


run_rank(main, int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])

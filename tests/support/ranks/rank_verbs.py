# SPDX-License-Identifier: Apache-2.0
"""One rank whose RDMA device folds: one job after the other, each when it is told, since a virtual machine takes many
seconds to start Python and import NetFold.

    python rank_verbs.py SEED FOLDER JOB...

A JOB is TURNS:LENGTH,LENGTH... (that many int32 sums of each length, and one of float32), or `steady:LENGTH` (int32
sums until the file FOLDER/enough is there), or `demo:WORDS`, the demo's training and timings, which print what they
print themselves, and then {"left"} (netfold.demo.turns; WORDS: its arguments as JSON).  Job k, from 0, begins when the
file FOLDER/job-k is there.  Every sum is compared with what this rank knows of all ranks' arrays; the process ends with
EXIT_WRONG_DATA where one is wrong.

Prints {"ready"} first, then after each job {"rail", "operations", "packets_sent", "retransmissions", "seconds",
"rounds", "digest"}: "seconds" is the shortest sum of each length, "rounds" how often the trees were planned anew.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np

import netfold
from netfold.demo import turns
from netfold.topo.rank_program import check_data, run_rank

PATIENCE = 150.0
"""Seconds without progress after which an operation gives up: it only ends what hangs."""
LOOK = 0.1
"""Seconds between looks for a file."""


def main(seed: int, folder: Path, jobs: list[str]) -> None:
    print(json.dumps({"ready": True}), flush=True)
    for number, job in enumerate(jobs):
        while not (folder / f"job-{number}").exists():
            time.sleep(LOOK)
        kind, _, words = job.partition(":")
        if kind == "demo":
            place, spec, setup, *commands = json.loads(words)
            turns.main(Path(place), spec, setup, commands)
            print(json.dumps({"left": True}), flush=True)
            continue
        comm = netfold.init(job=f"sums-{number}", rail="verbs", timeout=PATIENCE)
        try:
            if kind == "steady":
                said = steady(comm, seed, int(words), folder / "enough")
            else:
                said = sums(comm, seed, int(kind), [int(length) for length in words.split(",")])
            stats = comm.stats()
            said |= {"rail": comm.rail, "packets_sent": stats.packets_sent, "rounds": comm.plan.round,
                     "retransmissions": stats.retransmissions}
        finally:
            netfold.shutdown()
        print(json.dumps(said), flush=True)


def sums(comm: netfold.Communicator, seed: int, times: int, lengths: list[int]) -> dict[str, object]:
    """So many int32 sums of each length, and one of float32."""
    digest, seconds = hashlib.sha256(), {}
    for length in lengths:
        draws = [np.random.default_rng([seed, rank, length]) for rank in range(comm.size)]
        ints = [rng.integers(-(2**31), 2**31, length, np.int32) for rng in draws]
        floats = [rng.standard_normal(length, np.float32) for rng in draws]
        exact = np.sum(ints, axis=0, dtype=np.int64).astype(np.int32)
        for _ in range(times):
            begin = time.perf_counter()
            total = comm.allreduce(ints[comm.rank])
            seconds[length] = min(seconds.get(length, 1e9), time.perf_counter() - begin)
            check_data(total, exact, rank=comm.rank, operation=f"sum of int32[{length}]")
        whole = comm.allreduce(floats[comm.rank])
        right = np.sum(floats, axis=0, dtype=np.float64)
        check_data(whole, right, rank=comm.rank, operation=f"sum of float32[{length}]", tolerance=1e-5)
        digest.update(total.tobytes() + whole.tobytes())
    return {"operations": (times + 1) * len(lengths), "seconds": seconds, "digest": digest.hexdigest()}


def steady(comm: netfold.Communicator, seed: int, length: int, enough: Path) -> dict[str, object]:
    """Int32 sums until the file is there; rank 0 says so in the last element, so that all end with the same one."""
    draws = [np.random.default_rng([seed, rank]).integers(-(2**20), 2**20, length, np.int32)
             for rank in range(comm.size)]
    number, over = 0, False
    while not over:
        number += 1
        last = comm.rank == 0 and enough.exists()
        total = comm.allreduce(np.append(draws[comm.rank] + np.int32(number), np.int32(last)))
        exact = np.sum(draws, axis=0, dtype=np.int32) + np.int32(comm.size * number)
        check_data(total[:-1], exact, rank=comm.rank, operation=f"sum {number} of int32[{length}]")
        over = bool(total[-1])
    return {"operations": number, "digest": hashlib.sha256(total.tobytes()).hexdigest()}


if __name__ == "__main__":
    run_rank(main, int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

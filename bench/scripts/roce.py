# SPDX-License-Identifier: Apache-2.0
"""Ring allreduce between processes on loopback over queue pairs and over TCP, in turn.

    python bench/scripts/roce.py --ranks 2 --sizes 4096,1048576,16777216 --repeat 7

algbw is the tensor's size over the median time.  CPU is the user and system time of all ranks for one operation.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from netfold.disk import files
from netfold.host.job_secret import draw
from netfold.host.mesh.mesh import Mesh
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.roce.mesh import RoceMesh
from netfold.host.selection.peers import Peers
from netfold.wire.plan import Peer, Plan

SUM = Reduction("sum", "float32")
KINDS: dict[str, dict[str, Any]] = {
    "tcp": {},
    "roce 1024": {"path_mtu": 1024},
    "roce 4096": {"path_mtu": 4096},
    "roce 1024, 4 queue pairs": {"path_mtu": 1024, "queue_pairs": 4},
}


def work(mesh: Mesh, sizes: list[int], repeat: int) -> dict[int, list[tuple[float, float, int]]]:
    """Run allreduce at all sizes: (seconds, CPU seconds, wrong elements) of each run, by size."""
    peers = Peers(mesh, algorithm="ring")
    rows: dict[int, list[tuple[float, float, int]]] = {}
    for size in sizes:
        source = np.full(size // 4, mesh.rank + 1, np.float32)
        out = np.empty_like(source)
        for _ in range(repeat + 1):  # the first one warms up
            peers.barrier()
            begin, cpu = time.perf_counter(), time.process_time()
            peers.allreduce(AllreduceRequest(source, out, SUM))
            seconds, spent = time.perf_counter() - begin, time.process_time() - cpu
            wrong = int((out != mesh.size * (mesh.size + 1) / 2).sum())
            rows.setdefault(size, []).append((seconds, spent, wrong))
        rows[size].pop(0)
    return rows


def measure(kind: str, number: int, ranks: int, sizes: list[int], repeat: int) -> list[dict[str, Any]]:
    """Start one group of processes, and return a row for each size."""
    net = f"127.{100 + number}.{os.getpid() & 255}"
    listeners = [listen(f"{net}.{rank + 1}") for rank in range(ranks)]
    peers = [Peer(r, f"{net}.{r + 1}", "{}:{}".format(*listeners[r].getsockname())) for r in range(ranks)]
    secret = draw()
    context = multiprocessing.get_context("fork")

    def one(rank: int, answer: Connection) -> None:
        plan = Plan("bench", number, rank, ranks, peers, [], secret=secret)
        mesh = (
            TcpMesh(plan, listeners[rank], timeout=20)
            if kind == "tcp"
            else RoceMesh(plan, listeners[rank], timeout=20, **KINDS[kind])
        )
        rows = work(mesh, sizes, repeat)
        again = 0
        if isinstance(mesh, RoceMesh):
            again = sum(pair.retransmitted for pairs in mesh.queue_pair_states().values() for pair in pairs)
        answer.send((rows, again))
        mesh.close()

    pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [context.Process(target=one, args=(rank, pipes[rank][1])) for rank in range(ranks)]
    for process in processes:
        process.start()
    answers = []
    for rank, (end, _) in enumerate(pipes):
        if not end.poll(120):
            raise TimeoutError(f"{kind}: rank {rank} says nothing for 120 s")
        answers.append(end.recv())
    for process in processes:
        process.join(10)
    result = []
    for size in sizes:
        seconds = statistics.median(max(a[0][size][i][0] for a in answers) for i in range(repeat))
        cpu = statistics.median(sum(a[0][size][i][1] for a in answers) for i in range(repeat))
        wrong = sum(row[2] for a in answers for row in a[0][size])
        result.append({"engine": kind, "ranks": ranks, "nbytes": size, "seconds": seconds, "cpu_seconds": cpu,
                       "algbw_bytes_per_s": size / seconds, "wrong": wrong,
                       "retransmissions": sum(a[1] for a in answers)})
    return result


def main() -> None:
    """Measure all kinds in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="4096,262144,4194304,16777216", help="bytes, comma between")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each size in a round")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of all engines, in turn; the better one counts")
    parser.add_argument("--json", help="write the rows there")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    best: dict[tuple[str, int], dict[str, Any]] = {}
    number = 0
    for _ in range(args.rounds):
        for kind in KINDS:
            number += 1
            for row in measure(kind, number, args.ranks, sizes, args.repeat):
                key = kind, row["nbytes"]
                if key not in best or row["seconds"] < best[key]["seconds"]:
                    best[key] = row
    print(f"{'engine':<26}{'bytes':>12}{'ms':>10}{'algbw Gb/s':>12}{'CPU ms':>10}{'again':>8}{'#wrong':>8}")
    for row in sorted(best.values(), key=lambda row: (row["nbytes"], list(KINDS).index(row["engine"]))):
        print(f"{row['engine']:<26}{row['nbytes']:>12}{row['seconds'] * 1e3:>10.2f}"
              f"{row['algbw_bytes_per_s'] * 8e-9:>12.2f}{row['cpu_seconds'] * 1e3:>10.1f}"
              f"{row['retransmissions']:>8}{row['wrong']:>8}")
    if args.json:
        files.replace(args.json, json.dumps(list(best.values()), indent=1))


if __name__ == "__main__":
    main()

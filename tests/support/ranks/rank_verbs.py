# SPDX-License-Identifier: Apache-2.0
"""One rank of jobs that RDMA devices fold: one job after the other, each when it is told, since a virtual machine takes
many seconds to start Python and import NetFold.

    python rank_verbs.py SEED FOLDER MACHINES RAIL JOB...

With RAIL "verbs" it is one of MACHINES ranks, as its environment says; with "innet" it is the windowed rank that mixed
jobs have beside those, as their rank 1, and lets all other jobs pass.  A JOB is one of

    sums:TURNS:LENGTH,...   that many int32 sums of each length and one of float32; of the last length, also one
                            collective of each other kind
    mixed:TURNS:LENGTH,...  the same with the windowed rank
    groups:TURNS:LENGTH     that many int32 sums of each of some groups, and of all ranks, with the windowed rank
    steady:LENGTH           int32 sums until the file FOLDER/enough is there
    lost:LENGTH             int32 sums; after some the last rank's process ends without a word
    demo:WORDS              the demo's training and timings (netfold.demo.turns; WORDS: its arguments as JSON)

Job k, from 0, begins when the file FOLDER/job-k is there.  Every sum is compared with what this rank knows of all
ranks' arrays; the process ends with EXIT_WRONG_DATA where one is wrong.

Prints {"ready"} first, then after each job {"rail", "operations", "packets_sent", "retransmissions", "seconds",
"rounds", "digest"}: "seconds" is the shortest sum of each length, "rounds" how often the trees were planned anew.
After `lost` it prints {"error", "message"}, how the job ended, and {"left"} where it is the one that ends; after
`demo`, what that prints, and {"left"}.  `groups` prints {"groups"} too: what ``explain`` says of each one of this rank.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import netfold
from netfold.demo import turns
from netfold.host import environment
from netfold.host.errors import NetFoldError
from netfold.topo.processes.rank_program import check_data, run_rank

PATIENCE = 150.0
"""Seconds without progress after which an operation gives up: it only ends what hangs."""
LOOK = 0.1
"""Seconds between looks for a file."""
PAUSE = 0.1
"""Seconds between the sums of a job `steady`, about as long as one takes."""
WINDOWED = 1
"""Rank of the windowed rank of mixed jobs: the RC ranks before and after it are neighbours in their ring."""
UNTIL_LOST = 3
"""Sums of a job `lost` in which all ranks take part."""


def main(seed: int, folder: Path, machines: int, rail: str, jobs: list[str]) -> None:
    said(ready=True)
    for number, job in enumerate(jobs):
        kind, _, words = job.partition(":")
        mixed = kind in ("mixed", "groups")
        if rail == "innet" and not mixed:
            continue
        while not (folder / f"job-{number}").exists():
            time.sleep(LOOK)
        if kind == "demo":
            place, spec, setup, *commands = json.loads(words)
            turns.main(Path(place), spec, setup, commands)
            said(left=True)
            continue
        rank = WINDOWED if rail == "innet" else environment.rank_identity().rank
        if mixed and rail == "verbs" and rank >= WINDOWED:
            rank += 1
        comm = netfold.Communicator.join(f"sums-{number}", rank, machines + mixed, address=environment.address(),
                                         rail=rail, timeout=PATIENCE, join_timeout=PATIENCE)
        try:
            if kind == "lost":
                said(**lost(comm, int(words)))
                continue
            if kind == "steady":
                found = steady(comm, seed, int(words), folder / "enough")
            else:
                times, _, lengths = words.partition(":")
                sizes = [int(length) for length in lengths.split(",")]
                found = (groups if kind == "groups" else sums)(comm, seed, int(times), sizes)
            stats = comm.stats()
            found |= {"rail": comm.rail, "packets_sent": stats.packets_sent, "rounds": comm.plan.round,
                      "retransmissions": stats.retransmissions}
        finally:
            comm.close()
        said(**found)


def said(**message: object) -> None:
    """Print a line that the test reads."""
    print(json.dumps(message), flush=True)


def sums(comm: netfold.Communicator, seed: int, times: int, lengths: list[int]) -> dict[str, object]:
    """So many int32 sums of each length, and one of float32; of the last one, also the other collectives."""
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
    rows(comm, draws, ints, exact)
    assert {record.path for record in comm.flight()} == {comm.rail}, comm.flight()
    return {"operations": (times + 1) * len(lengths), "seconds": seconds, "digest": digest.hexdigest()}


def rows(comm: netfold.Communicator, draws: list[np.random.Generator], ints: list[np.ndarray],
         exact: np.ndarray) -> None:
    """A collective of each other kind, of bytes that are no numbers, and of sums."""
    length, root = len(exact), comm.size - 1
    moved = [rng.bytes(4 * length) for rng in draws]
    own = np.frombuffer(moved[comm.rank], np.float32)
    for what, got, right in (
        ("broadcast", comm.broadcast(own.copy(), root=root).tobytes(), moved[root]),
        ("all_gather", comm.all_gather(own).tobytes(), b"".join(moved)),
    ):
        check_data(np.frombuffer(got, np.uint8), np.frombuffer(right, np.uint8), rank=comm.rank,
                   operation=f"{what} of float32[{length}]")
    reduced = comm.reduce(ints[comm.rank], root=root)
    assert (reduced is None) == (comm.rank != root)
    counts = [length // comm.size + (rank < length % comm.size) for rank in range(comm.size)]
    first = sum(counts[: comm.rank])
    scattered = comm.reduce_scatter(ints[comm.rank], counts=counts)
    for what, got, right in (
        ("reduce", exact if reduced is None else reduced, exact),
        ("reduce_scatter", scattered, exact[first : first + counts[comm.rank]]),
    ):
        check_data(got, right, rank=comm.rank, operation=f"{what} of int32[{length}]")
    comm.barrier()


def groups(comm: netfold.Communicator, seed: int, times: int, lengths: list[int]) -> dict[str, object]:
    """Sums of each group in turn, beside those of all ranks: of the NICs, of all ranks in another order, of disjoint
    pairs of NICs where there are enough, and of the windowed rank and one NIC, which go over TCP."""
    (length,) = lengths
    nics = [rank for rank in range(comm.size) if rank != WINDOWED]
    half = len(nics) // 2
    pairs = [list(pair) for pair in zip(nics[:half], nics[half:], strict=False)] if half > 1 else []
    alone = [WINDOWED, nics[-1]]
    mine = [(members, comm.group(members)) for members in (nics[::-1], [*range(1, comm.size), 0], *pairs, alone)
            if comm.rank in members]
    draws = [np.random.default_rng([seed, rank]).integers(-(2**31), 2**31, length, np.int32)
             for rank in range(comm.size)]
    digest, said = hashlib.sha256(), {}
    for turn in range(times):
        for members, group in [*mine, (list(range(comm.size)), comm)]:
            total = group.allreduce(draws[comm.rank] + np.int32(turn))
            exact = np.sum([draws[rank] + np.int32(turn) for rank in members], axis=0, dtype=np.int32)
            check_data(total, exact, rank=comm.rank, operation=f"sum {turn} of int32[{length}] of ranks {members}")
            carrier = "TCP" if members == alone else comm.rail
            assert carrier in comm.flight()[-1].path, (members, comm.flight()[-1])
        digest.update(total.tobytes())
    for members, group in mine:
        said["-".join(map(str, members))] = group.explain(4 * length)
        group.close()
    return {"operations": times * (len(mine) + 1), "groups": said, "digest": digest.hexdigest()}


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
        time.sleep(PAUSE)  # the load's rate, not a wait for anything
    return {"operations": number, "digest": hashlib.sha256(total.tobytes()).hexdigest()}


def lost(comm: netfold.Communicator, length: int) -> dict[str, object]:
    """Int32 sums without end, whose last rank ends its process: how they end for the others."""
    data, number = np.full(length, comm.rank, np.int32), 0
    while True:
        if number == UNTIL_LOST and comm.rank == comm.size - 1:
            said(left=True)
            os._exit(0)  # the kernel destroys its queue pairs, and no neighbour is told
        try:
            total = comm.allreduce(data)
        except NetFoldError as error:
            return {"error": type(error).__name__, "message": str(error)}
        number += 1
        right = comm.size * (comm.size - 1) // 2
        check_data(total, right, rank=comm.rank, operation=f"sum {number} of int32[{length}]")


if __name__ == "__main__":
    run_rank(main, int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])

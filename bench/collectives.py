#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every allreduce algorithm over TCP against the chooser: does it take the best one, and what does it predict?

    bench/collectives.py --ranks 4 -b 4K -e 16M -f 8 --rate 200mbit [--json FILE]

Each rank is a process, on loopback; with --rate in a network namespace of its own, on one bridge, each link shaped both
ways (needs root; the namespaces are this run's own and vanish with it).  Rounds are interleaved: every algorithm once a
round, the best round counts.  The last column marks the fastest algorithm with * and the chosen one with <.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

import numpy as np

from netfold.host.collectives.elements import Reduction
from netfold.host.collectives.measure import Measured
from netfold.host.link import listen
from netfold.host.mesh_tcp import TcpMesh
from netfold.host.peers import CHOSEN, Peers
from netfold.wire.jobs import Peer, Plan

CLONE_NEWNET = 0x40000000
ALGORITHMS = (*CHOSEN, "parameter_server")
SUM = Reduction("sum", "float32")


def size(text: str) -> int:
    """Bytes, with K, M or G for powers of 1024."""
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * scale[text[-1].upper()] if text[-1].upper() in scale else int(text)


def own_network() -> None:
    """A network namespace of this process's own, with loopback up."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise SystemExit(f"--rate needs network namespaces: {os.strerror(ctypes.get_errno())}; run as root")
    run("ip link set lo up")


def run(command: str, pid: int | None = None) -> None:
    """In this network namespace, or in that of a process."""
    enter = ["nsenter", "-t", str(pid), "-n"] if pid else []
    subprocess.run([*enter, *command.split()], check=True)


def rank_process(rank: int, args: argparse.Namespace, pipe: Connection) -> None:
    if args.rate:
        own_network()
        pipe.send(os.getpid())
        pipe.recv()
    address = f"10.9.0.{rank + 1}" if args.rate else f"127.9.{os.getppid() % 250}.{rank + 1}"
    listener = listen(address)
    pipe.send(Peer(rank, address, "{}:{}".format(*listener.getsockname())))
    mesh = TcpMesh(Plan("bench", 1, rank, args.ranks, pipe.recv(), []), listener, timeout=60)
    peers = Peers(mesh, algorithm="auto")
    for nbytes in args.sizes:
        data = np.ones(nbytes // 4, np.float32)
        peers.allreduce(data, data, SUM)  # measures at the first time
        assert peers.measured is not None
        seconds = dict.fromkeys(ALGORITHMS, float("inf"))
        cpu = dict.fromkeys(ALGORITHMS, float("inf"))
        wrong = dict.fromkeys(ALGORITHMS, 0)
        for _ in range(args.rounds):
            for name in ALGORITHMS:
                data[:] = 1
                peers.barrier()
                begin, busy = time.perf_counter(), time.process_time()
                peers.allreduce(data, data, SUM, algorithm=name)
                seconds[name] = min(seconds[name], time.perf_counter() - begin)
                cpu[name] = min(cpu[name], time.process_time() - busy)
                wrong[name] += int((data != args.ranks).sum())
        pipe.send((nbytes, peers.pick(nbytes), peers.measured, seconds, cpu, wrong))
    peers.barrier()
    peers.close()


def network(args: argparse.Namespace, pipes: list[Connection]) -> None:
    """One bridge, a shaped link to each rank's namespace."""
    # A larger bucket would let tensors of its size pass at the speed of memory, as no real link does.
    limit = f"root tbf rate {args.rate} burst 64k latency 100ms"
    run("ip link add hub type bridge")
    run("ip link set hub up")
    for rank, pipe in enumerate(pipes):
        pid = pipe.recv()
        run(f"ip link add v{rank} type veth peer name eth0 netns {pid}")
        run(f"ip link set v{rank} master hub up")
        run(f"ip addr add 10.9.0.{rank + 1}/24 dev eth0", pid)
        run("ip link set eth0 up", pid)
        run(f"tc qdisc add dev v{rank} {limit}")
        run(f"tc qdisc add dev eth0 {limit}", pid)
        pipe.send(None)


def main() -> int:
    """Runs the ranks, prints a table, exits 1 on a wrong sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("-b", "--begin", type=size, default=size("4K"))
    parser.add_argument("-e", "--end", type=size, default=size("16M"))
    parser.add_argument("-f", "--factor", type=int, default=8)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--rate", help="as tc says it: 200mbit; default: loopback, unshaped")
    parser.add_argument("--json", help="file for a list of rows")
    args = parser.parse_args()
    args.sizes = []
    while args.begin <= args.end:
        args.sizes.append(args.begin)
        args.begin *= args.factor
    if args.rate:
        own_network()
    pairs = [Pipe() for _ in range(args.ranks)]
    processes = [
        Process(target=rank_process, args=(rank, args, pair[1]), daemon=True) for rank, pair in enumerate(pairs)
    ]
    for process in processes:
        process.start()
    pipes = [pair[0] for pair in pairs]
    if args.rate:
        network(args, pipes)
    plan = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(plan)
    rows, wrongs = [], 0
    print(f"{'bytes':>10} {'algorithm':<20} {'ms':>9} {'predicted':>9} {'cpu ms':>8} {'algbw MB/s':>10} {'wrong':>6}")
    for _ in args.sizes:
        got = [pipe.recv() for pipe in pipes]
        nbytes, chosen, measured = got[0][:3]
        seconds = {name: max(each[3][name] for each in got) for name in ALGORITHMS}
        best = min(seconds, key=seconds.__getitem__)
        predicted = predictions(nbytes, args.ranks, measured)
        for name in ALGORITHMS:
            wrong = sum(each[5][name] for each in got)
            wrongs += wrong
            cpu = sum(each[4][name] for each in got)
            mark = "*" * (name == best) + "<" * (name == chosen)
            print(
                f"{nbytes:>10} {name:<20} {seconds[name] * 1e3:>9.3f} {predicted[name] * 1e3:>9.3f} {cpu * 1e3:>8.2f} "
                f"{nbytes / seconds[name] / 1e6:>10.1f} {wrong:>6} {mark}"
            )
            rows.append(
                {
                    "algorithm": name, "engine": "tcp", "ranks": args.ranks, "nbytes": nbytes, "rate": args.rate,
                    "seconds": seconds[name], "predicted": predicted[name], "chosen": name == chosen,
                    "algbw_bytes_per_s": nbytes / seconds[name], "cpu_seconds": cpu, "wrong": wrong,
                }
            )  # fmt: skip
        print(f"{'':>10} chosen / best: {seconds[chosen] / seconds[best]:.2f}\n", flush=True)
    link = measured.link
    print(f"links: {link.alpha * 1e6:.0f} us, {8e-9 / link.beta:.2f} Gb/s, contention {measured.contention:.2f}")
    for process in processes:
        process.join(30)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 1 if wrongs else 0


def predictions(nbytes: int, ranks: int, measured: Measured) -> dict[str, float]:
    """Seconds by the cost model; infinite where an algorithm does not apply."""
    from netfold.host.cost import candidates

    found = candidates(nbytes, ranks, measured.link, contention=measured.contention)
    return {name: found.get(name, float("inf")) for name in ALGORITHMS}


if __name__ == "__main__":
    sys.exit(main())

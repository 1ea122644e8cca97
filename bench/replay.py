# SPDX-License-Identifier: Apache-2.0
"""The simulator's own workloads, flow by flow, on real queue pairs: one rank of `bench/simulator.py`.

    python -m netfold.bench.replay SPEC.json       prints one JSON `Times`; RANK, WORLD_SIZE, NETFOLD_* are set

Every flow is a message of a `RoceMesh`, sent when the flows that it waits for are in, on the paths that the simulator's
placement gave it.  It stays there: hosts take a path with a long queue for dead, and what left it would be compared
with other paths' load.  Clocks of all ranks are the machine's one.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from netfold.host.client.jobs import JobClient
from netfold.host.mesh.connection import listen
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.roce.mesh import RoceMesh
from netfold.wire import roce
from netfold.wire.jobs import Join, RankReport

TIMEOUT: Final = 30.0
START: Final = 0.2
"""Seconds between the ranks' agreement on a beginning and that beginning."""


class ReplayFlow(msgspec.Struct, frozen=True):
    """A task of a `sim.workload.Workload`, its hosts being ranks, in the order of the workload."""

    source: int
    destination: int
    nbytes: int
    waits: list[int]
    """Flows that must be in, or out, before; each begins or ends at ``source``."""
    ports: list[int]
    """UDP source port of each queue pair, equal parts of the flow on each."""


class ReplaySpec(msgspec.Struct, frozen=True):
    """What all ranks run."""

    flows: list[ReplayFlow]
    ports: list[int]
    """All source ports, one for each queue pair between two ranks."""
    window: int
    rounds: int


class Times(msgspec.Struct, frozen=True):
    """One rank's, in seconds on the machine's monotonic clock."""

    begins: list[float]
    """Of each round, the same on all ranks."""
    ends: list[float]
    """When the last flow to this rank was in."""
    resent: int


def replay(
    mesh: RoceMesh, flows: list[ReplayFlow], memory: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]
) -> float:
    """Sends and receives this rank's flows; when the last one to it was in.  Raises the mesh's errors."""
    me = mesh.rank
    arriving: dict[int, Pending] = {
        number: mesh.receive(flow.source, memory[number], tag=number)
        for number, flow in enumerate(flows) if flow.destination == me
    }
    leaving: dict[int, Pending] = {}
    todo = [number for number, flow in enumerate(flows) if flow.source == me]
    last = time.monotonic()
    while True:
        both = arriving | leaving
        for number in [n for n in todo if all(both[w].done for w in flows[n].waits if w in both)]:
            if any(w not in both for w in flows[number].waits):
                continue  # one of ours that has not begun
            flow = flows[number]
            for lane, port in enumerate(flow.ports):
                mesh.pin(flow.destination, lane, port)
            leaving[number] = mesh.send(flow.destination, memory[number], tag=number)
            todo.remove(number)
        missing = [pending for pending in (*arriving.values(), *leaving.values()) if not pending.done]
        if not missing:
            return last
        before = sum(pending.done for pending in arriving.values())
        mesh.wait(missing, first=True)
        if sum(pending.done for pending in arriving.values()) > before:
            last = time.monotonic()


def main(spec: ReplaySpec) -> None:
    """One rank, all rounds."""
    rank, world, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NETFOLD_ADDRESS"]
    listener = listen(address)
    client = JobClient(os.environ["NETFOLD_CONTROLLER"])
    tcp = "{}:{}".format(*listener.getsockname())
    plan = client.join(Join(os.environ["NETFOLD_JOB"], world, rank, address, tcp, roce.PATH_MTU, fold=False))
    mesh = RoceMesh(plan, listener, timeout=TIMEOUT, queue_pairs=len(spec.ports), window=spec.window, ports=spec.ports,
                    stay=True)
    mine = [n for n, flow in enumerate(spec.flows) if rank in (flow.source, flow.destination)]
    memory = {n: np.full(spec.flows[n].nbytes, n % 251, np.uint8) for n in mine}
    begins, ends = [], []
    for turn in range(spec.rounds + 1):  # the first opens connections
        with mesh.operation(Call(turn + 1, "replay")):
            begin = _agree(mesh)
            time.sleep(max(0.0, begin - time.monotonic()))
            end = replay(mesh, spec.flows, memory)
            begins.append(begin)
            ends.append(end)
    assert all((memory[n] == n % 251).all() for n in mine), "a flow arrived damaged"
    resent = sum(one.retransmitted for ends_ in mesh.queue_pair_states().values() for one in ends_)
    print(msgspec.json.encode(Times(begins[1:], ends[1:], resent)).decode(), flush=True)
    mesh.close()
    client.leave(RankReport(plan.job, rank, plan.epoch, 0, 0, 0, resent))
    client.close()


def _agree(mesh: RoceMesh) -> float:
    """A moment at which every rank can begin: rank 0 hears of all, and tells all."""
    moment = np.array([time.monotonic() + START])
    others = range(1, mesh.size)
    if mesh.rank:
        mesh.wait([mesh.send(0, moment, tag=1 << 20), mesh.receive(0, moment, tag=1 << 20)])
    else:
        heard = [np.zeros(1) for _ in others]
        mesh.wait([mesh.receive(other, into, tag=1 << 20) for other, into in zip(others, heard, strict=True)])
        moment[:] = time.monotonic() + START
        mesh.wait([mesh.send(other, moment, tag=1 << 20) for other in others])
    return float(moment[0])


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ReplaySpec))

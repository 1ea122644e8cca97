# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench simulator`: replays a workload of the simulator, flow by flow, on real queue pairs.

    python -m netfold.bench.ranks.simulator TASK.json      a JSON `ReplayTask`; prints a JSON `ReplayTimes`

Every flow is a message of a `RoceMesh`, sent when the flows that it waits for have arrived, on the paths that the
simulator's placement gave it.  It never changes its path: hosts may take a path with a long queue for dead, and moving
away from it would load other paths than those simulated.  All ranks share the clock of the machine.
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
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.mesh.sockets import listen
from netfold.host.roce.mesh import RoceMesh
from netfold.topo.processes.rank_program import check_data, run_rank
from netfold.wire import roce
from netfold.wire.jobs import Join, RankReport

TIMEOUT: Final = 30.0
START: Final = 0.2
"""Seconds from the ranks' agreement on a starting time to that time."""


class ReplayFlow(msgspec.Struct, frozen=True):
    """One task of a `sim.workload.Workload`, whose hosts are the ranks."""

    source: int
    destination: int
    nbytes: int
    waits: list[int]
    """Numbers of flows that must have arrived or been sent before; each begins or ends at ``source``."""
    ports: list[int]
    """UDP source port of each queue pair that carries an equal part of the flow."""


class ReplayTask(msgspec.Struct, frozen=True):
    """The task of all ranks."""

    flows: list[ReplayFlow]
    ports: list[int]
    """The source port of each queue pair between two ranks."""
    window: int
    rounds: int


class ReplayTimes(msgspec.Struct, frozen=True):
    """Times of one rank, in seconds of the machine's monotonic clock."""

    begins: list[float]
    """When each round began, the same on all ranks."""
    ends: list[float]
    """When the last flow to this rank had arrived, in each round."""
    resent: int


def replay(
    mesh: RoceMesh, flows: list[ReplayFlow], memory: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]]
) -> float:
    """Send and receive this rank's flows and return the time at which the last one to it had arrived.

    Raises the errors of the mesh.
    """
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
                continue  # it waits for a flow of this rank that has not begun
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


def main(task: ReplayTask) -> None:
    """Replay all rounds and print the `ReplayTimes`.  Raises WrongData."""
    rank, world, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NETFOLD_ADDRESS"]
    listener = listen(address)
    client = JobClient(os.environ["NETFOLD_CONTROLLER"])
    tcp = "{}:{}".format(*listener.getsockname())
    plan = client.join(Join(os.environ["NETFOLD_JOB"], world, rank, address, tcp, roce.PATH_MTU, fold=False))
    watcher = client.watch(lambda: plan)
    mesh = RoceMesh(plan, listener, timeout=TIMEOUT, queue_pairs=len(task.ports), window=task.window, ports=task.ports,
                    stay=True)
    mine = [n for n, flow in enumerate(task.flows) if rank in (flow.source, flow.destination)]
    memory = {n: np.full(task.flows[n].nbytes, n % 251, np.uint8) for n in mine}
    begins, ends = [], []
    for turn in range(task.rounds + 1):  # the first one opens connections
        with mesh.operation(Call(turn + 1, "replay")):
            begin = _agree(mesh)
            time.sleep(max(0.0, begin - time.monotonic()))
            end = replay(mesh, task.flows, memory)
            begins.append(begin)
            ends.append(end)
    for n in mine:
        check_data(memory[n], n % 251, rank=rank, operation=f"flow {n}")
    resent = sum(one.retransmitted for ends_ in mesh.queue_pair_states().values() for one in ends_)
    print(msgspec.json.encode(ReplayTimes(begins[1:], ends[1:], resent)).decode(), flush=True)
    mesh.close()
    watcher.leaving()
    client.leave(RankReport(plan.job, rank, plan.epoch, 0, 0, 0, resent))
    watcher.close()
    client.close()


def _agree(mesh: RoceMesh) -> float:
    """Agree on a time at which all ranks begin: rank 0 waits for a message of each, and sends the time to all."""
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
    run_rank(main, msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ReplayTask))

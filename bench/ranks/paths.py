# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench paths`: runs each collective in each mode, checks it, times it, and counts uplink bytes.

    python -m netfold.bench.ranks.paths TASK       a JSON `PathsTask`; rank 0 prints a JSON `PathsResult` for each

With ``fail``, rank 0 prints BREAK_LINK when the link has to fail, and RESTORE_LINK when it has to come back.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
import numpy as np

from netfold.controller import client
from netfold.controller.paths import path_service
from netfold.host.client.jobs import JobClient
from netfold.host.client.path_client import PlannedPaths
from netfold.host.collectives.flow import split_evenly
from netfold.host.mesh.planned import OnePort, PathSource
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.roce.mesh import RoceMesh
from netfold.host.selection.peers import Peers
from netfold.rpc import rpc
from netfold.topo.processes.rank_program import check_data, run_rank
from netfold.wire import roce
from netfold.wire.jobs import Join, RankReport
from netfold.wire.plan import Plan

Mode = Literal["pinned", "ecmp", "spray", "reps"]
Transport = Literal["roce", "tcp"]
Collective = Literal["all_to_all", "halving_doubling", "ring", "all_gather"]
BREAK_LINK, RESTORE_LINK = "BREAK_LINK", "RESTORE_LINK"
TIMEOUT: Final = 30.0
OVERTAKE: Final = 64
"""Packets that may overtake one before it counts as lost, where each packet takes a path of its own."""
RESTORED_SECONDS: Final = 20.0
"""Seconds for the controller to see that a link is back, and for its suspicion of the link to end."""


class PathsTask(msgspec.Struct, frozen=True):
    """The task of the ranks of one job: each of the collectives in each of the modes, for some rounds."""

    modes: list[Mode]
    collectives: list[Collective]
    rounds: int
    nbytes: int
    """Bytes of every rank's array."""
    fail: bool
    window: int
    """Packets in flight on a queue pair at most."""
    transport: Transport = "roce"


class PathsResult(msgspec.Struct, frozen=True):
    """One run of one collective in one mode."""

    mode: str
    collective: str
    round: int
    seconds: float
    """Time of the slowest rank."""
    uplinks: dict[str, int]
    """Bytes that left a switch towards another one, by ``SWITCH:PORT``."""
    stalled: float
    """The longest time in seconds that a flow of any rank had packets in flight without an acknowledgement."""
    retransmitted: int
    queue_pairs: int
    """Queue pairs, or lanes, of one rank that sent or received data; the greatest number on any rank."""
    failed: bool
    """True if a link failed meanwhile."""
    processor: float = 0.0
    """Seconds of processor time of all ranks together."""


class Rank:
    """This process as a rank of one job after another."""

    def __init__(self, task: PathsTask) -> None:
        self.task = task
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.address, self.controller = os.environ["NETFOLD_ADDRESS"], os.environ["NETFOLD_CONTROLLER"]

    def run(self) -> None:
        """Run all rounds; the modes take turns in each, so that other load on the machine affects them alike."""
        for number in range(self.task.rounds):
            for mode in self.task.modes:
                with self.session(f"{mode}-{number}", mode) as (mesh, peers):
                    for collective in self.task.collectives:
                        self.cell(mesh, peers, mode, collective, number, fail=False)
                if self.task.fail:
                    with self.session(f"{mode}-{number}-fail", mode) as (mesh, peers):
                        self.cell(mesh, peers, mode, "all_to_all", number, fail=True)

    @contextmanager
    def session(self, job: str, mode: Mode) -> Iterator[tuple[RoceMesh | TcpMesh, Peers]]:
        """Join a job, with the switches set to its mode before the first packet."""
        if self.rank == 0:
            self._wait_for_all_links()
            self._operate("SetMode", path_service.SetMode("ecmp" if mode == "reps" else mode))
        client, listener = JobClient(self.controller), listen(self.address)
        where = "{}:{}".format(*listener.getsockname())
        plan = client.join(Join(f"paths-{job}", self.world, self.rank, self.address, where, roce.PATH_MTU,
                                fold=False))
        watcher = client.watch(lambda: plan)
        mesh = self._tcp(client, plan, listener, mode) if self.task.transport == "tcp" else self._roce(
            client, plan, listener, mode)
        peers = Peers(mesh, algorithm="ring")
        try:
            yield mesh, peers
        finally:
            mesh.close()
            watcher.leaving()
            client.leave(RankReport(plan.job, self.rank, plan.epoch, peers.operations, peers.bytes_reduced, 0, 0))
            watcher.close()
            client.close()

    def _tcp(self, client: JobClient, plan: Plan, listener: socket.socket, mode: Mode) -> TcpMesh:
        """A mesh over TCP: one connection to each peer where switches hash, lanes where they pin or spray."""
        planned: PathSource | None = None
        if mode == "pinned":
            planned = PlannedPaths(client, plan, scope="leaf")
        elif mode == "spray":
            planned = OnePort(plan, roce.PATH_PORT)
        return TcpMesh(plan, listener, timeout=TIMEOUT, planned=planned)

    def _roce(self, client: JobClient, plan: Plan, listener: socket.socket, mode: Mode) -> RoceMesh:
        """A mesh over queue pairs."""
        settings: dict[str, Any] = {"window": self.task.window}
        if mode in ("spray", "reps"):
            settings["reorder"] = min(OVERTAKE, self.task.window // 2)
        if mode == "reps":
            settings["recycle"] = True
        if mode == "pinned":
            settings["planned"] = PlannedPaths(client, plan, scope="leaf")
        return RoceMesh(plan, listener, timeout=TIMEOUT, **settings)

    def cell(
        self, mesh: RoceMesh | TcpMesh, peers: Peers, mode: Mode, collective: Collective,
        number: int, *, fail: bool,
    ) -> None:
        """Run one collective; rank 0 prints the `PathsResult`."""
        work, check = self.work(peers, collective, number)
        if self.rank == 0:
            self._wait_for_all_links()  # what a collective blamed on a busy machine says nothing of the next one
        peers.barrier()
        counts = Counts(mesh)
        before = self._uplinks()
        peers.barrier()
        counts.reset()
        if fail and self.rank == 0:
            print(BREAK_LINK, flush=True)
        begin, used = time.monotonic(), time.process_time()
        work()
        seconds, used = time.monotonic() - begin, time.process_time() - used
        stalled = counts.stalled()
        check()
        row = np.array([seconds, stalled, counts.again(), counts.carriers(), used], np.float64)
        rows = np.empty(self.world * row.size)
        rows[self.rank * row.size : (self.rank + 1) * row.size] = row
        peers.all_gather(rows, split_evenly(rows.size, self.world))
        if self.rank == 0:
            if fail:
                print(RESTORE_LINK, flush=True)
            moved = {end: count - before.get(end, 0) for end, count in self._uplinks().items()}
            table = rows.reshape(self.world, row.size)
            cell = PathsResult(mode, collective, number, float(table[:, 0].max()), moved, float(table[:, 1].max()),
                        int(table[:, 2].sum()), int(table[:, 3].max()), fail, float(table[:, 4].sum()))
            print(msgspec.json.encode(cell).decode(), flush=True)

    def work(
        self, peers: Peers, collective: Collective, number: int
    ) -> tuple[Callable[[], object], Callable[[], None]]:
        """The call to time, and the check of its result, which raises WrongData."""
        count = self.task.nbytes // 4 // self.world * self.world
        slices = split_evenly(count, self.world)

        def of(rank: int) -> np.ndarray[Any, np.dtype[np.int32]]:
            return np.random.default_rng([number, rank]).integers(-(2**20), 2**20, count, np.int32)

        data, out = of(self.rank), np.zeros(count, np.int32)

        def same(expected: np.ndarray[Any, Any]) -> None:
            check_data(out, expected, rank=self.rank, operation=f"round {number}, {collective}")

        if collective == "all_to_all":
            expected = np.concatenate([of(rank)[slices[self.rank]] for rank in range(self.world)])
            return (lambda: peers.all_to_all(data, slices, out, slices)), lambda: same(expected)
        if collective == "all_gather":
            expected = np.concatenate([of(rank)[slices[rank]] for rank in range(self.world)])
            out[slices[self.rank]] = data[slices[self.rank]]
            return (lambda: peers.all_gather(out, slices)), lambda: same(expected)
        expected = sum(of(rank).astype(np.int64) for rank in range(self.world)).astype(np.int32)  # type: ignore[union-attr]
        request = AllreduceRequest(data, out, Reduction("sum", "int32"), algorithm=collective)
        return (lambda: peers.allreduce(request)), lambda: same(expected)

    # ---- readings from the controller and the queue pairs ------------------------------------------------------------

    def _uplinks(self) -> dict[str, int]:
        if self.rank:
            return {}
        status = asyncio.run(client.status(self.controller))
        switches = {switch.name for switch in status.switches}
        between = [link for link in status.links if {e.rpartition(":")[0] for e in (link.a, link.b)} <= switches]
        return {end: traffic.bytes for link in between
                for end, traffic in ((link.a, link.a_to_b), (link.b, link.b_to_a))}

    def _wait_for_all_links(self) -> None:
        end = time.monotonic() + RESTORED_SECONDS
        while left := [link.a for link in self._operate("Table", path_service.AskTable()).uplinks
                       if not link.up or link.suspect_for]:
            if time.monotonic() > end:
                raise TimeoutError(f"the links at {', '.join(left)} are still down or suspect after "
                                   f"{RESTORED_SECONDS:g} s")
            time.sleep(0.2)

    def _operate(self, method: str, request: msgspec.Struct) -> path_service.Table:
        where = f"{path_service.OPERATOR}/{method}"
        return asyncio.run(rpc.call(self.controller, where, request, path_service.Table, path_service.TIMEOUT))


class Counts:
    """Counts of a mesh's queue pairs or connections since ``reset``."""

    def __init__(self, mesh: RoceMesh | TcpMesh) -> None:
        self._mesh = mesh
        self._before = self._total()

    def reset(self) -> None:
        """Begin anew."""
        if isinstance(self._mesh, TcpMesh):
            self._mesh.posted.paths.longest_stall = 0.0
        else:
            self._mesh.reset_stalls()
        self._before = self._total()

    def stalled(self) -> float:
        """The longest time in seconds without an acknowledgement while something was in flight."""
        if isinstance(self._mesh, TcpMesh):
            return self._mesh.posted.paths.longest_stall
        return max(pair.stalled for pairs in self._mesh.queue_pair_states().values() for pair in pairs) / 1e9

    def again(self) -> int:
        """Packets that were sent again."""
        return self._total() - self._before

    def carriers(self) -> int:
        """Queue pairs for data, or lanes, that have carried something."""
        if isinstance(self._mesh, TcpMesh):
            return self._mesh.posted.lanes.open_lanes()
        return sum(bool(pair.sent or pair.received)
                   for pairs in self._mesh.queue_pair_states().values() for pair in pairs[1:])

    def _total(self) -> int:
        if isinstance(self._mesh, TcpMesh):
            return self._mesh.posted.paths.sent_again()
        return sum(pair.retransmitted for pairs in self._mesh.queue_pair_states().values() for pair in pairs)


if __name__ == "__main__":
    run_rank(Rank(msgspec.json.decode(sys.argv[1], type=PathsTask)).run)

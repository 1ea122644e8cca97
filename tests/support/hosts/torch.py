# SPDX-License-Identifier: Apache-2.0
"""Runs torchrun on loopback, with a job service that lets ranks fold in a loopback switch."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import grpc

import support
from netfold.host.job_secret import draw
from netfold.rpc import rpc
from netfold.testing import LoopbackSwitch, subnet
from netfold.topo.processes.forks import Forked, Forks
from netfold.wire.jobs import (
    SERVICE,
    AllOpened,
    Done,
    Event,
    Join,
    Leave,
    Opened,
    RankLeft,
    RankReport,
    Watch,
    Watching,
)
from netfold.wire.plan import Peer, Plan

SLOTS = 64
SETTINGS: Final = {"OMP_NUM_THREADS": "1", "PYTEST_CURRENT_TEST": "",
                   "TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor"}
"""Variables that torch._dynamo or a test sets: a program runs in a fork of a process that has the same ones
(topo/processes/forked_program.py)."""
FORKS: Final = Forks(*support.TORCH, environment=support.environment() | SETTINGS)
"""Starts programs of torch in forks of one process, which has imported what they need and has used nothing of it: 5 s
of processor time less for each, of which DistributedDataParallel's torch._dynamo is 1.5 s.  Workers of one run of tests
share what has imported it (sandboxes/warm.py)."""


def start(
    command: Sequence[str], output: IO[bytes], errors: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """Start a Python program of torch, in a session of its own, without NetFold's variables but those given.

    errors  default: with its output
    """
    clean = {name: value for name, value in support.environment().items() if not name.startswith("NETFOLD_")}
    return FORKS.start([sys.executable, *command], output, errors or output,
                       environment=clean | SETTINGS | dict(environment or {}))


def torchrun(
    script: Path,
    *arguments: str,
    ranks: int,
    environment: Mapping[str, str],
    timeout: float = 240,
    forks: bool = False,
) -> str:
    """Runs a script on so many ranks of this host.  Returns what they printed; fails where one of them fails.

    forks  the ranks are forks of torchrun's process
    """
    command = ["-m", "torch.distributed.run", *(["--start-method", "fork", "--run-path"] if forks else []),
               "--standalone", "--nproc-per-node", str(ranks), str(script), *arguments]
    with tempfile.TemporaryFile() as output:
        process = start(command, output, environment=environment)
        late = ""
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            late = f"not done in {timeout:g} s"
            process.send_signal(signal.SIGTERM)  # torchrun ends its workers then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        finally:
            process.kill()
            process.wait(20)
        output.seek(0)
        said = output.read().decode()
    assert not late, f"{script.name} on {ranks} ranks: {late}\n{said}"
    assert process.returncode == 0, f"{script.name} on {ranks} ranks: exit status {process.returncode}\n{said}"
    return said


class LoopbackJobs:
    """The job service of one job, whose ranks all fold in one switch; without one, over several rails."""

    def __init__(self, switch: LoopbackSwitch | None, world: int) -> None:
        self._switch = switch
        self.joins: dict[int, Join] = {}
        self._world = world
        self._secret = draw()
        self._complete = asyncio.Event()
        self._opened: dict[int, str] = {}
        self._all_opened = asyncio.Event()
        self._events: dict[int, asyncio.Queue[Event | None]] = {rank: asyncio.Queue() for rank in range(world)}
        """The next events of each rank's stream; None ends it."""
        self.reports: dict[int, RankReport] = {}

    def methods(self) -> dict[str, rpc.Method]:
        """The service's methods but Watch."""
        return {"Join": (Join, self.join), "Opened": (Opened, self.opened), "Report": (RankReport, self.report),
                "Leave": (Leave, self.leave)}

    async def join(self, request: Join) -> Plan:
        if request.group is not None:
            raise rpc.Refusal(rpc.Code.FAILED_PRECONDITION, "this service has one switch, for all ranks")
        self.joins[request.rank] = request
        if len(self.joins) == self._world:
            self._complete.set()
        await asyncio.wait_for(self._complete.wait(), request.timeout)
        return Plan(
            job=request.job,
            epoch=1,
            rank=request.rank,
            world=request.world,
            peers=[Peer(r, join.address, join.tcp, rails=join.rails) for r, join in sorted(self.joins.items())],
            trees=self._switch.trees(request.rank, slots=SLOTS) if self._switch is not None else [],
            secret=self._secret,
        )

    async def opened(self, request: Opened) -> AllOpened:
        self._opened[request.rank] = request.lacks
        if len(self._opened) == self._world:
            self._all_opened.set()
        await asyncio.wait_for(self._all_opened.wait(), request.timeout)
        return AllOpened({rank: lacks for rank, lacks in self._opened.items() if lacks})

    async def report(self, request: RankReport) -> Done:
        self.reports[request.rank] = request
        return Done()

    async def leave(self, request: Leave) -> Done:
        for rank, events in self._events.items():
            if rank == request.rank:
                events.put_nowait(None)
            elif not request.reason:
                events.put_nowait(RankLeft(request.rank, self.joins[request.rank].address, "", request.last))
        return Done()

    async def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        yield Watching()
        while (event := await self._events[request.rank].get()) is not None:
            yield event


class Services:
    """The job service of a plane: of a job over several rails, and of the rail there."""

    def __init__(self, rail: LoopbackJobs, world: int) -> None:
        self._rail = rail
        self._whole = LoopbackJobs(None, world)
        self._names: set[str] = set()

    def _of(self, request: Any) -> LoopbackJobs:
        if isinstance(request, Join) and request.rails:
            self._names.add(request.job)
        return self._whole if request.job in self._names else self._rail

    def methods(self) -> dict[str, rpc.Method]:
        """The service's methods but Watch."""
        whole = self._whole.methods()

        def routed(name: str, method: rpc.Method) -> rpc.Method:
            kind, call = method

            async def answer(request: Any) -> Any:
                of_rail = name not in whole or self._of(request) is self._rail
                return await (call if of_rail else whole[name][1])(request)

            return kind, answer

        return {name: routed(name, method) for name, method in self._rail.methods().items()}

    def watch(self, request: Watch) -> AsyncGenerator[Event, None]:
        return self._of(request).watch(request)


@contextmanager
def loopback_jobs(
    address: str, ranks: Sequence[str], where: str,
    make: Callable[[LoopbackSwitch, int], LoopbackJobs] | None = None,
) -> Iterator[LoopbackJobs]:
    """A switch at ``address`` for ranks at these addresses, and their job service at ``where``, on a thread of its
    own.

    make  makes another service than ``LoopbackJobs``
    """
    switch = LoopbackSwitch(address, ranks, slots=SLOTS)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    jobs = (make or LoopbackJobs)(switch, len(ranks))

    async def serve() -> None:
        server = grpc.aio.server()
        services = Services(jobs, len(ranks))
        server.add_generic_rpc_handlers((rpc.service(SERVICE, services.methods(), {"Watch": (Watch, services.watch)}),))
        server.add_insecure_port(where)
        await server.start()
        ready.set()
        await stop.wait()
        await server.stop(1)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(60), "the job service did not start in 60 s"
        yield jobs
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
        switch.close()


def results_of(program: str, folder: Path, ranks: int) -> list[dict[str, Any]]:
    """The results of every rank of a program of support/ranks, started by torchrun, as JSON in ``folder``; a switch in
    plain Python folds."""
    net, where = subnet(), f"unix:{folder}/jobs"
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(ranks)], where):
        torchrun(support.RANKS / program, net, where, str(folder), ranks=ranks, environment={}, timeout=200, forks=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]

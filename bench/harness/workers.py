# SPDX-License-Identifier: Apache-2.0
"""Processes that execute commands: each reads lines of JSON and answers each by one; every wait has a limit."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from netfold.disk import files
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.processes.forks import Forked
from netfold.topo.processes.lifecycle import tail, terminate
from netfold.topo.processes.ranks import Enter, start

T = TypeVar("T")


class WorkerFailed(FabricFailed):
    """A worker ended, or did not answer in time; the message says which, and has the end of its log.

    Remedy: read the worker's own error at the end of its log.
    """


class Workers:
    """One worker process in each of several hosts.

    name    of the group, in messages and names of logs
    enters  the host of each worker
    envs    environment variables of each worker
    """

    def __init__(
        self, name: str, command: Sequence[str], enters: Sequence[Enter],
        envs: Sequence[Mapping[str, str]], logs: Path,
    ) -> None:
        self.name = name
        self._processes: list[Forked] = []
        self._logs: list[Path] = []
        self._rest: list[bytes] = []
        for rank, (enter, env) in enumerate(zip(enters, envs, strict=True)):
            log = logs / f"{name}-rank{rank}.log"
            with files.create(log) as errors:
                self._processes.append(start(command, enter, env, errors, input=subprocess.PIPE))
            self._logs.append(log)
            self._rest.append(b"")

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [process.pid for process in self._processes]

    def send(self, command: object) -> None:
        """Send a command to every worker, as a line of JSON.  Raises WorkerFailed."""
        line = msgspec.json.encode(command) + b"\n"
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                raise self._failed(rank, "takes no commands any more") from None

    def receive(self, within: float) -> list[bytes]:
        """Receive the next line of every worker.  Raises WorkerFailed after ``within`` seconds, and when one ends."""
        deadline = time.monotonic() + within
        lines: dict[int, bytes] = {}
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                if not self._take(rank, lines):
                    assert process.stdout is not None
                    selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(lines) < len(self._processes):
                left = deadline - time.monotonic()
                if left <= 0:
                    late = min(set(range(len(self._processes))) - set(lines))
                    raise self._failed(late, f"did not answer within {within:g} s")
                for key, _ in selector.select(left):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        raise self._failed(key.data, "ended")
                    self._rest[key.data] += data
                    if self._take(key.data, lines):
                        selector.unregister(key.fileobj)
        return [lines[rank] for rank in range(len(lines))]

    def results(self, kind: type[T], within: float) -> list[T]:
        """Receive every worker's next line, which has the JSON of a ``kind``.  Raises WorkerFailed, as `receive`."""
        return [msgspec.json.decode(line, type=kind) for line in self.receive(within)]

    def stop(self) -> None:
        """Close the workers' input, upon which they end; those that do not are terminated."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                continue
        for process in self._processes:
            terminate(process)
            assert process.stdout is not None
            process.stdout.close()

    def _take(self, rank: int, lines: dict[int, bytes]) -> bool:
        line, newline, rest = self._rest[rank].partition(b"\n")
        if newline:
            lines[rank], self._rest[rank] = line, rest
        return bool(newline)

    def _failed(self, rank: int, what: str) -> WorkerFailed:
        log = self._logs[rank]
        return WorkerFailed("\n".join([
            f"{self.name}: rank {rank} of {len(self._processes)} {what}",
            f"  log  {log}, its end:",
            *(f"    {line}" for line in tail(log)),
        ]))

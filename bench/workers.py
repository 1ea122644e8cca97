# SPDX-License-Identifier: Apache-2.0
"""Processes that wait for commands: a line of JSON in, a line of JSON out, every wait bounded."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from netfold.topo.failures import FabricFailed
from netfold.topo.net import end
from netfold.topo.switches import tail


class TeamFailed(FabricFailed):
    """A process of the team ended, or did not answer in time; says which and what its log ends with."""


class Team:
    """One process in each of several hosts.

    pids  of processes in the hosts' namespaces
    envs  for each
    """

    def __init__(
        self, name: str, command: Sequence[str], pids: Sequence[int], envs: Sequence[Mapping[str, str]], logs: Path
    ) -> None:
        self.name = name
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._rest: list[bytes] = []
        for rank, (pid, env) in enumerate(zip(pids, envs, strict=True)):
            log = logs / f"{name}-rank{rank}.log"
            with log.open("wb") as errors:
                self._processes.append(subprocess.Popen(
                    ["mnexec", "-a", str(pid), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    env={**os.environ, **env}, start_new_session=True,
                ))
            self._logs.append(log)
            self._rest.append(b"")

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Of the processes themselves (mnexec becomes the command)."""
        return [process.pid for process in self._processes]

    def tell(self, command: bytes) -> None:
        """A line to every process.  Raises TeamFailed."""
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            try:
                process.stdin.write(command + b"\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self._failed(rank, "takes no commands any more") from None

    def hear(self, within: float) -> list[bytes]:
        """The next line of every process.  Raises TeamFailed after ``within`` seconds, and when one ends."""
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

    def stop(self) -> None:
        """End of input asks them to finish; who does not is ended by its pid."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except BrokenPipeError:
                continue
        for process in self._processes:
            end(process)
            assert process.stdout is not None
            process.stdout.close()

    def _take(self, rank: int, lines: dict[int, bytes]) -> bool:
        line, newline, rest = self._rest[rank].partition(b"\n")
        if newline:
            lines[rank], self._rest[rank] = line, rest
        return bool(newline)

    def _failed(self, rank: int, what: str) -> TeamFailed:
        log = self._logs[rank]
        return TeamFailed("\n".join([
            f"{self.name}: rank {rank} of {len(self._processes)} {what}",
            f"  log  {log}, its end:",
            *(f"    {line}" for line in tail(log)),
        ]))

# SPDX-License-Identifier: Apache-2.0
"""The processes of one job in the hosts of a fabric: their environment, their output, and how they end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, Protocol, TypeAlias

from netfold.fabric.graph import Fabric, Host
from netfold.topo.processes.failures import EXIT_WRONG_DATA, RankFailed, WrongData
from netfold.topo.processes.forks import ChildProcess, Forked, Forks
from netfold.topo.processes.lifecycle import how_ended, tail, terminate

ABORT_SECONDS: Final = 5.0
"""Seconds for a rank that is overdue to write the stacks of its threads."""
WRONG_DATA_SECONDS: Final = 2.0
"""Seconds after a rank's failure for another one to end because of wrong data, which explains more."""
STACK_LINES: Final = 60
MASTER_PORT: Final = 29500
"""First of the 1000 ports on the host of rank 0 at which torch.distributed meets; the job's name picks one."""

SETTINGS: Final = {
    # torch's store asks DNS for the name of its peer's address, and a fabric's host reaches no DNS
    "RES_OPTIONS": "timeout:1 attempts:1",
    # as many ranks as cores and more share this machine: one thread each
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    # a rank that crashes, or is aborted because it hangs, says where
    "PYTHONFAULTHANDLER": "1",
}
"""Environment variables that all ranks have in common, whatever their job."""
FORKS: Final = Forks(environment=SETTINGS)


def environment(fabric: Fabric, hosts: Sequence[Host], rank: int, *, job: str) -> dict[str, str]:
    """The environment variables of a rank, as NetFold, torchrun and gloo name them."""
    host = hosts[rank]
    port = next(end.port for link in fabric.links for end in link.ends if end.node == host.name)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(list(hosts[:rank]).count(host)),
        "LOCAL_WORLD_SIZE": str(list(hosts).count(host)),
        "MASTER_ADDR": hosts[0].address,
        # several jobs on one fabric must not meet at the same port
        "MASTER_PORT": str(MASTER_PORT + zlib.crc32(job.encode()) % 1000),
        "GLOO_SOCKET_IFNAME": f"{host.name}-eth{port}",
        "NETFOLD_ADDRESS": host.address,
        "NETFOLD_CONTROLLER": fabric.controllers,
        "NETFOLD_JOB": job,
        **SETTINGS,
    }


@dataclass(frozen=True)
class Namespaces:
    """A host of this machine, by the files of its namespaces, such as /proc/1/ns/net."""

    files: Sequence[str]


Enter: TypeAlias = Namespaces | Sequence[str]
"""A host of this machine, or the command that runs the one after it in another host."""


def in_namespaces(pid: int) -> Namespaces:
    """The host whose process is ``pid``."""
    return Namespaces([f"/proc/{pid}/ns/net", f"/proc/{pid}/ns/mnt"])


def start(
    command: Sequence[str], enter: Enter, env: Mapping[str, str], errors: IO[bytes] | int,
    *, input: int = subprocess.DEVNULL,
) -> Forked:
    """Start ``command`` in a host, in a session of its own, with a pipe for its output.  Raises OSError."""
    inside, files = ([], enter.files) if isinstance(enter, Namespaces) else (enter, ())
    return FORKS.start([*inside, *command], subprocess.PIPE, errors, input=input, environment={**os.environ, **env},
                        namespaces=files)


def prepare(command: Sequence[str], env: Mapping[str, str]) -> None:
    """Import what ranks of this command will import, beside whatever is done until they start.  Raises OSError."""
    FORKS.warm(command, environment={**os.environ, **env})


class RankProcess(ChildProcess, Protocol):
    """The part of `subprocess.Popen` that ranks need."""

    @property
    def stdout(self) -> IO[bytes] | None: ...


@dataclass
class Ranks:
    """The processes of one job."""

    job: str
    processes: list[RankProcess] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def add(self, process: RankProcess, host: str, log: Path) -> None:
        """Add the process of the next rank."""
        self.processes.append(process)
        self.hosts.append(host)
        self.logs.append(log)

    def lines(self, within: float) -> Iterator[tuple[int, str]]:
        """Yield (rank, line) of standard output as lines arrive, until all ranks have ended with status 0.

        Raises WrongData where a rank's data was wrong, and RankFailed for the first rank that fails otherwise and when
        ``within`` seconds are over; all ranks are ended then.
        """
        deadline = time.monotonic() + within
        buffers: dict[int, bytes] = dict.fromkeys(range(len(self.processes)), b"")
        try:
            with selectors.DefaultSelector() as selector:
                for rank, process in enumerate(self.processes):
                    selector.register(_stdout(process), selectors.EVENT_READ, rank)
                while selector.get_map():
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise RankFailed(self._late(within, sorted(key.data for key in selector.get_map().values())))
                    for key, _ in selector.select(left):
                        rank = key.data
                        data = os.read(key.fd, 65536)
                        if not data:
                            selector.unregister(key.fileobj)
                            self._ended(rank, max(1.0, deadline - time.monotonic()))
                        *lines, buffers[rank] = (buffers[rank] + data).split(b"\n")
                        for line in lines:
                            yield rank, line.decode(errors="replace")
        finally:
            self.stop()

    def wait(self, within: float) -> list[list[str]]:
        """Wait until all ranks have ended and return the output lines of each.  Raises RankFailed, WrongData."""
        output: list[list[str]] = [[] for _ in self.processes]
        for rank, line in self.lines(within):
            output[rank].append(line)
        return output

    def stop(self) -> None:
        """End the ranks that still run."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            terminate(process)
            _stdout(process).close()

    def _ended(self, rank: int, seconds: float) -> None:
        try:
            status = self.processes[rank].wait(seconds)
        except subprocess.TimeoutExpired:
            raise RankFailed(f"job {self.job!r}: rank {rank} on {self.hosts[rank]} closed its output, and still runs"
                             ) from None
        if status == 0:
            return
        wrong = self._rank_with_wrong_data()
        if wrong is not None:
            raise WrongData(self._failure(wrong, "received wrong data"))
        raise RankFailed(self._failure(rank, how_ended(status)))

    def _rank_with_wrong_data(self) -> int | None:
        """The first rank that ended because its data was wrong; the others lose it, and may end before it."""
        until = time.monotonic() + WRONG_DATA_SECONDS
        for rank, process in enumerate(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if process.wait(max(0.0, until - time.monotonic())) == EXIT_WRONG_DATA:
                    return rank
        return None

    def _failure(self, rank: int, what: str) -> str:
        return "\n".join(
            [
                f"job {self.job!r}: rank {rank} on {self.hosts[rank]} {what}",
                f"  log  {self.logs[rank]}, its end:",
                *(f"    {line}" for line in tail(self.logs[rank])),
            ]
        )

    def _late(self, within: float, ranks: Sequence[int]) -> str:
        """Describe the ranks that are overdue: the state of each process and the stacks of its threads."""
        states = {rank: state_of(self.processes[rank].pid) for rank in ranks}
        for rank in ranks:
            self.processes[rank].send_signal(signal.SIGABRT)  # Python writes every thread's stack (`environment`)
        who = ", ".join(f"{rank} ({self.hosts[rank]})" for rank in ranks)
        logs = self.logs[0].parent
        lines = [f"job {self.job!r}: after {within:g} s the ranks {who} had not ended; their logs: {logs}"]
        until = time.monotonic() + ABORT_SECONDS
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[rank].wait(max(0.0, until - time.monotonic()))
            lines.append(f"  rank {rank}, {states[rank]}:")
            lines += [f"    {line}" for line in tail(self.logs[rank], STACK_LINES)]
        return "\n".join(lines)


def state_of(pid: int) -> str:
    """The state of a process as the kernel names it: "S (sleeping)", "R (running)"..."""
    try:
        said = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "gone"
    return next(line.partition(":")[2].strip() for line in said.splitlines() if line.startswith("State:"))


def _stdout(process: RankProcess) -> IO[bytes]:
    assert process.stdout is not None
    return process.stdout

# SPDX-License-Identifier: Apache-2.0
"""`netfold run`: a program on the hosts of a fabric, one rank each, in front of the person who started it.

    netfold run -np 8 --topo leafspine,2,2,8 -- python train.py     a fabric for this run alone
    netfold run -np 4 --fabric lab.toml -- python train.py          Mininet hosts that run already
    netfold run --topo dual,leafspine,2,2,8 -- python train.py      two planes: hosts with two interfaces, two rails

What ranks print comes out line by line behind their number.  Where one fails, the others get some seconds to say what
they lack (they name the lost rank themselves), then all are ended; so they are by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

from netfold.controller.plan.fabric import Fabric, Host
from netfold.controller.plan.generate import PLANE_NAMES as NAMES
from netfold.host.rails.planes import RAILS_VARIABLE, Plane, parse_rails
from netfold.topo import sandbox
from netfold.topo.failures import FabricFailed
from netfold.topo.mininet_path import MininetMissing

FABRIC_VARIABLE: Final = "NETFOLD_FABRIC"
"""File of the fabric whose prompt this is, or of each of its planes, with colons (`netfold up --topo` sets it)."""
LOOK: Final = 1.0
"""Seconds between looks at the fabric's own processes."""
DRAIN: Final = 1.0
"""Seconds for output to come of what a rank that has ended left running."""
STEPS: Final = (
    ("asked to end (SIGINT)", signal.SIGINT, 5.0),
    ("told to end (SIGTERM)", signal.SIGTERM, 5.0),
    ("killed (SIGKILL)", signal.SIGKILL, 5.0),
)
"""How ranks are ended: what to call it, the signal, and seconds until the next."""


class CannotRun(ValueError):
    """What was asked for cannot be: says what, what was expected, and what to do."""


class Stopped(BaseException):
    """A signal asks to end."""


@dataclass(frozen=True)
class What:
    """What to run, and how.

    ranks    how many; default: one on every host
    rails    of the job, as NETFOLD_RAILS has them; default: that variable, or folding on every plane
    grace    seconds for the others after one has failed
    timeout  seconds for all of it
    """

    command: Sequence[str]
    job: str
    ranks: int | None = None
    rails: str | None = None
    grace: float = 15.0
    timeout: float | None = None


def run_in(fabrics: Sequence[Fabric], what: What) -> int:
    """Bring fabrics with the same hosts up in a sandbox, run on the hosts, take it all down.  Exit status.

    Raises CannotRun.
    """
    chosen(fabrics[0], what.ranks)
    rails_for(fabrics, what.rails)
    try:
        import mininet  # noqa: F401
    except MininetMissing as error:
        raise CannotRun(str(error)) from error
    sandbox.enter()
    from mininet.log import setLogLevel

    from netfold.topo.planes import Planes, side_by_side

    setLogLevel("error")
    fabrics = side_by_side(fabrics, sandbox.rundir())
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    try:
        with stopping(), Planes(fabrics, logs=logs) as planes:
            hosts = chosen(fabrics[0], what.ranks)
            pids = [planes.mininet.get(host.name).pid for host in hosts]
            with console(fabrics, what, hosts, pids) as ranks:
                return ranks.run(grace=what.grace, timeout=what.timeout, check=planes.check)
    except FabricFailed as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def run_on(fabrics: Sequence[Fabric], what: What) -> int:
    """Run on hosts of a fabric, or of several planes, that are up in Mininet.  Exit status; raises CannotRun."""
    hosts = chosen(fabrics[0], what.ranks)
    for fabric in fabrics:
        if {host.name for host in fabric.hosts} != {host.name for host in fabrics[0].hosts}:
            raise CannotRun(f"{fabrics[0].name} and {fabric.name} have other hosts: expected planes of the same ones")
        if fabric.jobs.startswith(("127.", "localhost:")):
            raise CannotRun(
                f"fabric {fabric.name}: its job service is at {fabric.jobs}, which its hosts, in network namespaces of "
                'their own, do not reach: give it a unix socket, jobs = "unix:/run/netfold.sock"'
            )
    rails_for(fabrics, what.rails)
    pids = mininet_hosts([host.name for host in hosts])
    try:
        with stopping(), console(fabrics, what, hosts, pids) as ranks:
            return ranks.run(grace=what.grace, timeout=what.timeout)
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def rails_for(fabrics: Sequence[Fabric], rails: str | None) -> dict[str, str]:
    """What tells the ranks their rails, where there is anything to tell.  Raises CannotRun for what cannot be."""
    asked = rails or os.environ.get(RAILS_VARIABLE, "")
    names = NAMES[: len(fabrics)]
    if not asked:
        return {RAILS_VARIABLE: "+".join(f"innet@{name}" for name in names)} if len(names) > 1 else {}
    try:
        parse_rails(asked, {name: Plane("", "") for name in names})
    except ValueError as error:
        raise CannotRun(f"rails {asked!r}: {error}") from error
    return {RAILS_VARIABLE: asked}


def chosen(fabric: Fabric, ranks: int | None) -> list[Host]:
    """Hosts by rank: the first ``ranks`` of a fabric, or all; of more ranks each host gets equally many, side by side.

    Raises CannotRun.
    """
    hosts = len(fabric.hosts)
    count = hosts if ranks is None else ranks
    if count < 1 or (count > hosts and count % hosts):
        raise CannotRun(
            f"run -np {ranks}: expected 1 to {hosts}, the hosts of {fabric.name}, or a multiple of {hosts}: what folds "
            "needs equally many ranks on every host"
        )
    return [host for host in fabric.hosts[:count] for _ in range(max(1, count // hosts))]


def mininet_hosts(names: Sequence[str], proc: Path = Path("/proc")) -> list[int]:
    """Process numbers of running Mininet hosts: of their shells, which say "mininet:NAME" in their command line.

    Raises CannotRun where one is missing, or where fabrics beside each other have hosts of one name.
    """
    found: dict[str, list[int]] = {name: [] for name in names}
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            said = path.read_bytes().split(b"\0")
        except OSError:  # it ended while we looked
            continue
        for word in said:
            name = word.removeprefix(b"mininet:").decode(errors="replace")
            if word.startswith(b"mininet:") and name in found:
                found[name].append(int(path.parent.name))
    missing = [name for name, pids in found.items() if not pids]
    if missing:
        raise CannotRun(
            f"no Mininet host here is called {', '.join(missing)}: bring the fabric up first (`netfold up --topo`) and "
            "run this at its prompt (`sh netfold run ...`), or as root beside `mn`; or let --topo make a fabric"
        )
    twice = {name: pids for name, pids in found.items() if len(pids) > 1}
    if twice:
        name, pids = next(iter(twice.items()))
        raise CannotRun(
            f"{len(pids)} Mininet hosts are called {name} (processes {', '.join(map(str, pids))}), of different "
            "fabrics: run this at the prompt of the one that is meant (`sh netfold run ...`)"
        )
    return [found[name][0] for name in names]


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise Stopped; further ones too, so that a person in a hurry goes on to the next
    step."""

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def console(
    fabrics: Sequence[Fabric], what: What, hosts: Sequence[Host], pids: Sequence[int]
) -> Iterator[Console]:
    """Starts the ranks; none of them outlives the block."""
    from netfold.topo.net import environment, start
    from netfold.topo.planes import planes_of

    ranks = Console(sys.stdout.buffer, sys.stderr.buffer)
    path = {"PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"}
    rails = rails_for(fabrics, what.rails)
    try:
        for rank, (host, pid) in enumerate(zip(hosts, pids, strict=True)):
            ours: Mapping[str, str] = {
                **path, **environment(fabrics[0], hosts, rank, job=what.job), **planes_of(fabrics, host.name), **rails,
            }  # fmt: skip
            ranks.add(host.name, start(what.command, pid, ours, subprocess.PIPE))
        yield ranks
    finally:
        ranks.kill()


@dataclass
class _Stream:
    """One pipe of one rank; ``rest`` is what came since its last newline."""

    rank: int
    pipe: IO[bytes]
    to: IO[bytes]
    rest: bytes = b""


class Console:
    """Ranks in the foreground: their output behind their numbers, and their ends.

    clock  monotonic seconds
    """

    def __init__(self, out: IO[bytes], errors: IO[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._errors, self._clock = out, errors, clock
        self._names: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._streams: list[_Stream] = []
        self._ends: dict[int, int] = {}

    def add(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """The next rank, on host ``name``, with pipes for output and errors."""
        assert process.stdout is not None
        assert process.stderr is not None
        rank = len(self._processes)
        self._names.append(name)
        self._processes.append(process)
        self._streams += [_Stream(rank, process.stdout, self._out), _Stream(rank, process.stderr, self._errors)]

    def run(self, *, grace: float, timeout: float | None = None, check: Callable[[], None] = lambda: None) -> int:
        """Hands on what ranks print until all have ended: 0, or the status of the first one that failed, 128 and its
        number for a signal, and the same for one that ends us.

        grace    seconds for the others after one has failed
        timeout  seconds for all of it; status 124 after them
        check    raises where what the ranks stand on is gone
        """
        status, end = 0, None if timeout is None else self._clock() + timeout
        due, steps = end, iter(STEPS)
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream.pipe, selectors.EVENT_READ, stream)
            running = set(range(len(self._processes)))
            with contextlib.ExitStack() as handles:
                for rank in running:
                    handle = os.pidfd_open(self._processes[rank].pid)
                    handles.callback(os.close, handle)
                    selector.register(handle, selectors.EVENT_READ, rank)
                while running:
                    try:
                        check()
                        wait = LOOK if due is None else min(LOOK, due - self._clock())
                        for rank in self._pump(selector, max(0.0, wait)):
                            running.discard(rank)
                            failed = self._status(rank)
                            if failed and not status:
                                status, due = failed, self._clock() + grace
                                if running:
                                    self._say(f"{_ranks(running)} may go on for {grace:g} s")
                        if running and due is not None and self._clock() >= due:
                            if not status:
                                status = 124
                                self._say(f"{timeout:g} s are over")
                            due = self._end(steps, running)
                    except Stopped as stopped:
                        status = status or 128 + int(stopped.args[0])
                        due = self._end(steps, running)
                self._drain(selector)
        return status

    def _pump(self, selector: selectors.BaseSelector, seconds: float) -> list[int]:
        """Hands on what there is, whole lines only; the ranks that have ended."""
        ended = []
        for key, _ in selector.select(seconds):
            if isinstance(key.data, int):
                selector.unregister(key.fileobj)
                self._ends[key.data] = _end_of(self._processes[key.data])
                ended.append(key.data)
                continue
            stream: _Stream = key.data
            data = os.read(key.fd, 65536)
            *lines, stream.rest = (stream.rest + data).split(b"\n")
            if not data:
                selector.unregister(stream.pipe)
                lines += [stream.rest] if stream.rest else []
            for line in lines:
                stream.to.write(b"[%*d] %s\n" % (len(str(len(self._processes) - 1)), stream.rank, line))
            stream.to.flush()
        return ended

    def _drain(self, selector: selectors.BaseSelector) -> None:
        """All ranks have ended: what is left in their pipes, and a moment for what they started and left running."""
        until = self._clock() + DRAIN
        while selector.get_map() and self._clock() < until:
            self._pump(selector, until - self._clock())

    def _status(self, rank: int) -> int:
        """The exit status of a rank that has ended; says so where it is a failure."""
        code = self._ends[rank]
        if code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            self._say(f"rank {rank} on {self._names[rank]} {how}")
        return 128 - code if code < 0 else int(code)

    def _end(self, steps: Iterator[tuple[str, int, float]], running: Set[int]) -> float:
        """The next step towards the end of those that still run; when to take the one after it."""
        name, number, seconds = next(steps, STEPS[-1])
        self._say(f"{_ranks(running)} {name}")
        for rank in running:
            _signal(self._processes[rank], number)
        return self._clock() + seconds

    def _say(self, what: str) -> None:
        self._errors.write(f"netfold: run: {what}\n".encode())
        self._errors.flush()

    def kill(self) -> None:
        """Ends at once what still runs, of what the ranks started, too."""
        for process in self._processes:
            _signal(process, signal.SIGKILL)
        for process in self._processes:
            process.wait(STEPS[-1][2])
        for stream in self._streams:
            stream.pipe.close()


def _ranks(ranks: Set[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}"


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To a rank and what it started: it leads a process group of its own, whose number is kept until it is reaped."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _end_of(process: subprocess.Popen[bytes]) -> int:
    """The status of a process that has ended, as Popen has it, without reaping it."""
    info = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert info is not None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

# SPDX-License-Identifier: Apache-2.0
"""The launcher's side of a fabric over machines: an agent on each, the controller on the first, and who was lost.

    with Fleet(describe(fabric, machines), launcher_of("ssh"), folder=folder, logs=logs, say=print) as fleet:
        fleet.status(); fleet.enter("h3", ["RANK"])

The launcher holds each agent's standard input and output, over ssh for example, and everything between machines but the
fabric's own packets goes through them: P4Runtime, the job service, and the output of ranks.  No switch and no
controller listens at a port, and what protects the launcher's way protects these.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cbuild import folders
from netfold.controller import client
from netfold.disk import files
from netfold.fabric import file as fabric_file
from netfold.fabric.graph import Fabric
from netfold.rpc import rpc
from netfold.topo.agents import attach
from netfold.topo.agents.frames import Kind, pack
from netfold.topo.agents.line import Line
from netfold.topo.machines.agent import TCP, Ready, far_sockets, sockets_of
from netfold.topo.machines.description import Description
from netfold.topo.machines.page import MachinesPage
from netfold.topo.network.startup import CONTROLLER_SECONDS, SWITCHES_SECONDS, with_sockets_in
from netfold.topo.processes.failures import ControllerFailed, FabricFailed
from netfold.topo.processes.lifecycle import Lifecycle, how_ended, tail, terminate
from netfold.wire import faults, operator

READY_SECONDS: Final = 120.0
"""Seconds for all machines to start their parts."""
SILENT_SECONDS: Final = 6.0
"""Seconds of a machine's silence after which it counts as cut off; its agent sends a sign of life each second."""
STOP_SECONDS: Final = 15.0
"""Seconds for a machine to end its part after its line was closed."""
LAUNCHERS: Final = {
    "ssh": "ssh -o BatchMode=yes -o ServerAliveInterval=5 -T {host}",
    "srun": "srun --nodes=1 --ntasks=1 --overlap --unbuffered --nodelist={host}",
}
"""Short names of launchers."""
SEATS: Final = "seats.json"
"""Name of a file beside the fabric's, with the data for `netfold run --fabric`: the line and the process of each
host."""


class Seat(msgspec.Struct, frozen=True):
    """Where a host is: the socket of its machine's line, the process whose namespaces it is, its machine's folder."""

    line: str
    pid: int
    folder: str

    def enter(self, only: Collection[str]) -> list[str]:
        """The command, to be started here, that runs the one after it in the host, with these variables."""
        return [*attach.command(self.line, [], only), "mnexec", "-a", str(self.pid)]


def launcher_of(text: str) -> list[str]:
    """The words of a launcher: a short name, or a command with ``{host}`` in it.  Raises FabricFailed."""
    try:
        words = shlex.split(LAUNCHERS.get(text, text))
    except ValueError as error:
        raise FabricFailed(f"--launcher {text!r}: {error}") from error
    if not any("{host}" in word for word in words):
        raise FabricFailed(f"--launcher {text!r}: expected {', '.join(LAUNCHERS)}, or a command in which {{host}} "
                           "stands for a machine's name, such as 'ip netns exec {host}'")
    return words


class _Member:
    """One machine, as the launcher sees it."""

    def __init__(self, description: Description, process: subprocess.Popen[bytes], line: Line, log: Path) -> None:
        self.description, self.process, self.line, self.log = description, process, line, log
        self.ready: Ready | None = None
        self.lost = False

    @property
    def name(self) -> str:
        return self.description.machine

    def gone(self, now: float) -> str | None:
        """Why this machine counts as lost, or None."""
        if self.process.poll() is not None:
            return f"its agent, or the launcher's way to it, {how_ended(self.process.returncode)}"
        if not self.line.is_alive():
            return "its agent has ended"
        if self.ready is not None and now - self.line.heard_at > SILENT_SECONDS:
            return f"nothing was heard of it for {SILENT_SECONDS:g} s"
        return None


class Fleet(Lifecycle):
    """A fabric that runs on several machines.

    descriptions  of the machines, that of the controller first
    launcher      as `launcher_of` returns it
    folder        for sockets; its path is short, and it is this user's alone
    logs          folder for the output of agents and of the controller
    say           is told, in a sentence or more, what was lost while the fabric runs
    python        the Python on all machines that has NetFold
    settings      options of the controller's `netfold up`
    page          of the controller, as it is reached here; None: no page
    """

    def __init__(self, descriptions: Sequence[Description], launcher: Sequence[str], *, folder: Path, logs: Path,
                 say: Callable[[str], None], python: str = sys.executable, settings: Sequence[str] = (),
                 page: MachinesPage | None = None) -> None:
        if shlex.quote(python) != python:
            raise FabricFailed(f"--python {python!r}: expected a path without spaces and signs of a shell, since ssh "
                               "gives it to one")
        self.descriptions = list(descriptions)
        self.fabric = with_sockets_in(descriptions[0].fabric, folder)
        self.file = folder / "fabric.toml"
        """The fabric file, for commands on this machine."""
        self._launcher, self._folder, self._logs = list(launcher), folder, logs
        self._say, self._python, self._settings, self.page = say, python, list(settings), page
        self._members: list[_Member] = []
        self._controller: subprocess.Popen[bytes] | None = None
        self.ranks: Mapping[str, Sequence[int]] = {}
        """Host -> ranks of the job that the launcher runs there, for messages about a lost machine."""
        self.is_up = False
        """True if all of it has started."""

    # ---- starting and stopping --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all machines' parts and the controller.  Raises FabricFailed, which names the machine."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for description in self.descriptions:
            self._members.append(self._launch(description))
        until = time.monotonic() + READY_SECONDS
        for member in self._members:
            while not member.line.ready.wait(0.1):
                self._starting(time.monotonic() > until, member)
            try:
                member.ready = msgspec.json.decode(member.line.said, type=Ready)
            except msgspec.MsgspecError as error:
                raise FabricFailed(f"machine {member.name}: its answer is not what an agent says: {error}") from error
        fabric_file.save(self.fabric, self.file)
        (self._folder / SEATS).write_bytes(msgspec.json.encode(self.seats()))
        self.start_controller()
        self.is_up = True

    def _launch(self, description: Description) -> _Member:
        """Start one machine's agent.  Raises FabricFailed."""
        doors: dict[str, socket.socket] = {}
        places = {name: self._folder / name for name in sockets_of(description)}
        for name, path in (places | {faults.MACHINE_SOCKET: self.faults_at(description.machine)}).items():
            doors[name] = socket.socket(socket.AF_UNIX)
            doors[name].bind(str(path))
            path.chmod(0o600)
            doors[name].listen(64)
        if self.page is not None and description.controller:
            doors[f"{TCP}{self.page.port}"] = self.page.listener
        ours, theirs = socket.socketpair()
        command = [word.replace("{host}", description.machine) for word in self._launcher]
        command += [self._python, "-m", "netfold.topo.machines.agent"]
        log = self._logs / f"machine-{len(self._members) + 1}.log"
        with theirs, files.create(log) as errors:
            try:
                process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(),
                                           stderr=errors, start_new_session=True)
            except OSError as error:
                ours.close()
                raise FabricFailed(f"machine {description.machine}: cannot start {command[0]}: {error.strerror}: "
                                   "expected a launcher that is installed here (--launcher)") from error
        far = [self._folder / name for name in far_sockets(description)
               if name != faults.SOCKET or self.page is not None]  # it is the last one
        line = Line(ours, self._folder / f"machine{len(self._members) + 1}.line", far, doors, alive=True,
                    first=pack(0, Kind.DESCRIBE, msgspec.json.encode(description)))
        return _Member(description, process, line, log)

    def _starting(self, late: bool, awaited: _Member) -> None:
        """Raise FabricFailed where a machine does not come up."""
        for member in self._members:
            if member.line.failures:
                raise FabricFailed(self._failure(member, member.line.failures.popleft()))
            if (why := member.gone(time.monotonic())) is not None:
                # what it said last may still be on its way
                member.line.join(1.0)
                said = member.line.failures.popleft() if member.line.failures else f"did not start: {why}"
                raise FabricFailed(self._failure(member, said))
        if late:
            raise FabricFailed(self._failure(awaited, f"has not started its part within {READY_SECONDS:g} s"))

    def _failure(self, member: _Member, what: str) -> str:
        named = what if what.startswith("machine ") else f"machine {member.name}: {what}"
        lines = [named, f"  started by {shlex.join(map(str, member.process.args))}"]  # type: ignore[arg-type]
        if said := tail(member.log):
            lines += ["  it wrote:", *(f"    {line}" for line in said)]
        return "\n".join(lines)

    def start_controller(self) -> None:
        """Start the controller on the first machine and wait until it serves jobs.  Raises ControllerFailed, and
        FabricFailed where a machine is lost while the fabric starts."""
        first = self._members[0]
        assert first.ready is not None
        command = attach.command(str(self._line(first)), [
            self._python, "-m", "netfold.cli", "up", f"{first.ready.folder}/fabric.toml", "--verbose", "--timeout",
            f"{SWITCHES_SECONDS:g}", *self._settings,
        ], ["LANG", faults.FAULTS_VARIABLE, faults.KEY_VARIABLE])
        log = self._logs / "controller.log"
        with files.append(log) as output:
            self._controller = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                start_new_session=True, cwd="/",
                                                env=self._controller_environment(first.ready))
        started, patience = time.monotonic(), 0.5
        while True:
            with contextlib.suppress(rpc.Unreachable):
                self.status(timeout=patience)
                return
            # one that is there may need longer for an answer, which it has of all switches, on a busy machine
            patience = min(1.5 * patience, CONTROLLER_SECONDS / 4)
            if not self.is_up:  # else whoever watches the fabric checks
                self.check()
                if lost := [member.name for member in self._members if member.lost]:
                    raise FabricFailed(f"machine {', '.join(lost)} was lost while the fabric started, see above: the "
                                       "fabric ends")
            if time.monotonic() - started > CONTROLLER_SECONDS:
                raise ControllerFailed(self._controller_failure(f"does not answer after {CONTROLLER_SECONDS:g} s"))
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._controller.wait(0.1)

    def _controller_environment(self, first: Ready) -> dict[str, str]:
        """The environment of the controller: with the way to inject faults where its page is to have buttons for them.
        The key is in no command, which every user of a machine can read."""
        names = (faults.FAULTS_VARIABLE, faults.KEY_VARIABLE)
        environment = {name: value for name, value in os.environ.items() if name not in names}
        if self.page is not None:
            environment |= zip(names, (f"{first.folder}/{faults.SOCKET}", self.page.key), strict=True)
        return environment

    @property
    def has_controller(self) -> bool:
        """True if the controller runs."""
        return self._controller is not None

    def kill_controller(self) -> None:
        """Kill the controller, as an injected fault: until `start_controller` there is none, and that is no failure."""
        controller, self._controller = self._controller, None
        assert controller is not None, "there is no controller"
        controller.kill()  # its machine kills what the line's other end has started
        controller.wait(CONTROLLER_SECONDS)

    def _controller_failure(self, what: str) -> str:
        log = self._logs / "controller.log"
        return "\n".join([f"the controller of {self.fabric.name}, on machine {self.descriptions[0].machine}, {what}",
                          f"  log  {log}, its end:", *(f"    {line}" for line in tail(log))])

    def stop(self) -> None:
        """End everything on all machines: each ends when its line is closed."""
        if self._controller is not None:
            terminate(self._controller)
            self._controller = None
        for member in self._members:
            member.line.close()
        until = time.monotonic() + STOP_SECONDS
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(max(0.1, until - time.monotonic()) if not member.lost else 0.1)
            if member.process.poll() is None:
                _kill(member.process)
        self._members.clear()

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Tell of machines and switches that were lost since the last call.  Raises FabricFailed where the controller
        is among them, or no machine is left."""
        now = time.monotonic()
        for member in self._members:
            while member.line.failures:
                self._say(f"machine {member.name}: {member.line.failures.popleft()}")
            if not member.lost and (why := member.gone(now)) is not None:
                member.lost = True
                member.line.close()
                _kill(member.process)
                told = self.loss(member.description, why)
                if member.description.controller:
                    raise FabricFailed(f"{told}\nIt ran the controller: the fabric ends")
                self._say(told)
        if self._controller is not None and (status := self._controller.poll()) is not None:
            raise ControllerFailed(self._controller_failure(f"ended with status {status}"))

    def loss(self, description: Description, why: str) -> str:
        """The message about a lost machine: its nodes and ranks."""
        ranks = [f"{rank} ({host})" for host in description.hosts for rank in self.ranks.get(host, ())]
        cables = [f"{cable.switch}:{cable.port} - {cable.there} (to {cable.machine})" for cable in description.cables]
        lines = [f"machine {description.machine} ({description.address}) is cut off or has failed: {why}. On it were:",
                 f"  switches  {', '.join(description.switches)}",
                 f"  hosts     {', '.join(description.hosts) or 'none'}"]
        if self.ranks:
            lines.append(f"  ranks     {', '.join(ranks) or 'none'}")
        return "\n".join([*lines, f"  cables    {', '.join(cables) or 'none'}"])

    def status(self, timeout: float = client.TIMEOUT) -> operator.Status:
        """Ask the controller for the status of the fabric.  Raises rpc.Unreachable."""
        try:
            return asyncio.run(client.status(self.fabric.jobs, timeout=timeout))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None  # as in Network.status

    def seats(self) -> dict[str, Seat]:
        """Where each host is."""
        return {host: Seat(str(self._line(member)), pid, member.ready.folder)
                for member in self._members if member.ready is not None for host, pid in member.ready.hosts.items()}

    @property
    def jobs(self) -> str:
        """Address at which the controller answers this process."""
        return self.fabric.jobs

    def runs(self, node: str) -> bool:
        """True if a node has a namespace: all have."""
        return True

    def machines(self) -> list[str]:
        """The names of the machines that are not lost."""
        return [member.name for member in self._members if not member.lost]

    def machine_of(self, node: str) -> str:
        """The name of the machine that runs a node."""
        return next(description.machine for description in self.descriptions if node in description.nodes)

    def place_of(self, machine: str) -> tuple[str, str, str]:
        """For a machine: its folder there, its line's socket here, and the Python there."""
        member = next(member for member in self._members if member.name == machine)
        assert member.ready is not None
        return member.ready.folder, str(self._line(member)), self._python

    def faults_at(self, machine: str) -> Path:
        """The socket here at which a machine serves the faults of its own part."""
        number = [description.machine for description in self.descriptions].index(machine) + 1
        return self._folder / f"faults-{number}.sock"

    def execute(self, machine: str, argv: Sequence[str], seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine, in its sandbox, where its switches are, and return its status and output."""
        member = next(member for member in self._members if member.name == machine)
        return subprocess.run(attach.command(str(self._line(member)), argv, ["LANG"]), cwd="/",
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)

    def _line(self, member: _Member) -> Path:
        return self._folder / f"machine{self._members.index(member) + 1}.line"


def seats_beside(file: Path) -> dict[str, Seat] | None:
    """Where the hosts of the fabric of this file are, by their names; None where it does not run over machines: only a
    launcher's folder, which is this user's alone, says so."""
    if folders.refusal(file.parent, ours=True) is not None:
        return None
    try:
        content = (file.parent / SEATS).read_bytes()
    except OSError:
        return None
    return msgspec.json.decode(content, type=dict[str, Seat])


def seat_fabric(fabric: Fabric, seat: Seat) -> Fabric:
    """The fabric as programs in this host see it: with the sockets of their machine."""
    return with_sockets_in(fabric, Path(seat.folder))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a launcher's process and what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

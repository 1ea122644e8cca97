# SPDX-License-Identifier: Apache-2.0
"""Runs one machine's part of a fabric, for a launcher that holds this program's standard input and output.

    python -m netfold.topo.machines.agent

The first frame on standard input (agents/frames.py) is a `Description`.  The program enters a sandbox (sandbox.py),
starts the part, and answers READY, or FAILED with the reason.  Then it runs commands, carries connections between the
sockets of this machine and those of the others, by the launcher, and tells of switches that end.  When standard input
is closed, or the launcher has been silent for SILENT_SECONDS, it ends, and with it everything that it has started.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from netfold.fabric import file as fabric_file
from netfold.fabric.graph import FabricError
from netfold.fabric.validity import validate
from netfold.topo.agents.agent import Agent
from netfold.topo.agents.frames import HEADER, MOST_RUN, Kind, pack
from netfold.topo.machines import cables
from netfold.topo.machines.description import Description
from netfold.topo.network import sandbox
from netfold.topo.network.mininet_path import MininetMissing
from netfold.topo.processes import ranks
from netfold.topo.processes.failures import FabricFailed, SwitchFailed
from netfold.topo.processes.forks import Forked
from netfold.wire import faults

SILENT_SECONDS: Final = 15.0
"""Seconds of the launcher's silence after which this machine's part ends; the launcher sends a sign of life each
second."""
LOOK_SECONDS: Final = 1.0
"""Seconds between checks of the processes here."""
PROGRAMS: Final = ("ip", "nsenter", "mnexec", "ethtool", "tc")
TCP: Final = "tcp:"
Process: TypeAlias = subprocess.Popen[bytes] | Forked


class Ready(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An agent's report that its part runs: its folder, and the processes of hosts and switches by name."""

    folder: str
    hosts: dict[str, int]
    switches: dict[str, int]


class MachineAgent(Agent):
    """Serves the launcher's line while one machine's part of a fabric runs; ``network`` is that part, once it runs."""

    def __init__(self, description: Description, folder: Path, out: int) -> None:
        self.folder = folder
        self.sockets = [str(folder / name) for name in far_sockets(description)]
        super().__init__(0, self.sockets, out)
        os.set_blocking(out, False)
        self._heard = time.monotonic()
        self._told: set[int] = set()
        self._starting: dict[int, tuple[str, Future[Process], list[tuple[Kind, bytes]]]] = {}
        """The commands whose start is under way, by channel: the name, the process to come, and what arrived for it."""
        self.network: Any = None

    def heard(self) -> None:
        """The launcher is there."""
        self._heard = time.monotonic()

    def look(self) -> None:
        """Say that this machine is there, tell of switches that have ended, and end where nobody listens any more."""
        if time.monotonic() - self._heard > SILENT_SECONDS:
            raise SystemExit(f"the launcher has been silent for {SILENT_SECONDS:g} s")
        self._send(0, Kind.ALIVE)
        for switch in self.network.switches:
            if switch.name in self.network.excused:
                continue
            try:
                switch.check()
            except SwitchFailed as error:
                if switch.child.pid not in self._told:
                    self._told.add(switch.child.pid)
                    self._send(0, Kind.FAILED, str(error).encode()[:60_000])

    def _send(self, channel: int, kind: Kind, content: bytes = b"") -> None:
        """Send a frame, and end where nobody reads it."""
        data = memoryview(pack(channel, kind, content))
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                if not select.select([], [self._out], [], SILENT_SECONDS)[1]:
                    raise SystemExit(f"the launcher has read nothing for {SILENT_SECONDS:g} s") from None

    def environment(self, sent: Mapping[str, str]) -> Mapping[str, str]:
        """This machine's own environment, with what was sent for the command."""
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, **sent}

    def start(self, argv: Sequence[str], folder: str, environment: Mapping[str, str]) -> Process:
        """The controller and ranks are forks of processes that have imported what they need, ranks in their hosts."""
        from netfold.topo.network import switches

        if argv[:2] == ["mnexec", "-a"]:
            forks, namespaces, argv = ranks.FORKS, ranks.in_namespaces(int(argv[2])).files, argv[3:]
        elif argv[0] == sys.executable:
            forks, namespaces = switches.FORKS, ()
        else:
            return super().start(argv, folder, environment)
        os.stat(folder)
        return forks.start(argv, subprocess.PIPE, subprocess.PIPE, input=subprocess.PIPE, environment=environment,
                           namespaces=namespaces, folder=folder)

    def _run(self, channel: int, wanted: dict[str, Any]) -> None:
        """Start a command on a thread of its own: a fork server may import for longer than the launcher waits for a
        sign of life."""
        coming: Future[Process] = Future()
        self._starting[channel] = wanted["argv"][0], coming, []
        self._send(channel, Kind.HOLD)
        start = partial(self.start, wanted["argv"], wanted["cwd"], self.environment(wanted["env"]))
        threading.Thread(target=self._bring, args=(coming, start), name="start of a command", daemon=True).start()

    def _bring(self, coming: Future[Process], start: Callable[[], Process]) -> None:
        """On the thread of a start: have `collect` find the process, or why there is none."""
        try:
            coming.set_result(start())
        except BaseException as error:
            coming.set_exception(error)
        with contextlib.suppress(BlockingIOError):  # it is woken already
            self._wake.send(b"x")

    def _obey(self, channel: int, kind: Kind, content: bytes) -> None:
        """Frames for a command that has not started yet wait for its start."""
        if channel in self._starting:
            self._starting[channel][2].append((kind, content))
        else:
            super()._obey(channel, kind, content)

    def _started(self, coming: Future[Process]) -> Process:
        """The process of a start that is over, whose end will be seen.  Raises what the start has raised."""
        process = coming.result()
        if isinstance(process, Forked):
            self._watch(file := os.pidfd_open(process.pid), partial(self._over, file))
        return process

    def _over(self, file: int) -> None:
        """A process that is no child of this one has ended."""
        self._unwatch(file)
        os.close(file)
        self.collect()

    def collect(self) -> None:
        """Serve commands that have started, and collect those that have ended; the fabric's own processes are collected
        by those who started them."""
        for channel, (name, coming, arrived) in list(self._starting.items()):
            if coming.done():
                del self._starting[channel]
                self._begin(channel, name, partial(self._started, coming))
                for kind, content in arrived:
                    self._obey(channel, kind, content)
                self._send(channel, Kind.GO)
        for channel, command in list(self._commands.items()):
            if command.process.poll() is not None:
                self._ended(channel, command)

    def connect(self, name: str) -> socket.socket:
        """A connection to a socket in this machine's folder, or to a port of the sandbox's loopback (``tcp:PORT``)."""
        if name.startswith(TCP):
            return socket.create_connection(("127.0.0.1", int(name.removeprefix(TCP))), timeout=5)
        if "/" in name:
            raise OSError(f"{name}: expected the name of a socket")
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(self.folder / name))
        return connected


def sockets_of(description: Description) -> list[str]:
    """The names of the sockets at which this machine's processes listen."""
    return [f"{name}.sock" for name in description.switches] + ["controller.sock"] * description.controller


def far_sockets(description: Description) -> list[str]:
    """The names of the sockets at which other machines' processes listen, in the order that agents count."""
    here = set(sockets_of(description))
    every = [f"{switch.name}.sock" for switch in description.fabric.switches] + ["controller.sock"]
    # where the controller runs, the page's fault buttons ask the launcher
    return [name for name in every if name not in here] + [faults.SOCKET] * description.controller


def check(description: Description) -> None:
    """Raise FabricFailed or FabricError where this machine cannot run its part; nothing has been changed then."""
    ours = metadata.version("netfold")
    if description.version != ours:
        raise FabricFailed(f"machine {description.machine} has NetFold {ours}, the launcher {description.version}: "
                           "expected the same version on all machines")
    validate(description.fabric)
    unknown = set(description.nodes) - {node.name for node in description.fabric.nodes}
    if unknown or not description.switches:
        raise FabricFailed(f"machine {description.machine}: expected switches and hosts of {description.fabric.name}, "
                           f"got {', '.join(sorted(unknown)) or 'no switch'}")
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        raise FabricFailed(f"machine {description.machine} lacks {', '.join(missing)}: apt install mininet iproute2 "
                           "ethtool util-linux")
    if description.cables and os.geteuid() != 0:
        raise FabricFailed(f"machine {description.machine}: VXLAN interfaces on the machine's own network need root, "
                           f"got user {os.geteuid()}: name it root@{description.machine}, or let the launcher use sudo")


def main() -> int:
    """The program."""
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    out = os.dup(1)
    # what others print belongs to the log, not between frames
    os.dup2(2, 1)
    try:
        description = _read_description()
        check(description)
        underlay = cables.underlay(description)
        outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    except (FabricFailed, FabricError, OSError) as error:
        return _failed(error, out)
    return sandbox.launch(lambda: _inside(description, outside, out, underlay))


def _failed(error: Exception, out: int) -> int:
    """Tell the launcher, and the log, why this machine's part does not run; returns an exit status."""
    os.write(out, pack(0, Kind.FAILED, str(error).encode()[:60_000]))
    print(f"netfold: {error}", file=sys.stderr)
    return 1


def _read_description() -> Description:
    """The first frame of standard input.  Raises FabricFailed."""
    channel, kind, length = HEADER.unpack(_read(HEADER.size))
    if channel != 0 or kind != Kind.DESCRIBE or length > MOST_RUN:
        raise FabricFailed("standard input: expected a description of this machine's part, from `netfold up`")
    try:
        return msgspec.json.decode(_read(length), type=Description)
    except msgspec.MsgspecError as error:
        raise FabricFailed(f"the description of this machine's part: {error}: expected one by NetFold "
                           f"{metadata.version('netfold')}, which this machine has") from error


def _read(length: int) -> bytes:
    data = b""
    while len(data) < length:
        more = os.read(0, length - len(data))
        if not more:
            raise SystemExit("standard input was closed before it described anything")
        data += more
    return data


def _inside(description: Description, outside: int, out: int, underlay: str) -> NoReturn:
    """Run the part in this process, inside the sandbox, and end with it.

    outside  file descriptor of the machine's own network namespace
    out      file descriptor to which frames are written
    """
    status = 1
    try:
        _serve(description, outside, out, underlay)
    except (FabricFailed, FabricError, MininetMissing, OSError) as error:
        status = _failed(error, out)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _serve(description: Description, outside: int, out: int, underlay: str) -> None:
    """Run the part until the launcher closes the line."""
    import mininet  # noqa: F401
    from mininet.log import setLogLevel

    from netfold.topo.fault_service import FaultService
    from netfold.topo.network.net import Network
    from netfold.topo.network.startup import with_sockets_in
    from netfold.topo.network.switches import CLASSES

    setLogLevel("error")
    folder = sandbox.rundir()
    fabric = with_sockets_in(description.fabric, folder)
    fabric_file.save(fabric, folder / "fabric.toml")
    (folder / "logs").mkdir()
    placed = msgspec.structs.replace(description, fabric=fabric)
    agent = MachineAgent(description, folder, out)
    ends = cables.VxlanCables(placed, outside, underlay, CLASSES[fabric.engine].offload)
    network = Network(placed.part(), logs=folder / "logs", controller=False, guests=ends, mtu=description.mtu)
    with FaultService([network], folder, faults.MACHINE_SOCKET, tells=False), network:
        agent.network = network
        network.fabric, network.is_up = placed.reached(), True
        ready = Ready(str(folder), {name: network.mininet.get(name).pid for name in description.hosts},
                      {switch.name: switch.child.pid for switch in network.switches if switch.child})
        agent.serve(msgspec.json.encode(ready), LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

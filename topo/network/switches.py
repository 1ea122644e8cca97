# SPDX-License-Identifier: Apache-2.0
"""Switch classes for Mininet with the same options: `SoftSwitch` runs softswitch, `Bmv2Switch` the reference switch.

A switch is ready when its P4Runtime server answers.  The error of one that does not answer has its command line, the
first line and end of its log, its address, and the process that uses the address already, if any.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import grpc
from grpc import ChannelCredentials
from mininet.node import Switch

from netfold.disk import files
from netfold.fabric.graph import CPU_PORT, Engine
from netfold.rpc.certificates import Certificates, is_local
from netfold.topo.network import sandbox
from netfold.topo.network.shells import WatchedShell
from netfold.topo.processes.failures import SwitchFailed
from netfold.topo.processes.forks import ChildProcess, Forks
from netfold.topo.processes.lifecycle import LOG_LINES, how_ended, terminate

READY_SECONDS: Final = 60.0
"""Seconds for a switch to answer; several start at once on few cores."""
HELP_SECONDS: Final = 30.0
"""Seconds for a program to print its help."""

FORKS: Final = Forks("softswitch.cli.run", "softswitch.cli.start", "softswitch.compiler.driver",
               "softswitch.p4runtime.program", "softswitch.p4runtime.server", "softswitch.thrift",
               "grpc._interceptor", "grpc._server", "netfold.cli.app", "netfold.cli.entry", "netfold.cli.up",
               "netfold.controller.controller", "netfold.controller.garbage", "netfold.p4src",
               "pydantic.type_adapter", "pydantic.types")
"""These import all that a switch imports until its first program runs, and all that the controller does, which is
forked from the same process: jobs whose trees break while there is none wait for its start.  With those of pydantic,
where they are there, new versions of typer read options: a tenth of the processor time of a controller's start."""


class P4Switch(ABC, WatchedShell, Switch):  # type: ignore[misc]
    """A P4Runtime target as a Mininet switch, without a program until a controller pushes one.

    grpc       P4Runtime address, ``host:port`` or ``unix:/path``
    device_id  P4Runtime device
    cpu_port   port of packet-in and packet-out
    tls        what its P4Runtime server shows and whom it trusts, at ``host:port``; None: plain
    trust      credentials with which its P4Runtime server is asked whether it is ready, where it speaks TLS
    log        file for its output; default: NAME.log in a folder of this user's (sandbox.private_folder)
    pcap       folder for a capture of each port, or None
    """

    engine: ClassVar[Engine]
    offload: ClassVar[bool]
    """True if it accepts the super-packets of segmentation offload."""
    binaries: ClassVar[tuple[str, ...]]
    missing: ClassVar[str]
    """Advice if a binary is not installed."""

    def __init__(
        self,
        name: str,
        *,
        grpc: str,
        device_id: int,
        cpu_port: int = CPU_PORT,
        tls: Certificates | None = None,
        trust: ChannelCredentials | None = None,
        log: str | Path | None = None,
        pcap: str | Path | None = None,
        **params: Any,
    ) -> None:
        self.grpc = grpc
        self.device_id = device_id
        self.cpu_port = cpu_port
        self.tls = tls
        self.trust = trust
        self.log = Path(log) if log is not None else sandbox.private_folder() / f"{name}.log"
        self.pcap = None if pcap is None else Path(pcap)
        self.child: ChildProcess | None = None
        self._started = 0.0
        params.setdefault("dpid", f"{device_id:x}")
        params["inNamespace"] = False
        super().__init__(name, **params)

    # ---- to be defined by each engine ----------------------------------------------------------------------------

    @abstractmethod
    def command(self) -> list[str]:
        """The command line."""

    # ---- what Mininet calls --------------------------------------------------------------------------------------

    @classmethod
    def setup(cls) -> None:
        """Check, before Mininet builds anything, that the programs are installed.  Raises SwitchFailed."""
        for binary in cls.binaries:
            find_program(binary, cls.missing)

    def start(self, controllers: Sequence[object]) -> None:
        """Start the process; `batchStartup` waits for all switches."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._started = time.monotonic()
        with files.create(self.log) as log:
            self.child = self.spawn(self.command(), log)

    def spawn(self, command: list[str], log: IO[bytes]) -> ChildProcess:
        """Run the command line, in a session of its own: Ctrl-C at the Mininet prompt is not meant for the switches.
        Raises SwitchFailed."""
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    @classmethod
    def batchStartup(cls, switches: Sequence[P4Switch]) -> Sequence[P4Switch]:
        """Wait until all switches answer.  Raises SwitchFailed for the first that does not."""
        for switch in switches:
            switch.wait_ready()
        return switches

    @classmethod
    def batchShutdown(cls, switches: Sequence[P4Switch]) -> Sequence[P4Switch]:
        """Ask all switches to end, so that `stop` need not wait for each in turn; none of them is stopped yet."""
        for switch in switches:
            if switch.child is not None and switch.child.poll() is None:
                switch.child.send_signal(signal.SIGTERM)
        return ()

    def stop(self, deleteIntfs: bool = True) -> None:
        """End the process that `start` started."""
        if self.child is not None:
            terminate(self.child)
        super().stop(deleteIntfs)

    # ---- readiness and failure -----------------------------------------------------------------------------------

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Ask the P4Runtime server for its capabilities until it answers.  Raises SwitchFailed."""
        assert self.child is not None, f"{self.name} was not started"
        options = [("grpc.enable_http_proxy", 0), ("grpc.initial_reconnect_backoff_ms", 100),
                   ("grpc.max_reconnect_backoff_ms", 300)]
        end = self._started + seconds
        with (grpc.insecure_channel(self.grpc, options=options) if self.trust is None
              else grpc.secure_channel(self.grpc, self.trust, options=options)) as channel:
            ask = channel.unary_unary("/p4.v1.P4Runtime/Capabilities", bytes, bytes)
            while True:
                self.check()
                try:
                    # bytes in, bytes out: an empty CapabilitiesRequest is the empty string
                    ask(b"", timeout=max(0.05, min(0.5, end - time.monotonic())), wait_for_ready=True)
                    return
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        raise SwitchFailed(self.failure(f"answered {error.code().name}: {error.details()}")) from error
                if time.monotonic() >= end:
                    raise SwitchFailed(self.failure(f"did not answer within {seconds:g} s"))

    def check(self) -> None:
        """Raise SwitchFailed where the process has ended."""
        assert self.child is not None, f"{self.name} was not started"
        status = self.child.poll()
        if status is not None:
            seconds = time.monotonic() - self._started
            raise SwitchFailed(self.failure(f"{how_ended(status)} {seconds:.1f} s after its start"))

    def failure(self, what: str) -> str:
        """The message of a failure: what happened, the command line, the address, the log's first line and its end."""
        first, end = excerpt(self.log)
        holder = holder_of(self.grpc, but_not=None if self.child is None else self.child.pid)
        return "\n".join(
            [
                f"switch {self.name} ({self.engine}) {what}",
                f"  command   {shlex.join(self.command())}",
                f"  P4Runtime {self.grpc}" + (f", which {holder} holds" if holder else ""),
                f"  log       {self.log}" + ("" if first else " (empty)"),
                *(["  The log's first line:", f"    {first}"] if first else []),
                *(["  The log's end:", *(f"    {line}" for line in end)] if end else []),
            ]
        )

    def server_options(self) -> list[str]:
        """Options of the P4Runtime server, which both engines share.  Raises SwitchFailed."""
        options = ["--grpc-server-addr", self.grpc, "--cpu-port", str(self.cpu_port)]
        if self.tls is None:
            if not is_local(self.grpc):
                raise SwitchFailed(f"{self.name}: other machines may reach {self.grpc}: expected tls, loopback, or a "
                                   "unix socket")
            return options
        options += ["--grpc-server-ssl", "--grpc-server-cert", str(self.tls.certificate), "--grpc-server-key",
                    str(self.tls.key)]
        if self.tls.ca is not None:
            options += ["--grpc-server-cacert", self.tls.ca, "--grpc-server-with-client-auth"]
        return options

    def interfaces(self) -> list[tuple[int, str]]:
        """(port number, interface name) of every port, in order."""
        return sorted((port, intf.name) for port, intf in self.intfs.items() if intf.name != "lo")


class SoftSwitch(P4Switch):
    """The embedded P4 switch."""

    engine = "softswitch"
    offload = True
    binaries = ("softswitch",)
    missing = "it comes with NetFold: make setup"

    def command(self) -> list[str]:
        """`softswitch --no-p4 ...`: the program comes over P4Runtime, from the primary of the default role: whoever
        wants to write must take the switch from the controller, which notices that."""
        ports = [f"{port}@{name}" for port, name in self.interfaces()]
        return [
            find_program("softswitch", self.missing), "--no-p4", "--default-role-only",
            *(word for port in ports for word in ("-i", port)),
            *self.server_options(), "--device-id", str(self.device_id),
            *(["--pcap", str(self.pcap)] if self.pcap else []),
        ]

    def spawn(self, command: list[str], log: IO[bytes]) -> ChildProcess:
        """The same by a fork of a process that has imported what a switch needs.  Raises SwitchFailed."""
        try:
            return FORKS.start(command, log, log)
        except OSError as error:
            raise SwitchFailed(f"{self.name}: softswitch's fork server did not start it ({error}): run "
                               f"{shlex.join(command)} by hand to see why") from error


class Bmv2Switch(P4Switch):
    """BMv2's simple_switch_grpc."""

    engine = "bmv2"
    offload = False
    binaries = ("simple_switch_grpc", "p4c-bm2-ss")
    missing = (
        "build p4lang/p4c and p4lang/behavioral-model, or install Debian packages of theirs, or use --switch softswitch"
    )

    def command(self) -> list[str]:
        """`simple_switch_grpc --no-p4 ... -- ...`: target options come after the dashes."""
        ports = [f"{port}@{name}" for port, name in self.interfaces()]
        program = find_program("simple_switch_grpc", self.missing)
        return [
            program, "--no-p4",
            *(word for port in ports for word in ("-i", port)),
            "--device-id", str(self.device_id), "--log-level", "warn",
            *notifications(program, self.name),
            "--thrift-port", str(thrift_port(self.device_id)),
            *(["--pcap", str(self.pcap)] if self.pcap else []),
            "--", *self.server_options(),
        ]


CLASSES: Final[dict[Engine, type[P4Switch]]] = {"softswitch": SoftSwitch, "bmv2": Bmv2Switch}


def notifications(program: str, name: str) -> list[str]:
    """The option that gives a BMv2 a socket of its own for notifications: its default path depends on nothing but the
    device id, so that two of one machine would meet there.  Nothing, where it has none.  Raises SwitchFailed."""
    if not has_option(program, "--notifications-addr"):
        return []
    return ["--notifications-addr", f"ipc://{sandbox.private_folder()}/bmv2-{os.getpid()}-{name}.ipc"]


def thrift_port(device_id: int) -> int:
    """A TCP port for BMv2's Thrift server, which needs one in every process, used or not."""
    return 10_000 + device_id % 40_000


@functools.cache
def has_option(program: str, option: str) -> bool:
    """True if a program's --help names an option: BMv2 that was built without nanomsg has no notifications.

    A longer option that contains the name does not count.  Raises SwitchFailed where the help cannot be had.
    """
    try:
        done = subprocess.run([program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=HELP_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise SwitchFailed(f"{program} --help did not end within {HELP_SECONDS:g} s: run it by hand, and install the "
                           "program again if it hangs there too") from error
    except OSError as error:
        raise SwitchFailed(f"{program} --help cannot be run ({error}): install the program again, for this "
                           "machine's processor") from error
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", done.stdout + done.stderr) is not None


def find_program(name: str, missing: str) -> str:
    """Path of a program: of this environment's first, then of PATH.  Raises SwitchFailed."""
    beside = Path(sys.prefix) / "bin" / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise SwitchFailed(f"{name} is neither in {beside.parent} nor on PATH: {missing}")
    return found


def holder_of(address: str, but_not: int | None = None) -> str | None:
    """The process that listens on ``host:port``, as ``ss`` sees it, or None."""
    port = address.rpartition(":")[2]
    if address.startswith("unix:") or not port.isdecimal() or shutil.which("ss") is None:
        return None
    done = subprocess.run(
        ["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, timeout=5, check=False
    )
    for name, pid in re.findall(r'\("([^"]*)",pid=(\d+)', done.stdout):
        if int(pid) != but_not:
            return f"process {pid} ({name})"
    return "another process" if done.stdout.strip() and "pid=" not in done.stdout else None


def excerpt(path: Path, lines: int = LOG_LINES) -> tuple[str, list[str]]:
    """The first non-empty line of a log, and the last lines after it without a printed help; empty without a log.

    A help is a line that begins with a heading such as "Usage:", and the indented and empty lines that follow it.
    """
    try:
        every = path.read_text(errors="replace").rstrip().splitlines()
    except FileNotFoundError:
        return "", []
    kept, inside = [], False
    for line in every:
        inside = line.startswith(("Usage:", "Options:", "Allowed options")) or (inside and not line[:1].strip())
        if not inside:
            kept.append(line)
    told = [line for line in kept if line.strip()] or [line for line in every if line.strip()][:1]
    return (told[0], told[1:][-lines:]) if told else ("", [])

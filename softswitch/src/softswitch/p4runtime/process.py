# SPDX-License-Identifier: Apache-2.0
"""The native switch process: one per pushed program, a child of the server, reached through a socket pair.

    process = SwitchProcess(executable, Settings(ports=(Port(1, "eth1"), Port(2, "eth2"))), on_event=print)
    process.engine.insert(entry)          # before a frame can arrive
    process.start()                       # ports begin to receive
    process.close()

When the native process ends by itself, `death` has the reason (signal, and the frame that was in the pipeline), which
is logged as well; `on_death` is called once, and every engine call raises Internal. Where it does not start, only the
constructor says so. One that gives no sign of life (watchdog.py) is ended, which counts as a death of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from softswitch.engine.engine import Engine
from softswitch.engine.entities import Event
from softswitch.engine.errors import EngineError, Internal, NotFound
from softswitch.engine.transport import OverSocket
from softswitch.p4runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from softswitch.trace.recording import Tracing

log = logging.getLogger(__name__)

START_TIMEOUT = 10.0
"""Seconds within which a new process must answer its first request."""

_STOP_TIMEOUT = 3.0
_OP_START, _OP_PORTS, _OP_CONFINED, _OP_LIMIT, _OP_ADD_PORT, _OP_REMOVE_PORT = 100, 101, 102, 103, 104, 105
_ALL_PORTS = 0xFFFFFFFF
_STATS = struct.Struct("<10Q")


@dataclass(frozen=True)
class Port:
    """A switch port on a Linux interface."""

    number: int
    interface: str


PORT_MAX = 510
"""The highest number of a port; 511 drops."""


class Limit(IntEnum):
    """The unit in which a port's queue is limited; the numbers are those of runtime/io.h."""

    DEPTH = 0
    """Most frames that may wait."""
    RATE = 1
    """Most frames per second that leave; 0: as many as the link accepts."""


@dataclass(frozen=True)
class Settings:
    """Settings that are independent of the program.

    queue   frames that may wait at each port
    threads  one processes all packets; the others receive and send while super-packets come
    join    whether neighbouring frames of one flow leave as super-packets, where the kernel supports it
    vnet    whether super-packets are supported at all
    like_bmv2  whether ports are as BMv2's: they take what other programs send out of their interfaces, and the kernel
            queues no more than it does for BMv2
    pcap    directory for capture files, or None
    limits  (port or None for all, what, how much), in the order in which they were set
    trace   where the packet trace goes, or None; executables are then built for it
    """

    ports: tuple[Port, ...] = ()
    cpu_port: int | None = None
    seed: int = 1
    queue: int = 1024
    threads: int = 1
    join: bool = True
    vnet: bool = True
    like_bmv2: bool = False
    pcap: Path | None = None
    limits: tuple[tuple[int | None, Limit, int], ...] = ()
    trace: Tracing | None = None


@dataclass(frozen=True)
class PortState:
    """State and statistics of a port; frames are counted after super-packets are split and before they are joined."""

    number: int
    interface: str
    up: bool
    vnet: bool
    join: bool
    mtu: int
    waiting: int
    received: int
    received_bytes: int
    super_packets_in: int
    malformed: int
    missed: int
    sent: int
    sent_bytes: int
    super_packets_out: int
    dropped_full: int
    dropped_down: int


class _ProcessEngine(Engine):
    """An engine that can also send requests about the process itself (runtime/io.h)."""

    def start_ports(self) -> None:
        self._channel.one(struct.pack("<IH", 2, _OP_START))

    def confinement(self) -> str:
        return self._channel.one(struct.pack("<IH", 2, _OP_CONFINED)).decode()

    def limit(self, port: int | None, what: Limit, value: int) -> None:
        number = _ALL_PORTS if port is None else port
        self._channel.one(struct.pack("<IHIBQ", 15, _OP_LIMIT, number, what, value))

    def add_port(self, port: Port) -> None:
        name = port.interface.encode()
        self._channel.one(struct.pack("<IHI", 6 + len(name), _OP_ADD_PORT, port.number) + name)

    def remove_port(self, number: int) -> None:
        self._channel.one(struct.pack("<IHI", 6, _OP_REMOVE_PORT, number))

    def ports(self) -> list[PortState]:
        data = self._channel.one(struct.pack("<IH", 2, _OP_PORTS))
        (n,) = struct.unpack_from("<I", data)
        at, found = 4, []
        for _ in range(n):
            number, up, vnet, join, mtu, waiting = struct.unpack_from("<IBBBII", data, at)
            counts = _STATS.unpack_from(data, at + 15)
            (length,) = struct.unpack_from("<H", data, at + 15 + _STATS.size)
            at += 17 + _STATS.size
            found.append(
                PortState(
                    number, data[at : at + length].decode(), bool(up), bool(vnet), bool(join), mtu, waiting, *counts
                )
            )
            at += length
        return found


# The kernel ends a child when the thread that started it ends (PR_SET_PDEATHSIG), so one permanent thread starts all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="softswitch-spawn")


class SwitchProcess:
    """A running native switch; its ports are closed until start()."""

    def __init__(
        self,
        executable: Path,
        settings: Settings,
        *,
        on_event: Callable[[Event], None] | None = None,
        on_death: Callable[[str], None] | None = None,
        description: str = "",
    ) -> None:
        """`description` is that of the program, where it is traced. Raises Internal with the reason where the process
        cannot start: a missing interface, no permission..."""
        self.death: str | None = None
        self._hung: str | None = None
        self._on_death: Callable[[str], None] | None = None  # until it has started
        self._closing = False
        self._said: deque[str] = deque(maxlen=50)
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        command = _command(executable, settings, theirs.fileno())
        files = [theirs.fileno()]
        try:
            if settings.trace is not None and description:
                outlet = settings.trace.begin(description)
                files.append(outlet.fd)
                command += outlet.options()
            self._child = _spawner.submit(_spawn, command, files).result(START_TIMEOUT)
        except OSError as error:
            ours.close()
            raise Internal(f"cannot run {executable}: {error}") from error
        finally:
            theirs.close()
            for file in files[1:]:
                os.close(file)
        self._listener = threading.Thread(target=self._listen, name="softswitch-stderr", daemon=True)
        self._listener.start()
        try:
            transport = OverSocket(ours, on_event=on_event, on_end=self._ended, timeout=START_TIMEOUT)
            self.engine = _ProcessEngine(transport)
            for port, what, value in settings.limits:
                with contextlib.suppress(NotFound):  # of a port that was removed since
                    self.engine.limit(port, what, value)
        except EngineError as error:
            self._closing = True
            self._stop()
            why = "\n".join(self._said) or str(error)
            raise Internal(f"the switch process did not start: {why}") from error
        except BaseException:
            self._closing = True
            ours.close()
            self._stop()
            raise
        self._on_death = on_death
        Watchdog(self._child.pid, transport.answers, self._end_hung)

    @property
    def pid(self) -> int:
        """The number of the native process."""
        return self._child.pid

    def start(self) -> None:
        """Opens the ports."""
        self.engine.start_ports()
        log.info("switch process %d: %s", self.pid, self.confinement())

    def limit(self, port: int | None, what: Limit, value: int) -> None:
        """Limits the queue of a port, or of all. Raises NotFound, OutOfRange (a depth beyond `Settings.queue`)."""
        self.engine.limit(port, what, value)

    def add_port(self, port: Port) -> None:
        """Opens a further port. Raises AlreadyExists, NotFound (no such interface), Unimplemented (captures)."""
        self.engine.add_port(port)

    def remove_port(self, number: int) -> None:
        """Closes a port, with what waits there. Raises NotFound."""
        self.engine.remove_port(number)

    def confinement(self) -> str:
        """The remaining rights of the process, and the restrictions that the kernel refused (runtime/confine.h)."""
        return self.engine.confinement()

    def ports(self) -> list[PortState]:
        """State and statistics of every port."""
        return self.engine.ports()

    def close(self) -> None:
        """Ends the process and waits for it."""
        self._closing = True
        self.engine.close()
        self._stop()

    def _stop(self) -> None:
        """Waits for the process, which ends once its socket is closed; one that hangs is killed."""
        try:
            self._child.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(_STOP_TIMEOUT)
        self._listener.join(_STOP_TIMEOUT)

    def _listen(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                self._said.append(text)
                if not self._closing:
                    log.error("switch process %d: %s", self._child.pid, text)

    def _ended(self, why: str) -> None:
        """Records why the process ended by itself; called on the engine's reader thread when the socket breaks."""
        if self._closing:
            return
        self._stop()
        status = self._child.returncode
        how = f"exit status {status}" if status >= 0 else f"signal {_signal_name(-status)}"
        if self._hung is not None:
            self.death = f"the switch process hung and was ended: {self._hung}"
        else:
            self.death = f"the switch process died ({how}): {'; '.join(self._said) or why}"
        log.critical("%s", self.death)
        if self._on_death is not None:
            self._on_death(self.death)

    def _end_hung(self, why: str) -> None:
        """Ends a process that does nothing: its socket breaks, and `_ended` does the rest."""
        self._hung = why
        self._child.kill()


def _command(executable: Path, settings: Settings, control: int) -> list[str]:
    command = [
        str(executable),
        "--control",
        str(control),
        "--seed",
        str(settings.seed),
        "--queue",
        str(settings.queue),
        "--threads",
        str(settings.threads),
    ]
    if settings.cpu_port is not None:
        command += ["--cpu-port", str(settings.cpu_port)]
    if not settings.join:
        command.append("--no-join")
    if not settings.vnet:
        command.append("--no-vnet")
    if settings.like_bmv2:
        command.append("--like-bmv2")
    if settings.pcap is not None:
        command += ["--pcap", str(settings.pcap)]
    for port in settings.ports:
        command += ["-i", f"{port.number}@{port.interface}"]
    return command


def _spawn(command: list[str], files: list[int]) -> subprocess.Popen[bytes]:
    # Nothing of ours is in its environment; of our files it has the control socket, and that of the packet trace.
    environment = {"UBSAN_OPTIONS": "print_stacktrace=1"}
    if "ASAN_OPTIONS" in os.environ:
        environment["ASAN_OPTIONS"] = os.environ["ASAN_OPTIONS"]
    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, pass_fds=files, stdin=null, stdout=null, stderr=subprocess.PIPE, env=environment
    )


def _signal_name(number: int) -> str:
    try:
        return f"{number}, {signal.Signals(number).name}"
    except ValueError:
        return str(number)

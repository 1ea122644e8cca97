# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a guest: runs commands for the machine that started the guest, and carries connections to its sockets.

    agent '["/tmp/netfold-x/controller.sock", ...]'         # NETFOLD_GUEST names the guest

For each path the guest gets a unix socket of the same name, whose connections go to that socket of the machine outside:
so a rank reaches its controller in a guest as it does in a namespace.  The agent ends, and with it the guest, when the
line is closed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from netfold.topo.agents.frames import BUSY_SECONDS, FROM_GUEST, MOST, PORT, Backlog, Kind, Splitter, pack

if TYPE_CHECKING:
    from netfold.topo.processes.forks import Forked


class Command:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked) -> None:
        self.process = process
        assert process.stdin is not None
        self.input: IO[bytes] | None = process.stdin
        os.set_blocking(process.stdin.fileno(), False)
        self.waiting = Backlog()
        """Input that it has not read yet."""
        self.closing = False
        """True if its input is to be closed then."""
        self.outputs: dict[int, tuple[IO[bytes], Kind]] = {}


class CarriedConnection:
    """A connection that is carried over the line."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.waiting = Backlog()
        """Data that its other end has not read yet."""
        self.closing = False
        """True if it is to be closed once that data has been read."""
        self.held = False
        """True if its incoming data is left unread for now."""


class Agent:
    """Serves one line.

    line   file descriptor of the virtio-serial port
    paths  of sockets of the machine outside
    out    file descriptor to which frames are written; None: ``line``
    """

    def __init__(self, line: int, paths: Sequence[str], out: int | None = None) -> None:
        self._line = line
        self._out = line if out is None else out
        self._selector = selectors.DefaultSelector()
        self._splitter = Splitter()
        self._commands: dict[int, Command] = {}
        self._connections: dict[int, CarriedConnection] = {}
        self._next = 0
        for number, path in enumerate(paths):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).unlink(missing_ok=True)  # the socket of the machine outside, as the shared file system shows it
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen(64)
            self._watch(listener, partial(self._accept, listener, number))
        self._woken, wake = socket.socketpair()
        self._woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self._watch(self._woken, self._reap)
        self._watch(line, self._read_line)

    def serve(self, ready: bytes = b"", every: float | None = None) -> None:
        """Say that this agent runs, and serve until the line is closed.

        ready  content of READY
        every  seconds between calls of `look`; None: it is not called
        """
        self._send(0, Kind.READY, ready)
        while True:
            for key, _ in self._selector.select(every):
                now = self._selector.get_map().get(key.fd)
                # not closed by what was served before it, nor the number of another file by now
                if now is not None and now.data is key.data:
                    key.data()
            if every is not None:
                self.look()

    def look(self) -> None:
        """Called now and then, by those who ask `serve` for it."""

    def heard(self) -> None:
        """Called when the machine outside has said something."""

    def environment(self, sent: Mapping[str, str]) -> Mapping[str, str]:
        """The environment of a command, of which this was sent."""
        return sent

    def start(
        self, argv: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes] | Forked:
        """Start a command in a folder, in a session of its own, with pipes.  Raises OSError."""
        return subprocess.Popen(argv, cwd=folder, env=environment, start_new_session=True, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def collect(self) -> None:
        """Collect processes that have ended, also those whose parents ended before them."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                for channel, command in list(self._commands.items()):
                    if command.process.pid == pid:
                        command.process.returncode = os.waitstatus_to_exitcode(status)
                        self._ended(channel, command)

    def connect(self, name: str) -> socket.socket:
        """The connection that the machine outside asks for.  Raises OSError."""
        raise OSError(f"{name}: a guest has no sockets for others")

    def _watch(self, file: Any, serve: Callable[[], object]) -> None:
        self._selector.register(file, selectors.EVENT_READ, serve)

    def _unwatch(self, file: Any) -> None:
        with contextlib.suppress(KeyError):  # while it is held
            self._selector.unregister(file)

    def _hold(self, channel: int, held: bool) -> None:
        """Read no more of what a command writes, or a connection brings, or go on with it."""
        if (command := self._commands.get(channel)) is not None:
            for file, _ in command.outputs.values():
                self._unwatch(file)
                if not held:
                    self._watch(file, partial(self._copy, channel, file.fileno()))
        elif (connection := self._connections.get(channel)) is not None:
            connection.held = held
            self._rewatch(channel, connection)

    def _send(self, channel: int, kind: Kind, content: bytes = b"") -> None:
        data = memoryview(pack(channel, kind, content))
        while data:
            data = data[os.write(self._out, data) :]

    def _read_line(self) -> None:
        data = os.read(self._line, 1 << 16)
        if not data:
            raise SystemExit("the line is closed")
        self.heard()
        for channel, kind, content in self._splitter.feed(data):
            self._obey(channel, kind, content)

    def _obey(self, channel: int, kind: Kind, content: bytes) -> None:
        if kind is Kind.RUN:
            self._run(channel, json.loads(content))
        elif kind in (Kind.HOLD, Kind.GO):
            self._hold(channel, kind is Kind.HOLD)
        elif kind in (Kind.DATA, Kind.CLOSE):
            connection = self._connections.get(channel)
            if connection is not None:
                connection.waiting.append(content)
                connection.closing = connection.closing or kind is Kind.CLOSE
                self._flush(channel)
        elif kind is Kind.CONNECT:
            try:
                self._carried(channel, self.connect(content.decode(errors="replace")))
            except OSError:
                self._send(channel, Kind.CLOSE)
        elif (command := self._commands.get(channel)) is not None:  # otherwise it has ended meanwhile
            if kind is Kind.SIGNAL:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(command.process.pid, content[0])
            elif kind is Kind.INPUT and command.input is not None:
                command.waiting.append(content)
                command.closing = not content
                self._feed(channel, command)

    # ---- commands --------------------------------------------------------------------------------------------------

    def _run(self, channel: int, wanted: dict[str, Any]) -> None:
        argv, folder, environment = wanted["argv"], wanted["cwd"], self.environment(wanted["env"])
        self._begin(channel, argv[0], partial(self.start, argv, folder, environment))

    def _begin(self, channel: int, name: str, start: Callable[[], subprocess.Popen[bytes] | Forked]) -> None:
        """Serve the command that ``start`` returns, or say why it was not started."""
        try:
            process = start()
        except OSError as error:
            self._send(channel, Kind.ERRORS, f"cannot run {name}: {error}\n".encode())
            self._send(channel, Kind.EXIT, struct.pack("!i", 127))
            return
        command = self._commands[channel] = Command(process)
        assert process.stdout is not None
        assert process.stderr is not None
        for file, kind in ((process.stdout, Kind.OUTPUT), (process.stderr, Kind.ERRORS)):
            os.set_blocking(file.fileno(), False)
            command.outputs[file.fileno()] = file, kind
            self._watch(file, partial(self._copy, channel, file.fileno()))

    def _copy(self, channel: int, number: int) -> bool:
        """Send what a command has written; False once there is no more for now."""
        command = self._commands[channel]
        file, kind = command.outputs[number]
        try:
            data = os.read(number, MOST)
        except BlockingIOError:
            return False
        if data:
            self._send(channel, kind, data)
            return True
        self._unwatch(file)
        del command.outputs[number]
        file.close()
        return False

    def _feed(self, channel: int, command: Command) -> None:
        """Give a command its input, as far as it takes it."""
        if (file := command.input) is None:
            return
        self._unwatch(file)
        command.waiting.give(partial(os.write, file.fileno()))
        if command.waiting:
            self._selector.register(file, selectors.EVENT_WRITE, partial(self._feed, channel, command))
        elif command.closing:
            file.close()
            command.input = None
        self._tell(channel, command.waiting)

    def _tell(self, channel: int, waiting: Backlog) -> None:
        """Have the machine outside hold what it sends, or go on."""
        if waiting.turns():
            self._send(channel, Kind.HOLD if waiting.full else Kind.GO)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        self.collect()

    def _ended(self, channel: int, command: Command) -> None:
        for number in list(command.outputs):
            while self._copy(channel, number):
                pass
        for file, _ in command.outputs.values():  # a process that it left behind still holds them
            self._unwatch(file)
            file.close()
        if command.input is not None:
            self._unwatch(command.input)
            command.input.close()
        del self._commands[channel]
        self._send(channel, Kind.EXIT, struct.pack("!i", command.process.returncode))

    # ---- connections -----------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, number: int) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:  # it has gone already, or waits until a descriptor is free for it
            time.sleep(BUSY_SECONDS if error.errno in (errno.EMFILE, errno.ENFILE) else 0.0)
            return
        self._next = (self._next + 1) % FROM_GUEST
        channel = FROM_GUEST | self._next
        self._carried(channel, connection)
        self._send(channel, Kind.OPEN, number.to_bytes(2, "big"))

    def _carried(self, channel: int, connected: socket.socket) -> None:
        self._connections[channel] = CarriedConnection(connected)
        self._watch(connected, partial(self._carry, channel))

    def _carry(self, channel: int) -> None:
        """Bring what a connection says, and give it what waits for it."""
        self._flush(channel)
        if (connection := self._connections.get(channel)) is None or connection.held:
            return
        try:
            data = connection.socket.recv(MOST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._send(channel, Kind.DATA if data else Kind.CLOSE, data)
        if not data:
            self._forget(channel)

    def _flush(self, channel: int) -> None:
        """Give a connection what waits for it, as far as it takes it: nobody else waits for one that stands still."""
        connection = self._connections[channel]
        connection.waiting.give(connection.socket.send)
        if connection.closing and not connection.waiting:
            self._forget(channel)
            return
        self._rewatch(channel, connection)
        self._tell(channel, connection.waiting)

    def _rewatch(self, channel: int, connection: CarriedConnection) -> None:
        """Watch what a connection is served for now."""
        self._unwatch(connection.socket)
        events = (0 if connection.held else selectors.EVENT_READ) | (selectors.EVENT_WRITE if connection.waiting else 0)
        if events:
            self._selector.register(connection.socket, events, partial(self._carry, channel))

    def _forget(self, channel: int) -> None:
        connection = self._connections.pop(channel)
        self._unwatch(connection.socket)
        connection.socket.close()


def open_line() -> int:
    """Open the virtio-serial port of the name PORT.  Raises FileNotFoundError."""
    for port in Path("/sys/class/virtio-ports").iterdir():
        if (port / "name").read_text().strip() == PORT:
            return os.open(f"/dev/{port.name}", os.O_RDWR)
    raise FileNotFoundError(f"no virtio-serial port is called {PORT}")


def main(paths: str) -> None:
    """Serve the line of this guest."""
    socket.sethostname(os.environ["NETFOLD_GUEST"])
    Agent(open_line(), json.loads(paths)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""One virtual machine: a QEMU process without KVM, its network interfaces, and the line to the agent in it.

    system = System.prepare(folder, share=share)
    machine = Machine("h1", system, folder, [Nic(mac, tap_fd)])
    machine.start(); machine.wait_ready()
    machine.execute("ip link set dev eth0 up", "bringing eth0 up")

A machine's socket, ``folder/NAME.vm``, takes commands to run in it (attach.py).  QEMU ends with the thread that started
it, and with `stop`; it opens no port and uses nothing of the network outside its interfaces' descriptors.
"""

from __future__ import annotations

import collections
import contextlib
import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from netfold.topo.failures import FabricFailed
from netfold.topo.lifecycle import Lifecycle
from netfold.topo.rxe import attach, image, packages
from netfold.topo.rxe.frames import FROM_GUEST, Kind, Splitter, pack

BOOT_SECONDS: Final = 180.0
"""Seconds for a guest's agent to answer: 5 to 9 are usual, and many start at once on few cores."""
MEMORY: Final = 448
"""MiB of a guest."""
EXECUTE_SECONDS: Final = 120.0
AGENT: Final = (
    "import sys; sys.path.insert(0, {path!r}); from netfold.topo.rxe.agent import main; main(*sys.argv[1:])"
)


class GuestFailed(FabricFailed):
    """A guest did not start, ended on its own, or a command in it failed; the message has the end of its console."""


@dataclass(frozen=True)
class Nic:
    """A network interface of a guest.

    backend  file descriptor of a tap, or of a connected stream socket whose other end another machine has
    """

    mac: str
    backend: int
    tap: bool = True


@dataclass(frozen=True)
class System:
    """What all machines of a fabric boot.

    share    folder that guests read and write at the path that it has here
    sockets  unix sockets here that guests reach at the same paths
    """

    kernel: Path
    initial: Path
    userland: Path
    share: Path

    @classmethod
    def prepare(cls, folder: Path, *, share: Path, sockets: Sequence[Path] = ()) -> System:
        """Download what is not in the cache and write the initial file system into ``folder``.

        Raises PackagesMissing, ImageError.
        """
        lacks = packages.lacking()
        if lacks is not None:
            raise packages.PackagesMissing(f"virtual machines cannot be run here: {lacks}")
        kernel, userland = packages.kernel(), packages.userland()
        paths = json.dumps([str(path) for path in sockets])
        agent = [sys.executable, "-I", "-S", "-c", AGENT.format(path=_import_path()), paths]
        initial = folder / "guest.cpio"
        initial.write_bytes(image.build(kernel, userland / "usr/bin/busybox", share.absolute(), agent))
        return cls(kernel.image, initial, userland, share.absolute())


class Machine(Lifecycle):
    """A virtual machine.

    folder   for its socket and the log of its console, NAME-console.log
    sockets  unix sockets here that its programs may reach, in the order of `System.prepare`
    """

    def __init__(
        self, name: str, system: System, folder: Path, nics: Sequence[Nic], *, sockets: Sequence[Path] = (),
        logs: Path | None = None, memory: int = MEMORY,
    ) -> None:
        self.name = name
        self.system = system
        self.socket = folder / f"{name}.vm"
        self.console = (logs or folder) / f"{name}-console.log"
        self._nics, self._sockets, self._memory = nics, sockets, memory
        self._qemu: subprocess.Popen[bytes] | None = None
        self._line: _Line | None = None
        self._started = 0.0

    @property
    def pid(self) -> int:
        """QEMU's process number."""
        assert self._qemu is not None, f"{self.name} was not started"
        return self._qemu.pid

    def command(self, line: int) -> list[str]:
        """QEMU's command line; ``line`` is the descriptor of the agent's line."""
        folders = ((image.ROOT_TAG, "/", ",readonly=on"), (image.PACKAGES_TAG, self.system.userland, ",readonly=on"),
                   (image.SHARE_TAG, self.system.share, ""))
        options = [
            "-name", self.name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
            "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
            "-machine", "pc", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", str(self._memory),
            "-kernel", str(self.system.kernel), "-initrd", str(self.system.initial),
            "-append", f"console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on "
                       f"NETFOLD_GUEST={self.name}",
            "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
            "-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={line}",
            "-device", f"virtserialport,chardev=agent,name={image.PORT}",
        ]
        for tag, path, mode in folders:
            options += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{mode}",
                        "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        for number, nic in enumerate(self._nics):
            options += ["-netdev", f"{'tap' if nic.tap else 'socket'},id=net{number},fd={nic.backend}",
                        # offloads merge and split TCP segments, and leave checksums to the far end of a virtual link
                        "-device", f"virtio-net-pci,netdev=net{number},mac={nic.mac},romfile=,csum=off,guest_csum=off,"
                                   "gso=off"]
        return ["setpriv", "--pdeathsig", "KILL", "--", packages.QEMU, *options]

    def start(self) -> None:
        """Start QEMU; `wait_ready` waits for the agent.  Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = self.command(theirs.fileno())
            self._started = time.monotonic()
            self._qemu = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno(), *(nic.backend for nic in self._nics)], start_new_session=True,
            )
        self._line = _Line(ours, self.socket, self._sockets)

    def wait_ready(self, seconds: float = BOOT_SECONDS) -> float:
        """Wait until the agent answers, and return the seconds that this took.  Raises GuestFailed."""
        assert self._line is not None, f"{self.name} was not started"
        until = self._started + seconds
        while not self._line.ready.wait(0.2):
            self.check()
            if time.monotonic() > until:
                raise GuestFailed(self.failure(f"did not answer within {seconds:g} s"))
        return self._line.ready_at - self._started

    def check(self) -> None:
        """Raise GuestFailed where QEMU has ended."""
        assert self._qemu is not None, f"{self.name} was not started"
        if self._qemu.poll() is not None:
            assert self._qemu.stderr is not None
            said = self._qemu.stderr.read().decode(errors="replace").strip()
            raise GuestFailed(self.failure(f"ended with status {self._qemu.returncode}: {said}"))

    def failure(self, what: str) -> str:
        """The message of a failure: what happened, and the end of the console."""
        try:
            lines = self.console.read_text(errors="replace").splitlines()[-20:]
        except FileNotFoundError:
            lines = []
        return "\n".join([f"virtual machine {self.name} {what}", f"  console {self.console}, its end:",
                          *(f"    {line}" for line in lines)])

    def attach(self, argv: Sequence[str]) -> list[str]:
        """The command line, to be started here, that runs ``argv`` in the guest."""
        return attach.command(str(self.socket), argv)

    def execute(self, script: str, what: str, seconds: float = EXECUTE_SECONDS) -> str:
        """Run a shell script in the guest up to its first failure and return its output.  Raises GuestFailed."""
        command = self.attach(["sh", "-exc", script])
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                  timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise GuestFailed(self.failure(f"{what}: not done within {seconds:g} s: {error.stderr!r}")) from error
        if done.returncode != 0:
            raise GuestFailed(self.failure(f"{what} failed with status {done.returncode}:\n{done.stderr.strip()}"))
        return done.stdout

    def stop(self) -> None:
        """End QEMU at once: a guest has nothing that must be kept."""
        if self._qemu is not None:
            self._qemu.kill()
            self._qemu.wait()
            assert self._qemu.stderr is not None
            self._qemu.stderr.close()
        if self._line is not None:
            self._line.close()
            self._line = None
        self.socket.unlink(missing_ok=True)


@dataclass
class _Peer:
    """A program here that talks to the guest: `attach`, or a socket that the guest has connected to."""

    socket: socket.socket
    channel: int
    splitter: Splitter | None = None
    """Of what `attach` says; None for a connection's plain bytes."""
    waiting: collections.deque[bytes] = field(default_factory=collections.deque)
    """What it has not taken yet."""
    closing: bool = False
    """Whether it is closed once it has taken that."""


class _Line(threading.Thread):
    """Carries frames between the agent of a guest and programs here, until either end is closed."""

    def __init__(self, guest: socket.socket, place: Path, sockets: Sequence[Path]) -> None:
        super().__init__(name=f"line of {place.stem}", daemon=True)
        self.ready = threading.Event()
        self.ready_at = 0.0
        self._sockets = sockets
        self._guest = _Peer(guest, 0, Splitter())
        self._peers: dict[int, _Peer] = {}
        self._next = 0
        self._selector = selectors.DefaultSelector()
        place.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        place.chmod(0o600)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        guest.setblocking(False)
        self._selector.register(guest, selectors.EVENT_READ, self._guest)
        self._woken, self._wake = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._open = True
        self.start()

    def close(self) -> None:
        """End the thread and close everything."""
        with contextlib.suppress(OSError):  # it has ended with the guest
            self._wake.send(b"x")
        self.join()

    def run(self) -> None:
        """Carry frames until the line ends."""
        try:
            while self._open:
                for key, events in self._selector.select():
                    if key.fileobj is self._woken:
                        return
                    if key.fileobj is self._listener:
                        self._add(self._listener.accept()[0], self._number(), Splitter())
                    elif key.data.socket.fileno() >= 0:  # not closed by what was served before it
                        self._serve(key.data, events)
        finally:
            for peer in [*self._peers.values(), self._guest]:
                peer.socket.close()
            for other in (self._listener, self._woken, self._wake):
                other.close()
            self._selector.close()

    def _number(self) -> int:
        self._next = (self._next + 1) % FROM_GUEST
        return self._next

    def _add(self, connection: socket.socket, channel: int, splitter: Splitter | None) -> None:
        connection.setblocking(False)
        peer = self._peers[channel] = _Peer(connection, channel, splitter)
        self._selector.register(connection, selectors.EVENT_READ, peer)

    def _serve(self, peer: _Peer, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ or peer.socket.fileno() < 0:
            return
        try:
            data = peer.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if peer is self._guest:
            self._open = bool(data)
            for channel, kind, content in self._guest_frames(data):
                self._from_guest(channel, kind, content)
        elif peer.splitter is None:
            self._send(self._guest, pack(peer.channel, Kind.DATA if data else Kind.CLOSE, data))
            if not data:
                self._forget(peer)
        elif data:
            for _, kind, content in peer.splitter.feed(data):
                self._send(self._guest, pack(peer.channel, kind, content))
        else:  # `attach` was killed, and its command goes the same way
            self._send(self._guest, pack(peer.channel, Kind.SIGNAL, bytes([9])))
            self._forget(peer)

    def _guest_frames(self, data: bytes) -> Iterator[tuple[int, Kind, bytes]]:
        assert self._guest.splitter is not None
        return self._guest.splitter.feed(data)

    def _from_guest(self, channel: int, kind: Kind, content: bytes) -> None:
        if kind is Kind.READY:
            self.ready_at = time.monotonic()
            self.ready.set()
        elif kind is Kind.OPEN:
            self._connect(channel, content[0])
        elif (peer := self._peers.get(channel)) is None:
            return  # it has ended meanwhile
        elif kind is Kind.DATA:
            self._send(peer, content)
        elif kind is Kind.CLOSE:
            self._finish(peer)
        else:
            self._send(peer, pack(0, kind, content))
            if kind is Kind.EXIT:
                self._finish(peer)

    def _connect(self, channel: int, number: int) -> None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self._sockets[number]))
        except (OSError, IndexError):
            connection.close()
            self._send(self._guest, pack(channel, Kind.CLOSE))
            return
        self._add(connection, channel, None)

    def _send(self, peer: _Peer, data: bytes) -> None:
        peer.waiting.append(data)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.waiting:
                data = peer.waiting.popleft()
                sent = peer.socket.send(data)
                if sent < len(data):
                    peer.waiting.appendleft(data[sent:])
        except BlockingIOError:
            peer.waiting.appendleft(data)
        except OSError:
            peer.waiting.clear()  # its reading side tells of the end
        if peer.closing and not peer.waiting:
            self._forget(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.waiting else 0)
        self._selector.modify(peer.socket, events, peer)

    def _finish(self, peer: _Peer) -> None:
        peer.closing = True
        self._flush(peer)

    def _forget(self, peer: _Peer) -> None:
        self._peers.pop(peer.channel, None)
        self._selector.unregister(peer.socket)
        peer.socket.close()


def _import_path() -> str:
    """The folder by which `netfold` is imported here."""
    return str(Path(__file__).absolute().parents[3])

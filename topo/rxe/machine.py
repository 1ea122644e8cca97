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

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cbuild
from netfold.topo.agents import attach
from netfold.topo.agents.frames import PORT
from netfold.topo.agents.line import Line
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.processes.lifecycle import Lifecycle
from netfold.topo.rxe import image, packages

BOOT_SECONDS: Final = 400.0
"""Seconds for a guest's agent to answer: 5 to 9 are usual, 140 on a machine with ten others for each core."""
MEMORY: Final = 448
"""MiB of a guest."""
EXECUTE_SECONDS: Final = 120.0
PROCESSOR: Final = "Nehalem,+rdrand"
"""The processor that QEMU emulates: x86-64-v2, which numpy needs, with a random number generator, which otherwise costs
the kernel a second at the start.  A processor with enhanced `rep movsb` (ERMS), as "max" is, makes kernel and libc copy
byte by byte here, five times slower; AVX is slower than SSE."""
AGENT: Final = (
    "import sys; sys.path[:0] = {paths!r}; from netfold.topo.agents.agent import main; main(*sys.argv[1:])"
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
    """The system that all machines of a fabric boot.

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
        lacks = packages.lacking_programs()
        if lacks is not None:
            raise packages.PackagesMissing(f"virtual machines cannot be run here: {lacks}")
        kernel, userland = packages.kernel(), packages.userland()
        paths = json.dumps([str(path) for path in sockets])
        agent = [sys.executable, "-I", "-S", "-c", AGENT.format(paths=_import_paths()), paths]
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
        self._line: Line | None = None
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
            "-machine", "pc", "-accel", "tcg", "-cpu", PROCESSOR, "-smp", "1", "-m", str(self._memory),
            "-kernel", str(self.system.kernel), "-initrd", str(self.system.initial),
            "-append", f"console=ttyS0 loglevel=4 panic=-1 mitigations=off no_timer_check nokaslr random.trust_cpu=on "
                       f"cryptomgr.notests NETFOLD_GUEST={self.name}",
            "-chardev", f"file,id=console,path={_doubled(self.console)}", "-serial", "chardev:console",
            "-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={line}",
            "-device", f"virtserialport,chardev=agent,name={PORT}",
        ]
        for tag, path, mode in folders:
            options += ["-fsdev", f"local,id={tag},path={_doubled(path)},security_model=none,multidevs=remap{mode}",
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
        self._line = Line(ours, self.socket, self._sockets)

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


def _doubled(path: Path | str) -> str:
    """A path as a value in QEMU's options, between which commas stand."""
    return str(path).replace(",", ",,")


def _import_paths() -> list[str]:
    """The folders by which `netfold` and what it compiles with are imported here."""
    return [str(Path(__file__).absolute().parents[3]), str(Path(cbuild.__file__).absolute().parents[1])]

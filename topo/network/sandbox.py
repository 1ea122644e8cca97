# SPDX-License-Identifier: Apache-2.0
"""Runs a command in namespaces of its own, which the kernel removes whatever happens.

    launcher (this program) --unshare, fork--> init, process 1 of the new PID namespace --fork--> the command

When init ends, the kernel kills every process in its PID namespace, and removes their network namespaces and
interfaces.  Init ends with the command, and dies with the launcher (PR_SET_PDEATHSIG), also by SIGKILL.  So Ctrl-C, a
crash, or `kill -9` of any process leaves nothing behind, except that a killed launcher leaves a folder, which the next
launcher removes (rundir.py).  An ordinary user's sandbox is inside a user namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from cbuild.cache import ANOTHER, Cache
from netfold.topo.network.rundir import clear_abandoned, locked_folder, socket_folder
from netfold.topo.processes.lifecycle import ending_signals, shell_status

INSIDE: Final = "NETFOLD_SANDBOX"
"""Environment variable with the sandbox's network namespace, by which its processes recognise that they are inside."""
RUNDIR: Final = "NETFOLD_RUNDIR"
"""Environment variable with the folder for sockets, which the launcher makes and removes."""

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

HOW_TO_GET_ON: Final = (
    "This needs root, or a kernel that lets ordinary users make namespaces. Ways on: run it with sudo (sudo make "
    "demo); or, where the kernel restricts user namespaces, allow them: sudo sysctl kernel.unprivileged_userns_clone=1 "
    "user.max_user_namespaces=10000 (Debian), sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu). "
    "In a container, start it with --privileged."
)
ROOT_MAY_NOT: Final = (
    "This user is root, and may make no namespaces all the same, as in a container without privileges: start it with "
    "--privileged. What needs none runs here as it is: ranks (docs/host.md), `netfold up FABRIC.toml`, "
    "`softswitch stf`, `softswitch explain`."
)

_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(OSError):
    """The kernel refuses to create namespaces; the message has the step that it refused, and what to do.

    Remedy: run as root, or allow user namespaces as the message says; in a container, `--privileged`.
    """


def inside() -> bool:
    """True if this process runs in a sandbox created by this module."""
    return os.environ.get(INSIDE) == _network_namespace()


def rundir() -> Path:
    """The sandbox's folder for sockets; its path is short, since a unix socket's address has at most 107 bytes."""
    return Path(os.environ[RUNDIR])


def private_folder() -> Path:
    """A folder for sockets, logs and records of this user alone: the sandbox's, or outside of one that of what
    Mininet's own command starts.  Raises PermissionError."""
    return rundir() if inside() else socket_folder()


def show(file: Path, at: Path) -> None:
    """Have a file stand in this sandbox in the place of another one of the machine.  Raises SandboxError."""
    if _libc.mount(os.fsencode(file), os.fsencode(at), None, _MS_BIND, None) != 0:
        raise _refused(f"mounting {at}")


def command(argv: Sequence[str], *, with_parent: bool = False) -> list[str]:
    """The command line that runs ``argv`` in a sandbox; ``with_parent``: the sandbox dies with its parent process."""
    flag = ["--with-parent"] if with_parent else []
    return [sys.executable, "-m", "netfold.topo.network.sandbox", *flag, "--", *argv]


def enter() -> None:
    """Replace this program by itself, with the same arguments, in a sandbox.  Returns only inside a sandbox."""
    if inside():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    argv = command([sys.executable, *sys.orig_argv[1:]])
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the launcher can end without a traceback
    os.execv(argv[0], argv)


def run(
    argv: Sequence[str], *, timeout: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``argv`` in a sandbox for at most ``timeout`` seconds and return its status and output.

    Raises subprocess.TimeoutExpired when the time is over; everything inside has been ended then.
    """
    return subprocess.run(
        command(argv, with_parent=True),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        env=None if env is None else dict(env), check=False,
    )


# ---- the launcher ------------------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Run the launcher, ``[--with-parent] -- COMMAND ARG...``, and return the command's exit status."""
    flags, dashes, wanted = _split(argv)
    if not dashes or not wanted or set(flags) - {"--with-parent"}:
        print("usage: python -m netfold.topo.network.sandbox [--with-parent] -- COMMAND ARG...", file=sys.stderr)
        return 2
    if flags:
        die_with_parent(os.getppid())
    return launch(lambda: _exec(wanted))


def launch(work: Callable[[], NoReturn]) -> int:
    """Be the launcher: do ``work``, which ends its process, in a fork inside a sandbox.  Returns its exit status.

    This process goes to other namespaces, and so must have one thread and nothing else to do.
    """
    heeded = ending_signals()  # what this program was to ignore, the command ignores as well
    if signal.SIGINT in heeded and signal.SIGINT in signal.sigpending():
        return 128 + signal.SIGINT
    # the terminal sends Ctrl-C to the command as well; init and the launcher must outlive it to clean up
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    exposed = Cache().unsafe()  # seen from inside, other users are like root
    try:
        _unshare()
    except SandboxError as error:
        print(f"cannot make namespaces: {error}", file=sys.stderr)
        return 1
    clear_abandoned()
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(locked_folder())
        except OSError as error:
            print(f"cannot make the sandbox's folder: {error}", file=sys.stderr)
            return 1
        os.environ[RUNDIR] = str(folder)
        if exposed is not None:
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            print(f"what is compiled is kept in {folder / 'cache'} while this runs: {exposed}: {ANOTHER}",
                  file=sys.stderr)
        launcher = os.getpid()
        child = os.fork()
        if child == 0:
            _init(work, launcher, heeded)
        return _stand_by(child, heeded)


def _split(argv: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    at = argv.index("--") if "--" in argv else len(argv)
    return list(argv[:at]), at < len(argv), list(argv[at + 1 :])


def _unshare() -> None:
    """Move this process into fresh network, mount and (for its children) PID namespaces."""
    uid, gid = os.getuid(), os.getgid()
    flags = _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWPID
    if uid == 0 and _libc.unshare(flags) == 0:
        return
    if _libc.unshare(flags | _CLONE_NEWUSER) != 0:
        raise _refused("unshare(network, mount, PID, user)")
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise SandboxError(error.errno, f"mapping root to user {uid}: {error.strerror}. {_how_to_get_on()}") from error


def _stand_by(child: int, heeded: Sequence[signal.Signals]) -> int:
    """Wait for init, and forward to it the signals that would end the launcher."""
    _hand_on(heeded, child)
    return shell_status(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _hand_on(heeded: Sequence[signal.Signals], child: int) -> None:
    """Forward signals to a child, but for SIGINT, which the terminal sends to the command as well."""

    def hand_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    for number in heeded:
        if number != signal.SIGINT:
            signal.signal(number, hand_on)


# ---- process 1 ---------------------------------------------------------------------------------------------------


def _init(work: Callable[[], NoReturn], launcher: int, heeded: Sequence[signal.Signals]) -> NoReturn:
    """Set the namespaces up, start the command, reap orphans, end with the command's status."""
    status = 1
    try:
        die_with_parent(launcher, inside=True)
        _private_mounts()
        _loopback_up()
        os.environ[INSIDE] = _network_namespace()
        # ip, tc and ethtool are there, and an ordinary user's PATH may lack these folders
        os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        pid = os.fork()
        if pid == 0:
            for number in heeded:
                signal.signal(number, signal.SIG_DFL)
            work()
        _hand_on(heeded, pid)
        status = _reap(pid)
    except SandboxError as error:
        print(f"cannot set up namespaces: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _exec(wanted: Sequence[str]) -> NoReturn:
    try:
        os.execvp(wanted[0], list(wanted))
    except OSError as error:
        print(f"cannot run {wanted[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _reap(command_pid: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == command_pid:
            return shell_status(os.waitstatus_to_exitcode(status))


def die_with_parent(parent: int, *, inside: bool = False) -> None:
    """Have the kernel kill this process as soon as its parent ends, or at once if it has ended already."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise _refused("prctl(PR_SET_PDEATHSIG)")
    # in a new PID namespace, getppid() gives 0 for a living parent outside of it
    if os.getppid() != (0 if inside else parent):
        os._exit(1)


def _private_mounts() -> None:
    """Mount a /proc of this PID namespace, so that no mount in here is visible outside."""
    if _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise _refused("making mounts private")
    if _libc.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, None) != 0:
        raise _refused("mounting /proc")


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        try:
            (flags,) = struct.unpack_from("H", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request), 16)
            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
        except OSError as error:
            raise SandboxError(error.errno, f"bringing lo up: {error.strerror}. {_how_to_get_on()}") from error


def _network_namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def _how_to_get_on() -> str:
    """Advice if the kernel refuses namespaces: root that may not create them is root of a container."""
    return HOW_TO_GET_ON if os.getuid() else ROOT_MAY_NOT


def _refused(step: str) -> SandboxError:
    number = ctypes.get_errno()
    name = errno.errorcode.get(number, str(number))
    return SandboxError(number, f"{step}: {name} ({os.strerror(number)}). {_how_to_get_on()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

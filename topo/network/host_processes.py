# SPDX-License-Identifier: Apache-2.0
"""The processes of Mininet's hosts: recorded by those who start them, in a folder where nobody else writes.

Anybody may start a process that calls itself a host, so that what a command line says proves nothing.  A host's process
is one that is recorded, that began when the record says, and that is this user's, in this user namespace.  Its
namespaces are entered by open descriptors: its number may be another process's by then.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Final, Self

import msgspec

from cbuild import folders
from netfold.disk import files
from netfold.topo.network import rundir, sandbox
from netfold.topo.processes.ranks import Namespaces

NAMESPACES: Final = ("net", "mnt")
"""The namespaces that a host has of its own."""
MOST_RECORD: Final = 4096
"""Most bytes of a record: a name, two numbers, and an address for each plane."""
MOST_PID: Final = (1 << 31) - 1
"""The largest process number that the kernel's calls accept."""


class HostRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host's name, its process, and when that began, in ticks after the machine's start.

    jobs  addresses of the job services of the fabrics that it is on
    """

    name: str
    pid: Annotated[int, msgspec.Meta(ge=1, le=MOST_PID)]
    began: int
    jobs: list[str] = []


class HostProcess:
    """A running host, whose namespaces stay open while the block runs.  Raises ProcessLookupError where the record is
    not that of a running process of this user's."""

    def __init__(self, record: HostRecord) -> None:
        self.name, self.jobs = record.name, record.jobs
        self._open: list[int] = []
        process = -1
        try:
            process = os.pidfd_open(record.pid)
            place = Path(f"/proc/{record.pid}")
            if began(record.pid) != record.began or not _is_ours(place):
                raise ProcessLookupError(f"it is not the host {record.name}")
            self._open = [os.open(place / "ns" / kind, os.O_RDONLY | os.O_CLOEXEC) for kind in NAMESPACES]
            # all of this was the process's, if it still runs: only then is its number not another one's
            if select.select([process], [], [], 0)[0]:
                raise ProcessLookupError("it has ended")
        except OSError as error:
            self.close()
            raise ProcessLookupError(f"process {record.pid}: {error.strerror or error}") from error
        finally:
            if process >= 0:
                os.close(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the namespaces."""
        while self._open:
            os.close(self._open.pop())

    def enter(self) -> Namespaces:
        """The host, as `ranks.start` takes it, while the block runs."""
        return Namespaces([f"/proc/{os.getpid()}/fd/{number}" for number in self._open])


def folder() -> Path:
    """The folder of the records: in the sandbox's, or in that of what Mininet's own command starts.  Raises OSError."""
    return sandbox.private_folder() / "hosts"


def record(name: str, pid: int, jobs: Sequence[str]) -> None:
    """Record a host that this process has started, on the fabrics with these job services.  Raises OSError."""
    os.close(folders.opened(folder(), make=0o700))
    files.replace(folder() / f"{pid}.json", msgspec.json.encode(HostRecord(name, pid, began(pid), [*jobs])))


def forget(pid: int) -> None:
    """Remove the record of a host that ends."""
    with contextlib.suppress(OSError):
        (folder() / f"{pid}.json").unlink(missing_ok=True)


def places() -> list[Path]:
    """The folders in which `recorded` looks: a fabric outside of a sandbox may be another shell's of this user."""
    return [folder()] if sandbox.inside() else [place / "hosts" for place in rundir.socket_folders()]


def recorded() -> Iterator[HostRecord]:
    """All records, also of hosts that have ended without a word.  Raises OSError where others may write records."""
    for place in places():
        if not place.exists():
            continue
        opened = folders.opened(place)
        try:
            for name in sorted(os.listdir(opened)):
                with contextlib.suppress(OSError, msgspec.MsgspecError):
                    yield msgspec.json.decode(_content(opened, name), type=HostRecord)
        finally:
            os.close(opened)


def began(pid: int) -> int:
    """When a process began, in ticks after the machine's start (proc(5), field 22).  Raises ProcessLookupError."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error
    return int(fields[19])


def _content(place: int, name: str) -> bytes:
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not folders.trusted(status):
            raise PermissionError(f"{name} is no record of this user's")
        return file.read(MOST_RECORD)


def _is_ours(process: Path) -> bool:
    """True if all user numbers of a process are ours, including those that a setuid program keeps, and its user
    namespace is this one: in another one its owner may have any folder mounted anywhere."""
    said = next(line for line in (process / "status").read_text().splitlines() if line.startswith("Uid:"))
    if {int(word) for word in said.split()[1:]} != {os.geteuid()}:
        return False
    theirs, mine = (os.stat(place / "ns" / "user") for place in (process, Path("/proc/self")))
    return (theirs.st_dev, theirs.st_ino) == (mine.st_dev, mine.st_ino)

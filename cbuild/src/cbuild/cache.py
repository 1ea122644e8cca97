# SPDX-License-Identifier: Apache-2.0
"""Folders for compiled and downloaded files, in which no other user can put anything.

    cache = Cache("softswitch")
    known = cache.find("fold-1a2b.so")       # in any of its folders, also in one of root's that an image brought
    cache.folder()                           # the one that is written to

The folders are $XDG_CACHE_HOME/NAME, or ~/.cache/NAME, and NAME-UID in the temporary folder and in /var/tmp.  One
counts where only this user and root can change or exchange it (folders.py), and where programs in it may be run.  Where
there is none to write to, a process makes one of its own, which ends with it and is used by its descriptor alone: its
name may be exchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cbuild import folders

log = logging.getLogger("cbuild")

ANOTHER = "set XDG_CACHE_HOME to a folder that only you can change or exchange, and from which programs may be run"
VAR_TMP = Path("/var/tmp")


@dataclass(frozen=True)
class Cache:
    """The folders of an application's cache.

    name  of the application
    only  one folder that takes the place of all others
    """

    name: str = "softswitch"
    only: Path | None = None

    def places(self) -> list[Path]:
        """Candidates for its folders, the best first; they need not exist, or be usable."""
        if self.only is not None:
            return [self.only]
        ours = f"{self.name}-{os.geteuid()}"
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        # without HOME, a user without an entry in the passwd file has no ~
        home = [] if base.startswith("~") else [Path(base).absolute() / self.name]
        temporary: list[Path] = []
        with contextlib.suppress(FileNotFoundError):  # nothing can be written to any: root's disk is full or read-only
            temporary = [Path(tempfile.gettempdir(), ours)]
        return [*home, *dict.fromkeys((*temporary, VAR_TMP / ours))]

    def find(self, name: str | re.Pattern[str]) -> Path | None:
        """A file of the cache that nobody else can change, or None.  Since nobody can exchange its folder either, the
        path can be used."""
        for place, folder in self._readable():
            names = [name] if isinstance(name, str) else filter(name.fullmatch, sorted(os.listdir(folder)))
            for each in names:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(each, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and folders.trusted(status) and not status.st_mode & 0o022:
                        return place / each
        return None

    def _readable(self) -> Iterator[tuple[Path, int]]:
        """Each folder with a descriptor that is open until the next one: those of this user or of root's which nobody
        else can change, and whose programs may be run."""
        for place in self.places():
            try:
                folder = folders.opened(place)
            except OSError:
                continue
            try:
                if not os.fstatvfs(folder).f_flag & os.ST_NOEXEC:
                    yield place, folder
            finally:
                os.close(folder)
        if (own := _own.get(self.name)) is not None:
            yield own, int(own.name)

    def folder(self, *, lasting: bool = False) -> Path:
        """The folder to write to; says in the log where it is not the first.

        lasting  whether it must outlive this process
        Raises OSError, with the reasons, where there is none.
        """
        reasons: list[str] = []
        for place in self.places():
            why = _unusable(place, private=place.name != self.name)
            if why is None:
                if reasons:
                    _say(f"what is built is kept in {place}: {'; '.join(reasons)}")
                return place
            reasons.append(f"not in {place}: {why}")
        if lasting or self.only is not None:
            raise PermissionError(errno.EPERM, f"no folder for what is built, {'; '.join(reasons)}: {ANOTHER}")
        try:
            own = _own.make(self.name)
        except OSError as error:
            raise PermissionError(errno.EPERM, f"no folder for what is built, {'; '.join(reasons)}; not in "
                                  f"{error.filename or 'a temporary one'}: {error.strerror}: {ANOTHER}") from error
        _say(f"what is built is kept in {os.readlink(own)} for this process alone, and built again by the next one, "
             f"{'; '.join(reasons)}: {ANOTHER}")
        return own

    def unsafe(self) -> str | None:
        """Why others could exchange the first of its folders, or None: for who makes a user namespace, in which other
        users cannot be told from root."""
        try:
            os.close(folders.opened(self.places()[0]))
        except OSError as error:
            return error.strerror if error.errno == errno.EPERM else None
        return None


def _unusable(place: Path, *, private: bool) -> str | None:
    """Why a folder cannot be written to, and what is in it be run; None where it can.  It is made where it is missing;
    ``private`` ones are this user's to read alone, where an image's may be read by all its users."""
    if (why := folders.refusal(place, make=0o700 if private else 0o755, ours=True)) is not None:
        return why
    if not os.access(place, os.W_OK | os.X_OK):
        return "it cannot be written to"
    return "programs in it may not be run (noexec)" if os.statvfs(place).f_flag & os.ST_NOEXEC else None


class _Own:
    """Folders of this process alone, by application."""

    def __init__(self) -> None:
        self._made: dict[str, int] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Path | None:
        """The folder, as long as this process lives; programs that it starts reach it by the same path."""
        return Path(f"/proc/{os.getpid()}/fd/{self._made[name]}") if name in self._made else None

    def make(self, name: str) -> Path:
        """The folder, made where it is missing.  Raises OSError."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._open(name)
        return Path(f"/proc/{os.getpid()}/fd/{self._made[name]}")

    def _open(self, name: str) -> int:
        place = tempfile.mkdtemp(prefix=f"{name}-")
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        atexit.register(_remove, os.getpid(), folder, place)
        status = os.fstat(folder)
        # by now its name may have been given to another folder: an empty one of ours does as well
        if status.st_uid != os.geteuid() or status.st_mode & 0o077 or os.listdir(folder):
            raise PermissionError(errno.EPERM, "somebody exchanges folders there", place)
        if os.fstatvfs(folder).f_flag & os.ST_NOEXEC:
            raise PermissionError(errno.EPERM, "programs in it may not be run (noexec)", place)
        return folder


def _remove(maker: int, folder: int, place: str) -> None:
    """Remove a folder and what is in it, by its descriptor; its name only where nothing is left there."""
    if os.getpid() != maker:
        return
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    with contextlib.suppress(OSError):
        os.rmdir(place)


def _say(what: str) -> None:
    """Say it once."""
    if what not in _said:
        _said.add(what)
        log.warning("%s", what)


_own = _Own()
_said: set[str] = set()

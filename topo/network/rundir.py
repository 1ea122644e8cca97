# SPDX-License-Identifier: Apache-2.0
"""A sandbox's folder for sockets and logs, which its launcher makes and locks, and a later launcher may clear away.

The owner of a folder has an exclusive flock on the file ``LOCK`` in it, which the kernel releases when the owner dies,
also by SIGKILL.  So a folder whose lock is free has been abandoned by its owner.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cbuild import folders

PREFIX: Final = "netfold-"
LOCK: Final = ".lock"
PLACES: Final = (Path("/tmp"), Path("/dev/shm"))
"""Places for folders; the first one is used in which no other user can exchange them.  $TMPDIR may be too long for the
path of a unix socket."""
RUN: Final = Path("/run")
"""The place of the folder of fabrics that Mininet's own command starts, which only root may."""
FOLDER: Final = "netfold"
"""Its name there."""


@contextlib.contextmanager
def locked_folder(*places: Path) -> Iterator[Path]:
    """Make a folder in the first of ``places`` (PLACES) that is safe, keep it locked while the block runs, and remove
    it.  Raises OSError."""
    folder = _made(places or PLACES)
    lock = -1
    try:
        # locked before the file gets its name, so that nobody can find it unlocked
        lock = os.open(folder / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / f"{LOCK}.new").rename(folder / LOCK)
        yield folder
    finally:
        _remove(folder)
        if lock >= 0:
            os.close(lock)


def clear_abandoned(*places: Path) -> list[Path]:
    """Remove this user's folders whose owner is dead, and return those that were removed.

    Links, folders of other users, and folders without a lock file are left alone.
    """
    return [folder for folder in _ours(places or PLACES) if _clear(folder)]


def in_use(*places: Path) -> list[Path]:
    """This user's folders whose owner lives, the oldest first."""
    return sorted((folder for folder in _ours(places or PLACES) if _is_locked(folder)),
                  key=lambda folder: (folder.stat().st_mtime, folder))


def socket_folder() -> Path:
    """The folder for sockets of fabrics that Mininet's own command starts, for this user alone: netfold in
    $XDG_RUNTIME_DIR, where that is this user's, or in /run.  Raises PermissionError where it is not, or cannot be,
    this user's alone."""
    base = Path(os.environ.get("XDG_RUNTIME_DIR") or RUN)
    if folders.refusal(base, ours=True) is not None:
        base = RUN
    folder = base / FOLDER
    why = folders.refusal(folder, make=0o700, ours=True)
    if why is None and (folder.is_symlink() or folder.stat().st_mode & 0o077):
        why = "others may enter it"
    if why is not None:
        raise PermissionError(errno.EPERM, f"expected a folder of mode 0700 of this user, which nobody else can "
                              f"exchange: {why}. Remove it, or set XDG_RUNTIME_DIR to another folder of this user's",
                              str(folder))
    return folder


def socket_folders() -> list[Path]:
    """Where `socket_folder` may be in any shell of this user's: a login sets XDG_RUNTIME_DIR, and sudo does not.  They
    need not be there."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    bases = [*([Path(named)] if named else []), RUN / "user" / str(os.geteuid()), RUN]
    return [base / FOLDER for base in dict.fromkeys(bases) if folders.refusal(base, ours=True) is None]


def _made(places: Sequence[Path]) -> Path:
    """Make a folder that nobody else can exchange.  Raises OSError."""
    for place in places:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        why = folders.refusal(folder, ours=True)
        if why is None:
            return folder
        with contextlib.suppress(OSError):
            folder.rmdir()
    raise PermissionError(errno.EPERM, f"no folder for sockets and logs: {why}. Expected one that only its owner can "
                          f"rename: chmod +t {place}", str(place))


def _ours(places: Sequence[Path]) -> list[Path]:
    return [folder for place in places for folder in sorted(place.glob(f"{PREFIX}*")) if _is_ours(folder)]


def _is_locked(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:  # gone meanwhile
        return False
    return (stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            and folders.refusal(folder, ours=True) is None)


def _remove(folder: Path) -> bool:
    """Remove a folder, and return whether it is gone.  Its lock file goes last: where something else stays, the next
    `clear_abandoned` tries again."""
    try:
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != LOCK:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        if set(os.listdir(folder)) <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
    except OSError:
        with contextlib.suppress(OSError):  # a process that is about to die has made another file meanwhile
            (folder / LOCK).touch(0o600)
    return not folder.exists()


def _clear(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # none: not a folder of `locked_folder`, or one that is just being made
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return _remove(folder)
    finally:
        os.close(lock)

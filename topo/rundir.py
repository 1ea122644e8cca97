# SPDX-License-Identifier: Apache-2.0
"""A sandbox's folder for sockets and logs, which its launcher makes and locks, and a later launcher may clear away.

The owner of a folder has an exclusive flock on the file ``LOCK`` in it, which the kernel releases when the owner dies,
also by SIGKILL.  So a folder whose lock is free has been abandoned by its owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PREFIX: Final = "netfold-"
LOCK: Final = ".lock"
PLACE: Final = Path("/tmp")
"""Where folders are made; $TMPDIR may be too long for the path of a unix socket."""


@contextlib.contextmanager
def locked_folder(place: Path = PLACE) -> Iterator[Path]:
    """Make a folder in ``place``, keep it locked while the block runs, and remove it.  Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = -1
    try:
        # locked before the file gets its name, so that nobody can find it unlocked
        lock = os.open(folder / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / f"{LOCK}.new").rename(folder / LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def clear_abandoned(place: Path = PLACE) -> list[Path]:
    """Remove this user's folders whose owner is dead, and return those that were removed.

    Links, folders of other users, and folders without a lock file are left alone.
    """
    return [folder for folder in sorted(place.glob(f"{PREFIX}*")) if _is_ours(folder) and _clear(folder)]


def in_use(place: Path = PLACE) -> list[Path]:
    """This user's folders whose owner lives, the oldest first."""
    return sorted((folder for folder in place.glob(f"{PREFIX}*") if _is_ours(folder) and _is_locked(folder)),
                  key=lambda folder: (folder.stat().st_mtime, folder))


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
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


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
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    finally:
        os.close(lock)

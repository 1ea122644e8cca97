# SPDX-License-Identifier: Apache-2.0
"""A sandbox's folder for sockets and logs: made and held by its launcher, and cleared away by a later one if need be.

Whoever holds a folder has an exclusive flock on the file ``LOCK`` in it, and the kernel lets go of that when the holder
dies, be it by SIGKILL.  So a lock that can be had is that of a folder which nobody will ever remove.
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
"""$TMPDIR may be too long a path for a socket."""


@contextlib.contextmanager
def held(place: Path = PLACE) -> Iterator[Path]:
    """A fresh folder in ``place``, locked until the block ends, and then removed.  Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = -1
    try:
        # locked before it gets its name: nobody finds it in between
        lock = os.open(folder / f"{LOCK}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / f"{LOCK}.new").rename(folder / LOCK)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def clear_abandoned(place: Path = PLACE) -> list[Path]:
    """Remove this user's folders of `held` whose holder is dead; those that are gone now.

    What is a link, another user's, or has no lock file is left alone: it may be anybody's.
    """
    return [folder for folder in sorted(place.glob(f"{PREFIX}*")) if _is_ours(folder) and _clear(folder)]


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:  # gone meanwhile
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _clear(folder: Path) -> bool:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # none: not a folder of `held`, or one that is just being made
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

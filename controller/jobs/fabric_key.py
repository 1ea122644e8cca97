# SPDX-License-Identifier: Apache-2.0
"""The fabric key: 32 random bytes that the controllers of a fabric share and nobody else knows.

A rank's secret is derived from it, so that a controller which was started anew knows the secrets that the one before
has given out, although it has stored nothing about any job.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cbuild import folders
from netfold.fabric.graph import FabricError, Settings
from netfold.wire.plan import Secret

KEY_BYTES: Final = 32


def draw() -> bytes:
    """A new key."""
    return secrets.token_bytes(KEY_BYTES)


def rank_secret(key: bytes, tenant: str, job: str, epoch: int, rank: int) -> Secret:
    """The secret of one rank: HMAC-SHA256 of who it is.  Names of tenants and jobs have no zero byte
    (fabric/validity.py, admission.py).

    The tenant is part of it because names and epochs come again: a tenant that starts jobs by the thousand million
    would know the secrets of jobs that another one starts later under the same names."""
    return Secret(hmac.digest(key, f"rank\0{tenant}\0{job}\0{epoch}\0{rank}".encode(), "sha256").hex())


def place(fabric: Settings) -> Path:
    """The file of the fabric's key: ``fabric_key_file``, or one by the fabric's name in the folder for state of the XDG
    base directory specification.  Raises FabricError where there is no such folder."""
    if fabric.fabric_key_file is not None:
        return Path(fabric.fabric_key_file)
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:
        raise FabricError(f"fabric.fabric_key_file: no default without a home directory ({error}): name a file, or set "
                          "XDG_STATE_HOME") from error
    return state / "netfold" / f"{fabric.name.replace('/', '_')}.key"


def load(fabric: Settings) -> bytes:
    """The key from its file, which is made if there is none yet.  Raises FabricError for a file that others may read or
    write, or that does not hold a key."""
    path = place(fabric)
    try:
        if not path.exists():
            _create(path)
        with path.open("rb") as file:
            found, key = os.fstat(file.fileno()), file.read(KEY_BYTES + 1)
    except OSError as error:
        raise FabricError(f"fabric.fabric_key_file: cannot read or make {path}: {error.strerror}; name another file") \
            from error
    if fabric.fabric_key_file is None and not folders.trusted(found):
        raise FabricError(f"fabric.fabric_key_file: {path} belongs to user {found.st_uid}, who knows the key: remove "
                          "it, or name a file")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise FabricError(f"fabric.fabric_key_file: {path}: expected mode 0600, got {mode:04o}: others may know the "
                          "key. Remove it, and the controller draws a new one")
    if len(key) != KEY_BYTES:
        got = len(key) if len(key) < KEY_BYTES else "more"
        raise FabricError(f"fabric.fabric_key_file: {path}: expected {KEY_BYTES} bytes, got {got}. "
                          "Remove it, and the controller draws a new one")
    return key


def _create(path: Path) -> None:
    """Write a new key.  The file appears as a whole: of two controllers that start at once, one makes it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(draw())
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()

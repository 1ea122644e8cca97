# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced whole or not at all, whatever happens meanwhile: a full disk, a crash, a second writer."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path


def replace(path: Path | str, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace a file's content: whoever opens it finds the old one or the new one, also after a crash.  It keeps its
    permissions; what is no regular file (a pipe, /dev/stdout) is written to.

    mode  its permissions from its first byte on, whatever they were before; None: those before, or the umask's

    Raises OSError with the file's name.  The old content is untouched then, and nothing is left beside it.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace(path: Path, content: bytes, mode: int | None) -> None:
    beside = path.with_name(f".{secrets.token_hex(8)}.new")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(handle, stat.S_IMODE(path.stat().st_mode) if mode is None else mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    with contextlib.suppress(OSError):  # the content is safe; this makes the name so, where the file system can
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

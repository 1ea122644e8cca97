# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced whole or not at all, whatever happens meanwhile: a full disk, a crash, a second writer,
another user who has put a link where the file is to be."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from io import BufferedWriter
from pathlib import Path

from cbuild import folders

_NEW = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_THERE = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY


MOST = 16 << 20
"""Bytes of a file that is parsed, where no other bound is given: a fabric of 16,384 hosts has 6 MB."""


def read(path: Path | str, most: int = MOST, *, regular: bool = False) -> bytes:
    """The content of a file that somebody else may have written, of so many bytes at most: neither a file without end
    nor one of gigabytes fills the memory.  Raises OSError with the file's name, and the number where it has more.

    regular  refuse all but regular files: nobody may ever write to a pipe that was found in a folder
    """
    flags = _READ | os.O_NONBLOCK * regular
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "expected a regular file, got a pipe or a device")
            content = file.read(most + 1)
    except OSError as error:
        error.filename = str(path)
        raise
    if len(content) > most:
        raise OSError(errno.EFBIG, f"expected at most {most:,} bytes, got more", str(path))
    return content


def read_text(path: Path | str, most: int = MOST, *, errors: str = "strict") -> str:
    """The same as text of UTF-8, whose lines end as Python's do.  Raises OSError, UnicodeDecodeError."""
    return read(path, most).decode(errors=errors).replace("\r\n", "\n").replace("\r", "\n")


def replace(path: Path | str, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace a file's content: whoever opens it finds the old one or the new one, also after a crash.  It keeps its
    permissions; what is no regular file (a pipe, /dev/stdout) is written to.

    mode  its permissions from its first byte on, whatever they were before; None: those before, or the umask's

    Raises OSError with the file's name.  The old content is untouched then, and nothing is left beside it.
    """
    content = data.encode() if isinstance(data, str) else data
    with _place(path) as (folder, name, found):
        if found is not None and not stat.S_ISREG(found.st_mode):
            with os.fdopen(open_special(folder, name, found), "wb") as file:
                file.write(content)
            return
        with _new(folder, name, found, mode) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(OSError):  # the content is safe; this makes the name so, where the file system can
            opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def create(path: Path | str, *, mode: int | None = None) -> BufferedWriter:
    """An empty file in the place of what was there, to be written to: a log, a capture.  Nobody who had the old one
    open, or has put a link there, gets at the new one; what is no regular file is opened as it is.

    mode  as in `replace`
    Raises OSError with the file's name.
    """
    with _place(path) as (folder, name, found):
        if found is not None and not stat.S_ISREG(found.st_mode):
            return os.fdopen(open_special(folder, name, found), "wb")
        with _new(folder, name, found, mode) as file:
            return os.fdopen(os.dup(file.fileno()), "wb")


def append(path: Path | str) -> BufferedWriter:
    """A file to whose end is written, made where it is missing.  Raises OSError with the file's name, also where it is
    another user's."""
    with _place(path) as (folder, name, found):
        if found is not None and not stat.S_ISREG(found.st_mode):
            return os.fdopen(open_special(folder, name, found), "wb")
        handle = os.open(name, _THERE | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder)
        file = os.fdopen(handle, "ab")
        if not folders.trusted(os.fstat(handle)):
            file.close()
            raise PermissionError(errno.EPERM, "it is another user's, who could read and change it")
        os.set_blocking(handle, True)
        return file


@contextlib.contextmanager
def _place(path: Path | str) -> Iterator[tuple[int, str, os.stat_result | None]]:
    """The folder of a file, its name there, and what is there; errors have the path."""
    folder = -1
    try:
        folder, name = folders.beside(Path(path))
        found = None
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        yield folder, name, found
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if folder >= 0:
            os.close(folder)


def open_special(folder: int, name: str, found: os.stat_result) -> int:
    """Open what is no regular file: a pipe, a terminal, a link to a descriptor (/dev/stdout)."""
    if os.fstat(folder).st_mode & stat.S_ISVTX and not folders.trusted(found):
        what = "pipe" if stat.S_ISFIFO(found.st_mode) else "special file"
        raise PermissionError(errno.EPERM, f"it is another user's {what}, who would read what is written")
    if stat.S_ISLNK(found.st_mode) and found.st_dev == folders.proc():
        return os.open(name, _THERE, dir_fd=folder)
    handle = os.open(name, _THERE | os.O_NOFOLLOW, dir_fd=folder)
    if os.path.samestat(os.fstat(handle), found):
        return handle
    os.close(handle)
    raise PermissionError(errno.EPERM, "it was exchanged while it was opened")


@contextlib.contextmanager
def _new(folder: int, name: str, found: os.stat_result | None, mode: int | None) -> Iterator[BufferedWriter]:
    """A new file, which takes the place of what was there at the end of the block."""
    beside = f".{secrets.token_hex(8)}.new"
    if mode is None and found is not None and folders.trusted(found):
        mode = stat.S_IMODE(found.st_mode)
    handle = os.open(beside, _NEW | os.O_WRONLY | os.O_APPEND, 0o666 if mode is None else mode, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            yield file
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise

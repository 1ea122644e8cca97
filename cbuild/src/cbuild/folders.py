# SPDX-License-Identifier: Apache-2.0
"""Opens folders that no other user can exchange, since what lies in them is loaded, run, or believed; and those in
which files are written, through no other user's links.

A path is walked from the root by descriptors, without following links blindly.  Every folder and every link on the way
must belong to root or to this user, and others may write to none of them, except where the sticky bit keeps them from
renaming what is not theirs (/tmp).  Each name is looked up in a folder that was found safe before, so that nobody else
can exchange it afterwards either, and the path can be used as it is from then on.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path

MOST_LINKS = 40
"""Symbolic links on the way of one path, as many as the kernel follows."""

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def opened(path: Path, *, make: int | None = None) -> int:
    """Open a folder of ours or of root's that others may not write to, below folders that they cannot exchange.

    make  permissions with which missing folders are made; None: they are an error
    Returns a descriptor for listing and for `dir_fd`, which the caller closes.  Raises OSError, which is a
    PermissionError that says why where others could put something else there.
    """
    at, _ = _walk(path, _check, make=make)
    try:
        if os.fstat(at).st_mode & 0o022:
            raise PermissionError(errno.EPERM, "others may write to it", str(path))
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=at)
    finally:
        os.close(at)


def beside(path: Path) -> tuple[int, str]:
    """Open the folder that a file is in, or is to be made in, through no link of another user's.

    Returns a descriptor for `dir_fd`, which the caller closes, and the file's name there: not that of a link, but for
    one to a descriptor of a process (/dev/stdout).  Raises OSError.
    """
    return _walk(path, lambda folder, known: None, file=True)


def _walk(
    path: Path, check: Callable[[int, str], None], *, make: int | None = None, file: bool = False
) -> tuple[int, str]:
    """Open the last folder of a path, or with ``file`` the one that the path's last name is in, and that name.  Each
    folder is opened in the one before it, and ``check`` is called with its descriptor and its path."""
    at = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        stack, links, known = list(path.absolute().parts[:0:-1]), 0, "/"  # the next name is the stack's last
        check(at, known)
        while stack:
            name = stack.pop()
            last = file and not stack
            try:
                child = _child(at, name, make)
            except FileNotFoundError:
                if last:
                    return os.dup(at), name
                raise
            try:
                status = os.fstat(child)
                if stat.S_ISLNK(status.st_mode) and not (last and status.st_dev == proc()):
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                    _owned(status, f"the link {os.path.join(known, name)}")
                    stack += reversed(Path(os.readlink("", dir_fd=child)).parts)
                    continue
                if last:
                    return os.dup(at), name
                if not stat.S_ISDIR(status.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, f"{name} is no folder", str(path))
                at, child = child, at
                known = os.path.normpath(os.path.join(known, name))
                check(at, known)
            finally:
                os.close(child)
        return os.dup(at), "."
    finally:
        os.close(at)


def refusal(path: Path, *, make: int | None = None, ours: bool = False) -> str | None:
    """Why a folder cannot be used, in words; None where it can.

    make  as in `opened`
    ours  whether it must be this user's, and not root's
    """
    try:
        folder = opened(path, make=make)
    except OSError as error:
        return error.strerror or str(error)
    try:
        owner = os.fstat(folder).st_uid
        return f"it belongs to user {owner}" if ours and owner != os.geteuid() else None
    finally:
        os.close(folder)


def trusted(status: os.stat_result) -> bool:
    """True if a file belongs to this user or to root."""
    return status.st_uid in {0, os.geteuid()} or status.st_uid == _roots_number_inside()


def _child(at: int, name: str, make: int | None) -> int:
    """Open a name in a folder, which is made where it is missing.  Raises OSError."""
    if name == "/":
        return os.open("/", _STEP)
    try:
        return os.open(name, _STEP, dir_fd=at)
    except FileNotFoundError:
        if make is None:
            raise
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(name, make, dir_fd=at)
        return os.open(name, _STEP, dir_fd=at)


def _check(folder: int, known: str) -> None:
    """Raise PermissionError where another user may exchange what is in a folder."""
    status = os.fstat(folder)
    _owned(status, known)
    if status.st_mode & stat.S_ISVTX:
        return
    if status.st_mode & 0o002:
        raise PermissionError(errno.EPERM, f"anyone may exchange what is in {known}, which has no sticky bit", known)
    if status.st_mode & 0o020 and _has_list(folder):  # those bits are what its entries may have at most
        raise PermissionError(errno.EPERM, f"an access control list lets others exchange what is in {known}: see "
                              f"`getfacl {known}`", known)
    if status.st_mode & 0o020 and not group_is_ours(status.st_gid):
        raise PermissionError(errno.EPERM, f"group {status.st_gid} may exchange what is in {known}", known)


def _owned(status: os.stat_result, what: str) -> None:
    if not trusted(status):
        raise PermissionError(errno.EPERM, f"{what} belongs to user {status.st_uid}, who may exchange it", what)


def _has_list(folder: int) -> bool:
    """Returns True where a folder has an access control list (acl(5)), which may name any user."""
    try:
        return bool(os.getxattr(f"/proc/self/fd/{folder}", "system.posix_acl_access"))
    except OSError:  # none, or a file system without such lists
        return False


def group_is_ours(group: int) -> bool:
    """True if a group is root's, or this user's alone, with the user's name on systems where each user has a group."""
    if group == 0:
        return True
    import grp
    import pwd

    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid()).pw_name
        return found.gr_name == user and {user, "root"}.issuperset(found.gr_mem)
    except KeyError:
        return False


@functools.cache
def proc() -> int:
    """The device of /proc, whose links to descriptors lead to what has no path."""
    return os.stat("/proc/self").st_dev


@functools.cache
def _roots_number_inside() -> int | None:
    """The number that the machine's root has in a user namespace where it is not mapped, as in a sandbox; else None.

    Other users that are not mapped have it too: who makes the namespace checks paths before (topo/network/sandbox.py).
    """
    try:
        number = int(Path("/proc/sys/fs/overflowuid").read_text())
        ranges = [[int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return None
    return None if any(inside <= number < inside + count for inside, _, count in ranges) else number

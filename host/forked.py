# SPDX-License-Identifier: Apache-2.0
"""A forked child cannot use the connections of the jobs that its parent has joined.

A fork copies a rank's memory and descriptors, but not its threads. A child that used the copies would add its own data
to the next sum; a child that closed them would leave the job in its parent's name; and the mere copies would keep the
connections open after the parent's death, unnoticed.  So before any other code of the child runs,

    sockets   become /dev/null, so that no other file gets the descriptor's number while somebody still holds it
    owners    close: later calls raise Closed, and so do operations under way

The parent and its connections are not touched, and nothing is sent.  Jobs that the child joins itself are its own.

Python does not report a fork by a C library. A page that the kernel fills with zeros in every child does
(MADV_WIPEONFORK, Linux 4.14): each operation checks it when it begins, and then does the above.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import weakref
from collections.abc import Iterable
from typing import Final, Protocol

from netfold.host.errors import Closed


class Owner(Protocol):
    """An object that must not be used in a forked child."""

    def after_fork(self) -> None:
        """Called in the child, on the thread that has forked, which is the only one.  Sends nothing and frees nothing;
        locks may be held by threads that are not there."""


_MADV_WIPEONFORK: Final = 18

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_owners: weakref.WeakSet[Owner] = weakref.WeakSet()
SAME_PROCESS = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
"""A page whose first byte is 1; in a forked child it is 0 until ``notice`` sees it."""
SAME_PROCESS[0] = 1
with contextlib.suppress(OSError):  # an older kernel: Python's forks alone are known
    SAME_PROCESS.madvise(_MADV_WIPEONFORK)


def notice() -> None:
    """Closes the parent's objects in a child that was forked without Python's knowledge.  Called before an operation
    begins."""
    if not SAME_PROCESS[0]:
        _after_fork()


def own(sock: socket.socket) -> socket.socket:
    """Registers a socket that a forked child must not use, and returns it: every socket of a rank passes through
    here."""
    notice()
    _sockets.add(sock)
    return sock


def own_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that a forked child must not use."""
    near, far = socket.socketpair()
    return own(near), own(far)


def ends_in_child(owner: Owner) -> None:
    """Registers an owner: a forked child calls ``owner.after_fork``."""
    notice()
    _owners.add(owner)


def closed_in_child(me: str, joined: int) -> Closed:
    """The error of calls in a forked child.

    me      job and rank
    joined  process that has joined
    """
    return Closed(
        f"{me}: the communicator was closed in this process, {os.getpid()}, which was forked from process {joined}, "
        "the one that has joined; only that one may use it"
    )


def disconnect(descriptors: Iterable[int]) -> None:
    """Replaces these descriptors of this process by /dev/null; those of other processes are unchanged."""
    with contextlib.suppress(OSError):  # without /dev/null, or without a free descriptor
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            for descriptor in descriptors:
                os.dup2(null, descriptor, inheritable=False)
        finally:
            os.close(null)
        return
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _after_fork() -> None:
    SAME_PROCESS[0] = 1
    disconnect([number for sock in list(_sockets) if (number := sock.fileno()) >= 0])
    for owner in list(_owners):
        owner.after_fork()


os.register_at_fork(after_in_child=_after_fork)

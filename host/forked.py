# SPDX-License-Identifier: Apache-2.0
"""A forked child reaches nobody through what its parent has joined.

A fork copies a rank's memory and descriptors, but not its threads.  A child that used the copies would add its own data
to the next sum; one that closed them would leave the job in its parent's name; and one that only lives would keep the
connections open after its parent has died, which nobody would notice.  So in a child, before any other code of it runs,

    sockets   become /dev/null, which nothing else can take the place of while somebody still has the number
    owners    end: what they are asked for from then on raises Closed, and so does what was under way

The parent and its connections are not touched, and nothing is sent.  What the child joins itself is its own.

Python tells nobody of a fork that a C library makes by itself.  A page that the kernel fills with zeros in every child
does (MADV_WIPEONFORK, Linux 4.14): whatever begins looks at it, and the above happens then.
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
    """An object that must not go on in a forked child."""

    def after_fork(self) -> None:
        """Called in the child, on the thread that has forked, which is the only one.  Sends nothing and frees nothing;
        locks may be held by threads that are not there."""


_MADV_WIPEONFORK: Final = 18

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_owners: weakref.WeakSet[Owner] = weakref.WeakSet()
SAME_PROCESS = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
"""Its first byte is 1, in a forked child 0 until that is noticed."""
SAME_PROCESS[0] = 1
with contextlib.suppress(OSError):  # an older kernel: Python's forks alone are known
    SAME_PROCESS.madvise(_MADV_WIPEONFORK)


def notice() -> None:
    """To be called before something begins: in a child that was forked past Python, what its parent has joined ends."""
    if not SAME_PROCESS[0]:
        _after_fork()


def own(sock: socket.socket) -> socket.socket:
    """Returns the socket, which a forked child must not use: every socket of a rank goes through here."""
    notice()
    _sockets.add(sock)
    return sock


def own_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, which a forked child must not use."""
    near, far = socket.socketpair()
    return own(near), own(far)


def ends_in_child(owner: Owner) -> None:
    """From now on, a forked child calls ``owner.after_fork``."""
    notice()
    _owners.add(owner)


def closed_in_child(me: str, joined: int) -> Closed:
    """The error of what is called in a forked child.

    me      job and rank
    joined  process that has joined
    """
    return Closed(
        f"{me}: the communicator was closed in this process, {os.getpid()}, which was forked from process {joined}, "
        "the one that has joined; only that one may use it"
    )


def disconnect(descriptors: Iterable[int]) -> None:
    """Lets these descriptors of this process be /dev/null from now on; those of other processes stay as they are."""
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

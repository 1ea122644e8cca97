# SPDX-License-Identifier: Apache-2.0
"""Loopback addresses of which each process has its own: so programs that run at once do not meet at the ports that
tests name.  Needs Linux, whose whole 127.0.0.0/8 is loopback."""

from __future__ import annotations

import errno
import os
import socket
import threading
from itertools import count

FIRST, LAST = 64, 254
"""Second numbers of the addresses 127.x.0.0/16 that are given out; a process has one of them."""
_SUBNETS = 256
"""Subnets 127.x.y.0/24 of such a range."""

_lock = threading.Lock()
_mine: Range | None = None


class Range:
    """A range 127.x.0.0/16 that is this process's until it ends: a name of an abstract UNIX socket, which the kernel
    gives to one process of a network namespace at a time, stands for it.

    Raises OSError where all are taken.
    """

    def __init__(self) -> None:
        self._claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._next = count()
        ranges = LAST - FIRST + 1
        for turn in range(ranges):
            self._second = FIRST + (os.getpid() + turn) % ranges
            try:
                self._claim.bind(f"\0netfold-loopback-127.{self._second}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return
        self._claim.close()
        raise OSError(errno.EADDRINUSE, f"no loopback addresses are left: {ranges} other processes have taken one "
                                        f"range each of 127.{FIRST}.0.0/16 to 127.{LAST}.0.0/16; end some of them")

    def subnet(self) -> str:
        return f"127.{self._second}.{next(self._next) % _SUBNETS}"

    def release(self) -> None:
        self._claim.close()


def subnet() -> str:
    """Returns the first three numbers of loopback addresses that no other process is given, nor the 255 calls before in
    this one.  Raises OSError where 191 other processes have all there are."""
    global _mine
    with _lock:
        if _mine is None:
            _mine = Range()
        return _mine.subnet()


def _forked() -> None:
    """Called in a forked process: lets go of the range that it has from its parent, whose it stays, so that the next
    call of ``subnet`` claims another one."""
    global _mine, _lock
    _lock = threading.Lock()
    if _mine is not None:
        _mine.release()
        _mine = None


os.register_at_fork(after_in_child=_forked)

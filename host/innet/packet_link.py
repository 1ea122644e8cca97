# SPDX-License-Identifier: Apache-2.0
"""The loop that carries the packets of a core: its interface, and the one over UDP sockets.

``stand_in_link`` has the loop over a TCP connection, and ``verbs.native`` the one over an RDMA device's queue pairs.
"""

from __future__ import annotations

import ctypes as C
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from netfold.host.innet.abi import FoldOperation
from netfold.host.innet.core import Core
from netfold.host.innet.native import library
from netfold.host.native.library import senders_table
from netfold.host.tracing.spans import Span

DONE, AGAIN, FAILED, OS_ERROR, REFUSED = range(5)
"""Results of ``Io.run``: ``nf_run_status``.  Only ``starter`` returns the last one, for an operation that did not
begin."""
SPAN_ROOM = 1 << 14
"""Number of spans that can be recorded between two calls of ``Io.spans``; one takes at least a microsecond, mostly a
hundred."""


class PacketLink(Protocol):
    """A loop that sends what a core has to send, hands it what arrives, and waits for its deadlines."""

    def interrupt_by(self, fd: int) -> None:
        """Lets ``run`` return AGAIN whenever ``fd`` is readable."""

    def discard(self) -> None:
        """Discards what was ready to be sent, some of it for trees that are gone; what is for others leaves again."""

    def run(self, until: int) -> tuple[int, int]:
        """Runs until done, failed, interrupted or CLOCK_MONOTONIC ``until`` (ns).  Returns the status (DONE ..) and an
        errno."""

    def trace(self) -> None:
        """Starts recording ``spans``."""

    def spans(self) -> tuple[list[Span], int]:
        """The spans since the last call, oldest first, and how many more were not recorded."""

    def transient_errors(self) -> tuple[int, int]:
        """Number of packets that were refused for a passing reason, and the last errno."""

    def close(self) -> None:
        """Releases everything; safe to call twice."""


class Io:
    """A core over sockets: one that receives, and one that sends for each UDP source port."""

    def __init__(self, core: Core, receiver: socket.socket, senders: dict[int, socket.socket]) -> None:
        self._lib = library()
        self._core = core
        self._sockets = [receiver, *senders.values()]  # kept alive as long as their numbers are in use
        self._error = C.c_int32()
        self._handle = self._lib.nf_io_open(core.handle, receiver.fileno(), len(senders), senders_table(senders))
        if not self._handle:
            raise MemoryError("no memory for receive buffers")

    def interrupt_by(self, fd: int) -> None:
        """Lets ``run`` return AGAIN whenever ``fd`` is readable."""
        self._lib.nf_io_interrupt_by(self._handle, fd)

    def discard(self) -> None:
        """Discards the packets that were ready to be sent, some for trees that are gone; others leave again."""
        self._lib.nf_io_discard(self._handle)

    def run(self, until: int) -> tuple[int, int]:
        """Runs until done, failed, interrupted or CLOCK_MONOTONIC ``until`` (ns).  Returns the status (DONE ..) and an
        errno."""
        status: int = self._lib.nf_io_run(self._handle, until, self._error)
        return status, self._error.value

    def starter(self, operation: FoldOperation) -> Callable[[int, int], int]:
        """A function that begins this operation, in its present state, at a given time, and runs it until another time
        (``CLOCK_MONOTONIC``, ns).  It returns the status; ``error`` has the errno.  Valid only until this link is
        closed."""
        return partial(self._lib.nf_io_fold, self._handle, operation, self._core.why, self._error)

    @property
    def error(self) -> int:
        """The errno of the last run, where that ended with OS_ERROR."""
        return int(self._error.value)

    def trace(self) -> None:
        """Starts recording ``spans``."""
        self._spans = (Span * SPAN_ROOM)()
        self._lib.nf_io_trace(self._handle, self._spans, SPAN_ROOM)

    def spans(self) -> tuple[list[Span], int]:
        """The spans of the loop since the last call, oldest first (valid until ``run``), and how many more were not
        recorded."""
        lost = C.c_uint64()
        count = self._lib.nf_io_traced(self._handle, C.byref(lost))
        return self._spans[:count], lost.value

    def transient_errors(self) -> tuple[int, int]:
        """Number of packets that the kernel refused to send for a passing reason, such as a missing route, and the last
        errno."""
        count, error = C.c_uint64(), C.c_int32()
        self._lib.nf_io_transient_errors(self._handle, C.byref(count), C.byref(error))
        return count.value, error.value

    def close(self) -> None:
        """Frees the loop and closes the sockets; safe to call twice."""
        if self._handle:
            self._lib.nf_io_close(self._handle)
            self._handle = None
        for sock in self._sockets:
            sock.close()

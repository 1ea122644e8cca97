# SPDX-License-Identifier: Apache-2.0
"""Allreduces of one kind over one rail, which share the work of preparing them (``operation.prepared``)."""

from __future__ import annotations

import ctypes as C
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from netfold.host.innet.abi import ARRAYS, FoldOperation
from netfold.host.innet.packet_link import DONE, Io
from netfold.host.operation.arrays import Array
from netfold.host.operation.request import ALLREDUCE, called

VIEW: Final[Callable[[Array], C.c_char]] = C.c_char.from_buffer  # type: ignore[assignment]
"""Creates a writable view of a non-empty array, of which ``addressof`` returns the address."""


class RepeatedFold:
    """Allreduces of one kind over one rail, one at a time.

    link       begins and runs them
    operation  their parameters in the engine's words, but for number and arrays
    elements   of each of them
    shares     bytes of each tree's stripe
    what       what they are, for errors
    """

    __slots__ = (
        "_load", "_run", "begun", "elements", "link", "name", "nanoseconds", "number", "operations", "resent", "shares",
        "what",
    )

    def __init__(self, link: Io, operation: FoldOperation, elements: int, shares: list[int], what: str) -> None:
        self.link = link
        self.elements = elements
        self.shares = shares
        self.what = what
        self.number = 0
        """Number of the last operation."""
        self.begun = 0
        """Time at which it began, in nanoseconds of CLOCK_MONOTONIC."""
        self.operations = 0
        """Number of operations that have ended."""
        self.nanoseconds = 0
        """Total duration of those."""
        self.name = ALLREDUCE
        """The caller's name of the last operation."""
        self.resent = 0
        """Packets sent again in the last operation that failed."""
        self._load: Callable[[int, int, int, int, int], None] = partial(ARRAYS.pack_into, operation, 0)
        """Sets the next operation's addresses of source, result and residual (0: none), number of elements and
        number."""
        self._run = link.starter(operation)

    def carry(self, number: int, name: str, source: Array, out: Array, most: int) -> int:
        """Begins the next one, and runs it until it has ended, or for so many nanoseconds at most.  Returns a status of
        ``packet_link``.

        name         what the caller calls it
        source, out  plain, not empty; the same memory, or without overlap.  The engine uses them until it has ended
        """
        self.number, self.name = number, name
        at = C.addressof(VIEW(source))
        to = at if out is source else C.addressof(VIEW(out))
        self._load(at, to, 0, self.elements, number & 0xFFFFFFFF)
        self.begun = begun = time.monotonic_ns()
        status = self._run(begun, begun + most)
        if status == DONE:
            self.operations += 1
            self.nanoseconds += time.monotonic_ns() - begun
        return status

    def ended(self, now: int) -> None:
        """The last one, which did not end while ``carry`` ran it, has ended at this time (CLOCK_MONOTONIC, ns)."""
        self.operations += 1
        self.nanoseconds += now - self.begun

    def failed(self, resent: int) -> None:
        """The last one has failed, and so many packets of it were sent again."""
        self.resent = resent

    def __str__(self) -> str:
        return f"operation {self.number} ({called(self.name)}{self.what})"

# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group, for its operations: their numbers, their checks, and the order of operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from operator import length_hint
from typing import Final

import numpy as np

from netfold.host.api.work import OperationSequencer
from netfold.host.errors import Closed
from netfold.host.operation.half_precision import dtype_name
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import Peers

LAST: Final = 1 << 62
"""The greatest number of an operation."""


class Members:
    """Ranks 0 .. size-1 of a group.

    dispatch   carries the group's reductions, and has the mesh between its ranks
    sequencer  the communicator's, shared by all of its groups
    first      number of the next operation
    saturated  elements of all saturating sums so far that ended at a limit of the range
    """

    def __init__(
        self, dispatch: Dispatch, sequencer: OperationSequencer, first: int = 1, saturated: int = 0
    ) -> None:
        self.dispatch = dispatch
        self.sequencer = sequencer
        self.incarnation = sequencer.incarnation
        self.numbers = iter(range(first, LAST + 1))
        """The numbers of the next operations, in order."""
        self.saturated = saturated
        self._unjoined = 0
        """All_gathers that a reduce_scatter might have joined (``joinable``), since the last one that was joined."""

    def finished(self) -> int:
        """Number of the last operation of these ranks that this rank has finished; 0: none.  Read it while none is
        under way."""
        begun = LAST - length_hint(self.numbers)
        for operation in reversed(self.sequencer.flight.operations()):
            if operation.number == begun and operation.group == self.peers.called:
                return begun - (operation.state == "failed")
        return begun

    def end(self, reason: str) -> None:
        """Prevents further operations of these ranks, and returns the switches' slots."""
        self.numbers = _ended(f"{self.sequencer.me}: the group of {self.peers.called} was closed")
        self.dispatch.close_fold(reason)

    def count_saturated(self, elements: int) -> None:
        """Counts elements of a saturating sum that ended at a limit of the range."""
        self.saturated += elements

    def count_joinable(self) -> int:
        """Begins an all_gather that a reduce_scatter may join.  Returns the number of such all_gathers since one was
        joined."""
        before = self._unjoined
        self._unjoined += 1
        return before

    def count_joined(self) -> None:
        """Counts a reduce_scatter that has joined."""
        self._unjoined = 0

    @property
    def peers(self) -> Peers:
        """The ranks over the mesh between the hosts; replaced after a rail has failed or has recovered."""
        return self.dispatch.hosts

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self.dispatch.hosts.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.dispatch.hosts.size

    def begin(self, name: str, nbytes: int, op: str, called: str) -> int:
        """Begins an operation that all ranks of the group call, and returns its number; ``sequencer.end`` must follow.
        It waits and raises as ``OperationSequencer.begin``.

        called  name of the elements' dtype
        """
        peers = self.dispatch.hosts
        number = self.sequencer.begin(self.numbers, self.incarnation, peers.called, name, nbytes, op, called)
        try:
            peers.count_from(number)
        except BaseException as error:  # Ctrl-C: nobody else ends what has begun
            self.sequencer.end(error)
            raise
        return number

    @contextmanager
    def operation(
        self, name: str, nbytes: int = 0, op: str = "", dtype: object = "", *, counted: bool = True
    ) -> Iterator[int]:
        """A context for one operation, which yields its number; ``counted``: all ranks of the group call it, otherwise
        its number is 0.  It waits and raises as ``OperationSequencer.begin``."""
        called = dtype_name(dtype) if isinstance(dtype, np.dtype) else str(dtype)
        if counted:
            number = self.begin(name, nbytes, op, called)
        else:
            number = self.sequencer.begin(
                repeat(0), self.incarnation, self.dispatch.hosts.called, name, nbytes, op, called,
            )
        try:
            yield number
        except BaseException as error:
            self.sequencer.end(error)
            raise
        self.sequencer.end(None)

    def check_rank(self, rank: int, name: str) -> None:
        """Raises ValueError for a rank that does not exist."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank of 0 .. {self.size - 1}")

    def check_peer(self, peer: int) -> None:
        """Raises ValueError for a rank that does not exist or is this one."""
        self.check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer={peer} is this rank itself: expected another one")


def _ended(why: str) -> Iterator[int]:
    """The operation numbers of a closed group: none."""
    raise Closed(why)
    yield 0

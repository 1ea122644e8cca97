# SPDX-License-Identifier: Apache-2.0
"""The ranks of a group as its operations see them: their numbers, their checks, and the order of operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from types import TracebackType

import numpy as np

from netfold.host.api.work import OperationSequencer
from netfold.host.operation.half_precision import dtype_name
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import Peers


class RunningOperation:
    """One operation as a context, which gives its number (``Members.operation``)."""

    __slots__ = ("_counted", "_members", "_numbers", "_what")

    def __init__(
        self, members: Members, numbers: Iterator[int], counted: bool, what: tuple[str, int, str, str]
    ) -> None:
        self._members, self._numbers, self._counted, self._what = members, numbers, counted, what

    def __enter__(self) -> int:
        members = self._members
        peers = members.dispatch.hosts
        number = members.sequencer.begin(self._numbers, members.incarnation, peers.label.strip(), *self._what)
        try:
            if self._counted:
                peers.count_from(number)
        except BaseException as error:  # Ctrl-C: nobody else ends what has begun
            members.sequencer.end(error)
            raise
        return number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._members.sequencer.end(error)


class OperationNumbers:
    """Counts up from ``first``, as itertools.count, and tells the last number."""

    __slots__ = ("last",)

    def __init__(self, first: int) -> None:
        self.last = first - 1

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.last += 1
        return self.last


class Members:
    """Ranks 0 .. size-1 of a group.

    dispatch   carries the group's reductions, and has the mesh between its ranks
    sequencer  that of the communicator, shared by all of its groups
    first      number of the next operation
    """

    def __init__(self, dispatch: Dispatch, sequencer: OperationSequencer, first: int = 1) -> None:
        self.dispatch = dispatch
        self.sequencer = sequencer
        self.incarnation = sequencer.incarnation
        self._numbers = OperationNumbers(first)

    def finished(self) -> int:
        """Number of the last operation of these ranks that this one has finished; 0: none.  While none is under way."""
        begun = self._numbers.last
        for operation in reversed(self.sequencer.flight.operations()):
            if operation.number == begun and operation.group == self.peers.label.strip():
                return begun - (operation.state == "failed")
        return begun

    @property
    def peers(self) -> Peers:
        """The ranks over the mesh between the hosts; replaced after a rail has failed or is back."""
        return self.dispatch.hosts

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self.dispatch.hosts.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.dispatch.hosts.size

    def operation(
        self, name: str, nbytes: int = 0, op: str = "", dtype: object = "", *, counted: bool = True
    ) -> RunningOperation:
        """A context for one operation, which gives its number; ``counted``: all ranks of the group call it, else its
        number is 0.  It waits and raises as ``OperationSequencer.begin``."""
        called = dtype_name(dtype) if isinstance(dtype, np.dtype) else str(dtype)
        return RunningOperation(self, self._numbers if counted else repeat(0), counted, (name, nbytes, op, called))

    def check_rank(self, rank: int, name: str) -> None:
        """Raises ValueError for a rank that does not exist."""
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank of 0 .. {self.size - 1}")

    def check_peer(self, peer: int) -> None:
        """Raises ValueError for a rank that does not exist, or is this one."""
        self.check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer={peer} is this rank itself: expected another one")

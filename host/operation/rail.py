# SPDX-License-Identifier: Apache-2.0
"""The interface of a rail, which carries an allreduce between all ranks, and its statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from netfold.host.errors import NetFoldError
from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.half_precision import HALVES
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.wire.jobs import RankReport
from netfold.wire.plan import Plan

Op = Literal["sum", "average", "max", "min"]
Flat = NDArray[Any]
"""A one-dimensional, C-contiguous, aligned array of float32 or int32 in this machine's byte order."""

DTYPES: Final = (np.dtype(np.float32), np.dtype(np.int32))
OPS: Final = frozenset(get_args(Op))
FOLDED: Final = frozenset((*HALVES, *(dtype.name for dtype in DTYPES)))
"""Names of dtypes whose reductions the switches support."""


@dataclass(frozen=True)
class TreeStats:
    """Counts of one aggregation tree on this rank since the communicator was made."""

    bytes_reduced: int = 0
    """Payload bytes of tensors, without padding."""
    packets_sent: int = 0
    """Contributions, retransmissions included."""
    packets_received: int = 0
    """Results, duplicates included."""
    retransmissions: int = 0
    """Contributions sent again, because a switch reported that it lacked them."""
    timeouts: int = 0
    """Timer expirations without a result; the missing results were then requested."""
    duplicates: int = 0
    """Results that had already arrived."""
    asks: int = 0
    """NAKs sent, for results that were missing."""
    naks: int = 0
    """NAKs received, for contributions that a switch lacked."""
    ecn_marks: int = 0
    """Results with an ECN mark, which report a long queue somewhere."""

    def __add__(self, other: TreeStats) -> TreeStats:
        """The counts of both, as of a tree in two lives of its rail."""
        return TreeStats(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class RailStats:
    """Totals of a rail on this rank."""

    operations: int = 0
    bytes_reduced: int = 0
    packets_sent: int = 0
    retransmissions: int = 0
    seconds: float = 0.0
    """Wall-clock seconds inside allreduce."""
    saturated: int = 0
    """Elements of saturating sums that ended at a limit of the range."""
    packets_refused: int = 0
    """Packets to this rank's queue pairs that were dropped, since their source may not send to them."""
    packets_unfolded: int = 0
    """Packets that were dropped since they arrived as the rank before sent them: no switch has folded them."""
    packets_corrupt: int = 0
    """Packets that were dropped since their ICRC is wrong: they changed on the way.  They were sent again."""
    by_tree: dict[str, TreeStats] = field(default_factory=dict)
    fallback: str = ""
    """Why the switches no longer fold, and since which operation; empty while they do."""
    by_rail: dict[str, int] = field(default_factory=dict)
    """Payload bytes that each of several rails carried, by name; empty if there is only one rail."""

    def report(self, plan: Plan) -> RankReport:
        """These totals as the report that the controller gets at the end, and when somebody looks."""
        return RankReport(
            job=plan.job, rank=plan.rank, epoch=plan.epoch, operations=self.operations,
            bytes_reduced=self.bytes_reduced, packets_sent=self.packets_sent, retransmissions=self.retransmissions,
            by_tree={name: tree.bytes_reduced for name, tree in self.by_tree.items()}, fallback=self.fallback,
            by_rail=self.by_rail,
        )


class Rail(Protocol):
    """Anything that can carry an ``AllreduceRequest``.  All ranks make the same requests in the same order, one at a
    time."""

    @property
    def name(self) -> str:
        """The name by which users ask for it."""

    @property
    def narrows(self) -> bool:
        """True if it has lanes narrower than 32 bits; other rails carry floats at full width, without error
        feedback."""

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """True if it can carry such a request, as ``conversion`` passes it on."""

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        """How it would carry a tensor of ``nbytes`` bytes, in words.  Sends nothing."""

    def allreduce(self, request: AllreduceRequest) -> int:
        """Fills ``request.out`` with the reduction of every rank's ``request.source``, both flat.

        Returns how many elements of a saturating sum stand at an end of the range, else 0.
        """

    @property
    def retransmissions(self) -> int:
        """Number of packets sent again since the rail was made; cheap to read."""

    def stats(self) -> RailStats:
        """Totals since the rail was made."""

    def close(self) -> None:
        """Closes its sockets; safe to call twice."""


class RepeatedCalls(Protocol):
    """Calls of kinds that have been carried before."""

    @property
    def known(self) -> Mapping[tuple[object, ...], object]:
        """Kinds of calls that ``repeat`` carries; empty while it carries none."""

    def repeat(self, request: AllreduceRequest) -> int | None:
        """Carries the caller's request, of whose kind an earlier one has been carried, without looking again at what it
        is; None: there was none, and nothing was sent.  Returns else what ``allreduce`` does."""


class RailTeam(Rail, Protocol):
    """Several rails used as one."""

    members: int
    """Number of ranks whose lanes the switches add."""
    whole: tuple[str, ...]
    """Names of the rails that carry floats in lanes of 32 bits whatever a call asks for."""

    @property
    def brief(self) -> RepeatedCalls:
        """Brief allreduces of kinds that have gone over one rail before."""

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: the operation under way ends with this error soon."""


class RepeatedKind(Protocol):
    """Allreduces of one kind, in the words of the rail that carries them."""

    @property
    def resent(self) -> int:
        """Packets sent again in the last one that has failed."""


class FoldingRail(Rail, Protocol):
    """A rail whose sums the switches make."""

    members: int
    """Number of ranks whose lanes the switches add."""

    def progress(self) -> RailStats:
        """The operations, bytes and retransmissions of ``stats``, which may be read on any thread, at any time."""

    @property
    def joins_nothing(self) -> str:
        """Why a reduce_scatter and an all_gather take as long at once as one after the other; empty where they do not.
        """

    def prepare(self, request: AllreduceRequest) -> RepeatedKind | None:
        """Prepares the kind of a request that has just been carried, for ``repeat``; None where it has to go through
        ``allreduce`` each time.  ``request.prepared.fold`` is what it has returned before, if it has."""

    def repeat(self, like: Any, source: Array, out: Array, number: int, name: str) -> int | None:
        """Carries an allreduce of a kind that ``prepare`` gave, of plain arrays that are the same memory or do not
        overlap, in few steps.  Returns the number of packets sent again; None, and has sent nothing, where ``begin``
        and ``allreduce`` are to be called."""

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows, or a barrier, after ``begin`` said that its number folds."""

    @property
    def fallback(self) -> str:
        """Why the switches fold no longer, and since which operation; empty while they do."""

    def begin(self, number: int) -> bool:
        """True if the operation of this number, which is this rank's next, folds; ``allreduce`` may then be called for
        it.  False: no trees are left, and it goes between the hosts, on all ranks alike.  Raises the error that ended
        the rail."""

    @property
    def shared_memory_rate(self) -> float:
        """Bytes per second that a rank reduces through its machine's shared memory, as measured; 0 where it is alone on
        its machine."""

    def inside(self, opener: Any, operation: Callable[[], AbstractContextManager[object]]) -> Any | None:
        """The group by which the ranks of this rank's machine are to reduce tensors on devices themselves
        (``staging.device_step.MachineGroup``); None: they are not.  All of them call it alike, between operations.

        opener     opens such a group, of one kind, once (``torch.inside_group.Opener``)
        operation  a context for an operation of the machine's ranks, in which it is opened
        Raises TransportError where it cannot be opened, and must.
        """

    @property
    def devices(self) -> str:
        """The way of sums of tensors on devices inside this machine, and why, for people to read; empty before the
        first one."""

    @property
    def suffices(self) -> bool:
        """True if folding is known to be the cheapest without measuring."""

    def trial(self, data: Flat, number: int) -> None:
        """Sums float32 in place, inside an operation of the ranks' mesh, for the chooser to time; it is not counted."""

    def halt(self, number: int) -> None:
        """Starts recovery round ``number``: the trees have failed, and operations go on over those that the controller
        plans now.  Returns at once."""

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: the operation under way ends with this error soon."""

    @property
    def begun(self) -> int:
        """The highest number of an operation that has begun to fold; 0: none."""

    def settle(self, number: int, done: Callable[[], None]) -> None:
        """Calls ``done``, on a thread of its own, once operations up to this number are finished, of which the last has
        begun.  Returns at once."""


def folds(op: str, element: str) -> bool:
    """True if switches can do this reduction: their lanes add and compare integers, to which the hosts convert
    floats."""
    return op in OPS and element in FOLDED

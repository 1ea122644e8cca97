# SPDX-License-Identifier: Apache-2.0
"""A reduce_scatter and an all_gather at the same time, as sharded training can call them (NCCL's group calls):

    with comm.together() as both:
        gradient = both.reduce_scatter(gradients)     # filled at the end of the block
        weights = both.all_gather(shard)

The first loads the links from the ranks to the switches, the second the links back: both take as long as the longer
one.  If the switches do not carry them, the all_gather follows the reduce_scatter.  So a call that needs the other's
result is refused on all paths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from netfold.host.api.members import Members
from netfold.host.operation.arrays import (
    Array,
    Flat,
    fill,
    flat,
    in_bytes,
    pieces_of,
    plain,
    result_of,
    rows_of,
    rows_with,
)
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import ReduceOp, Reduction, reduction_of
from netfold.host.operation.request import AllreduceRequest


@dataclass(frozen=True)
class Waiting:
    """A call inside the block: its arrays, each rank's rows, and the function that runs it alone."""

    array: Array
    out: Array
    rows: list[int]
    alone: Callable[[], Any]


class Together:
    """A reduce_scatter and an all_gather that are called within ``Group.together``, and run at its end.

    scatter, gather  the group's methods
    coding           lane coding of the group's sums
    """

    def __init__(
        self, ranks: Members, coding: Coding, scatter: Callable[..., Any], gather: Callable[..., Any]
    ) -> None:
        self._ranks = ranks
        self._coding = coding
        self._alone = scatter, gather
        self._scatter: Waiting | None = None
        self._reduction = Reduction("sum", "float32")
        self._gather: Waiting | None = None

    def reduce_scatter(
        self, array: Array, out: Array | None = None, op: ReduceOp = "sum", *, counts: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> Array:
        """Same as ``Group.reduce_scatter``; the result is ready at the end of the block."""
        _check_first(self._scatter, "reduce_scatter")
        array = plain(array)
        self._reduction = reduction_of(op, array, dtype)
        rows = rows_of(array, counts, self._ranks.size)
        result = result_of((rows[self._ranks.rank], *array.shape[1:]), array, out)
        self._scatter = Waiting(
            array, result, rows, lambda: self._alone[0](array, result, op, counts=rows, dtype=dtype)
        )
        return result

    def all_gather(self, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None) -> Array:
        """Same as ``Group.all_gather``; the result is ready at the end of the block."""
        _check_first(self._gather, "all_gather")
        array = plain(array)
        rows = rows_with(array, counts, self._ranks.rank, self._ranks.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out)
        self._gather = Waiting(array, result, rows, lambda: self._alone[1](array, result, counts=rows))
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            return  # nothing has been sent
        scatter, gather = self._scatter, self._gather
        if scatter is not None and gather is not None:
            _check_apart(scatter, gather)
            if self._exchange(scatter, gather):
                return
        for call in (scatter, gather):
            if call is not None:
                call.alone()

    def _exchange(self, scatter: Waiting, gather: Waiting) -> bool:
        """Runs both at once.  Returns False if the switches do not carry them."""
        own, rank = gather.array, self._ranks.rank
        data, pieces = flat(gather.out), pieces_of(gather.rows, own)
        fill(data[pieces[rank]], own)
        rows = pieces_of(scatter.rows, scatter.array)
        if not exchange(
            self._ranks, self._coding, scatter.array, scatter.out, self._reduction, rows, data.view(np.uint8),
            in_bytes(pieces, data),
        ):
            return False
        if not np.may_share_memory(data, gather.out):
            gather.out[...] = data.reshape(gather.out.shape)
        return True


def exchange(
    ranks: Members, coding: Coding, array: Array, out: Array, reduction: Reduction, pieces: Sequence[slice],
    data: Flat, rows: Sequence[slice], name: str = "together",
) -> bool:
    """A reduce_scatter and an all_gather at once, as one operation.  Returns False, having sent nothing, if the
    switches do not carry them.

    array, out  of the reduce_scatter; ``pieces``: each rank's elements of the flat array
    data        bytes of which every rank's ``rows`` are gathered; this rank's are filled in
    name        of the operation in the flight recorder
    """
    coding = coding.asked(array, reduction.op, reduction.element, None, None, None, False)
    if coding.reproducible or not ranks.dispatch.rows.joins:
        return False
    nbytes = array.nbytes + sum(row.stop - row.start for row in rows)
    with ranks.operation(name, nbytes, reduction.op, reduction.element) as number:
        request = AllreduceRequest(array, np.asarray(out), reduction, number, coding)
        return ranks.dispatch.rows.exchange(request, pieces, data, rows)


def overlap(array: Array, out: Array, gathered: Array, into: Array) -> str:
    """Names the memory that a reduce_scatter of ``array`` to ``out`` and an all_gather of ``gathered`` to ``into``
    share, if one of them reads or writes what the other writes: the buffers must not overlap.  Empty if they do not."""
    for first, name, second, other in (
        (out, "the result of reduce_scatter", gathered, "the array of all_gather"),
        (out, "the result of reduce_scatter", into, "the result of all_gather"),
        (array, "the array of reduce_scatter", into, "the result of all_gather"),
    ):
        if np.may_share_memory(first, second):
            return f"{name} and {other} overlap"
    return ""


def _check_apart(scatter: Waiting, gather: Waiting) -> None:
    """Raises ValueError where the two calls share memory."""
    what = overlap(scatter.array, scatter.out, gather.array, gather.out)
    if what:
        raise ValueError(
            f"together: {what}, and both calls are made at the same time: expected memory of their own; or call them "
            "one after the other"
        )


def _check_first(call: Waiting | None, name: str) -> None:
    if call is not None:
        raise ValueError(f"{name} is called a second time: expected one reduce_scatter and one all_gather at most")

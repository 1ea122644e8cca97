# SPDX-License-Identifier: Apache-2.0
"""Reproducible reductions as operations of a group.  Each stage (``exact.sums``) is an integer allreduce of its own, in
the flight recorder, the timeline and the rail's figures, and is carried as any other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from netfold.host.api.members import Members
from netfold.host.exact.digits import BLOCK, most_lanes
from netfold.host.exact.order import select_exactly
from netfold.host.exact.sums import Stage, reduce_exactly
from netfold.host.operation.arrays import Array, Flat, address_of, flat
from netfold.host.operation.coding import PLAIN
from netfold.host.operation.half_precision import HALVES, storage
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import ALLREDUCE, AllreduceRequest
from netfold.host.selection.dispatch import Dispatch


def carried(op: str, element: str) -> Reduction:
    """The integer reduction that carries most bytes of a reproducible one."""
    if op in ("max", "min"):
        return Reduction("max" if op == "max" else "min", "int64" if element == "float64" else "int32")
    return Reduction("sum", "int32")


def check(dispatch: Dispatch) -> None:
    """Raises ValueError for a job with helpers, which add for the others: without data they cannot tell its scale."""
    if dispatch.hosts.helpers:
        raise ValueError(
            f"reproducible=True, helpers={list(dispatch.hosts.helpers)}: expected ranks that all have data; give either"
        )


def allreduce(
    ranks: Members, array: Array, result: Array, reduction: Reduction, algorithm: str | None, name: str
) -> None:
    """Fills ``result``, an array of the same shape and dtype which may be ``array`` itself, with the reduction of every
    rank's array (``Group.allreduce``)."""
    source = storage(flat(array))
    out: Flat = storage(flat(result)) if result.flags.carray and result.dtype.isnative else np.empty_like(source)
    if np.may_share_memory(source, out) and address_of(source) != address_of(out):
        source = source.copy()  # they overlap in part
    run = partial(_run, ranks, algorithm, name)
    if reduction.op in ("max", "min"):
        select_exactly(source, out, reduction, run, ranks.sequencer.me)
    else:
        reduce_exactly(source, out, reduction, ranks.size, run, ranks.sequencer.me)
    if not np.may_share_memory(out, result):
        storage(result)[...] = out.reshape(result.shape)


def explain(dispatch: Dispatch, nbytes: int, reduction: Reduction, algorithm: str | None) -> str:
    """The bytes that a reproducible allreduce of ``nbytes`` bytes sends, and the path of most of them.  Sends
    nothing."""
    integers = carried(reduction.op, reduction.element)
    elements = nbytes // reduction.dtype.itemsize
    if reduction.op in ("max", "min"):
        sent = elements * integers.dtype.itemsize
        return f"reproducible, as integers: {_path(dispatch, sent, integers, algorithm)}"
    most = most_lanes("half" if reduction.element in HALVES else reduction.element, dispatch.hosts.size)
    scales = 8 * -(-elements // BLOCK)
    return (
        f"reproducible, as integers: {scales} bytes of scales, then up to {most} lanes of int32 an element, and more "
        f"of those whose rounding is still open: {_path(dispatch, 4 * most * elements, integers, algorithm)}"
    )


def _path(dispatch: Dispatch, nbytes: int, integers: Reduction, algorithm: str | None) -> str:
    return dispatch.explain(nbytes, integers, algorithm, PLAIN)


def _run(
    ranks: Members, algorithm: str | None, name: str, lanes: NDArray[Any], op: Literal["sum", "max", "min"],
    stage: Stage, check: Callable[[], None] | None = None,
) -> None:
    """One integer allreduce in place, as an operation of the group (``exact.sums.IntegerCollective``)."""
    reduction = Reduction(op, lanes.dtype.name)
    what = f"{name or ALLREDUCE}, {stage}"
    with ranks.operation(what, lanes.nbytes, op, reduction.element) as number:
        ranks.dispatch.allreduce(
            AllreduceRequest(lanes, lanes, reduction, number, algorithm=algorithm, name=what)
        )
        if check is not None:
            check()

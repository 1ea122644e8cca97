# SPDX-License-Identifier: Apache-2.0
"""The calls of netfold.h on communicators: arguments as netfold.c passes them, and exceptions as a status and a text.

netfold.c passes memory as memoryviews, dtypes and reductions as the numbers of its enumerations, and communicators and
requests as the objects that it got from here.  It has checked pointers, sizes and overlaps; everything else is checked
here or by the communicator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from cbuild.cc import BuildError
from netfold.host import errors
from netfold.host.api import verbs
from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.api.work import Work
from netfold.host.operation.arrays import Array
from netfold.host.operation.half_precision import BFLOAT16
from netfold.host.operation.reduction import ReduceOp

OK, INVALID, REFUSED, MISMATCH, LOST, TIMEOUT, CLOSED, SYSTEM, INTERNAL = range(9)
"""The numbers of netfold_status."""
STATUS: Final[tuple[tuple[int, tuple[type[BaseException], ...]], ...]] = (
    (REFUSED, (errors.JoinRefused, errors.PlanError)),
    (MISMATCH, (errors.RankMismatch,)),
    (TIMEOUT, (errors.CollectiveTimeout,)),
    (CLOSED, (errors.Closed, errors.Aborted)),
    (INVALID, (errors.Busy,)),
    (SYSTEM, (errors.TransportError, BuildError)),
    (LOST, (errors.NetFoldError,)),
    (INVALID, (ValueError, TypeError, NotImplementedError)),
    (SYSTEM, (OSError, MemoryError)),
)
"""Exception types by status: an exception has the first status here that lists its type, else INTERNAL."""
DTYPES: Final = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", BFLOAT16)
"""Names of dtypes, by the numbers of netfold_dtype."""
KINDS: Final = tuple(np.dtype("uint16" if name == BFLOAT16 else name) for name in DTYPES)
"""Numpy dtypes, by the numbers of netfold_dtype."""
OPS: Final[tuple[ReduceOp, ...]] = ("sum", "product", "max", "min", "average")
"""Names of reductions, by the numbers of netfold_op."""


def failure(error: BaseException) -> tuple[int, str]:
    """The status of an exception, and its text, which begins with the exception's name if it is not one of
    NetFold's."""
    status = next((status for status, kinds in STATUS if isinstance(error, kinds)), INTERNAL)
    text = str(error)
    if status == INTERNAL or not text:
        text = f"{type(error).__name__}: {text}"
    return status, text


# ---- communicators ---------------------------------------------------------------------------------------------------
def join(
    job: str | None, rank: int, world: int, address: str | None, controller: str | None, token: str | None,
    rail: str | None, algorithm: str | None, timeout: float, join_timeout: float, lane_bits: int, reproducible: int,
) -> Communicator:
    """``netfold_join``.  None, 0 and -1 (rank, reproducible) mean that the environment decides."""
    if rank < -1 or world < 0 or lane_bits < 0 or reproducible not in (-1, 0, 1):
        raise ValueError(f"netfold_join: expected rank >= -1, world >= 0, lane_bits >= 0 and reproducible of -1, 0 or "
                         f"1, got {rank}, {world}, {lane_bits} and {reproducible}")
    given: dict[str, Any] = {
        "job": job, "rank": None if rank == -1 else rank, "world": world or None, "address": address,
        "controller": controller, "token": token, "rail": rail, "algorithm": algorithm, "timeout": timeout or None,
        "join_timeout": join_timeout or None, "lane_bits": lane_bits or None,
        "reproducible": None if reproducible == -1 else bool(reproducible),
    }
    return verbs.join(**{name: value for name, value in given.items() if value is not None})


def group(comm: Group, *ranks: int) -> Group:
    """``netfold_group``."""
    return comm.group(ranks)


def explain(comm: Group, nbytes: int) -> str:
    """``netfold_explain``."""
    return comm.explain(nbytes)


def abort(comm: Group, why: str) -> None:
    """``netfold_abort``.  Raises ValueError for a group: only the whole job can be aborted."""
    if not isinstance(comm, Communicator):
        raise ValueError(f"netfold_abort of a group of {comm.size} ranks: expected the communicator that was joined")
    comm.abort(why)


# ---- collectives -----------------------------------------------------------------------------------------------------
def allreduce(
    comm: Group, send: memoryview, receive: memoryview, dtype: int, op: int, begins: bool
) -> Work[Any] | None:
    """``netfold_allreduce``."""
    return _run(comm, begins, "allreduce", partial(
        comm.allreduce, _array(send, dtype), _array(receive, dtype), _named("op", OPS, op), dtype=_element(dtype)))


def reduce_scatter(
    comm: Group, send: memoryview, receive: memoryview, dtype: int, op: int, begins: bool
) -> Work[Any] | None:
    """``netfold_reduce_scatter``."""
    return _run(comm, begins, "reduce_scatter", partial(
        comm.reduce_scatter, _array(send, dtype), _array(receive, dtype), _named("op", OPS, op),
        dtype=_element(dtype)))


def all_gather(comm: Group, send: memoryview, receive: memoryview, dtype: int, begins: bool) -> Work[Any] | None:
    """``netfold_all_gather``."""
    return _run(comm, begins, "all_gather", partial(comm.all_gather, _array(send, dtype), _array(receive, dtype)))


def broadcast(comm: Group, buffer: memoryview, dtype: int, root: int, begins: bool) -> Work[Any] | None:
    """``netfold_broadcast``."""
    return _run(comm, begins, "broadcast", partial(comm.broadcast, _array(buffer, dtype), root=root))


def barrier(comm: Group, begins: bool) -> Work[Any] | None:
    """``netfold_barrier``."""
    return _run(comm, begins, "barrier", comm.barrier)


def _run(comm: Group, begins: bool, what: str, call: Callable[[], Any]) -> Work[Any] | None:
    """Runs a call, or starts it and returns its request."""
    if begins:
        return comm.later(call, what)
    call()
    return None


def _named(what: str, names: tuple[Any, ...], number: int) -> Any:
    if not 0 <= number < len(names):
        known = ", ".join(DTYPES if names is KINDS else names)
        raise ValueError(f"{what} {number}: expected 0 to {len(names) - 1} ({known}), as in netfold.h")
    return names[number]


def _element(dtype: int) -> str | None:
    """The argument ``dtype`` of reductions: the dtype's name if numpy lacks it, else None."""
    return BFLOAT16 if DTYPES[dtype] == BFLOAT16 else None


def _array(memory: memoryview, dtype: int) -> Array:
    """Memory as an array of elements, those of bfloat16 as uint16.  Nothing is copied."""
    kind = _named("dtype", KINDS, dtype)
    if not memory.nbytes:
        array = np.empty(0, kind)
        array.flags.writeable = not memory.readonly
        return array
    return np.frombuffer(memory, kind)

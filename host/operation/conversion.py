# SPDX-License-Identifier: Apache-2.0
"""Converts a caller's request to the flat arrays and dtypes that a rail takes, and its result back to the caller's
array.

Nothing is copied where the caller's arrays are plain (C-contiguous, aligned, in this machine's byte order) and their
dtype is one of the rail's own.  Otherwise:

    array that is not plain         one copy of the source, one of the result
    float16, bfloat16               float32 made of the source; the result rounded once from the same memory
    feedback without narrow lanes   one copy, to which the residual is added
    saturating sum between hosts    int64 made of the source, which holds every sum exactly
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from netfold.host.operation.arrays import Array, address_of, flat
from netfold.host.operation.coding import add_feedback
from netfold.host.operation.half_precision import narrow, widen
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest

EXACT = Reduction("sum", "int64")


def in_float32(request: AllreduceRequest) -> AllreduceRequest:
    """A request of halves as one of float32, which holds all of them exactly; its result overwrites its source."""
    wide = widen(request.source, request.reduction.element)
    return replace(request, source=wide, out=wide, reduction=request.reduction.wide)


def round_to(request: AllreduceRequest, wide: Array) -> None:
    """Rounds a result in float32, of any shape, once, into the caller's array."""
    narrow(wide.reshape(request.out.shape), request.reduction.element, request.out)


def between_hosts(request: AllreduceRequest, algorithm: str | None) -> AllreduceRequest:
    """The request as the hosts reduce it: every element at full width, so that no feedback is left."""
    if request.coding.saturate:
        wide = request.source.astype(np.int64).reshape(-1)
        return replace(request, source=wide, out=wide, reduction=EXACT, algorithm=algorithm)
    source = request.source
    if request.feedback is not None:
        source = add_feedback(source, request.feedback)
    return replace(request, source=flat(source), out=flat(request.out), algorithm=algorithm, feedback=None)


def are_plain(request: AllreduceRequest) -> bool:
    """True if lanes of 32 bits accept the request's arrays without a conversion other than of their shape; then nothing
    is copied."""
    source, out = request.source, request.out
    if request.feedback is not None or request.reduction.half:
        return False
    own = source.flags
    if not own.carray or not source.dtype.isnative:
        return False
    if out is source:
        return True
    # two arrays that have allocated their memory themselves do not overlap
    its = out.flags
    return bool(
        its.carray and out.dtype == source.dtype
        and ((own.owndata and its.owndata) or not np.may_share_memory(source, out))
    )


def in_lanes(request: AllreduceRequest, *, narrows: bool) -> AllreduceRequest:
    """The request as lanes of 32 bits carry it, in float32 or int32.

    narrows  whether the rail has narrow lanes: only then it gets the feedback
    """
    source, out, feedback = request.source, request.out, request.feedback
    if source.ndim == out.ndim == 1 and are_plain(request):
        return request  # as it is: what a small tensor nearly always is, in one step
    if feedback is not None and not (narrows and request.coding.lane_bits != 32):
        source, feedback = add_feedback(source, feedback), None
    source = flat(source)
    return replace(
        request, source=source, out=_separate(out, source).reshape(-1),
        feedback=None if feedback is None else feedback.reshape(-1),
    )


def deliver(carried: AllreduceRequest, request: AllreduceRequest) -> int:
    """Copies the result of the carried request to the caller's array, where it is not there already.

    Returns how many elements of a saturating sum between hosts are at an end of the range.
    """
    out = request.out
    if carried is request:
        return 0
    if carried.reduction.element == request.reduction.element:
        if not np.may_share_memory(carried.out, out):
            out[...] = carried.out.reshape(out.shape)
        return 0
    wide, ends = carried.out, np.iinfo(np.int32)
    out[...] = wide.clip(ends.min, ends.max).reshape(out.shape)
    return elements_at_ends(wide)


def elements_at_ends(sums: Array) -> int:
    """How many elements stand at an end of int32's range, or beyond it."""
    ends = np.iinfo(np.int32)
    return int(np.count_nonzero((sums <= ends.min) | (sums >= ends.max)))


def _separate(out: Array, source: Array) -> Array:
    """``out`` itself where it is plain, and is the source's memory or does not overlap it; else new memory.

    Results arrive while later contributions are still sent, so arrays must not overlap in part.
    """
    if out is source:
        return out
    plain = out.flags.carray and out.dtype == source.dtype
    if plain and (not np.may_share_memory(source, out) or address_of(source) == address_of(out)):
        return out
    return np.empty(source.shape, source.dtype)

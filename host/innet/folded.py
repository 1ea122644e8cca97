# SPDX-License-Identifier: Apache-2.0
"""An allreduce of a caller's arrays by what folds, which takes flat ones of float32 and int32."""

from __future__ import annotations

from typing import cast

import numpy as np

from netfold.host.operation.arrays import Array
from netfold.host.operation.coding import Coding, take_back
from netfold.host.operation.half_precision import HALVES, narrow, widen
from netfold.host.operation.rail import LaneRail, Op, Rail
from netfold.host.operation.reduction import Reduction


def allreduce(
    fold: Rail,
    lanes: LaneRail | None,
    array: Array,
    result: Array,
    reduction: Reduction,
    number: int,
    coding: Coding,
    feedback: Array | None,
) -> int:
    """Fills ``result`` with the reduction of every rank's ``array``, of any layout; they may be the same memory.

    fold, lanes  as a ``Dispatch`` has them
    number       of the operation
    feedback     as for ``Group.allreduce``
    Returns how many elements of a saturating sum stand at an end of the range.
    """
    if reduction.element in HALVES:  # as float32, which holds all of them, and rounded once
        wide = widen(array, reduction.element)
        allreduce(fold, lanes, wide, wide, Reduction(reduction.op, "float32"), number, coding, feedback)
        narrow(wide, reduction.element, result)
        return 0
    if feedback is not None and (lanes is None or coding.lane_bits == 32):
        array, feedback = take_back(array, feedback), None
    op, dtype = cast(Op, reduction.op), reduction.dtype
    source = np.require(array, dtype, ["C", "A"]).reshape(-1)
    plain = result.flags.c_contiguous and result.flags.aligned and result.dtype == dtype
    # Results arrive while later contributions still leave: what overlaps must be the same memory or none.
    same = plain and source.ctypes.data == result.ctypes.data
    direct = plain and (same or not np.may_share_memory(source, result))
    out = result.reshape(-1) if direct else np.empty(source.shape, dtype)
    if lanes is None:
        fold.allreduce(source, out, op, number)
    else:
        lanes.allreduce(source, out, op, number, coding, None if feedback is None else feedback.reshape(-1))
    if not direct:
        result[...] = out.reshape(result.shape)
    return lanes.saturated if lanes is not None and coding.saturate else 0

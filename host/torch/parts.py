# SPDX-License-Identifier: Apache-2.0
"""Allreduce of memory on the CPU, in the parts in which a tensor on a device is reduced.

Each part is an operation of its own, and all ranks must call as many.  Ranks may differ in the device and the strides
of a tensor, so the parts depend on its number of bytes alone.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.operation.reduction import ReduceOp
from netfold.host.staging.copies import places_of_parts


def allreduce(
    comm: Communicator, array: NDArray[Any], op: ReduceOp, *, feedback: NDArray[Any] | None = None, **how: Any
) -> None:
    """Reduces an array in place.  ``feedback``, of the array's shape, and ``how`` are those of
    ``Communicator.allreduce``."""
    places = places_of_parts(array.size, array.itemsize, whole=comm.repeats_losses)
    if len(places) == 1 and (feedback is None or feedback.flags.c_contiguous):
        comm.allreduce(array, array, op, feedback=feedback, **how)
        return
    flat, residual = array.reshape(-1), None if feedback is None else feedback.reshape(-1)
    for place in places:
        part = flat[place]
        comm.allreduce(part, part, op, feedback=None if residual is None else residual[place], **how)
    for whole, parts in ((array, flat), (feedback, residual)):
        if whole is not None and parts is not None and not whole.flags.c_contiguous:
            whole[...] = parts.reshape(whole.shape)  # of strided memory the flat one is a copy

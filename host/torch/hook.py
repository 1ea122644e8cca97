# SPDX-License-Identifier: Apache-2.0
"""The communication hook of DistributedDataParallel: gradients through NetFold, all else as before."""

# Annotations stay objects here, no `from __future__ import annotations`: DistributedDataParallel compares the hook's.
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.futures import Future
from torch.utils.weak import WeakIdKeyDictionary

from netfold.host.collectives.elements import ReduceOp
from netfold.host.communicator import Communicator
from netfold.host.folding.coding import LaneBits, narrows
from netfold.host.torch.reducer import Reducer
from netfold.host.torch.tensors import dtype_name

Owed = NDArray[np.float32]


class NetfoldState:
    """What the hook needs: ``model.register_comm_hook(NetfoldState(communicator), netfold_hook)``.

    average         divide by the number of ranks, as DistributedDataParallel does without a hook; else leave the sum
    lane_bits       16 or 8: half and a quarter of the bytes of float32 gradients, where the switches fold them
                    (docs/host.md); default: the communicator's.  float64 and integers stay whole
    error_feedback  what narrow lanes leave out of a gradient is added to the same parameter's next one, so that over
                    the steps nothing is lost.  Takes a float32 for each element.  It starts from zero with each state;
                    ``reset`` forgets it
    Close it before the communicator, which it does not own.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        average: bool = True,
        lane_bits: LaneBits | None = None,
        error_feedback: bool = True,
    ) -> None:
        self.communicator = communicator
        self.average = average
        self.lane_bits = lane_bits
        self._owed = Feedback() if error_feedback and communicator.lanes(lane_bits) != 32 else None
        self._reducer = Reducer(communicator)

    def reduce(
        self, tensor: torch.Tensor, name: str = "allreduce", feedback: Owed | None = None
    ) -> Future[torch.Tensor]:
        """Begins to reduce a tensor in place; the future's value is that tensor.

        feedback  float32[tensor.shape], as for ``Communicator.allreduce``
        """
        # The average is taken of the sum, behind the integers that the switches add: no precision is lost before.
        op: ReduceOp = "average" if self.average else "sum"
        bits = self.lane_bits if narrows(op, dtype_name(tensor.dtype)) else None
        pending = self._reducer.allreduce([tensor], op, name, lane_bits=bits, feedback=feedback)
        return pending.future.then(_only)

    def reduce_bucket(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Begins to reduce a bucket of gradients in place, with what is owed to its parameters."""
        buffer, owed = bucket.buffer(), None
        if self._owed is not None and narrows("sum", dtype_name(buffer.dtype)):
            owed = self._owed.of(bucket.index(), bucket.parameters())
        return self.reduce(buffer, f"bucket {bucket.index()}", owed)

    def reset(self) -> None:
        """Forgets what narrow lanes have left out: after loading a checkpoint, or where gradients change their scale.
        Between steps only."""
        if self._owed is not None:
            self._owed = Feedback()

    def close(self) -> None:
        """Ends after what is under way."""
        self._reducer.close()


class Feedback:
    """What is owed to each parameter's gradient, laid out as the buckets are."""

    def __init__(self) -> None:
        self._buckets: dict[int, Owed] = {}
        self._places = WeakIdKeyDictionary()
        """Parameter -> its bucket's array, and where it begins there."""

    def of(self, index: int, parameters: Sequence[torch.Tensor]) -> Owed:
        """A bucket's, float32[elements of its parameters].  DistributedDataParallel lays its buckets out anew after the
        first step: what is owed goes where its parameter goes."""
        starts = [0, *accumulate(parameter.numel() for parameter in parameters)]
        whole = self._buckets.get(index)
        places = [self._places.get(parameter, (None, 0)) for parameter in parameters]
        known = all(array is whole and at == start for (array, at), start in zip(places, starts[:-1], strict=True))
        if whole is not None and whole.size == starts[-1] and known:
            return whole
        fresh: Owed = np.zeros(starts[-1], np.float32)
        for parameter, (array, at), start in zip(parameters, places, starts[:-1], strict=True):
            if array is not None:
                fresh[start : start + parameter.numel()] = array[at : at + parameter.numel()]
            self._places[parameter] = fresh, start
        self._buckets[index] = fresh
        return fresh


def netfold_hook(state: NetfoldState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Reduces a bucket of gradients in place.  Returns at once, so that backward goes on meanwhile."""
    return state.reduce_bucket(bucket)


def _only(future: Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]

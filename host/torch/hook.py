# SPDX-License-Identifier: Apache-2.0
"""The communication hook of DistributedDataParallel: NetFold reduces the gradients, and the backend does all else."""

# Annotations stay objects here, no `from __future__ import annotations`: DistributedDataParallel compares the hook's.
import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.operation.coding import LaneBits, narrows
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.feedback import Feedback
from netfold.host.torch.reducer import Reducer
from netfold.host.torch.tensors import dtype_name

log = logging.getLogger("netfold")


class NetfoldState:
    """The state of the hook: ``model.register_comm_hook(NetfoldState(communicator), netfold_hook)``.

    average         divide by the number of ranks, as DistributedDataParallel does without a hook; False: leave the sum
    lane_bits       16 or 8: half or a quarter of the bytes of float32 gradients, if the switches fold them
                    (docs/host.md); default: the communicator's.  float64 and integers are not narrowed
    error_feedback  add the part of a gradient that narrow lanes drop to the same parameter's next gradient, so that
                    over the steps nothing is lost.  Needs a float32 for each element, zero in a new state;
                    ``state_dict`` is for checkpoints, ``reset`` sets it to zero
    reproducible    bits that depend on the ranks' gradients alone, not on their order, the path or the bucket
                    (``Communicator.allreduce``); default: the communicator's.  ValueError with narrow lanes
    Close it before the communicator, which it does not own.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        average: bool = True,
        lane_bits: LaneBits | None = None,
        error_feedback: bool = True,
        reproducible: bool | None = None,
    ) -> None:
        self.communicator = communicator
        self.average = average
        self.lane_bits = lane_bits
        self.reproducible = communicator.reproducible if reproducible is None else reproducible
        bits = communicator.lanes(lane_bits, reproducible=self.reproducible)
        self._residuals = self._feedback() if error_feedback and bits != 32 else None
        self._reducer = Reducer(communicator)

    def reduce(
        self, tensor: torch.Tensor, name: str = "allreduce", feedback: torch.Tensor | None = None
    ) -> Future[torch.Tensor]:
        """Begins to reduce a tensor in place; the future's value is that tensor.

        feedback  float32[tensor.shape], as for ``Reducer.allreduce``
        """
        # The average is taken of the sum, behind the integers that the switches add: no precision is lost before.
        op: ReduceOp = "average" if self.average else "sum"
        bits = self.lane_bits if narrows(op, dtype_name(tensor.dtype)) else None
        pending = self._reducer.allreduce(
            tensor, op, name, lane_bits=bits, feedback=feedback, reproducible=self.reproducible
        )
        return pending.future.then(_only)

    def reduce_bucket(self, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Begins to reduce a bucket of gradients in place, with error feedback if enabled."""
        buffer, residual = bucket.buffer(), None
        if self._residuals is not None and narrows("sum", dtype_name(buffer.dtype)):
            with ending_with(buffer.device, self.communicator):
                residual = self._residuals.of_bucket(bucket.index(), bucket.parameters())
        return self.reduce(buffer, f"bucket {bucket.index()}", residual)

    def reset(self) -> None:
        """Sets the residuals to zero, for gradients that change their scale.  Call it between steps."""
        if self._residuals is not None:
            self._residuals = self._feedback()

    def state_dict(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """The residuals of this rank's gradients, by parameter name; every rank must save its own in a checkpoint.
        Call it between steps.

        model  whose gradients they are, wrapped in DistributedDataParallel or not
        """
        return {} if self._residuals is None else self._residuals.save(_named(model))

    def load_state_dict(self, model: nn.Module, saved: Mapping[str, torch.Tensor]) -> None:
        """Loads residuals that ``state_dict`` of the same rank returned, so that training continues exactly as it would
        have.  Call it between steps.  Raises ValueError for names or shapes that are not this model's."""
        if self._residuals is not None:
            self._residuals = self._feedback()
            self._residuals.load(_named(model), saved)
        elif saved:
            log.warning("%r: lanes are whole here: what narrow ones left out of %d gradients is forgotten",
                        self.communicator, len(saved))

    def _feedback(self) -> Feedback:
        return Feedback(on_host=self.communicator.repeats_losses)

    def close(self) -> None:
        """Waits for reductions under way, and ends the reducer's thread."""
        self._reducer.close()


def netfold_hook(state: NetfoldState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Reduces a bucket of gradients in place.  Returns at once, so that backward goes on meanwhile."""
    return state.reduce_bucket(bucket)


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: parameter for name, parameter in inner.named_parameters() if parameter.requires_grad}


def _only(future: Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]

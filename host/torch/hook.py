# SPDX-License-Identifier: Apache-2.0
"""The communication hook of DistributedDataParallel: gradients through NetFold, all else as before."""

# Annotations stay objects here, no `from __future__ import annotations`: DistributedDataParallel compares the hook's.
import torch
import torch.distributed as dist
from torch.futures import Future

from netfold.host.communicator import Communicator
from netfold.host.torch.reducer import Reducer


class NetfoldState:
    """What the hook needs: ``model.register_comm_hook(NetfoldState(communicator), netfold_hook)``.

    average  divide by the number of ranks, as DistributedDataParallel does without a hook; else leave the sum
    Close it before the communicator, which it does not own.
    """

    def __init__(self, communicator: Communicator, *, average: bool = True) -> None:
        self.communicator = communicator
        self.average = average
        self._reducer = Reducer(communicator)

    def reduce(self, tensor: torch.Tensor, name: str = "allreduce") -> Future[torch.Tensor]:
        """Begins to reduce a tensor in place; the future's value is that tensor."""
        # The average is taken of the sum, behind the integers that the switches add: no precision is lost before.
        pending = self._reducer.allreduce([tensor], "average" if self.average else "sum", name)
        return pending.future.then(_only)

    def close(self) -> None:
        """Ends after what is under way."""
        self._reducer.close()


def netfold_hook(state: NetfoldState, bucket: dist.GradBucket) -> Future[torch.Tensor]:
    """Reduces a bucket of gradients in place.  Returns at once, so that backward goes on meanwhile."""
    return state.reduce(bucket.buffer(), f"bucket {bucket.index()}")


def _only(future: Future[list[torch.Tensor]]) -> torch.Tensor:
    return future.value()[0]

# SPDX-License-Identifier: Apache-2.0
"""All-gather and reduce-scatter of tensors: checked at once, and run by the function that is returned.

Tensors of any dtype are gathered as bytes.  Pieces may have different sizes where every rank passes all of them, in a
list.  Contiguous tensors are read and written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.operation.arrays import as_held
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.tensors import as_array, dtype_name

Call = Callable[[], object]


def all_gather(comm: Communicator, outputs: torch.Tensor | Sequence[torch.Tensor], mine: torch.Tensor) -> Call:
    """A call that puts every rank's ``mine`` one after another into ``outputs``, or each into one of them.  Raises
    ValueError."""
    if isinstance(outputs, torch.Tensor):
        whole = outputs.detach()
        check_like("output", whole, comm.size * mine.numel(), mine)
        if whole.is_contiguous():
            return lambda: comm.all_gather(as_bytes(mine), as_bytes(whole))
        return lambda: whole.copy_(as_tensor(comm.all_gather(as_bytes(mine)), whole))
    several = [output.detach() for output in outputs]
    check_count("outputs", several, comm)
    for rank, output in enumerate(several):
        check_like(f"output for rank {rank}", output, mine.numel() if rank == comm.rank else output.numel(), mine)

    def gather() -> None:
        counts = [output.numel() * output.element_size() for output in several]
        gathered = comm.all_gather(as_bytes(mine), counts=counts)
        for output, end in zip(several, np.cumsum(counts).tolist(), strict=True):
            output.copy_(as_tensor(gathered[end - output.numel() * output.element_size() : end], output))

    return gather


def reduce_scatter(
    comm: Communicator, output: torch.Tensor, inputs: torch.Tensor | Sequence[torch.Tensor], op: ReduceOp
) -> Call:
    """A call that leaves this rank's piece of the reduction of every rank's ``inputs`` in ``output``: an equal piece of
    one tensor, or of several, one for each rank, that of this rank.  Raises ValueError."""
    mine = output.detach()
    if isinstance(inputs, torch.Tensor):
        check_like("input", inputs, comm.size * mine.numel(), mine)
        several = [inputs.detach()]
        counts = [mine.numel()] * comm.size
    else:
        several = [tensor.detach() for tensor in inputs]
        counts = [tensor.numel() for tensor in several]
        check_count("inputs", several, comm)
        for rank, tensor in enumerate(several):
            check_like(f"input for rank {rank}", tensor, mine.numel() if rank == comm.rank else tensor.numel(), mine)

    def reduce() -> None:
        flat = [tensor.reshape(-1) for tensor in several]
        source, dtype = as_array(torch.cat(flat) if len(flat) > 1 else flat[0])
        if mine.is_contiguous():
            comm.reduce_scatter(source, as_array(mine.view(-1))[0], op, counts=counts, dtype=dtype)
        else:
            mine.copy_(as_tensor(comm.reduce_scatter(source, op=op, counts=counts, dtype=dtype), mine))

    return reduce


# ---- shared with movement.py -----------------------------------------------------------------------------------------
def as_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """The memory of a contiguous tensor as bytes, or that of a contiguous copy, with the name of the elements'
    dtype."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return as_held(plain.reshape(-1).contiguous().view(torch.uint8).numpy(), dtype_name(tensor.dtype))


def as_bytes_of_all(tensors: Sequence[torch.Tensor]) -> NDArray[np.uint8]:
    """The memory of tensors of one dtype, one after another."""
    return as_held(np.concatenate([as_bytes(tensor) for tensor in tensors]), dtype_name(tensors[0].dtype))


def as_tensor(array: NDArray[Any], like: torch.Tensor) -> torch.Tensor:
    """An array's memory as a tensor of the shape and dtype of ``like``."""
    if not like.numel():
        return like
    return torch.from_numpy(array.view(np.uint8)).view(like.dtype).view(like.shape)


def check_like(name: str, tensor: torch.Tensor, count: int, like: torch.Tensor) -> None:
    """Raises ValueError unless the tensor has this many elements of the dtype of ``like``."""
    if tensor.numel() != count or tensor.dtype != like.dtype:
        raise ValueError(
            f"{name} is {tensor.dtype} of {tuple(tensor.shape)}: expected {like.dtype} of {count} elements, beside a "
            f"tensor of {tuple(like.shape)}"
        )


def check_count(name: str, tensors: Sequence[torch.Tensor], comm: Communicator) -> None:
    """Raises ValueError unless there is a tensor for each rank."""
    if len(tensors) != comm.size:
        raise ValueError(f"{len(tensors)} {name}: expected {comm.size}, one for each rank")

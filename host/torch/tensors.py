# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy arrays of the same memory, without copies."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from netfold.host.operation.reduction import ReduceOp

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64, torch.uint8)
OPERATIONS: dict[torch.dtype, tuple[ReduceOp, ...]] = {
    **dict.fromkeys(FLOATS, ("sum", "average", "max", "min", "product")),
    **dict.fromkeys(INTEGERS, ("sum", "max", "min", "product")),
}
"""Dtype -> reductions of it that the communicator can do."""


def reduces(tensor: torch.Tensor, op: ReduceOp | None) -> bool:
    """Whether the communicator can reduce this tensor by ``op``."""
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and op in OPERATIONS.get(tensor.dtype, ())


def flattened(tensors: Any) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples; anything else in them is left out."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in flattened(part)] if isinstance(tensors, list | tuple) else []


def check_device(what: str, tensors: Any) -> None:
    """Raises ValueError where one of the tensors is not on the CPU."""
    for tensor in flattened(tensors):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{what} of a tensor of {tuple(tensor.shape)} on {tensor.device}: backend 'netfold' is for tensors on "
                "the CPU; move it there with .cpu(), or give it to a group of another backend (dist.new_group)"
            )


def dtype_name(dtype: torch.dtype) -> str:
    """The name that numpy has, or would have, for a dtype, such as "float32" or "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def as_array(tensor: torch.Tensor) -> tuple[NDArray[Any], str | None]:
    """The tensor's memory as an array of its shape, and the name of its dtype where numpy has none for it, else None.

    Raises ValueError for sparse tensors and for those that are not on the CPU.
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"tensor of {tuple(tensor.shape)} is {tensor.layout} on {tensor.device}: expected a dense one on the CPU; "
            "move it there with .cpu(), or reduce it with another backend"
        )
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16"), "bfloat16"
    return tensor.numpy(), None

# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy arrays of the same memory, without copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

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
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
WIDER: dict[torch.dtype, torch.dtype] = {
    torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64,
    **{getattr(torch, name): torch.float32 for name in _FLOAT8 if hasattr(torch, name)},
}
"""Dtype that the communicator does not reduce -> the wider one in which it is reduced, before a single rounding or
wrap."""
GLOO = (*FLOATS, *INTEGERS, torch.int8, torch.bool)
"""Dtypes that gloo reduces."""
Factor: TypeAlias = float | torch.Tensor | None
"""A factor by which each rank's part is multiplied before the reduction."""


def reduced_as(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which tensors of this dtype are reduced."""
    return WIDER.get(dtype, dtype)


def reduces(tensor: torch.Tensor, op: ReduceOp | None, factor: Factor = None) -> bool:
    """True if the communicator can reduce this tensor by ``op``, multiplied by the factor."""
    known = op in OPERATIONS.get(reduced_as(tensor.dtype), ()) and (factor is None or tensor.is_floating_point())
    return known and tensor.layout == torch.strided


def check_gloo(what: str, tensors: Any, op: str, fills: Any) -> None:
    """Raises ValueError if gloo cannot reduce these tensors either, or cannot fill them.

    what   the call, such as "allreduce"
    op     torch's name of the reduction
    fills  those that it fills
    """
    check_fills(what, flattened(fills))
    for tensor in flattened(tensors):
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        if tensor.layout != torch.strided:
            if op == "sum":
                continue
            remedy = "of sparse tensors there are sums alone"
        elif tensor.is_complex():
            remedy = "of complex numbers there are sums and averages alone"
        elif op in ("avg", "premul_sum"):
            remedy = "take the sum, and divide" if op == "avg" else "multiply, and take the sum"
        elif tensor.dtype not in GLOO:
            remedy = "convert it to one that is reduced: " + ", ".join(map(dtype_name, GLOO))
        elif op.startswith("b") and not whole:
            remedy = "bitwise operations are for integers"
        else:
            continue
        raise ValueError(f"{what}: no {op} of {dtype_name(tensor.dtype)}, here of {tuple(tensor.shape)}: {remedy}")


def check_fills(what: str, fills: Iterable[torch.Tensor]) -> None:
    """Raises ValueError where elements of a tensor share memory, so that copies of them cannot be copied back."""
    for tensor in fills:
        if tensor.layout == torch.strided and torch._debug_has_internal_overlap(tensor) == 1:
            raise ValueError(f"{what} into a tensor of {tuple(tensor.shape)} with strides {tensor.stride()}, whose "
                             "elements share memory: expected one with memory for each; give its clone()")


def as_reals(what: str, op: ReduceOp | None, tensors: Any) -> Any:
    """The same tensors, in lists of lists too, but complex ones that are added as floats of the same memory: real and
    imaginary parts.  Raises ValueError if complex and other tensors are mixed, and for conjugated views.

    what  the call, such as "reduce"
    """
    several = [tensor for tensor in flattened(tensors) if tensor.layout == torch.strided]
    if op not in ("sum", "average") or not any(tensor.is_complex() for tensor in several):
        return tensors
    for tensor in several:
        named = f"{what} of {dtype_name(tensor.dtype)}, here of {tuple(tensor.shape)}"
        if not tensor.is_complex():
            raise ValueError(f"{named}: expected one dtype, and another tensor is complex")
        if tensor.is_conj():
            raise ValueError(f"{named}, is a conjugated view: expected plain memory; give its resolve_conj()")
    return replaced(tensors, lambda one: torch.view_as_real(one.detach()) if one.layout == torch.strided else one)


def replaced(tensors: Any, by: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Nested lists and tuples, as lists, with the function's result for each tensor; anything else stays."""
    if isinstance(tensors, torch.Tensor):
        return by(tensors)
    return [replaced(part, by) for part in tensors] if isinstance(tensors, list | tuple) else tensors


def flattened(tensors: Any) -> list[torch.Tensor]:
    """All tensors in nested lists and tuples; anything else in them is left out."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in flattened(part)] if isinstance(tensors, list | tuple) else []


def dtype_name(dtype: torch.dtype) -> str:
    """Numpy's name of a dtype, such as "float32", or the name that it would have, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def as_array(tensor: torch.Tensor) -> tuple[NDArray[Any], str | None]:
    """The tensor's memory as an array of its shape, and the name of its dtype if numpy lacks it, else None.

    Raises ValueError for sparse tensors, for those that are not on the CPU, for views whose elements torch negates or
    conjugates as it reads them, and for dtypes that numpy does not have.
    """
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(
            f"tensor of {tuple(tensor.shape)} is {tensor.layout} on {tensor.device}: expected a dense one on the CPU; "
            "move it there with .cpu(), or reduce it with another backend"
        )
    if tensor.is_neg() or tensor.is_conj():
        raise ValueError(
            f"tensor of {tuple(tensor.shape)} is a negated or conjugated view, whose memory holds other numbers: "
            "expected a plain one; give its resolve_neg().resolve_conj()"
        )
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16"), "bfloat16"
    try:
        return tensor.numpy(), None
    except TypeError as error:
        raise ValueError(
            f"tensor of {tuple(tensor.shape)} is {dtype_name(tensor.dtype)}, which numpy does not have: convert it to "
            "float32, say"
        ) from error

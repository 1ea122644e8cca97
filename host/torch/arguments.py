# SPDX-License-Identifier: Apache-2.0
"""The arguments of a process group's methods, in the forms in which torch 2.5 to 2.13 passes them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.tensors import Factor, flattened

OPS: list[tuple[Any, ReduceOp]] = [
    (dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "average"), (dist.ReduceOp.MAX, "max"), (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.PRODUCT, "product"), (dist.ReduceOp.PREMUL_SUM, "sum"),
]


def pairs_of(outputs: Any, inputs: Any) -> list[tuple[Any, Any]]:
    """Pairs of outputs and inputs; torch passes one tensor each, or a list each."""
    if isinstance(outputs, torch.Tensor) or isinstance(inputs, torch.Tensor):
        return [(outputs, inputs)]
    if len(outputs) != len(inputs) or not outputs:
        raise ValueError(f"{len(outputs)} outputs and {len(inputs)} inputs: expected as many, one or more")
    return list(zip(outputs, inputs, strict=True))


def only_tensor(kind: str, tensors: Any, opts: Any) -> torch.Tensor:
    """The tensor that torch passes by itself, or as the only one of a list."""
    several = flattened([tensors])
    if len(several) != 1 or getattr(opts, "rootTensor", 0) != 0:
        raise ValueError(f"{kind} of {len(several)} tensors: expected one, as torch.distributed passes it")
    return several[0]


def root_of(opts: Any, root: int | None) -> int:
    """The root's rank in the group, which torch passes by itself or in options."""
    return int(root if root is not None else getattr(opts, "rootRank", opts))


def known_operation(asked: Any) -> ReduceOp | None:
    """NetFold's name of the reduction that torch asks for; None if the communicator does not have it."""
    return next((name for known, name in OPS if asked == known), None)


def factor_of(asked: Any) -> Factor:
    """The factor of PREMUL_SUM, which FSDP's gradient divide factor is; None for other reductions."""
    if asked != dist.ReduceOp.PREMUL_SUM:
        return None
    factor: Factor = asked.__getstate__()[1]  # torch 2.13 alone has it as an attribute
    return factor.cpu() if isinstance(factor, torch.Tensor) else factor


def operation_name(op: Any) -> str:
    """Torch's name of a reduction, for messages."""
    known = dist.ReduceOp.RedOpType.__members__
    return next((name.lower() for name, value in known.items() if op == value), str(op))

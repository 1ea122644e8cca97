# SPDX-License-Identifier: Apache-2.0
"""Collectives of tensors from, to, or between single ranks: checked at once, and done by the function that is returned.

Data that is only moved travels as bytes, so tensors have any dtype and any strides; contiguous ones are read and
written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch

from netfold.host.api.communicator import Communicator
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.pieces import Call, as_bytes, as_bytes_of_all, as_tensor, check_count, check_like
from netfold.host.torch.tensors import as_array


def broadcast(comm: Communicator, tensor: torch.Tensor, root: int) -> Call:
    """A call that fills every rank's tensor with the root's."""
    _check_root(comm, root)
    mine = tensor.detach()

    def call() -> None:
        if _in_place(mine):
            comm.broadcast(as_bytes(mine), root=root)
            return
        data = as_bytes(mine.clone())
        comm.broadcast(data, root=root)
        if comm.rank != root:
            mine.copy_(as_tensor(data, mine))

    return call


def reduce(comm: Communicator, tensor: torch.Tensor, op: ReduceOp, root: int) -> Call:
    """A call that leaves the reduction of every rank's tensor in the root's; the others' tensors are unchanged."""
    _check_root(comm, root)
    array, dtype = as_array(tensor)

    def call() -> None:
        comm.reduce(array, array if comm.rank == root else None, op, root=root, dtype=dtype)

    return call


def gather(comm: Communicator, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> Call:
    """A call that fills the root's ``outputs`` with every rank's tensor; the other ranks pass none."""
    _check_root(comm, root)
    mine, several = tensor.detach(), [output.detach() for output in outputs]
    if comm.rank == root:
        check_count("outputs", several, comm)
        for rank, output in enumerate(several):
            check_like(f"output for rank {rank}", output, mine.numel(), mine)
    elif several:
        raise ValueError(f"{len(several)} outputs on rank {comm.rank}: expected some on the root alone, rank {root}")

    def call() -> None:
        gathered = comm.gather(as_bytes(mine), root=root)
        if gathered is not None:
            for output, data in zip(several, np.split(gathered, comm.size), strict=True):
                output.copy_(as_tensor(data, output))

    return call


def scatter(comm: Communicator, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> Call:
    """A call that fills every rank's ``output`` with its part of the root's ``inputs``; the other ranks pass none."""
    _check_root(comm, root)
    mine, several = output.detach(), [tensor.detach() for tensor in inputs]
    if comm.rank == root:
        check_count("inputs", several, comm)
        for rank, tensor in enumerate(several):
            check_like(f"input for rank {rank}", tensor, mine.numel(), mine)
    elif several:
        raise ValueError(f"{len(several)} inputs on rank {comm.rank}: expected some on the root alone, rank {root}")

    def call() -> None:
        source = as_bytes_of_all(several) if several else None
        data = as_bytes(mine) if _in_place(mine) else as_bytes(torch.empty_like(mine))
        comm.scatter(source, data, root=root)
        if not _in_place(mine):
            mine.copy_(as_tensor(data, mine))

    return call


def all_to_all(comm: Communicator, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Call:
    """A call that sends ``inputs[r]`` to rank r and fills ``outputs[r]`` with the tensor from rank r.  Sizes may
    differ."""
    given, taken = [tensor.detach() for tensor in inputs], [tensor.detach() for tensor in outputs]
    check_count("inputs", given, comm)
    check_count("outputs", taken, comm)
    check_like(f"output for rank {comm.rank}", taken[comm.rank], given[comm.rank].numel(), given[comm.rank])

    def call() -> None:
        counts, out_counts = ([one.numel() * one.element_size() for one in several] for several in (given, taken))
        source = as_bytes_of_all(given)
        data = comm.all_to_all(source, counts=counts, out_counts=out_counts)
        for output, part in zip(taken, np.split(data, list(accumulate(out_counts))[:-1]), strict=True):
            output.copy_(as_tensor(part, output))

    return call


def all_to_all_rows(
    comm: Communicator, output: torch.Tensor, tensor: torch.Tensor, out_rows: Sequence[int], rows: Sequence[int]
) -> Call:
    """A call that sends ``rows[r]`` of the tensor's rows to rank r, one after another, and puts ``out_rows[r]`` rows of
    rank r into ``output``.  Empty: equally many for each."""
    return all_to_all(comm, _split("output", comm, output, out_rows), _split("input", comm, tensor, rows))


# ---- inside ----------------------------------------------------------------------------------------------------------
def _split(name: str, comm: Communicator, tensor: torch.Tensor, rows: Sequence[int]) -> list[torch.Tensor]:
    tensor = tensor.detach()
    have = tensor.shape[0] if tensor.dim() else 0
    if not rows and have % comm.size:
        raise ValueError(f"{name} has {have} rows: expected a multiple of {comm.size}, or {name}_split_sizes")
    counts = list(rows) or [have // comm.size] * comm.size
    if len(counts) != comm.size or min(counts) < 0 or sum(counts) != have:
        raise ValueError(f"{name}_split_sizes={counts} of {have} rows: expected {comm.size} numbers with that sum")
    return list(tensor.split(counts))


def _check_root(comm: Communicator, root: int) -> None:
    if not 0 <= root < comm.size:
        raise ValueError(f"root={root}: expected a rank of 0 .. {comm.size - 1}")


def _in_place(tensor: torch.Tensor) -> bool:
    """True if the bytes of a tensor's memory are its elements, in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()

# SPDX-License-Identifier: Apache-2.0
"""Flat copies of tensors, which are reduced, gathered or scattered in place of the tensors.

Several small tensors go one after another in one copy, so that a call with thousands of them is a few operations.  The
communicator has no factor by which each rank's part is multiplied (PREMUL_SUM), fewer dtypes than torch, and no views
whose elements torch negates as it reads them: there the copy is the product, in a wider dtype, in plain memory.  Which
tensors share a copy depends on dtypes and sizes alone, which all ranks have in common.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from netfold.host.api.communicator import Communicator
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch.parts import allreduce as allreduce_in_parts
from netfold.host.torch.pieces import Call, as_bytes, as_tensor
from netfold.host.torch.tensors import Factor, as_array, dtype_name, flattened, reduced_as

SMALL = 1 << 20
"""Bytes from which on a tensor gets an operation of its own: copying it twice takes about as long as an operation."""
MOST = 16 << 20
"""Most bytes of a copy, so that a call does not double the memory of all of its tensors."""

Tensors = Sequence[torch.Tensor]
Pair = tuple[torch.Tensor | Tensors, torch.Tensor]
"""The data that a collective gathers from all ranks or scatters to them, and this rank's part.  The data is one tensor
of all parts in order, or a tensor for each part."""


class FlatCopy:
    """The elements of tensors of one dtype, one tensor after another, in the dtype in which they are reduced.

    factor  multiplies each element
    """

    def __init__(self, tensors: Tensors, factor: Factor = None) -> None:
        self._tensors = tensors
        with torch.no_grad():
            self.whole = torch.cat([elements(tensor).to(reduced_as(tensor.dtype)) for tensor in tensors])
            if factor is not None:
                self.whole.mul_(factor)
        self.array, self.dtype = as_array(self.whole)
        if self.whole.dtype != tensors[0].dtype:
            self.dtype = dtype_name(tensors[0].dtype)

    def spread(self) -> None:
        """Fills the tensors with the copy's elements, rounded to their dtype."""
        spread(self._tensors, self.whole)


def plain(tensor: torch.Tensor, factor: Factor = None) -> bool:
    """True if a tensor can be reduced in place."""
    return factor is None and reduced_as(tensor.dtype) == tensor.dtype and not tensor.is_neg() and not tensor.is_conj()


def allreduce(comm: Communicator, tensors: Tensors, op: ReduceOp, factor: Factor) -> list[Call]:
    """Calls that reduce all tensors in place."""

    def alone(tensor: torch.Tensor) -> Call:
        array, dtype = as_array(tensor)
        return lambda: allreduce_in_parts(comm, array, op, dtype=dtype)

    def together(several: Tensors) -> Call:
        def call() -> None:
            flat = FlatCopy(several, factor)
            allreduce_in_parts(comm, flat.array, op, dtype=flat.dtype)
            flat.spread()

        return call

    bunched = [[tensors[place] for place in places] for places in bunches(tensors)]
    return [alone(bunch[0]) if len(bunch) == 1 and plain(bunch[0], factor) else together(bunch) for bunch in bunched]


def all_gather(comm: Communicator, pairs: Sequence[Pair], calls: Sequence[Call]) -> list[Call]:
    """Calls that gather each pair's part; ``calls`` are those for each pair by itself."""

    def together(several: Sequence[Pair]) -> Call:
        into = [by_rank(whole, comm.size) for whole, _ in several]

        def call() -> None:
            mine = torch.cat([elements(part) for _, part in several]).detach()
            gathered = as_tensor(comm.all_gather(as_bytes(mine)), mine.new_empty(comm.size, mine.numel()))
            for rank, row in enumerate(gathered):
                spread([parts[rank] for parts in into], row)
            for (whole, _), parts in zip(several, into, strict=True):
                if isinstance(whole, torch.Tensor) and not whole.is_contiguous():  # by_rank has copied it
                    whole.detach().copy_(torch.cat(list(parts)).view(whole.shape))

        return call

    uneven = [place for place, (whole, part) in enumerate(pairs) if not even(whole, part)]
    bunched = bunches([part for _, part in pairs], comm.size, uneven)
    return [calls[places[0]] if len(places) == 1 else together([pairs[at] for at in places]) for places in bunched]


def reduce_scatter(
    comm: Communicator, pairs: Sequence[Pair], calls: Sequence[Call], op: ReduceOp, factor: Factor
) -> list[Call]:
    """Calls that leave this rank's part of each pair's reduction in the pair's part; ``calls`` are those for each pair
    by itself."""

    def together(several: Sequence[Pair]) -> Call:
        rows = [by_rank(whole, comm.size) for whole, _ in several]
        counts = [sum(row[rank].numel() for row in rows) for rank in range(comm.size)]

        def call() -> None:
            flat = FlatCopy([row[rank] for rank in range(comm.size) for row in rows], factor)
            piece = comm.reduce_scatter(flat.array, op=op, counts=counts, dtype=flat.dtype)
            spread([part for _, part in several], as_tensor(piece, flat.whole[: piece.size]))

        return call

    def alone(place: int) -> Call:
        in_place = all(plain(tensor, factor) for tensor in flattened(list(pairs[place])))
        return calls[place] if in_place else together([pairs[place]])

    uneven = [place for place, (whole, part) in enumerate(pairs) if not even(whole, part)]
    bunched = bunches([part for _, part in pairs], comm.size, uneven)
    return [alone(places[0]) if len(places) == 1 else together([pairs[at] for at in places]) for places in bunched]


def reduce(comm: Communicator, tensor: torch.Tensor, op: ReduceOp, root: int, factor: Factor) -> Call:
    """A call that leaves the reduction in the root's tensor; the others' tensors are unchanged."""
    def call() -> None:
        flat = FlatCopy([tensor], factor)
        comm.reduce(flat.array, flat.array if comm.rank == root else None, op, root=root, dtype=flat.dtype)
        if comm.rank == root:
            flat.spread()

    return call


# ---- what shares a copy ----------------------------------------------------------------------------------------------
def bunches(tensors: Tensors, times: int = 1, alone: Collection[int] = ()) -> list[list[int]]:
    """The places of tensors that share a copy: small ones of one dtype.

    times  ratio of a copy's bytes to its tensors' bytes
    alone  places of tensors that share none
    """
    found: list[list[int]] = []
    latest: dict[torch.dtype, tuple[list[int], int]] = {}
    """The last copy of a dtype, and its bytes."""
    for place, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size() * times
        if size >= SMALL or place in alone:
            found.append([place])
            continue
        bunch, before = latest.get(tensor.dtype, (None, 0))
        if bunch is None or before + size > MOST:
            bunch, before = [], 0
            found.append(bunch)
        bunch.append(place)
        latest[tensor.dtype] = bunch, before + size
    return found


def elements(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as a flat tensor of plain memory, a view of this one's if possible."""
    return tensor.resolve_conj().resolve_neg().reshape(-1)


def spread(tensors: Tensors, whole: torch.Tensor) -> None:
    """Fills tensors with the elements of a flat one, one tensor after another, as their dtypes round them."""
    with torch.no_grad():
        for tensor, part in zip(tensors, whole.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def even(whole: torch.Tensor | Tensors, part: torch.Tensor) -> bool:
    """True if all ranks' parts have the same number of elements."""
    return isinstance(whole, torch.Tensor) or all(one.numel() == part.numel() for one in whole)


def by_rank(whole: torch.Tensor | Tensors, ranks: int) -> Tensors:
    """Each rank's part: views of a contiguous tensor, or copies of another's elements, or the tensors of a list."""
    if isinstance(whole, torch.Tensor):
        rows: Tensors = whole.detach().reshape(ranks, -1).unbind()
        return rows
    return whole

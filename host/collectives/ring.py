# SPDX-License-Identifier: Apache-2.0
"""Ring: reduce-scatter, all-gather, and the allreduce made of both (Patarasuk and Yuan 2009).

N ranks, M bytes.  reduce_scatter and all_gather: N-1 steps, (N-1)/N M bytes each way on every rank's link; allreduce:
2 (N-1) steps, 2 (N-1)/N M bytes, which is the least without help from the network.

With i the place in the ring and pieces counted around it:

    step s of reduce-scatter: send piece i-s-1, receive piece i-s-2 and add its own      (piece i is whole at the end)
    step s of all-gather:     send piece i-s,   receive piece i-s-1

A piece goes in segments, each sent on as soon as it is reduced.  A piece is reduced once, along the ring, and then
copied: every rank gets the same bits.

On a tree of switches no link carries two messages in one direction at a time if the ring visits the ranks in
depth-first order: ``order``, which the controller's plan gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from netfold.host.collectives.flow import AHEAD, Inbox, Strand, length, segments_on, split_evenly
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


def reduce_scatter(
    mesh: Mesh,
    data: Flat,
    pieces: Sequence[slice],
    reduction: Reduction,
    *,
    order: Sequence[int] | None = None,
    tag: int = 0,
) -> Strand:
    """Leaves in ``data[pieces[rank]]`` the reduction over all ranks; the rest of ``data`` then holds partial
    results."""
    n, i, order, after, before = _place(mesh, order)
    cuts = [segments_on(mesh, pieces[rank], data.itemsize) for rank in order]
    incoming = [cuts[(i - step - 2) % n] for step in range(n - 1)]
    inbox = Inbox(mesh, data.dtype, [(before, length(cut)) for step in incoming for cut in step], tag=tag)
    if n > 1:
        for cut in cuts[(i - 1) % n]:
            mesh.send(after, data[cut], tag=tag)
    for step, piece in enumerate(incoming):
        for cut in piece:
            arrived, theirs = inbox.take()
            yield [arrived]
            reduction(theirs, data[cut], out=data[cut])
            if step < n - 2:
                mesh.send(after, data[cut], tag=tag)


def all_gather(
    mesh: Mesh, data: Flat, pieces: Sequence[slice], *, order: Sequence[int] | None = None, tag: int = 0
) -> Strand:
    """Fills ``data`` with every rank's ``data[pieces[rank]]``."""
    n, i, order, after, before = _place(mesh, order)
    cuts = [segments_on(mesh, pieces[rank], data.itemsize) for rank in order]
    incoming = [cut for step in range(n - 1) for cut in cuts[(i - step - 1) % n]]
    # Nothing that we still send arrives anew before the next rank has it: what arrives was made of it.
    posted = deque(mesh.receive(before, data[cut], tag=tag) for cut in incoming[:AHEAD])
    if n > 1:
        for cut in cuts[i]:
            mesh.send(after, data[cut], tag=tag)
    onward = len(incoming) - len(cuts[(i + 1) % n])
    for at, cut in enumerate(incoming):
        yield [posted.popleft()]
        if at < onward:
            mesh.send(after, data[cut], tag=tag)
        if at + AHEAD < len(incoming):
            posted.append(mesh.receive(before, data[incoming[at + AHEAD]], tag=tag))


def allreduce(
    mesh: Mesh, data: Flat, reduction: Reduction, *, order: Sequence[int] | None = None, tag: int = 0
) -> Strand:
    """Reduces ``data`` over all ranks, in place."""
    pieces = split_evenly(data.size, mesh.size)
    yield from reduce_scatter(mesh, data, pieces, reduction, order=order, tag=tag)
    yield from all_gather(mesh, data, pieces, order=order, tag=tag)


def _place(mesh: Mesh, order: Sequence[int] | None) -> tuple[int, int, Sequence[int], int, int]:
    """Number of ranks, this rank's place in the ring, the order, the next rank, and the rank before."""
    order = range(mesh.size) if order is None else order
    if sorted(order) != list(range(mesh.size)):
        raise ValueError(f"order={list(order)}: expected each of the ranks 0 .. {mesh.size - 1} once")
    i = order.index(mesh.rank)
    return mesh.size, i, order, order[(i + 1) % mesh.size], order[(i - 1) % mesh.size]

# SPDX-License-Identifier: Apache-2.0
"""Halving-doubling (Rabenseifner 2004): recursive halving reduce-scatter, then recursive doubling all-gather.

N = 2^k ranks, M bytes: 2 k steps, 2 (N-1)/N M bytes each way: the ring's bytes in fewer steps, but partners are far
apart in half of them, so that links inside the fabric are shared.

Other N = 2^k + e: first e pairs of ranks become one each (each partner reduces half, one collects: 2 steps, M bytes),
and at the end the other partners get the result (1 step, M bytes).
"""

from __future__ import annotations

from netfold.host.collectives.flow import Strand, receive_piece, reduce_from, send_piece, split_evenly
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


def allreduce(mesh: Mesh, data: Flat, reduction: Reduction, *, tag: int = 0) -> Strand:
    """Reduces ``data`` over all ranks, in place."""
    core = 1 << (mesh.size.bit_length() - 1)
    extra = mesh.size - core
    paired = mesh.rank < 2 * extra
    if paired:
        yield from _merge(mesh, data, reduction, tag)
    if not paired or mesh.rank % 2 == 0:
        yield from _core(mesh, data, reduction, core, extra, tag)
    everything = slice(0, data.size)
    if paired and mesh.rank % 2:
        yield receive_piece(mesh, mesh.rank - 1, data, everything, tag=tag)
    elif paired:
        yield send_piece(mesh, mesh.rank + 1, data, everything, tag=tag)


def _merge(mesh: Mesh, data: Flat, reduction: Reduction, tag: int) -> Strand:
    """Leaves the reduction of a pair of ranks on the even one; each of the two does half of the work."""
    low, high = split_evenly(data.size, 2)
    if mesh.rank % 2 == 0:
        odd = mesh.rank + 1
        sent = send_piece(mesh, odd, data, high, tag=tag)
        yield from reduce_from(mesh, odd, data, low, reduction, tag=tag)
        yield sent
        yield receive_piece(mesh, odd, data, high, tag=tag)
    else:
        even_ = mesh.rank - 1
        send_piece(mesh, even_, data, low, tag=tag)
        yield from reduce_from(mesh, even_, data, high, reduction, tag=tag)
        # Both halves must be sent before the result of all ranks overwrites them.
        yield send_piece(mesh, even_, data, high, tag=tag)


def _core(mesh: Mesh, data: Flat, reduction: Reduction, core: int, extra: int, tag: int) -> Strand:
    me = mesh.rank // 2 if mesh.rank < 2 * extra else mesh.rank - extra
    pieces = split_evenly(data.size, core)

    def rank(place: int) -> int:
        return 2 * place if place < extra else place + extra

    def span(low: int, high: int) -> slice:
        return slice(pieces[low].start, pieces[high - 1].stop)

    low, high, half = 0, core, core // 2
    given: list[slice] = []
    while half:
        peer, middle = rank(me ^ half), low + half
        keep, give = ((low, middle), (middle, high)) if not me & half else ((middle, high), (low, middle))
        send_piece(mesh, peer, data, span(*give), tag=tag)
        yield from reduce_from(mesh, peer, data, span(*keep), reduction, tag=tag)
        given.append(span(*give))
        (low, high), half = keep, half // 2
    half = 1
    while half < core:
        peer = rank(me ^ half)
        send_piece(mesh, peer, data, span(low, high), tag=tag)
        yield receive_piece(mesh, peer, data, given.pop(), tag=tag)
        low, high = (low, high + half) if not me & half else (low - half, high)
        half *= 2

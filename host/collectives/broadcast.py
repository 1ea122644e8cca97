# SPDX-License-Identifier: Apache-2.0
"""Broadcast, by three algorithms.  N ranks, M bytes:

binomial            ceil(log2 N) steps, M bytes to each child: for small tensors
chain               N-2+C steps of M/C bytes, pipelined: M bytes in and out of every link, for long tensors
scatter_all_gather  van de Geijn: scatter, then ring all-gather: 1 + (N-1) steps, 2 (N-1)/N M bytes: for medium ones
"""

from __future__ import annotations

from netfold.host.collectives import ring, scatter
from netfold.host.collectives.flow import Strand, receive_piece, segments, send_piece, split_evenly
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat


def binomial(mesh: Mesh, data: Flat, *, root: int = 0, tag: int = 0) -> Strand:
    """Sends ``data`` of rank ``root`` to all; rank v (counted from the root) gets it from v without its lowest set
    bit."""
    v = (mesh.rank - root) % mesh.size
    lowest = v & -v if v else 1 << (mesh.size - 1).bit_length()
    everything = slice(0, data.size)
    if v:
        yield receive_piece(mesh, (v - lowest + root) % mesh.size, data, everything, tag=tag)
    distance = lowest >> 1
    while distance:  # the child with most ranks below it first
        if v + distance < mesh.size:
            send_piece(mesh, (v + distance + root) % mesh.size, data, everything, tag=tag)
        distance >>= 1


def chain(mesh: Mesh, data: Flat, *, root: int = 0, segment: int = 64 << 10, tag: int = 0) -> Strand:
    """Sends ``data`` of rank ``root`` to all, from each rank to the next, ``segment`` bytes at a time (the same on all
    ranks)."""
    last = (root - 1) % mesh.size
    cuts = segments(slice(0, data.size), data.itemsize, segment)
    if mesh.rank == root:
        posted = []
    else:
        posted = [mesh.receive((mesh.rank - 1) % mesh.size, data[cut], tag=tag) for cut in cuts]
    for number, cut in enumerate(cuts):
        if posted:
            yield [posted[number]]
        if mesh.rank != last:
            mesh.send((mesh.rank + 1) % mesh.size, data[cut], tag=tag)


def scatter_all_gather(mesh: Mesh, data: Flat, *, root: int = 0, tag: int = 0) -> Strand:
    """Sends ``data`` of rank ``root`` to all: a piece to each rank, then every piece around the ring."""
    pieces = split_evenly(data.size, mesh.size)
    yield from scatter.scatter(mesh, data, pieces, root=root, tag=tag)
    yield from ring.all_gather(mesh, data, pieces, tag=tag)

# SPDX-License-Identifier: Apache-2.0
"""Reduce to one rank, by two algorithms.  N ranks, M bytes:

binomial               ceil(log2 N) steps, M bytes from each child: for small tensors
reduce_scatter_gather  ring reduce-scatter, then gather: N steps, 2 (N-1)/N M bytes into the root: for large ones
"""

from __future__ import annotations

from netfold.host.collectives import gather, ring
from netfold.host.collectives.flow import Strand, reduce_from, send_piece, split_evenly
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


def binomial(mesh: Mesh, data: Flat, reduction: Reduction, *, root: int = 0, tag: int = 0) -> Strand:
    """Leaves the reduction over all ranks in ``data`` of ``root``; ``data`` of the other ranks then holds partial
    results."""
    v = (mesh.rank - root) % mesh.size
    everything = slice(0, data.size)
    distance = 1
    while distance < mesh.size:
        if v & distance:
            yield send_piece(mesh, (v - distance + root) % mesh.size, data, everything, tag=tag)
            return
        if v + distance < mesh.size:
            peer = (v + distance + root) % mesh.size
            yield from reduce_from(mesh, peer, data, everything, reduction, tag=tag)
        distance *= 2


def reduce_scatter_gather(mesh: Mesh, data: Flat, reduction: Reduction, *, root: int = 0, tag: int = 0) -> Strand:
    """Leaves the reduction over all ranks in ``data`` of ``root``; ``data`` of the other ranks then holds partial
    results."""
    pieces = split_evenly(data.size, mesh.size)
    yield from ring.reduce_scatter(mesh, data, pieces, reduction, tag=tag)
    yield from gather.gather(mesh, data, pieces, root=root, tag=tag)

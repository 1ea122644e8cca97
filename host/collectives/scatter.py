# SPDX-License-Identifier: Apache-2.0
"""Scatter: the root sends each rank its piece directly.

N ranks, M bytes: 1 step, (N-1)/N M bytes out of the root's link, which no forwarding by others could make less.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.collectives.flow import Strand, receive_piece, send_piece
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat


def scatter(mesh: Mesh, data: Flat, pieces: Sequence[slice], *, root: int = 0, tag: int = 0) -> Strand:
    """Fills ``data[pieces[rank]]`` of each rank from ``data`` of the root."""
    if mesh.rank != root:
        yield receive_piece(mesh, root, data, pieces[mesh.rank], tag=tag)
        return
    for step in range(1, mesh.size):
        rank = (root + step) % mesh.size
        send_piece(mesh, rank, data, pieces[rank], tag=tag)

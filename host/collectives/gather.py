# SPDX-License-Identifier: Apache-2.0
"""Gather: each rank sends its piece to the root directly.

N ranks, M bytes: 1 step, (N-1)/N M bytes into the root's link, which no forwarding by others could make less.
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.host.collectives.flow import Strand, receive_piece, send_piece
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat


def gather(mesh: Mesh, data: Flat, pieces: Sequence[slice], *, root: int = 0, tag: int = 0) -> Strand:
    """Fills ``data`` of the root with every rank's ``data[pieces[rank]]``."""
    if mesh.rank != root:
        yield send_piece(mesh, root, data, pieces[mesh.rank], tag=tag)
        return
    arriving = []
    for step in range(1, mesh.size):
        rank = (root + step) % mesh.size
        arriving += receive_piece(mesh, rank, data, pieces[rank], tag=tag)
    yield arriving

# SPDX-License-Identifier: Apache-2.0
"""Send and receive between two ranks: 1 step, M bytes.  The other ranks take no part."""

from __future__ import annotations

from netfold.host.collectives.flow import Strand, receive_piece, send_piece
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat


def send(mesh: Mesh, data: Flat, peer: int, *, tag: int = 0) -> Strand:
    """Ends once ``data`` has been sent; messages to one peer arrive in the order sent."""
    yield send_piece(mesh, peer, data, slice(0, data.size), tag=tag)


def receive(mesh: Mesh, into: Flat, peer: int, *, tag: int = 0) -> Strand:
    """Ends once ``into`` is filled by the peer's next ``send``, which must have the same size."""
    yield receive_piece(mesh, peer, into, slice(0, into.size), tag=tag)

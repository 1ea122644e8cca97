# SPDX-License-Identifier: Apache-2.0
"""Recursive doubling: partners at distance 1, 2, 4, ... exchange and reduce everything they have.

N = 2^k ranks, M bytes: k steps, k M bytes each way on every rank's link.  The fewest steps: for small tensors.
Other N = 2^k + e: e ranks first send theirs to a neighbour and get the result last, 2 more steps of M bytes each.

Every rank reduces everything itself; both partners take the lower rank's values as the first operand, so by induction
all compute the same bits.
"""

from __future__ import annotations

import numpy as np

from netfold.host.collectives.flow import Strand
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


def allreduce(mesh: Mesh, data: Flat, reduction: Reduction, *, tag: int = 0) -> Strand:
    """Reduces ``data`` over all ranks, in place."""
    core = 1 << (mesh.size.bit_length() - 1)
    extra = mesh.size - core
    if mesh.rank < 2 * extra and mesh.rank % 2:
        yield [mesh.send(mesh.rank - 1, data, tag=tag)]
        yield [mesh.receive(mesh.rank - 1, data, tag=tag)]
        return
    theirs = np.empty_like(data)
    if mesh.rank < 2 * extra:
        yield [mesh.receive(mesh.rank + 1, theirs, tag=tag)]
        reduction(data, theirs, out=data)
    me = mesh.rank // 2 if mesh.rank < 2 * extra else mesh.rank - extra
    distance = 1
    while distance < core:
        place = me ^ distance
        peer = 2 * place if place < extra else place + extra
        yield [mesh.send(peer, data, tag=tag), mesh.receive(peer, theirs, tag=tag)]
        if peer < mesh.rank:
            reduction(theirs, data, out=data)
        else:
            reduction(data, theirs, out=data)
        distance *= 2
    if mesh.rank < 2 * extra:
        yield [mesh.send(mesh.rank + 1, data, tag=tag)]

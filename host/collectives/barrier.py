# SPDX-License-Identifier: Apache-2.0
"""Barrier by dissemination (Hensgen, Finkel and Manber 1988): in round k a rank sends to rank + 2^k and receives from
rank - 2^k.

N ranks: ceil(log2 N) steps of one byte each way, for any N.
"""

from __future__ import annotations

import numpy as np

from netfold.host.collectives.flow import Strand
from netfold.host.mesh.mesh import Mesh


def barrier(mesh: Mesh, *, tag: int = 0) -> Strand:
    """Ends once every rank has begun it."""
    token, heard = np.ones(1, np.uint8), np.empty(1, np.uint8)
    distance = 1
    while distance < mesh.size:
        after, before = (mesh.rank + distance) % mesh.size, (mesh.rank - distance) % mesh.size
        yield [mesh.send(after, token, tag=tag), mesh.receive(before, heard, tag=tag)]
        distance *= 2

# SPDX-License-Identifier: Apache-2.0
"""Barrier by dissemination (Hensgen, Finkel and Manber 1988): in round k a rank sends to rank + 2^k and receives from
rank - 2^k.

N ranks: ceil(log2 N) steps of one byte each way, for any N.
"""

from __future__ import annotations

import numpy as np

from netfold.host.collectives.flow import Strand
from netfold.host.mesh.mesh import Mesh, Pending


class SplitBarrier:
    """A barrier between steps that are made by other means than messages.

    ``begin`` waits until all ranks have ended the step before, and then awaits what they say at the end of this one: so
    ``Mesh.look`` tells of a rank that is lost meanwhile.  Between ``begin`` and ``end`` nothing else is sent.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._peers = [rank for rank in range(mesh.size) if rank != mesh.rank]
        self._token, self._heard = np.ones(1, np.uint8), np.empty((mesh.size, 1), np.uint8)
        self._awaited: list[Pending] = []

    def begin(self) -> Strand:
        """Ends once every rank has begun the step."""
        if self._awaited:
            yield self._awaited
        else:
            yield from barrier(self._mesh)
        self._awaited = [self._mesh.receive(peer, self._heard[peer]) for peer in self._peers]

    def end(self) -> None:
        """This rank has ended the step."""
        self._awaited += [self._mesh.send(peer, self._token) for peer in self._peers]


def barrier(mesh: Mesh, *, tag: int = 0) -> Strand:
    """Ends once every rank has begun it."""
    token, heard = np.ones(1, np.uint8), np.empty(1, np.uint8)
    distance = 1
    while distance < mesh.size:
        after, before = (mesh.rank + distance) % mesh.size, (mesh.rank - distance) % mesh.size
        yield [mesh.send(after, token, tag=tag), mesh.receive(before, heard, tag=tag)]
        distance *= 2

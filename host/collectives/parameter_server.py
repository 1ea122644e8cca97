# SPDX-License-Identifier: Apache-2.0
"""Parameter server: every part of the data has an owner that reduces all workers' contributions and sends them back.

n workers, M bytes, s servers with M/s each, pipelined: 2 steps.
  dedicated servers:  a worker's link carries M bytes each way, a server's n M/s
  colocated (s = n, every worker serves 1/n): 2 (n-1)/n M each way, the ring's bytes, but over n (n-1) connections
Parts of different sizes (``byteps.py``) balance the two kinds.

An owner reduces in a fixed order, its own values first, then the workers' by rank; every rank gets the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netfold.host.collectives.flow import (
    Inbox,
    Strand,
    interleave,
    length,
    receive_piece,
    segments_on,
    send_piece,
    split_evenly,
)
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction


class ServerLayout:
    """Which ranks contribute, and which own what part.

    workers  ranks that contribute and get the result
    owned    the part of each owner; together all elements, without overlap
    """

    def __init__(self, workers: Sequence[int], owned: dict[int, slice]) -> None:
        if not workers:
            raise ValueError("no workers: expected at least one rank that contributes")
        if len(set(workers)) != len(workers):
            raise ValueError(f"workers={list(workers)}: expected different ranks")
        at = 0
        for rank, part in sorted(owned.items(), key=lambda item: (item[1].start, item[1].stop)):
            if part.start != at:
                raise ValueError(f"rank {rank} owns elements {part.start}..{part.stop}: expected to start at {at}")
            at = part.stop
        self.workers = tuple(sorted(workers))
        self.owned = owned
        self.count = at


def shares(count: int, workers: Sequence[int], servers: Sequence[int]) -> ServerLayout:
    """``count`` elements split evenly over the servers."""
    if not servers or len(set(servers)) != len(servers):
        raise ValueError(f"servers={list(servers)}: expected at least one rank, each once")
    return ServerLayout(workers, dict(zip(servers, split_evenly(count, len(servers)), strict=True)))


def allreduce(
    mesh: Mesh, data: Flat, reduction: Reduction, *, layout: ServerLayout | None = None, tag: int = 0
) -> Strand:
    """Reduces the workers' ``data`` in place.  Uses ``tag`` and ``tag + 1``.

    layout  who contributes and who serves; default: every rank does both
    Ranks that only serve call it too; their ``data`` gives the size, and holds parts of the result afterwards.
    """
    everyone = range(mesh.size)
    layout = shares(data.size, everyone, everyone) if layout is None else layout
    _check(mesh, data, layout)
    strands = []
    if mesh.rank in layout.owned:
        strands.append(_serve(mesh, data, layout, reduction, tag))
    if mesh.rank in layout.workers:
        strands.append(_work(mesh, data, layout, tag))
    yield from interleave(*strands)


def _check(mesh: Mesh, data: Flat, layout: ServerLayout) -> None:
    ranks = {*layout.workers, *layout.owned}
    if not ranks <= set(range(mesh.size)):
        raise ValueError(f"workers and servers are ranks {sorted(ranks)}: expected some of 0 .. {mesh.size - 1}")
    if layout.count != data.size:
        raise ValueError(f"the owners' parts hold {layout.count} elements, data holds {data.size}: expected the same")


def _work(mesh: Mesh, data: Flat, layout: ServerLayout, tag: int) -> Strand:
    # Each worker starts with another owner, so that not all push to one link at a time.
    others = sorted(layout.owned, key=lambda rank: (rank - mesh.rank) % mesh.size)
    results = []
    for owner in others:
        if owner != mesh.rank:
            send_piece(mesh, owner, data, layout.owned[owner], tag=tag)
    for owner in others:
        if owner != mesh.rank:
            # The result overwrites what was pushed, which the owner has received by then.
            results += receive_piece(mesh, owner, data, layout.owned[owner], tag=tag + 1)
    yield results


def _serve(mesh: Mesh, data: Flat, layout: ServerLayout, reduction: Reduction, tag: int) -> Strand:
    cuts = segments_on(mesh, layout.owned[mesh.rank], data.itemsize)
    others = [worker for worker in layout.workers if worker != mesh.rank]
    works = mesh.rank in layout.workers
    inbox = Inbox(mesh, data.dtype, [(worker, length(cut)) for cut in cuts for worker in others], tag=tag)
    for cut in cuts:
        for number, _ in enumerate(others):
            arrived, theirs = inbox.take()
            yield [arrived]
            if number or works:
                reduction(data[cut], theirs, out=data[cut])
            else:
                np.copyto(data[cut], theirs)
        for worker in others:
            mesh.send(worker, data[cut], tag=tag + 1)

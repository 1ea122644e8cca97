# SPDX-License-Identifier: Apache-2.0
"""One step of a parameter server as messages: gradients pushed, the optimizer run at their owners, parameters pulled.

n workers, M bytes, s servers with M/s each, pipelined in segments: 2 steps, and on the links what an allreduce by
``collectives.parameter_server`` needs.  A server adds the workers' gradients in order of their ranks, whatever arrives
first, and divides by their number, so that equal gradients give equal bits.

Servers that are no workers cannot know what the workers do next: the first worker tells each of them by a notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from netfold.host.collectives.flow import Inbox, Strand, interleave, length, receive_piece, segments, send_piece
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.parameters.optimizers import ShardOptimizer

PUSH, PULL, FINISH = 1, 2, 3
"""Kinds of notices: a step, parameters without a step, or the end."""
GRADIENTS, PARAMETERS, NOTICES = 0, 1, 2
"""Tags of the messages."""
NOTICE_DTYPE: Final = np.int64


@dataclass(frozen=True)
class Roles:
    """The roles of the ranks.

    workers  ranks that push and pull, in order
    held     the elements that each server holds
    """

    workers: Sequence[int]
    held: dict[int, slice]

    @property
    def servers_alone(self) -> list[int]:
        """Servers that are no workers."""
        return [rank for rank in self.held if rank not in self.workers]


@dataclass
class Held:
    """A server's part of the parameters, and its optimizer."""

    values: Flat
    optimizer: ShardOptimizer


def notify(mesh: Mesh, roles: Roles, what: int) -> None:
    """Tells the servers that are no workers what follows, where this rank is the first worker."""
    if mesh.rank == roles.workers[0]:
        for server in roles.servers_alone:
            mesh.send(server, np.array([what], NOTICE_DTYPE), tag=NOTICES)


def await_notice(mesh: Mesh, roles: Roles) -> int:
    """Waits for the next notice, on a server that is no worker.  Raises the errors of ``Mesh.wait``, and ValueError for
    an unknown notice."""
    notice = np.zeros(1, NOTICE_DTYPE)
    mesh.wait([mesh.receive(roles.workers[0], notice, tag=NOTICES)])
    if notice[0] not in (PUSH, PULL, FINISH):
        raise ValueError(f"rank {mesh.rank}: rank {roles.workers[0]} sent notice {notice[0]}: expected {PUSH}, {PULL} "
                         f"or {FINISH}")
    return int(notice[0])


def step(mesh: Mesh, roles: Roles, gradient: Flat | None, row: Flat | None, held: Held | None) -> Strand:
    """One step, which all workers and servers run.

    gradient  a worker's own, in one row; None on servers that are no workers
    row       a worker's parameters, which are overwritten; None elsewhere
    held      a server's part; None elsewhere
    """
    strands = []
    if held is not None:
        strands.append(_pushed(mesh, roles, gradient, row, held))
    if row is not None:
        strands.append(_work(mesh, roles, gradient, row))
    yield from interleave(*strands)


def pull(mesh: Mesh, roles: Roles, row: Flat | None, held: Held | None) -> Strand:
    """Fills every worker's row with what the servers hold."""
    strands = []
    if held is not None:
        strands.append(_held_to_all(mesh, roles, row, held))
    if row is not None:
        strands.append(_work(mesh, roles, None, row))
    yield from interleave(*strands)


def _work(mesh: Mesh, roles: Roles, gradient: Flat | None, row: Flat) -> Strand:
    # Each worker starts with another server, so that not all push to one link at a time.
    others = sorted((rank for rank in roles.held if rank != mesh.rank), key=lambda rank: (rank - mesh.rank) % mesh.size)
    results = [one for rank in others for one in receive_piece(mesh, rank, row, roles.held[rank], tag=PARAMETERS)]
    if gradient is not None:
        for rank in others:
            send_piece(mesh, rank, gradient, roles.held[rank], tag=GRADIENTS)
    yield results


def _pushed(mesh: Mesh, roles: Roles, gradient: Flat | None, row: Flat | None, held: Held) -> Strand:
    part = roles.held[mesh.rank]
    cuts = segments(part, held.values.itemsize)
    others = [worker for worker in roles.workers if worker != mesh.rank]
    wanted = [(worker, length(cut)) for cut in cuts for worker in others]
    inbox = Inbox(mesh, held.values.dtype, wanted, tag=GRADIENTS)
    number = held.values.dtype.type(len(roles.workers))
    held.optimizer.begin()
    for cut in cuts:
        total = np.empty(length(cut), held.values.dtype)
        for place, worker in enumerate(roles.workers):
            if worker == mesh.rank:
                assert gradient is not None
                theirs = gradient[cut]
            else:
                arrived, theirs = inbox.take()
                yield [arrived]
            if place:
                total += theirs
            else:
                total[:] = theirs
        total /= number
        piece = slice(cut.start - part.start, cut.stop - part.start)
        held.optimizer.update(held.values[piece], total, piece)
        _give(mesh, others, cut, piece, row, held)


def _held_to_all(mesh: Mesh, roles: Roles, row: Flat | None, held: Held) -> Strand:
    part = roles.held[mesh.rank]
    others = [worker for worker in roles.workers if worker != mesh.rank]
    for cut in segments(part, held.values.itemsize):
        _give(mesh, others, cut, slice(cut.start - part.start, cut.stop - part.start), row, held)
    yield []


def _give(mesh: Mesh, others: Sequence[int], cut: slice, piece: slice, row: Flat | None, held: Held) -> None:
    """Sends a segment of the part to the other workers, and copies it to this rank's own row."""
    for worker in others:
        mesh.send(worker, held.values[piece], tag=PARAMETERS)
    if row is not None:
        row[cut] = held.values[piece]

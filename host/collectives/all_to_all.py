# SPDX-License-Identifier: Apache-2.0
"""All-to-all by pairwise exchange: in step s a rank sends to rank + s and receives from rank - s.

N ranks, M bytes on each: N-1 steps, (N-1)/N M bytes each way; every link has one sender and one receiver at a time.
No rank is more than ``AHEAD`` sends ahead of their receivers, so a rank talks to few others at any time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from netfold.host.collectives.flow import Strand, length, receive_piece, send_piece
from netfold.host.mesh.mesh import Mesh, Pending
from netfold.host.operation.arrays import Flat

AHEAD = 4
"""Most earlier steps whose sends may still be under way when a rank begins the next one."""


def all_to_all(
    mesh: Mesh, source: Flat, given: Sequence[slice], out: Flat, taken: Sequence[slice], *, tag: int = 0
) -> Strand:
    """Fills ``out[taken[r]]`` with rank r's ``source[given[this rank]]``, for all r.  ``source`` and ``out`` must not
    overlap."""
    me = mesh.rank
    if length(given[me]) != length(taken[me]):
        raise ValueError(
            f"rank {me} gives itself {length(given[me])} elements and takes {length(taken[me])}: expected the same"
        )
    out[taken[me]] = source[given[me]]
    sent: deque[list[Pending]] = deque()
    for step in range(1, mesh.size):
        to, by = (me + step) % mesh.size, (me - step) % mesh.size
        sent.append(send_piece(mesh, to, source, given[to], tag=tag))
        early = sent.popleft() if len(sent) > AHEAD else []
        yield [*receive_piece(mesh, by, out, taken[by], tag=tag), *early]

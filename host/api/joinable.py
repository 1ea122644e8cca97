# SPDX-License-Identifier: Apache-2.0
"""An all_gather that a reduce_scatter may join while it is under way, for callers that learn of the second late.

``together`` needs both calls at once.  Here the all_gather begins alone, in parts.  Beside each part but the last goes
a sum of one number of each rank, which says whether the rank has called the reduce_scatter by now:

    all ranks have       the rest of the all_gather goes together with it
    some have not yet    the next part goes, and asks again
    one rank will not    the rest goes at once, without further questions

Ranks may call at different times, but they decide by sums alone, which are the same on all of them.  So every rank
makes the same sequence of ordinary operations, and none waits for a call that has yet to come.

After many all_gathers that nothing joined, few ask: a program that does not overlap its calls pays next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from netfold.host.api.data_movement import DataMovement
from netfold.host.api.members import Members
from netfold.host.api.together import exchange, overlap
from netfold.host.operation.arrays import (
    Array,
    Flat,
    as_held,
    by_counts,
    fill,
    flat,
    held,
    in_bytes,
    pieces_of,
    plain,
    result_of,
    rows_of,
    rows_with,
)
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import ReduceOp, Reduction, reduction_of

PARTS: Final = 16
"""Parts of a long all_gather: a reduce_scatter waits for at most a sixteenth of it."""
PART_BYTES: Final = 1 << 17
"""Least bytes of all ranks' rows in a part, since each part costs a round trip.  An all_gather of fewer than two parts
is not cut."""
ALIGNED: Final = 4096
"""Bytes of which the parts of a row are multiples: whole packets."""
HOPES: Final = 32
"""Consecutive all_gathers that ask although nothing has joined one; of the following, every RARELY-th asks."""
RARELY: Final = 16
VOTES: Final = Reduction("sum", "int32")


@dataclass(frozen=True)
class Scatter:
    """A reduce_scatter that has been called and has not begun; created by ``scatter_of``."""

    array: Array
    out: Array
    reduction: Reduction
    pieces: Sequence[slice]
    """Each rank's elements of the flat array."""


Next = Scatter | Literal["open", "none"]
"""The program's call after an all_gather, as far as known: a reduce_scatter, which may join; "open" if nothing has been
called yet; "none" if another operation was called, or none will be before the end."""


def scatter_of(ranks: Members, array: Array, out: Array, op: ReduceOp, dtype: str | None) -> Scatter:
    """The reduce_scatter of equally many rows for each rank.  Raises TypeError, ValueError."""
    rows = rows_of(array, None, ranks.size)
    result = result_of((rows[ranks.rank], *array.shape[1:]), array, out)
    return Scatter(array, result, reduction_of(op, array, dtype), pieces_of(rows, array))


def refusal(ranks: Members, coding: Coding) -> str:
    """Why no reduce_scatter can join an all_gather of these ranks at present; empty if one can."""
    if coding.reproducible:
        return "reductions are reproducible, and made in several stages"
    # several rails would each carry a part of a whole array, and make the two calls one after the other
    return ranks.dispatch.rows.joins_nothing


def all_gather(ranks: Members, coding: Coding, array: Array, out: Array, following: Callable[[], Next]) -> bool:
    """Fills ``out`` with every rank's rows, equally many of each.

    following  returns the program's next call, as far as known; called on this thread before each part
    Returns True if the reduce_scatter that ``following`` returned was also done; raises as ``Group.all_gather``.
    """
    array = plain(array)
    rows = rows_with(array, None, ranks.rank, ranks.size)
    out = result_of((sum(rows), *array.shape[1:]), array, out)
    parts = min(PARTS, out.nbytes // PART_BYTES)
    if parts < 2 or refusal(ranks, coding) or not _asks(ranks):
        DataMovement(ranks).all_gather(array, out)
        return False
    pieces, data = pieces_of(rows, array), flat(out)
    fill(data[pieces[ranks.rank]], array)
    joined = _in_parts(
        ranks, coding, as_held(data, held(array)), in_bytes(pieces, data), parts, _apart(following, array, out)
    )
    if joined:
        ranks.count_joined()
    if not np.may_share_memory(data, out):
        out[...] = data.reshape(out.shape)
    return joined


# ---- inside ----------------------------------------------------------------------------------------------------------
def _asks(ranks: Members) -> bool:
    """True if this all_gather, which it counts, is cut into parts and asks beside each which ranks have called the
    reduce_scatter.  The answer is the same on all ranks, since it depends on their common decisions alone."""
    before = ranks.count_joinable()
    return before < HOPES or before % RARELY == 0


def _apart(following: Callable[[], Next], array: Array, out: Array) -> Callable[[], Next]:
    """``following``, restricted to calls that neither need this one's result nor overwrite its memory."""

    def known() -> Next:
        now = following()
        return "none" if isinstance(now, Scatter) and overlap(now.array, now.out, array, out) else now

    return known


def _in_parts(
    ranks: Members, coding: Coding, data: Flat, rows: Sequence[slice], parts: int, following: Callable[[], Next]
) -> bool:
    """Gathers bytes in parts, and does the call that joins.  Returns True if one has joined."""
    longest = rows[0].stop - rows[0].start
    each = -(-longest // parts)
    each += -each % ALIGNED
    at = 0
    while longest - at > each:
        known = following()
        votes = _vote(ranks, coding, known, data, [_from(row, at, each) for row in rows])
        if votes is None:
            break
        at += each
        if votes == ranks.size and isinstance(known, Scatter) and exchange(
            ranks, coding, known.array, known.out, known.reduction, known.pieces, data, [_from(row, at) for row in rows]
        ):
            return True
        if votes >= ranks.size:
            break
    rest = [_from(row, at) for row in rows]
    with ranks.operation("all_gather", sum(row.stop - row.start for row in rest), dtype=data.dtype) as number:
        ranks.dispatch.rows.all_gather(data, rest, number)
    return False


def _vote(ranks: Members, coding: Coding, known: Next, data: Flat, part: Sequence[slice]) -> int | None:
    """Moves a part, and asks all ranks.  Returns the number of ranks that have called the reduce_scatter, or a greater
    number than there are ranks if one of them will not; None if the switches do not carry both, and nothing has
    moved."""
    said = 1 if isinstance(known, Scatter) else 0 if known == "open" else ranks.size + 1
    mine, sums = np.full(ranks.size, said, np.int32), np.empty(1, np.int32)
    if not exchange(ranks, coding, mine, sums, VOTES, by_counts([1] * ranks.size), data, part, "all_gather"):
        return None
    return int(sums[0])


def _from(row: slice, at: int, most: int | None = None) -> slice:
    """The part of a row from ``at`` on, of at most ``most`` bytes."""
    start = min(row.stop, row.start + at)
    return slice(start, row.stop if most is None else min(row.stop, start + most))

# SPDX-License-Identifier: Apache-2.0
"""A sum or average of floats, rounded once: the same bits in any order of ranks, over any rail, in any bucket.

Three integer collectives at most, which every rail carries alike, since integers do not depend on the order in which
they are added (native/exact.h has the arithmetic):

    scales   for each block of 256 elements the largest exponent and the lowest bit of all ranks: a maximum of int32
    digits   the elements as integers of one or two lanes of int32, more for float64: a sum
    tails    of the few elements whose rounding these do not decide, all other digits: a sum, left out where there are
             none
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from netfold.host.errors import RankMismatch
from netfold.host.exact import signature
from netfold.host.exact.digits import BLOCK, RANGE, SPECIAL, ZERO, ExactSum, scan
from netfold.host.operation.arrays import Flat
from netfold.host.operation.half_precision import BFLOAT16, HALVES, narrow, storage, widen
from netfold.host.operation.reduction import Reduction

Stage = Literal["scales", "digits", "tails", "order"]


class IntegerCollective(Protocol):
    """An allreduce of integers in place, by whatever carries it."""

    def __call__(
        self, lanes: NDArray[Any], op: Literal["sum", "max", "min"], stage: Stage,
        check: Callable[[], None] | None = None,
    ) -> None:
        """``check`` is called as a part of the operation, once ``lanes`` has the result; what it raises ends it."""


def reduce_exactly(
    source: Flat, out: Flat, reduction: Reduction, world: int, collective: IntegerCollective, me: str = ""
) -> None:
    """Fills ``out`` with the sum or average of every rank's ``source``: the exact one, rounded to nearest even.

    source, out  float32, float64, float16, or bfloat16 as uint16; the same memory, or apart
    me           job and rank, for errors

    A zero is +0.  Sums beyond the range are infinite, whatever partial sums are.  An element is NaN where a rank has a
    NaN, or two have Infs of both signs, and infinite where some have one of one sign.  Raises RankMismatch where ranks
    reduce different things, and what the collective raises.
    """
    half = reduction.element in HALVES
    kind = "half" if half else reduction.element
    values: Flat = widen(source, reduction.element) if half else source
    result: Flat = values if half else out
    own = scan(kind, values)
    agreed = np.concatenate([signature.signature(source.size, reduction), own.reshape(-1)])
    bounds = agreed[signature.WORDS :].reshape(own.shape)

    def check() -> None:
        signature.check(agreed[: signature.WORDS], me)
        _check_bounds(own, bounds, kind, me)

    collective(agreed, "max", "scales", check)
    digits = ExactSum(kind, values, bounds, world, world if reduction.op == "average" else 1)
    if digits.heads.size:
        collective(digits.heads, "sum", "digits")
    tails = digits.round(result)
    if tails is not None:
        collective(tails, "sum", "tails")
        digits.settle(tails, result)
    if half:
        narrow(result, reduction.element, out)
        bits = out.view(np.uint16) if reduction.element != BFLOAT16 else storage(out)
        bits[bits == 0x8000] = 0  # a negative average that rounds to 0


def _check_bounds(own: NDArray[np.int32], agreed: NDArray[np.int32], kind: str, me: str) -> None:
    """Raises RankMismatch for scales that ranks cannot have agreed on: those of this rank are not in them, or no float
    has them.  What follows relies on that."""
    top, bottom = RANGE[kind]
    high, low = agreed[0], np.where(agreed[1] >= SPECIAL, agreed[1] - SPECIAL, agreed[1])
    zero = (high == ZERO) & ((agreed[1] == ZERO) | (agreed[1] == SPECIAL + bottom))
    whole = (high <= top) & (low <= bottom) & (high > -bottom) & (low > -top) & (high + low > 0)
    wrong = (agreed < own).any(axis=0) | ~(zero | whole)
    if wrong.any():
        block = int(np.flatnonzero(wrong)[0])
        raise RankMismatch(
            f"{me}: scales of elements {block * BLOCK} and on are {agreed[:, block].tolist()}: expected at least this "
            f"rank's {own[:, block].tolist()}, within the range of {kind}: another rank has called something else"
        )

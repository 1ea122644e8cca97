# SPDX-License-Identifier: Apache-2.0
"""How elements are coded as lanes of packets: what a call may ask for, and which settings fit together."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.arrays import check_writeable
from netfold.host.operation.half_precision import HALVES

LaneBits = Literal[32, 16, 8]
Rounding = Literal["nearest", "stochastic"]
LANE_BITS_VARIABLE: Final = "NETFOLD_LANE_BITS"
REPRODUCIBLE_VARIABLE: Final = "NETFOLD_REPRODUCIBLE"


@dataclass(frozen=True)
class Coding:
    """How elements become lanes of packets (native/quantise.h, narrow.h, lanes.h).  Raises ValueError.

    lane_bits  32, or 16 or 8 for sums and averages of floats
    rounding   of narrow lanes
    seed       of stochastic rounding; the operation's number and the rank are added
    saturate   sums of int32 stop at the ends of the range instead of wrapping around
    reproducible  floats are reduced as integers, and rounded once (``exact``)
    """

    lane_bits: LaneBits = 32
    rounding: Rounding = "nearest"
    seed: int = 0
    saturate: bool = False
    reproducible: bool = False

    def __post_init__(self) -> None:
        if self.lane_bits not in get_args(LaneBits):
            raise ValueError(f"lane_bits={self.lane_bits!r}: expected 32, 16 or 8")
        if self.rounding not in get_args(Rounding):
            raise ValueError(f"rounding={self.rounding!r}: expected nearest or stochastic")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed!r}: expected 0 .. 2^32 - 1")
        if self.reproducible and self.lane_bits != 32:
            raise ValueError(
                f"reproducible=True with lane_bits={self.lane_bits}: narrow lanes leave something out; give either "
                f"(arguments, or {REPRODUCIBLE_VARIABLE} and {LANE_BITS_VARIABLE})"
            )

    def asked(
        self,
        array: NDArray[Any],
        op: str,
        element: str,
        lane_bits: LaneBits | None,
        rounding: Rounding | None,
        feedback: NDArray[Any] | None,
        saturate: bool,
        reproducible: bool | None = None,
    ) -> Coding:
        """This coding with the settings that a call on an array asks for (``Communicator.allreduce``).

        Raises ValueError, TypeError.
        """
        what = f"{op} of {element}"
        if saturate and (op, element) != ("sum", "int32"):
            raise ValueError(f"saturate=True: expected a sum of int32, got {what}")
        may = narrows(op, element)
        if not may and (lane_bits not in (None, 32) or feedback is not None):
            raise ValueError(
                f"lane_bits={lane_bits} or feedback for {what}: expected a sum or average of float32, float16, bfloat16"
            )
        if feedback is not None:
            check_feedback(feedback, array)
        bits = lane_bits or (self.lane_bits if may else 32)
        usual: Rounding = "nearest" if bits == 32 or feedback is not None else "stochastic"
        exact = (self.reproducible if reproducible is None else reproducible) and "float" in element
        if exact:
            _check_exact(what, op, rounding, feedback)
        asked = bits, rounding or usual, saturate, exact
        if asked == (self.lane_bits, self.rounding, self.saturate, self.reproducible):
            return self  # nearly always: an object less on the way of a small tensor
        return replace(self, lane_bits=bits, rounding=rounding or usual, saturate=saturate, reproducible=exact)


PLAIN: Final[Coding] = Coding()


def narrows(op: str, element: str) -> bool:
    """True if lanes of this reduction and dtype may be narrower than 32 bits."""
    return op in ("sum", "average") and element in ("float32", *HALVES)


def check_levels(lane_bits: int, ranks: int) -> None:
    """Raises ValueError where lanes of this width cannot hold the sum of so many ranks."""
    most = (1 << (lane_bits - 1)) - 1
    if ranks > most:
        raise ValueError(f"lane_bits={lane_bits}: the sum of {ranks} ranks does not fit, at most {most} do: use 16")


def lane_bits_from_environment() -> LaneBits:
    """The lane width that $NETFOLD_LANE_BITS sets, or 32.  Raises ValueError."""
    said = os.environ.get(LANE_BITS_VARIABLE, "32")
    for bits in get_args(LaneBits):
        if said == str(bits):
            return cast(LaneBits, bits)
    raise ValueError(f"{LANE_BITS_VARIABLE}={said!r}: expected 32, 16 or 8")


def reproducible_from_environment() -> bool:
    """True if $NETFOLD_REPRODUCIBLE asks for reproducible reductions.  Raises ValueError."""
    said = os.environ.get(REPRODUCIBLE_VARIABLE, "0")
    if said not in ("0", "1"):
        raise ValueError(f"{REPRODUCIBLE_VARIABLE}={said!r}: expected 0 or 1")
    return said == "1"


def add_feedback(source: NDArray[Any], feedback: NDArray[Any]) -> NDArray[Any]:
    """The source plus the residual, of which nothing is left, for carriers that leave nothing out."""
    whole: NDArray[Any] = source + feedback
    feedback[...] = 0
    return whole


def _check_exact(what: str, op: str, rounding: Rounding | None, feedback: NDArray[Any] | None) -> None:
    """Raises ValueError for what a reproducible reduction of floats cannot be."""
    if op == "product":
        raise ValueError(f"reproducible=True for {what}: expected sum, average, max or min; or reproducible=False")
    if feedback is not None or rounding not in (None, "nearest"):
        raise ValueError(
            f"reproducible=True for {what} with rounding={rounding!r} or feedback: the exact sum is rounded to nearest "
            "once, and nothing is left out; give either"
        )


def check_feedback(feedback: NDArray[Any], array: NDArray[Any]) -> None:
    """Raises TypeError and ValueError for what cannot hold an array's residual."""
    check_writeable(feedback, "feedback")
    if feedback.shape != array.shape or feedback.dtype != np.float32 or not feedback.flags.carray:
        raise ValueError(
            f"feedback is {feedback.dtype}{list(feedback.shape)}: expected a plain, writeable "
            f"float32{list(array.shape)}"
        )
    if np.may_share_memory(feedback, array):
        raise ValueError("feedback shares memory with the array: expected one of its own")

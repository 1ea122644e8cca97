# SPDX-License-Identifier: Apache-2.0
"""Reductions, and how two arrays are combined.

Halves (``half_precision``) are reduced as float32 and rounded once, whatever carries them (``conversion``): no partial
sum leaves their range, and the path decides no result.  Addition, maximum and minimum commute in value but not in the
bits of NaNs and zeros, so ``Reduction`` always gets its operands in an order that all ranks share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.arrays import Flat
from netfold.host.operation.half_precision import BFLOAT16, HALVES, dtype_name

ReduceOp = Literal["sum", "average", "max", "min", "product"]
REDUCE_OPS: Final = get_args(ReduceOp)

NATIVE = {name: np.dtype(name) for name in ("float32", "float64", "float16", "int32", "int64", "uint8")}
NAMES = (*NATIVE, BFLOAT16)
CARRIED: Final = tuple(name for name in NAMES if name not in HALVES)
"""Dtypes that are reduced as they are; the others are reduced as float32."""

WIDENED: Final = {
    "int16": "int32", "uint16": "int32", "uint32": "int64",
    **{f"float8_{kind}": "float32" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
}
"""Dtypes that callers reduce as wider ones, and round or wrap afterwards: name -> the wider one's name."""

_FUNCTIONS = {"sum": np.add, "average": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}


def element_name(array: NDArray[Any], dtype: str | None = None) -> str:
    """Name of an array's elements, one of ``NAMES``.

    dtype  "bfloat16" for uint16 arrays that hold it; otherwise None or the array's own dtype
    Raises TypeError for all that no collective reduces.
    """
    name = dtype_name(array.dtype)
    if dtype == BFLOAT16 and name == "uint16":
        return BFLOAT16
    if name not in NAMES or dtype not in (None, name):
        raise TypeError(
            f"array of {name}, dtype={dtype!r}: expected one of {', '.join(NAMES)} (bfloat16 as ml_dtypes.bfloat16, or "
            "as uint16 with dtype='bfloat16'); convert with .astype()"
        )
    return name


def reduction_of(op: ReduceOp, array: NDArray[Any], dtype: str | None = None) -> Reduction:
    """The reduction of an array's elements.

    dtype  as of ``element_name``; or, where the caller has made the array of elements of a dtype that no collective
           reduces, the name of that one, one of ``WIDENED``, so that ranks compare it
    Raises TypeError and ValueError.
    """
    if dtype in WIDENED and dtype_name(array.dtype) == WIDENED[dtype]:
        return Reduction(op, WIDENED[dtype], dtype)
    return Reduction(op, element_name(array, dtype))


@dataclass(frozen=True)
class Reduction:
    """A reduction of elements of one dtype.  Raises TypeError and ValueError where the two do not fit together.

    called  the dtype of the caller's arrays, where these are reduced in another one; empty: ``element``
    """

    op: ReduceOp
    element: str
    called: str = ""

    def __post_init__(self) -> None:
        if self.op not in REDUCE_OPS:
            raise ValueError(f"op={self.op!r}: expected one of {', '.join(REDUCE_OPS)}")
        if self.element not in NAMES:
            raise TypeError(f"elements of {self.element!r}: expected one of {', '.join(NAMES)}")
        if self.op == "average" and "int" in self.element:
            raise TypeError(
                f"op='average' of {self.element}: an average of integers is no integer; sum, or convert to float32"
            )

    @property
    def half(self) -> bool:
        """True if its dtype is a half-precision float, so that ``wide`` is carried in its place."""
        return self.element in HALVES

    @property
    def wide(self) -> Reduction:
        """The same of float32."""
        return Reduction(self.op, "float32", self.element)

    @property
    def said(self) -> str:
        """The dtype that all ranks have called it with, for messages and for their comparison."""
        return self.called or self.element

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the arrays in memory."""
        return np.dtype(np.uint16) if self.element == BFLOAT16 else NATIVE[self.element]

    def __call__(self, first: Flat, second: Flat, out: Flat) -> None:
        """``out`` = first op second, all of one size; ``out`` may be either of them.  Integers wrap.
        Raises TypeError for halves."""
        if self.half:
            raise TypeError(f"{self.op} of {self.element}: expected Reduction.wide, of arrays of float32")
        with np.errstate(all="ignore"):  # Inf and NaN travel like any other value
            _FUNCTIONS[self.op](first, second, out=out)

    def finish(self, data: Flat, ranks: int) -> None:
        """Turns the sum over all ranks into the result, in place.  It depends on the bits of the sum alone."""
        if self.op != "average":
            return
        with np.errstate(all="ignore"):
            np.divide(data, data.dtype.type(ranks), out=data)


INT32_SUM: Final = Reduction("sum", "int32")
"""The sum of integers, which is the same in whatever order ranks are added."""
FILLED_IN: Final = Reduction("sum", "int32", "uint8")
"""The sum of integers where each rank fills in its own and zeros for the others.  No caller can ask for it, so that
ranks notice where one of them calls a sum of as many integers."""

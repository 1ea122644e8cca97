# SPDX-License-Identifier: Apache-2.0
"""Conversion of float16 and bfloat16 to float32, which holds all of them exactly, and back.

bfloat16 has no dtype in numpy: it is stored as uint16 and named by a string, or is ml_dtypes.bfloat16 where that
package is installed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BFLOAT16: Final = "bfloat16"
HALVES: Final = ("float16", BFLOAT16)
BLOCK: Final = 1 << 16
"""Elements converted at a time, so that three float32 blocks stay in the cache."""


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """``dtype.name``, cached, since numpy takes 5 us to build it."""
    return dtype.name


def storage(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself, or the uint16 view of an ml_dtypes.bfloat16 array, on which messages and reductions work."""
    return array.view(np.uint16) if dtype_name(array.dtype) == BFLOAT16 else array


def widen(array: NDArray[Any], element: str) -> NDArray[np.float32]:
    """A new float32 array of the same shape and values, in C order.

    element  of ``HALVES``
    """
    if element != BFLOAT16:
        return array.astype(np.float32, order="C")
    bits = storage(array).astype(np.uint32, order="C")
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def narrow(wide: NDArray[np.float32], element: str, out: NDArray[Any]) -> None:
    """Rounds to nearest even into ``out``, an array of the same shape and any layout.  NaNs stay NaNs.

    element  one of ``HALVES``
    """
    if element != BFLOAT16:
        with np.errstate(all="ignore"):  # what is too large becomes Inf
            out[...] = wide
        return
    target = storage(out)
    if not target.flags.c_contiguous:
        target[...] = _rounded(wide)
        return
    target, source = target.reshape(-1), wide.reshape(-1)
    for at in range(0, target.size, BLOCK):
        target[at : at + BLOCK] = _rounded(source[at : at + BLOCK])


def _rounded(wide: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = wide.view(np.uint32)
    # Round to nearest even: add half a step, less one bit where the result would be odd-to-even anyway.
    halves = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)
    nan = np.isnan(wide)
    if nan.any():  # the carry would turn a NaN with few bits into Inf or zero: keep it, quiet
        halves[nan] = ((bits[nan] >> 16) | 0x40).astype(np.uint16)
    return halves

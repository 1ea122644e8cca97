# SPDX-License-Identifier: Apache-2.0
"""A maximum or minimum of floats as one of integers in the same order: -0 is below +0, and a NaN of any rank wins.

Floats compare like their bits, but that negative ones count downwards.  All NaNs are one, above the rest for a maximum
and below it for a minimum, where a comparison of floats would keep the bits of whichever came first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.host.exact import signature
from netfold.host.exact.sums import IntegerCollective
from netfold.host.operation.arrays import Flat
from netfold.host.operation.half_precision import HALVES, narrow, widen
from netfold.host.operation.reduction import Reduction


def select_exactly(
    source: Flat, out: Flat, reduction: Reduction, collective: IntegerCollective, me: str = ""
) -> None:
    """Fills ``out`` with the maximum or minimum of every rank's ``source``.

    source, out  float32, float64, float16, or bfloat16 as uint16; the same memory, or apart
    collective   of int32 or, for float64, int64; the stage is "order"
    me           job and rank, for errors
    Raises RankMismatch where ranks reduce different things, and what the collective raises.
    """
    half = reduction.element in HALVES
    values: Flat = widen(source, reduction.element) if half else source
    word = np.int64 if values.dtype == np.float64 else np.int32
    ends = np.iinfo(word)
    words = np.empty(signature.WORDS + values.size, word)
    called, keys = words[: signature.WORDS], words[signature.WORDS :]
    called[:] = signature.signature(source.size, reduction)
    keys[:] = values.view(word)
    _turn(keys, ends.bits)
    keys[np.isnan(values)] = ends.max if reduction.op == "max" else ends.min
    collective(words, "max" if reduction.op == "max" else "min", "order", lambda: signature.check(called, me))
    nan = (keys == ends.max) | (keys == ends.min)
    _turn(keys, ends.bits)
    result: Flat = keys.view(values.dtype)
    result[nan] = np.nan
    if half:
        narrow(result, reduction.element, out)
    else:
        out[...] = result


def _turn(keys: NDArray[Any], bits: int) -> None:
    """Bits of floats to integers in their order, and back."""
    negative = keys < 0
    np.bitwise_xor(keys, np.array(2 ** (bits - 1) - 1, keys.dtype), out=keys, where=negative)

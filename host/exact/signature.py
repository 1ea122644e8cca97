# SPDX-License-Identifier: Apache-2.0
"""The signature of a reproducible reduction: the integers before its first data, by which ranks notice that they call
different reductions.  The data alone looks alike."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netfold.host.errors import RankMismatch
from netfold.host.operation.reduction import NAMES, REDUCE_OPS, Reduction

WORDS: Final = 6
"""Number of words: lower and upper part of the number of elements, and the reduction, each one and its negative. A
maximum or a minimum over the ranks then shows both ends."""


def signature(size: int, reduction: Reduction) -> NDArray[np.int32]:
    """The words of a reduction of so many elements."""
    words = [size & 0x7FFFFFFF, size >> 31, NAMES.index(reduction.element) * 8 + REDUCE_OPS.index(reduction.op)]
    return np.array([sign * word for word in words for sign in (1, -1)], np.int32)


def check(agreed: NDArray[Any], me: str) -> None:
    """Raises RankMismatch where the ranks' maximum or minimum of words says that these are not the same.

    me  job and rank
    """
    ends = sorted([agreed[0::2].tolist(), (-agreed[1::2]).tolist()])
    if ends[0] != ends[1]:
        sizes = [high * 2**31 + low for low, high, _ in ends]
        names = dict.fromkeys(_named(code) for *_, code in ends)
        said = f"ranks called different reproducible reductions: elements {min(sizes)} to {max(sizes)}"
        if None in names or min(min(words) for words in ends) < 0:
            said = "this rank called a reproducible reduction, and another one something else"
        else:
            said += f", {' to '.join(filter(None, names))}"
        raise RankMismatch(f"{me}: {said}; all ranks must call the same operations in the same order")


def _named(code: int) -> str | None:
    """The reduction in words, or None where there is none of this code."""
    element, op = divmod(code, 8)
    if not (0 <= element < len(NAMES) and op < len(REDUCE_OPS)):
        return None
    return f"{REDUCE_OPS[op]} of {NAMES[element]}"

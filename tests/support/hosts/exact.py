# SPDX-License-Identifier: Apache-2.0
"""Reproducible reductions against exact rationals, and the integer collectives that they need among arrays in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.host.exact.sums import reduce_exactly
from netfold.host.operation.half_precision import widen
from netfold.host.operation.reduction import ReduceOp, Reduction

FORMATS = {
    "float32": (24, -149, 128), "float64": (53, -1074, 1024), "float16": (11, -24, 16), "bfloat16": (8, -133, 128),
}
"""Bits of the significand, exponent of the smallest positive value, exponent that everything finite is below."""


def nearest(value: Fraction, element: str) -> float:
    """The float of this format that is nearest to a rational, ties to even; zeros are +0.  By integers alone."""
    precision, smallest, top = FORMATS[element]
    magnitude = abs(value)
    if not magnitude:
        return 0.0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > magnitude
    last = Fraction(2) ** max(exponent - precision + 1, smallest)
    rounded = round(magnitude / last) * last  # Python rounds fractions to the nearest integer, ties to even
    found = float("inf") if rounded >= 1 << top else float(rounded)
    return -found if value < 0 and rounded else found


def values_of(array: NDArray[Any], element: str) -> list[float]:
    """The elements as Python floats, which hold all of them exactly."""
    numbers = widen(array, element) if element == "bfloat16" else array
    return [float(number) for number in numbers.reshape(-1)]


def expected(arrays: Sequence[NDArray[Any]], op: ReduceOp, element: str) -> list[float]:
    """The correctly rounded sum or average of finite arrays, element by element, by integers."""
    columns = zip(*(values_of(array, element) for array in arrays), strict=True)
    divisor = len(arrays) if op == "average" else 1
    unit = 1 << -FORMATS[element][1]  # of which every finite float is a multiple

    def units(number: float) -> int:
        numerator, denominator = number.as_integer_ratio()
        return numerator * (unit // denominator)

    return [nearest(Fraction(sum(map(units, column)), unit * divisor), element) for column in columns]


def reduce_in_memory(
    arrays: Sequence[NDArray[Any]], op: ReduceOp, element: str
) -> tuple[NDArray[Any], dict[str, int]]:
    """The result that all ranks have, rank r's contribution being ``arrays[r]``, and the bytes of each stage.

    Sums of lanes are checked: none overflows.
    """
    world, stages = len(arrays), dict[str, int]()
    barrier, given = threading.Barrier(world), [np.empty(0)] * world
    outs, errors = [np.empty_like(array) for array in arrays], list[BaseException]()

    def rank_of(rank: int) -> Callable[..., None]:
        def collective(lanes: NDArray[Any], how: str, stage: str, check: Callable[[], None] | None = None) -> None:
            given[rank] = lanes.copy()
            barrier.wait(30)
            together = np.stack(given).astype(np.int64)
            result = together.sum(axis=0) if how == "sum" else together.max(axis=0)
            assert ((result >= -(2**31)) & (result < 2**31)).all(), f"a lane of {stage} overflows"
            barrier.wait(30)
            lanes[...] = result
            stages[stage] = lanes.nbytes
            if check is not None:
                check()

        return collective

    def run(rank: int) -> None:
        try:
            reduce_exactly(arrays[rank], outs[rank], Reduction(op, element), world, rank_of(rank), f"rank {rank}")
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    assert all(out.tobytes() == outs[0].tobytes() for out in outs)
    return outs[0], stages

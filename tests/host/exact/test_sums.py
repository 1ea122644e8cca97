# SPDX-License-Identifier: Apache-2.0
"""Reproducible sums and averages against exact rationals, whatever the floats, the ranks, and how arrays are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.errors import RankMismatch
from netfold.host.exact.digits import BLOCK, ExactSum, most_lanes, scan
from netfold.host.exact.signature import WORDS, check, signature
from netfold.host.exact.sums import reduce_exactly
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.wire.jobs import MAX_WORLD
from support.hosts.exact import FORMATS, expected, reduce_in_memory, values_of

SUMS: list[ReduceOp] = ["sum", "average"]
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": np.uint16}


def halved(array: NDArray[Any]) -> NDArray[np.uint16]:
    """float32 cut to bfloat16."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def finite_bits(rng: np.random.Generator, size: int, element: str, *, subnormal: bool = False) -> NDArray[Any]:
    """Finite floats of random bits: of every exponent alike, or below the smallest normal one."""
    dtype = np.dtype(DTYPES[element])
    bits = rng.integers(0, 2 ** (8 * dtype.itemsize), size, dtype=f"u{dtype.itemsize}")
    precision = FORMATS[element][0]
    exponent = bits.dtype.type((1 << (8 * dtype.itemsize - 1)) - (1 << (precision - 1)))
    bits[(bits & exponent) == exponent] = 0
    if subnormal:
        bits &= ~exponent
    return bits.view(dtype)


def of_kind(kind: str, rng: np.random.Generator, ranks: int, size: int, element: str) -> list[NDArray[Any]]:
    """One array a rank, of floats that are hard in some way."""
    if kind == "subnormal":
        return [finite_bits(rng, size, element, subnormal=True) for _ in range(ranks)]
    if kind == "all exponents":
        return [finite_bits(rng, size, element) for _ in range(ranks)]
    if kind == "cancelling":  # large ones cancel, and what is left is far below them
        large = finite_bits(rng, size, element)
        negative = large ^ 0x8000 if element == "bfloat16" else -large
        rest = of_kind("normal", rng, max(ranks - 2, 0), size, element)
        return [large, negative, *rest][:ranks]
    arrays = [rng.standard_normal(size) for _ in range(ranks)]
    if kind == "halfway":  # few bits: many sums lie just between two floats
        arrays = [rng.choice([-1.0, 1.0, 1.5], size) * 2.0 ** rng.integers(-FORMATS[element][0] - 1, 1, size)
                  for _ in range(ranks)]
    return [halved(array) if element == "bfloat16" else array.astype(DTYPES[element]) for array in arrays]


@pytest.mark.parametrize("element", FORMATS)
@pytest.mark.parametrize("kind", ["normal", "subnormal", "all exponents", "cancelling", "halfway"])
def test_sums_and_averages_are_the_exact_ones_rounded_once(element: str, kind: str) -> None:
    """On 1 to 100 ranks each result is the float nearest to the exact sum, or to a number-of-ranks-th of it."""
    rng = np.random.default_rng(sum(map(ord, element + kind)))
    for ranks, size in ((1, 300), (2, 257), (3, 40), (8, 100), (100, 20)):
        arrays = of_kind(kind, rng, ranks, size, element)
        for op in SUMS:
            result, _ = reduce_in_memory(arrays, op, element)
            got, wanted = values_of(result, element), expected(arrays, op, element)
            assert [number.hex() for number in got] == [number.hex() for number in wanted], (ranks, op)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5), min_size=1,
             max_size=6),
    st.sampled_from(SUMS),
)
def test_no_float32_is_too_strange(rows: list[list[float]], op: ReduceOp) -> None:
    """What hypothesis thinks of is added exactly."""
    arrays = [np.array(row, np.float32) for row in rows]
    result, _ = reduce_in_memory(arrays, op, "float32")
    assert values_of(result, "float32") == expected(arrays, op, "float32")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3), min_size=1,
             max_size=5),
    st.sampled_from(SUMS),
)
def test_no_float64_is_too_strange(rows: list[list[float]], op: ReduceOp) -> None:
    """What hypothesis thinks of is added exactly."""
    arrays = [np.array(row, np.float64) for row in rows]
    result, _ = reduce_in_memory(arrays, op, "float64")
    assert values_of(result, "float64") == expected(arrays, op, "float64")


@pytest.mark.parametrize("element", FORMATS)
def test_neither_ranks_order_nor_what_shares_an_array_changes_a_bit(element: str) -> None:
    """Permuted ranks, and an array cut into buckets at random places, or laid out backwards, give the same bits."""
    rng = np.random.default_rng(5)
    arrays = of_kind("all exponents", rng, 5, 700, element)
    whole, _ = reduce_in_memory(arrays, "average", element)
    for _ in range(3):
        order = rng.permutation(len(arrays))
        cuts = np.sort(rng.integers(0, whole.size, 3))
        parts = [
            reduce_in_memory([np.ascontiguousarray(np.split(arrays[rank], cuts)[piece]) for rank in order], "average",
                             element)[0]
            for piece in range(len(cuts) + 1)
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    backwards, _ = reduce_in_memory([np.ascontiguousarray(array[::-1]) for array in arrays], "average", element)
    assert backwards[::-1].tobytes() == whole.tobytes()


@pytest.mark.parametrize("element", FORMATS)
def test_infs_and_nans_stay_where_they_are(element: str) -> None:
    """NaN where a rank has one or Infs of both signs meet, an Inf where those of one sign do; the block's other
    elements have their exact sums."""
    rng = np.random.default_rng(7)
    wide = [of_kind("normal", rng, 1, 2 * BLOCK, "float32")[0] for _ in range(3)]
    clean = [halved(array) if element == "bfloat16" else array.astype(DTYPES[element]) for array in wide]
    sums, _ = reduce_in_memory(clean, "sum", element)
    wanted = values_of(sums, element)
    for place, specials in enumerate([(np.nan, 1, 1), (np.inf, 1, np.inf), (-np.inf, 0, 2), (np.inf, -np.inf, 0)]):
        for rank, special in enumerate(specials):
            wide[rank][17 * place] = special
    dirty = [halved(array) if element == "bfloat16" else array.astype(DTYPES[element]) for array in wide]
    result, _ = reduce_in_memory(dirty, "sum", element)
    wanted[0:68:17] = [float("nan"), float("inf"), float("-inf"), float("nan")]
    assert [str(number) for number in values_of(result, element)] == [str(number) for number in wanted]


def test_partial_sums_beyond_the_range_do_not_matter() -> None:
    """Where large contributions cancel, the sum is finite in whatever order they come; where they do not, infinite."""
    most = np.finfo(np.float32).max
    arrays = [np.array([most, most], np.float32), np.array([most, most], np.float32), np.array([-most, 0], np.float32)]
    result, _ = reduce_in_memory(arrays, "sum", "float32")
    assert result.tolist() == [float(most), float("inf")]
    assert reduce_in_memory(arrays, "average", "float32")[0].tolist() == expected(arrays, "average", "float32")


def test_zeros_are_positive_and_cost_nothing() -> None:
    """-0, a sum that cancels, and a negative average that rounds to zero give +0; blocks of zeros have no lanes."""
    result, stages = reduce_in_memory([np.full(300, -0.0, np.float32)] * 3, "sum", "float32")
    assert not result.view(np.uint32).any()
    assert "digits" not in stages
    assert not reduce_in_memory([np.array([1.5]), np.array([-1.5])], "sum", "float64")[0].view(np.uint64).any()
    for element in ("float32", "float64", "float16"):
        tiny = -np.array([np.finfo(DTYPES[element]).smallest_subnormal, 0], DTYPES[element])
        zero = tiny * 0
        assert not np.signbit(reduce_in_memory([tiny, zero, abs(zero)], "average", element)[0]).any()


@pytest.mark.parametrize(("element", "lanes"), [("float32", 2), ("float64", 3), ("float16", 1), ("bfloat16", 1)])
def test_usual_data_take_few_lanes_and_no_tails(element: str, lanes: int) -> None:
    """Normally distributed floats of 8 ranks take 8 bytes a float32, 12 a float64 and 4 a half, and 8 a block."""
    arrays = of_kind("normal", np.random.default_rng(11), 8, 40 * BLOCK, element)
    _, stages = reduce_in_memory(arrays, "sum", element)
    assert stages == {"scales": 4 * 6 + 8 * 40, "digits": 4 * lanes * 40 * BLOCK}


def test_all_worlds_have_room() -> None:
    """For every number of ranks, the sum of the largest heads fits into a lane, and so do all ranks' counts."""
    for world in range(1, MAX_WORLD + 1):
        for kind in ("float32", "float64"):
            x = np.array([1.0], np.float32 if kind == "float32" else np.float64)
            how = ExactSum(kind, x, scan(kind, x), world).coding
            assert world * (2**how.digit - 1) < 2**31
            assert world * 2**how.digit <= 2**31
            assert world < 2**how.flag
            assert how.wide <= how.most * how.digit
            assert how.wide - how.flag >= 24 + 13
            assert how.most == most_lanes(kind, world)


def test_ranks_that_reduce_different_things_are_told_so() -> None:
    """Other sizes within one block, and other reductions, are RankMismatch with both, before anything is summed."""
    with pytest.raises(RankMismatch, match="elements 30 to 31, sum of float32"):
        reduce_in_memory([np.ones(30, np.float32), np.ones(31, np.float32)], "sum", "float32")

    def other(lanes: NDArray[Any], op: str, stage: str, agreed: Any = None) -> None:
        np.maximum(lanes[:WORDS], signature(9, Reduction("sum", "float64")), out=lanes[:WORDS])
        agreed()

    with pytest.raises(RankMismatch, match="average of float32 to sum of float64"):
        reduce_exactly(np.ones(9, np.float32), np.empty(9, np.float32), Reduction("average", "float32"), 2, other)
    words = np.array([31, -1, 1, 1, 1, 1], np.int32)  # a maximum of a signature and of another rank's own numbers
    with pytest.raises(RankMismatch, match="a reproducible reduction, and another one something else"):
        check(words, "rank 0")


@pytest.mark.parametrize(("change", "by"), [(0, -1), (1, -1), (0, 4000), (1, 4000), (0, 2**20), (1, 2**17)])
def test_scales_that_cannot_be_are_refused(change: int, by: int) -> None:
    """Scales below a rank's own are a RankMismatch and not a sum, also those that a float32 may have; so are scales
    that no float32 has."""

    def lying(lanes: NDArray[Any], op: str, stage: str, check: Any = None) -> None:
        lanes[6 + change] += by
        check()

    with pytest.raises(RankMismatch, match="scales of elements 0 and on"):
        reduce_exactly(np.array([1, 1024], np.float32), np.empty(2, np.float32), Reduction("sum", "float32"), 2, lying)

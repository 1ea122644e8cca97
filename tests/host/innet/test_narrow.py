# SPDX-License-Identifier: Apache-2.0
"""Lanes of 16 and 8 bits: errors within the stated bound, no overflow, the same bits for all, and nothing lost with
feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from netfold.host.innet import native, quantise
from netfold.wire.jobs import MAX_WORLD

Floats = NDArray[np.float32]
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
widths = st.sampled_from([16, 8])


def agree(sources: list[Floats], bits: int, residuals: list[Floats] | None = None) -> quantise.Scales:
    """The scales that the MAX fold gives to every rank."""
    left: list[Any] = [None] * len(sources) if residuals is None else list(residuals)
    every = [quantise.scales(x, bits, e) for x, e in zip(sources, left, strict=True)]
    return np.maximum.reduce(np.array(every))


def reduce(
    sources: list[Floats], bits: int, *, keys: list[int] | None = None, residuals: list[Floats] | None = None,
    divisor: float = 1.0,
) -> Floats:
    """The arithmetic of the ranks and the switches together, without packets."""
    world, agreed = len(sources), agree(sources, bits, residuals)
    lanes = [
        quantise.narrow(x, agreed, world, bits, key=keys[rank] if keys else None,
                      residual=residuals[rank] if residuals else None)
        for rank, x in enumerate(sources)
    ]
    total = np.array(lanes).sum(axis=0, dtype=np.int64)
    assert np.abs(total).max(initial=0) < 2 ** (bits - 1), "a lane overflowed"
    return quantise.widen(total, agreed, world, bits, divisor)


def bound(sources: list[Floats], bits: int, rounding: float) -> NDArray[np.float64]:
    """The error bound of native/narrow.h, element by element."""
    world = len(sources)
    top = np.repeat(agree(sources, bits).view(np.float32).astype(np.float64), 256)[: sources[0].size]
    step = top / quantise.levels(world, bits)
    return np.asarray(world * step * rounding + 2.0**-22 * world * top + 2.0**-149)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 64), st.integers(1, 300), widths, st.booleans())
def test_error_stays_within_the_stated_bound(
    data: st.DataObject, world: int, size: int, bits: int, stochastic: bool
) -> None:
    """Sums of any finite floats of up to 64 ranks differ from the exact sum by no more than narrow.h says."""
    few = [data.draw(hnp.arrays(np.float32, size, elements=finite)) for _ in range(min(world, 4))]
    sources = [few[rank % len(few)] for rank in range(world)]
    exact = np.sum(np.array(sources, np.float64), axis=0)
    limit = bound(sources, bits, 1.0 if stochastic else 0.5)
    surely = np.abs(exact) + limit <= np.finfo(np.float32).max
    result = reduce(sources, bits, keys=list(range(world)) if stochastic else None)
    assert (np.abs(result.astype(np.float64) - exact)[surely] <= limit[surely]).all()


@given(st.integers(1, MAX_WORLD), widths, st.integers(1, 0x7F7FFFFF), st.sampled_from([1.0, -1.0]), st.booleans())
def test_the_largest_values_of_any_world_do_not_overflow(
    world: int, bits: int, magnitude: int, sign: float, stochastic: bool
) -> None:
    """Every rank has the block's largest magnitude, a lane of M levels each, however the scale is rounded."""
    levels = quantise.levels(world, bits)
    assert levels * world < 2 ** (bits - 1)
    if levels == 0:
        assert (bits, world > 127) == (8, True)
        return
    x = np.full(256, sign * np.uint32(magnitude).view(np.float32), np.float32)
    agreed = quantise.scales(x, bits)
    for key in range(3) if stochastic else [None]:
        lanes = quantise.narrow(x, agreed, world, bits, key=key)
        assert (np.abs(lanes) <= levels).all()
        assert stochastic or (lanes == sign * levels).all()


@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite), widths)
def test_the_largest_of_a_block_comes_back_bit_for_bit(x: Floats, bits: int) -> None:
    """With one rank, the value that made the scale is exact, of either sign."""
    result = reduce([x], bits)
    top = np.repeat(quantise.scales(x, bits), 256)[: x.size]
    made = (x.view(np.uint32) & 0x7FFFFFFF == top) & (top > 0)
    assert (result[made].view(np.uint32) == x[made].view(np.uint32)).all()


@pytest.mark.parametrize("bits", [16, 8])
def test_zero_blocks_give_plus_zero(bits: int) -> None:
    """Blocks of zeros of both signs sum to +0 everywhere."""
    x = np.zeros(300, np.float32)
    x[::2] = -0.0
    assert (reduce([x, x], bits).view(np.uint32) == 0).all()


@pytest.mark.parametrize("bits", [16, 8])
def test_subnormals_are_values_like_others(bits: int) -> None:
    """A block of the smallest floats has as many levels as any: its largest survive, and none becomes zero for want
    of a scale."""
    smallest = np.full(256, 1, np.uint32).view(np.float32)
    assert (reduce([smallest, smallest], bits) == 2 * smallest).all()
    ramp = np.arange(256, dtype=np.uint32).view(np.float32)
    result = reduce([ramp, ramp], bits)
    assert (np.abs(result.astype(np.float64) - 2.0 * ramp) <= bound([ramp, ramp], bits, 0.5)).all()


@pytest.mark.parametrize("bits", [16, 8])
def test_sums_beyond_float_range_are_infinite(bits: int) -> None:
    """Two largest floats sum to Inf, their opposites to -Inf; both together to 0."""
    top = np.finfo(np.float32).max
    x, y = np.array([top, -top, top], np.float32), np.array([top, -top, -top], np.float32)
    assert reduce([x, y], bits).tolist() == [np.inf, -np.inf, 0.0]


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_inf_and_nan_make_their_block_nan_everywhere(bits: int, value: float) -> None:
    """All 256 elements around an Inf or NaN of any rank are NaN, others are untouched, and they leave no residual."""
    x, y = np.ones(768, np.float32), np.ones(768, np.float32)
    x[300] = value
    residuals = [np.full(768, 0.25, np.float32) for _ in range(2)]
    result = reduce([x, y], bits, residuals=residuals)
    assert np.isnan(result[256:512]).all()
    assert np.abs(result[:256] - 2.5).max() <= bound([x[:1] * 1.25] * 2, bits, 0.5)[0]
    assert np.isfinite(result[512:]).all()
    assert not residuals[0][256:512].any()
    assert not residuals[1][256:512].any()


def test_average_divides_after_the_sum() -> None:
    """An average is the widened sum divided by N."""
    x = np.linspace(-3, 7, 500, dtype=np.float32)
    sources = [x, x * np.float32(2), x * np.float32(4)]
    assert (reduce(sources, 16, divisor=3.0) == reduce(sources, 16) / np.float32(3)).all()


@pytest.mark.parametrize("bits", [16, 8])
def test_stochastic_rounding_is_right_on_average_and_repeats(bits: int) -> None:
    """The mean of many keys' lanes is the value itself, within five standard errors and the generator's 2^-9; one key
    always gives the same lanes, two give different ones."""
    x = np.linspace(-1, 1, 512, dtype=np.float32)
    agreed = quantise.scales(x, bits)
    tries = [quantise.narrow(x, agreed, 8, bits, key=native.library().nf_key(7, number, 3)) for number in range(1000)]
    top = agreed.view(np.float32).repeat(256)
    error = np.mean(tries, axis=0) - x.astype(np.float64) * quantise.levels(8, bits) / top
    assert np.abs(error).max() <= 5 * 0.5 / 1000**0.5 + 2**-9
    assert abs(error.mean()) <= 5 * 0.5 / (1000 * 512) ** 0.5 + 2**-9
    assert (quantise.narrow(x, agreed, 8, bits, key=5) == quantise.narrow(x, agreed, 8, bits, key=5)).all()
    assert (tries[0] != tries[1]).any()


@settings(max_examples=30)
@given(st.integers(1, 60), widths, st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_residuals_stay_within_their_bound_and_lose_nothing(
    world: int, bits: int, seed: int, steps: int
) -> None:
    """Step after step the residual stays below max|x| / (2M - 1) but for float32's own rounding, and the results' sum
    and the residual are the exact sum of all that was ever sent."""
    rng = np.random.default_rng(seed)
    residuals = [np.zeros(300, np.float32) for _ in range(world)]
    got, sent, largest = np.zeros(300), np.zeros(300), 0.0
    for _ in range(steps):
        sources = [rng.standard_normal(300).astype(np.float32) for _ in range(world)]
        largest = max(largest, max(float(np.abs(x).max()) for x in sources))
        got += reduce(sources, bits, residuals=residuals)
        sent += np.sum(np.array(sources, np.float64), axis=0)
        residual = max(float(np.abs(e).max()) for e in residuals)
        assert residual <= largest * (1 / (2 * quantise.levels(world, bits) - 1) + 2**-20)
    difference = np.abs(got + np.sum(np.array(residuals, np.float64), axis=0) - sent).max()
    assert difference <= 1e-5 * world * steps * largest

# SPDX-License-Identifier: Apache-2.0
"""Block floating point: exact where it can be, within the stated bound elsewhere, the same bits for all."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from netfold.host.innet import native, quantise
from netfold.wire.jobs import MAX_WORLD

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
worlds = st.sampled_from([1, 2, 3, 7, 8, 64, 127, 128, 129, 255, 256, 257, 511, 512, 1023, 1024, 4095, MAX_WORLD])


def reduce(sources: list[NDArray[np.float32]], divisor: float = 1.0) -> NDArray[np.float32]:
    """The arithmetic of the ranks and the switches together, without packets."""
    world = len(sources)
    agreed = np.maximum.reduce(np.array([quantise.scales(x) for x in sources]))
    lanes = [quantise.quantise(x, agreed, world) for x in sources]
    total: NDArray[np.int64] = np.array(lanes).sum(axis=0, dtype=np.int64)
    assert np.abs(total).max(initial=0) <= 2**31 - 1 or (agreed == 256).any(), "a lane overflowed"
    return quantise.dequantise(total.astype(np.int32), sources[0].size, agreed, world, divisor)


def bound(sources: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """The error bound of native/quantise.h, element by element."""
    world = len(sources)
    agreed = np.max([quantise.scales(x) for x in sources], axis=0).astype(np.int64)
    exponent = np.repeat(agreed, 256)[: sources[0].size]
    exact = np.sum(np.array(sources, np.float64), axis=0)
    rounding: NDArray[np.float64] = world / 2 * np.exp2(exponent - 157.0 + quantise.headroom(world))
    limit: NDArray[np.float64] = rounding + 2.0**-24 * (np.abs(exact) + rounding) + 2.0**-150
    return limit


@given(st.data(), st.integers(1, 9), st.integers(1, 600))
def test_error_stays_within_the_stated_bound(data: st.DataObject, world: int, size: int) -> None:
    """Sums of any finite floats differ from the exact sum by no more than quantise.h says."""
    sources = [data.draw(hnp.arrays(np.float32, size, elements=finite)) for _ in range(world)]
    exact = np.sum(np.array(sources, np.float64), axis=0)
    with np.errstate(over="ignore"):
        expected_inf = np.abs(exact) + bound(sources) > np.finfo(np.float32).max
    result = reduce(sources)
    error = np.abs(result.astype(np.float64) - exact)
    assert (error[~expected_inf] <= bound(sources)[~expected_inf]).all()


@given(worlds, st.integers(0, 254), st.sampled_from([1.0, -1.0]))
def test_worst_blocks_of_any_world_do_not_overflow(world: int, exponent: int, sign: float) -> None:
    """Every rank with the largest magnitude of an exponent: the sum of lanes stays inside int32."""
    top = np.uint32(exponent << 23 | 0x7FFFFF).view(np.float32)
    x = np.full(256, sign * top, np.float32)
    agreed = quantise.scales(x)
    lane = int(quantise.quantise(x, agreed, world)[0])
    assert lane != 0
    assert abs(lane * world) < 2**31


@given(st.integers(1, MAX_WORLD))
def test_headroom_follows_the_arithmetic_of_its_comment(world: int) -> None:
    """L is ceil(log2 N) while a float's 24 bits cannot round up, and one more than enough beyond."""
    bits = quantise.headroom(world)
    if world <= 128:
        assert 2**bits >= world > 2**bits / 2
    else:
        assert 2**bits >= world + 1 > 2 ** (bits - 1)


@given(hnp.arrays(np.float32, st.integers(1, 600), elements=finite))
def test_one_rank_gets_every_float_of_like_size_back(x: NDArray[np.float32]) -> None:
    """With one rank, values within 2^-7 of their block's largest come back bit for bit."""
    result = reduce([x])
    top = np.repeat(quantise.scales(x).astype(np.int64), 256)[: x.size]
    near = ((x.view(np.uint32) >> 23 & 255) + 7 >= top) & (x != 0)
    assert (result[near].view(np.uint32) == x[near].view(np.uint32)).all()


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=finite), st.permutations(range(3)))
def test_order_of_ranks_does_not_change_a_bit(x: NDArray[np.float32], order: list[int]) -> None:
    """Integer sums commute: whatever order packets meet in, the result has the same bits."""
    sources = [x, x[::-1].copy(), (x * np.float32(0.37)).astype(np.float32)]
    one, other = reduce(sources), reduce([sources[i] for i in order])
    assert (one.view(np.uint32) == other.view(np.uint32)).all()


def test_zero_blocks_give_plus_zero() -> None:
    """Blocks of zeros of both signs sum to +0 everywhere."""
    x = np.zeros(300, np.float32)
    x[::2] = -0.0
    assert (reduce([x, x]).view(np.uint32) == 0).all()


@pytest.mark.parametrize("world", [1, 2, 5, 128])
def test_subnormals_sum_exactly(world: int) -> None:
    """Subnormal blocks have 2^(8-L) lanes to the smallest float: nothing is lost up to 128 ranks."""
    tiny = np.arange(1, 257, dtype=np.uint32).view(np.float32)
    result = reduce([tiny] * world)
    assert (result.view(np.uint32) == np.arange(1, 257) * world).all()


def test_sums_beyond_float_range_are_infinite() -> None:
    """Two largest floats sum to Inf, as in float arithmetic; their opposites to -Inf; both together to 0."""
    top = np.finfo(np.float32).max
    x = np.array([top, -top, top], np.float32)
    y = np.array([top, -top, -top], np.float32)
    assert reduce([x, y]).tolist() == [np.inf, -np.inf, 0.0]


def test_average_divides_after_the_sum() -> None:
    """An average is the float sum divided by N, correctly rounded."""
    x = np.linspace(-3, 7, 500, dtype=np.float32)
    sources = [x, x * np.float32(2), x * np.float32(4)]
    assert (reduce(sources, 3.0) == reduce(sources) / np.float32(3)).all()


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1.5, np.inf, -np.inf, np.nan]), min_size=4, max_size=4), min_size=1, max_size=6
    )
)
def test_inf_and_nan_reach_every_rank(rows: list[list[float]]) -> None:
    """In a block with Inf or NaN: NaN wins, opposite Infs are NaN, an Inf stays, and finite elements become NaN."""
    sources = [np.array(row, np.float32) for row in rows]
    result = reduce(sources)
    if all(np.isfinite(x).all() for x in sources):
        assert (result == np.sum(sources, axis=0)).all()
        return
    for column, got in enumerate(result):
        values = [float(x[column]) for x in sources]
        signs = {v for v in values if np.isinf(v)}
        if any(np.isnan(v) for v in values) or len(signs) != 1:
            assert got.view(np.uint32) == 0x7FC00000
        else:
            assert got == signs.pop()


@pytest.mark.parametrize("world", [1023, 1024, 2048, MAX_WORLD])
def test_specials_of_all_ranks_are_counted(world: int) -> None:
    """All ranks of the largest job with the same special value give that value: no count runs into the next one."""
    for value in (np.inf, -np.inf, np.nan):
        x = np.full(3, value, np.float32)
        lane = quantise.quantise(x, quantise.scales(x), world).astype(np.uint32).astype(np.int64) * world
        result = quantise.dequantise(lane.astype(np.uint32).view(np.int32), 3, quantise.scales(x), world)
        assert np.isnan(result).all() if np.isnan(value) else (result == value).all()


@pytest.mark.parametrize("world", [3, MAX_WORLD])
def test_a_single_special_among_all_ranks_decides(world: int) -> None:
    """One rank with the other infinity, or with NaN, makes NaN of an infinity of all others."""
    for common, single in ((np.inf, -np.inf), (-np.inf, np.inf), (np.inf, np.nan), (-np.inf, np.nan), (1.0, np.nan)):
        x = [np.full(3, value, np.float32) for value in (common, single, np.inf)]
        agreed = quantise.scales(x[2])
        most, one = (quantise.quantise(values, agreed, world).astype(np.int64) for values in x[:2])
        lanes = (most * (world - 1) + one).astype(np.uint32).view(np.int32)
        assert np.isnan(quantise.dequantise(lanes, 3, agreed, world)).all()


def test_an_infinity_leaves_other_blocks_alone() -> None:
    """Only the 256 elements around an Inf lose their values."""
    x = np.ones(768, np.float32)
    x[300] = np.inf
    result = reduce([x, np.ones(768, np.float32)])
    assert (result[:256] == 2).all()
    assert (result[512:] == 2).all()
    assert result[300] == np.inf
    assert np.isnan(result[256:300]).all()


@given(st.binary(max_size=3000), st.integers(0, 0xFFFFFFFF))
def test_crc_equals_zlibs(data: bytes, start: int) -> None:
    """Tables and carry-less multiplication give zlib's CRC-32 for any length, from any start."""
    assert native.library().nf_crc32(start, data, len(data)) == zlib.crc32(data, start)


def _unaligned(x: NDArray[Any]) -> NDArray[Any]:
    raw = np.empty(x.nbytes + 1, np.uint8)
    raw[1:] = x.view(np.uint8)
    return raw[1:].view(x.dtype)


def test_unaligned_wire_buffers_serve() -> None:
    """Payloads start at odd offsets in a run of packets, so the loops must not need alignment."""
    x = np.linspace(-1, 1, 256, dtype=np.float32)
    agreed = quantise.scales(x)
    lanes = quantise.quantise(x, agreed, 2)
    odd = _unaligned(lanes.astype(">i4"))
    out = np.empty(256, np.float32)
    native.library().nf_dequantise_all(odd.ctypes.data, 256, agreed.ctypes.data, 2, 1.0, out.ctypes.data)
    assert (out == quantise.dequantise(lanes, 256, agreed, 2)).all()

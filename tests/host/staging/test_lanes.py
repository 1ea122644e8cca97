# SPDX-License-Identifier: Apache-2.0
"""Narrow lanes made by torch are those of native/narrow.c, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.innet import quantise
from netfold.host.innet.native import library
from support import needs

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging.lanes import BLOCK, NarrowLanes, blocks_of, scales_of  # noqa: E402

FLOATS = st.sampled_from([
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-3, -7e-4, 3.4e38, -3.4e38, 1e-38, 1e-40, -1.4e-45, 123.456, np.inf, -np.inf, np.nan,
]) | st.floats(width=32, allow_nan=False, allow_infinity=False)


def bits_of(values: Any) -> list[int]:
    """The bits of floats, all NaNs alike."""
    found = np.ascontiguousarray(values, np.float32)
    return np.where(np.isnan(found), 0x7FC00000, found.view(np.uint32)).tolist()


@settings(max_examples=150)
@given(
    st.lists(st.lists(FLOATS, min_size=1, max_size=12), min_size=1, max_size=4), st.sampled_from([8, 16]),
    st.integers(1, 9), st.sampled_from([None, 0, 12345]), st.booleans(), st.sampled_from([1.0, 3.0]),
    st.integers(0, BLOCK - 1),
)
def test_lanes_are_those_of_the_native_library(
    heads: list[list[float]], bits: int, ranks: int, seed: int | None, feedback: bool, divisor: float, short: int,
) -> None:
    """Scales, lanes, residuals, and sums of all ranks' lanes as values: of zeros, subnormals, the largest floats, Inf
    and NaN, for every number of ranks, rounded to the nearest or stochastically."""
    values = np.concatenate([np.resize(np.array(head, np.float32), BLOCK) for head in heads])
    values = values[: values.size - short]
    finite = np.nan_to_num(values[::-1], posinf=1, neginf=2).astype(np.float32)
    residual = np.float32(0.25) * finite if feedback else None
    with np.errstate(over="ignore", invalid="ignore"):
        own = quantise.scales(values, bits, residual)
        blocks = blocks_of(torch.from_numpy(values) + (0 if residual is None else torch.from_numpy(residual)))
    assert scales_of(blocks).tolist() == own.tolist()
    compare(values, residual, np.maximum(own, np.roll(own, 1)), bits, ranks, seed, divisor)


@pytest.mark.parametrize("ranks", [3, 5, 8])
@pytest.mark.parametrize("bits", [8, 16])
def test_no_operation_rounds_otherwise(bits: int, ranks: int) -> None:
    """A million values whose lanes are near the middle of two integers: a factor that is off by its last bit, as by a
    multiplication with the reciprocal, would move some."""
    random = np.random.default_rng(bits + ranks)
    tops = random.uniform(1, 2, 4000).astype(np.float32)
    levels = quantise.levels(ranks, bits)
    middles = (random.integers(0, levels, (4000, BLOCK)) + np.float32(0.5)) / np.float32(levels) * tops[:, None]
    values = np.nextafter(middles.astype(np.float32), random.choice(np.array([-9, 9], np.float32), middles.shape))
    values[:, 0] = tops
    flat = values.reshape(-1)
    compare(flat, None, quantise.scales(flat, bits), bits, ranks, None, 7.0)


def compare(
    values: Any, residual: Any, agreed: Any, bits: int, ranks: int, seed: int | None, divisor: float
) -> None:
    """Fails where torch's lanes, what they leave out, or the values of their sum are not the native ones."""
    blocks = blocks_of(torch.from_numpy(values) + (0 if residual is None else torch.from_numpy(residual)))
    key = None if seed is None else int(library().nf_key(seed, 7, 2))
    how, scales = NarrowLanes(bits, ranks, key), torch.from_numpy(agreed.view(np.int32))
    assert how.levels == quantise.levels(ranks, bits)
    lanes = how.integers(blocks, scales, 0)
    kept = None if residual is None else residual.copy()
    native = quantise.narrow(values, agreed, ranks, bits, key=key, residual=kept)
    assert lanes.view(-1)[: values.size].tolist() == native.tolist()
    if kept is not None:
        assert bits_of(how.left_out(blocks, lanes, scales).view(-1)[: values.size]) == bits_of(kept)
    several = [torch.roll(lanes, turn, 1) for turn in range(ranks)]
    words = torch.stack([how.packed(one) for one in several]).sum(0, dtype=torch.int32)
    total = torch.stack(several).sum(0).view(-1)[: values.size].numpy()
    wide = quantise.widen(total, agreed, ranks, bits, divisor)
    assert bits_of(how.widened(words, scales, divisor).view(-1)[: values.size]) == bits_of(wide)


def test_places_of_later_parts_draw_other_numbers() -> None:
    """A part of a tensor has the lanes that the whole has there."""
    how, blocks = NarrowLanes(8, 3, 99), torch.linspace(-1, 1, 4 * BLOCK).view(4, BLOCK)
    scales = scales_of(blocks)
    whole = how.integers(blocks, scales, 0)
    assert torch.equal(how.integers(blocks[2:], scales[2:], 2 * BLOCK), whole[2:])
    assert not torch.equal(how.integers(blocks[2:], scales[2:], 0), whole[2:])

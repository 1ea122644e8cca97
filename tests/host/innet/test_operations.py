# SPDX-License-Identifier: Apache-2.0
"""Every reduction and lane width, by native cores over a hostile simulated network and the reference switches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.innet import abi, quantise
from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Op
from support.models.slot_model import SECOND, Call, Layout, TerribleNetwork, count_ranks, make_fabric, run

LAYOUTS: list[list[Layout]] = [[0], [0, 1, 2], [[0, 1], [2, 3]], [[[0, 1], [2]], [3, 4]]]
layouts = st.sampled_from(LAYOUTS)
Rows = list[NDArray[Any]]


def results(
    layout: list[Layout], sources: Rows, *, op: Op = "sum", coding: Coding = Coding(), loss: float = 0.0,  # noqa: B008
    seed: int = 0, path_mtu: int = 1024, trees: int = 1, feedback: Rows | None = None, in_place: bool = False,
) -> tuple[Rows, list[Core]]:
    """Runs one operation on all ranks.  Returns what each got, and the cores."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(layout, network, path_mtu=path_mtu, trees=trees)
    sources = [source.copy() for source in sources]
    outs = sources if in_place else [np.full_like(source, 99) for source in sources]
    left = feedback or [None] * len(sources)  # type: ignore[list-item]
    calls = [
        [Call(s, o, 1.0, 3, op, coding, e)] for s, o, e in zip(sources, outs, left, strict=True)
    ]
    for _ in run(fabric, calls):
        pass
    return outs, fabric.cores


def integers(world: int, size: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    ends = np.array([-(2**31), 2**31 - 1, 0, -1], np.int64)
    return [
        np.where(rng.random(size) < 0.1, rng.choice(ends, size), rng.integers(-(2**31), 2**31, size)).astype(np.int32)
        for _ in range(world)
    ]


def floats(world: int, size: int, seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(size) * np.exp2(rng.integers(-9, 9, size))).astype(np.float32) for _ in range(world)]


@settings(max_examples=25)
@given(layouts, st.integers(0, 4000), st.sampled_from(["max", "min"]), st.sampled_from([0.0, 0.1]), st.integers(0, 99))
def test_maxima_and_minima_are_exact(layout: list[Layout], size: int, op: Op, loss: float, seed: int) -> None:
    """int32 over the whole range and float32 of any kind, NaN winning, as numpy has it; whatever the network loses."""
    world = count_ranks(layout)
    fold = np.maximum if op == "max" else np.minimum
    ints = integers(world, size, seed)
    for out in results(layout, ints, op=op, loss=loss, seed=seed)[0]:
        assert (out == fold.reduce(ints)).all()
    rng = np.random.default_rng(seed)
    some = [np.frombuffer(rng.bytes(4 * size), np.float32).copy() for _ in range(world)]
    for out in results(layout, some, op=op, loss=loss, seed=seed)[0]:
        np.testing.assert_array_equal(out, fold.reduce(some))


@settings(max_examples=25)
@given(layouts, st.integers(0, 3000), st.sampled_from([0.0, 0.1]), st.integers(0, 99), st.integers(20, 31))
def test_saturating_sums_count_what_leaves_the_range(
    layout: list[Layout], size: int, loss: float, seed: int, magnitude: int
) -> None:
    """Results inside the range are exact sums, those that left it are at an end, and all ranks count the same number of
    ends."""
    world = count_ranks(layout)
    sources = [row >> (31 - magnitude) for row in integers(world, size, seed)]
    exact = np.sum(np.array(sources, np.int64), axis=0)
    outs, cores = results(layout, sources, coding=Coding(saturate=True), loss=loss, seed=seed)
    for out, core in zip(outs, cores, strict=True):
        ends = (out == 2**31 - 1) | (out == -(2**31))
        assert (out == exact)[~ends].all()
        assert ends[(exact > 2**31 - 1) | (exact < -(2**31))].all()
        assert core.saturated() == np.count_nonzero(ends)
        assert (out == outs[0]).all()


@settings(max_examples=25, deadline=None)
@given(
    layouts, st.integers(1, 40_000), st.sampled_from([16, 8]), st.sampled_from([1024, 4096]), st.integers(1, 3),
    st.sampled_from([0.0, 0.05]), st.booleans(), st.integers(0, 99),
)
def test_narrow_sums_are_the_arithmetics_whatever_the_network_does(
    layout: list[Layout], size: int, bits: LaneBits, path_mtu: int, trees: int, loss: float, in_place: bool, seed: int
) -> None:
    """Every rank gets the bits that narrow.h's arithmetic gives without a network, for any path MTU, trees and loss,
    into its own array or another; so do the residuals."""
    world = count_ranks(layout)
    sources = floats(world, size, seed)
    own = [e * np.float32(0.01) for e in floats(world, size, seed + 1)]
    residuals = [e.copy() for e in own]
    outs, _ = results(
        layout, sources, coding=Coding(bits), loss=loss, seed=seed, path_mtu=path_mtu, trees=trees, feedback=residuals,
        in_place=in_place,
    )
    agreed = np.maximum.reduce(np.array([quantise.scales(x, bits, e) for x, e in zip(sources, own, strict=True)]))
    lanes = [quantise.narrow(x, agreed, world, bits, residual=e) for x, e in zip(sources, own, strict=True)]
    expected = quantise.widen(np.array(lanes).sum(axis=0), agreed, world, bits)
    for out, residual, e in zip(outs, residuals, own, strict=True):
        assert (out.view(np.uint32) == expected.view(np.uint32)).all()
        assert (residual.view(np.uint32) == e.view(np.uint32)).all()


@pytest.mark.parametrize("bits", [16, 8])
def test_stochastic_sums_repeat_with_the_seed_and_the_ranks_draw_apart(bits: LaneBits) -> None:
    """The same seed, operation and rank give the same sum with and without loss, another seed another one; ranks with
    equal arrays round differently, so that their errors do not add up."""
    sources = [np.linspace(-1, 1, 20_000, dtype=np.float32)] * 5
    layout = LAYOUTS[-1]
    one = results(layout, sources, coding=Coding(bits, "stochastic", 1))[0][0]
    again = results(layout, sources, coding=Coding(bits, "stochastic", 1), loss=0.05)[0][4]
    other = results(layout, sources, coding=Coding(bits, "stochastic", 2))[0][0]
    assert (one == again).all()
    assert (one != other).any()
    step = 1 / quantise.levels(5, bits)
    spread = np.std((one - 5 * sources[0]) / step)
    assert spread < 0.8 * 5 * 0.5, "five equal roundings would spread five times as far as one"


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("path_mtu", [1024, 4096])
def test_packets_of_each_width_are_as_many_as_their_bytes(bits: LaneBits, path_mtu: int) -> None:
    """n elements take n * bits / 8 bytes of whole packets, and one scale of 32 bits a block of 256."""
    size = 256 * 1024
    _, cores = results([0, 1], floats(2, size, 1), coding=Coding(bits), path_mtu=path_mtu)
    sent = [cores[0].state(0, kind).counters.sent for kind in (DATA, AGREEMENT)]
    assert sent == [size * bits // 8 // path_mtu, 1 + size // 256 * 4 // path_mtu]


def test_elements_do_not_depend_on_the_path_mtu() -> None:
    """Blocks are 256 elements whatever a packet holds: the same bits from 1024 and 4096."""
    sources = floats(3, 10_000, 4)
    small, large = (results([0, 1, 2], sources, path_mtu=mtu)[0] for mtu in (1024, 4096))
    assert (small[0].view(np.uint32) == large[2].view(np.uint32)).all()


@pytest.mark.parametrize(
    ("codings", "ops", "field", "values"),
    [
        ([Coding(16), Coding(8)], ["sum", "sum"], "lane bits", (8, 16)),
        ([Coding(32), Coding(16)], ["sum", "sum"], "lane bits", (16, 32)),
        ([Coding(), Coding()], ["max", "min"], "operation", (3, 4)),
        ([Coding(), Coding()], ["sum", "max"], "operation", (0, 3)),
    ],
)
def test_ranks_that_disagree_about_lanes_all_learn_it(
    codings: list[Coding], ops: list[Op], field: str, values: tuple[int, int]
) -> None:
    """With another width or reduction on one rank, every rank fails and knows which values there are."""
    fabric = make_fabric([0, 1], TerribleNetwork(random.Random(3)))
    sources = floats(2, 3000, 3)
    calls = [
        [Call(s, np.empty_like(s), 1.0, 4, op, coding)] for s, op, coding in zip(sources, ops, codings, strict=True)
    ]
    for _ in run(fabric, calls, limit=SECOND):
        pass
    index = abi.FIELDS.index(field)
    for core in fabric.cores:
        failure = core.failure()
        assert failure.error == abi.SIGNATURES_DIFFER
        assert (failure.low[index], failure.high[index]) == values


@pytest.mark.parametrize(
    ("source", "op", "coding", "words"),
    [
        (np.zeros(3, np.int32), "sum", Coding(16), "narrow lanes are for sums and averages of float32"),
        (np.zeros(3, np.float32), "max", Coding(8), "narrow lanes are for sums"),
        (np.zeros(3, np.float32), "sum", Coding(saturate=True), "saturating sums are of int32"),
    ],
)
def test_lanes_that_cannot_be_are_refused(source: NDArray[Any], op: Op, coding: Coding, words: str) -> None:
    """Nothing is sent, and the error says what such lanes are for."""
    core = make_fabric([0, 1], TerribleNetwork(random.Random(3))).cores[0]
    with pytest.raises(ValueError, match=words):
        core.start(1, source, np.empty_like(source), 1.0, 0, op=op, coding=coding)
    with pytest.raises(ValueError, match="error feedback is for narrow lanes"):
        core.start(1, source, np.empty_like(source), 1.0, 0, feedback=np.zeros(3, np.float32))

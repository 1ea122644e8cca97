# SPDX-License-Identifier: Apache-2.0
"""Native cores over a hostile simulated network and the reference switches: exact sums, the same bits, no hang, no
storm."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.innet import native
from netfold.host.innet.core import Core
from netfold.host.native.library import Run
from support.models.slot_model import (
    MILLISECOND,
    SECOND,
    Call,
    Fabric,
    Layout,
    TerribleNetwork,
    fold,
    make_fabric,
    plan_anew,
    plan_trees,
    run,
)
from support.models.sources import floats, integers

LAYOUTS: list[list[Layout]] = [[0], [0, 1], [0, 1, 2], [[0, 1], [2, 3]], [[0], [1, 2, 3]], [[[0, 1], [2]], [3, 4]]]


class Rounds:
    """Operations of these sizes that follow each other in place, of int32 and float32 in turns."""

    def __init__(self, world: int, sizes: Sequence[int], seed: int) -> None:
        self.sources = [(integers if number % 2 else floats)(world, size, seed + number)
                        for number, size in enumerate(sizes, start=1)]

    def fold(self, fabric: Fabric, late: list[int]) -> None:
        """Run them; each must be right, with the same bits on all ranks."""
        arrays = [[source.copy() for source in sources] for sources in self.sources]
        calls = [[Call(array, array, 1.0, number) for number, array in enumerate(own, start=1)]
                 for own in zip(*arrays, strict=True)]
        for _ in run(fabric, calls, late=late):
            pass
        for sources, outs in zip(self.sources, arrays, strict=True):
            for out in outs[1:]:
                assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()
            if sources[0].dtype == np.int32:
                assert (outs[0] == np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)).all()
            elif sources[0].size:
                exact = np.sum(np.array(sources, np.float64), axis=0)
                assert np.abs(outs[0] - exact).max() <= np.max(np.abs(np.array(sources))) * 2**-20


@settings(max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.integers(0, 9000),
    trees=st.integers(1, 3),
    slots=st.sampled_from([2, 4, 16, 64]),
    psn=st.sampled_from([0, 5, (1 << 24) - 1, (1 << 24) - 7, 1 << 23]),
    loss=st.sampled_from([0.0, 0.01, 0.1]),
    chaos=st.sampled_from([0.0, 0.05, 0.3]),
    max_run=st.sampled_from([1, 7, 60]),
    seed=st.integers(0, 2**32 - 1),
)
def test_integer_sums_are_exact_whatever_the_network_does(
    layout: list[Layout],
    size: int,
    trees: int,
    slots: int,
    psn: int,
    loss: float,
    chaos: float,
    max_run: int,
    seed: int,
) -> None:
    """For any tree, window, PSN wrap, loss, duplication and reordering, every rank gets the wrapped int32 sum."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=chaos, reorder=chaos)
    fabric = make_fabric(layout, network, trees=trees, slots=slots, psn=psn, max_run=max_run)
    sources = integers(len(fabric.cores), size, seed)
    expected = np.sum(np.array(sources, np.int64), axis=0).astype(np.int32)
    for out in fold(fabric, sources):
        assert (out == expected).all()


@settings(max_examples=30)
@given(
    layout=st.sampled_from(LAYOUTS),
    size=st.integers(1, 100_000),
    loss=st.sampled_from([0.0, 0.05]),
    seed=st.integers(0, 2**32 - 1),
)
def test_floats_get_the_same_bits_on_every_rank_with_and_without_loss(
    layout: list[Layout], size: int, loss: float, seed: int
) -> None:
    """Loss changes no bit of a float sum, and ranks never differ."""
    results = []
    for rate in (0.0, loss):
        network = TerribleNetwork(random.Random(seed), loss=rate, duplicate=rate, reorder=rate)
        fabric = make_fabric(layout, network, trees=2)
        results += fold(fabric, floats(len(fabric.cores), size, seed))
    for result in results[1:]:
        assert (result.view(np.uint32) == results[0].view(np.uint32)).all()


@settings(max_examples=60)
@given(
    layout=st.sampled_from(LAYOUTS[1:]),
    trees=st.integers(1, 2),
    slots=st.sampled_from([2, 4, 16, 64]),
    psn=st.sampled_from([0, (1 << 24) - 7]),
    loss=st.sampled_from([0.0, 0.05]),
    disasters=st.lists(st.tuples(st.integers(0, 4 * MILLISECOND), st.sets(st.integers(0, 1))), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.slow
def test_sums_stay_exact_when_switches_lose_what_they_hold(
    layout: list[Layout], trees: int, slots: int, psn: int, loss: float, disasters: list[tuple[int, set[int]]],
    seed: int,
) -> None:
    """Operations in place, of different dtypes, run one after another; ranks halt anywhere, some already in the next
    operation or idle, and go on over new trees from what the slowest rank lacks, and over those that stay."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(layout, network, trees=trees, slots=slots, psn=psn)
    world = len(fabric.cores)
    rounds = Rounds(world, np.random.default_rng(seed).integers(0, 9000, 4).tolist(), seed)
    at = 0
    for again, (pause, staying) in enumerate(disasters, start=1):
        at += pause
        plan_anew(fabric, network, at, trees, again=again, staying=staying)
        at += 2 * MILLISECOND
    rounds.fold(fabric, late=[network.rng.randrange(MILLISECOND) for _ in range(world)])


def test_a_first_psn_that_is_no_longer_kept_is_refused() -> None:
    """A first PSN above what a rank lacks, or below the packets that it keeps, is refused and changes nothing."""
    network = TerribleNetwork(random.Random(1))
    fabric = make_fabric([0, 1], network, slots=4, psn=100)
    fold(fabric, integers(2, 256 * 20, 1))
    core = fabric.cores[0]
    (tree,) = plan_trees(0, 2, slots=4, again=1)
    here = core.missing()[core.trees[0].data.qp]
    assert here == 120
    for psn in (here + 1, here - 5, 99):
        with pytest.raises(ValueError, match="the first PSN is none that this rank still has"):
            core.resume([msgspec.structs.replace(tree, data=msgspec.structs.replace(tree.data, psn=psn),
                                                 agreement=msgspec.structs.replace(tree.agreement, psn=101))], 0)
    assert core.finished()
    with pytest.raises(ValueError, match="a tree is to stay whose queue pairs or slots this rank does not have"):
        core.resume([msgspec.structs.replace(tree, stays=True)], 0)
    with pytest.raises(ValueError, match="1 trees cannot become 2"):
        core.resume([tree, tree], 0)


@settings(max_examples=20)
@given(
    late=st.lists(st.integers(0, 3 * SECOND), min_size=4, max_size=4),
    loss=st.sampled_from([0.0, 0.03]),
    seed=st.integers(0, 2**32 - 1),
)
def test_operations_follow_each_other_with_late_ranks(late: list[int], loss: float, seed: int) -> None:
    """Many operations of different sizes and dtypes run in a row, in place, while ranks come late by seconds."""
    network = TerribleNetwork(random.Random(seed), loss=loss, reorder=loss)
    fabric = make_fabric([[0, 1], [2, 3]], network, trees=2, slots=16)
    Rounds(4, np.random.default_rng(seed).integers(0, 3000, 12).tolist(), seed).fold(fabric, late=late)


def test_no_operation_begins_before_the_last_one_has_ended() -> None:
    """It is refused by its reason, short or long: packets that are on their way are of the arrays of the last one."""
    own = np.ones(1024, np.float32)
    core = Core("10.0.0.1", 2, plan_trees(0, 2, trees=1, slots=64, psn=2))
    core.start(1, own, np.empty_like(own), 1.0, 0)
    while core.send(0) is not None:
        pass
    for size in (1, 1024, 100_000):
        more = np.ones(size, np.float32)
        with pytest.raises(ValueError, match="the operation before has not ended"):
            core.start(2, more, np.empty_like(more), 1.0, 0)


def test_what_the_kernel_refuses_is_sent_again_singly() -> None:
    """Packets of super-packets that the kernel refuses on a path are sent again one by one, with the ICRC of single
    packets."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network)
    lib = native.library()
    refused = 0

    def refusing(core: Core) -> Callable[[int], Run | None]:
        honest = core.send

        def send(now: int) -> Run | None:
            nonlocal refused
            out = honest(now)
            while out is not None and len(out.packets()) > 1:
                refused += 1
                lib.nf_fold_no_runs(core.handle)
                lib.nf_fold_unsent(core.handle, ctypes.byref(core._run), 0)
                out = honest(now)
            return out

        return send

    for core in fabric.cores:
        core.send = refusing(core)  # type: ignore[method-assign, assignment]
    sources = integers(2, 256 * 100, 3)
    for out in fold(fabric, sources):
        assert (out == sum(sources)).all()
    assert refused == 2


def test_stripes_follow_the_weights() -> None:
    """Three trees of weight 1, 2 and 5 get an eighth, a quarter and five eighths of the blocks."""
    network = TerribleNetwork(random.Random(3))
    fabric = make_fabric([0, 1], network, trees=3, weights=[1, 2, 5])
    sources = integers(2, 256 * 800, 3)
    outs = fold(fabric, sources)
    assert (outs[1] == sum(sources)).all()
    assert [fabric.cores[0].elements(t) for t in range(3)] == [100 * 256, 200 * 256, 500 * 256]

# SPDX-License-Identifier: Apache-2.0
"""Short sums in guessed scales: the same bits as without guessing, in one round trip where the guess is right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.innet import abi
from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import RowsCollective, RowsRequest
from support.models.slot_model import (
    MILLISECOND,
    SECOND,
    Call,
    Fabric,
    Layout,
    TerribleNetwork,
    address,
    fold,
    make_fabric,
    plan_anew,
    plan_trees,
    run,
)

Floats = NDArray[np.float32]
MAGNITUDES = (0.0, 1e-42, 1.0, 1.9, 2.1, 3e38, np.inf, np.nan)
"""Largest elements of a block: an exponent apart, far apart, and none at all."""


def tensors(world: int, size: int, tops: list[float], seed: int) -> list[Floats]:
    """An array for every rank, whose blocks have these largest elements, in turn, on one of the ranks."""
    rng = np.random.default_rng(seed)
    made = [rng.uniform(-1, 1, size).astype(np.float32) for _ in range(world)]
    for block, first in enumerate(range(0, size, 256)):
        top = np.float32(tops[block % len(tops)])
        for array in made:
            array[first : first + 256] *= top if np.isfinite(top) else np.float32(1)
        made[rng.integers(world)][first] = top
    return made


def bits(array: Floats) -> list[int]:
    """An array's elements as integers."""
    words: list[int] = array.view(np.uint32).tolist()
    return words


def alone(layout: list[Layout], sources: list[Floats], **options: Any) -> Floats:
    """The result of ranks that have never summed anything, and so do not guess."""
    result: Floats = fold(make_fabric(layout, TerribleNetwork(random.Random(1)), **options), sources)[0]
    return result


@settings(max_examples=50)
@given(
    layout=st.sampled_from([[0, 1], [[0, 1], [2]]]),
    operations=st.lists(
        st.tuples(st.sampled_from([1, 700, 2000]), st.lists(st.sampled_from(MAGNITUDES), min_size=1, max_size=3)),
        min_size=2, max_size=7,
    ),
    path_mtu=st.sampled_from([1024, 4096]),
    trees=st.integers(1, 2),
    slots=st.sampled_from([2, 4, 64]),
    loss=st.sampled_from([0.0, 0.1]),
    in_place=st.booleans(),
    disaster=st.none() | st.integers(0, 4 * MILLISECOND),
    seed=st.integers(0, 2**32 - 1),
)
def test_results_have_the_bits_that_they_have_without_a_guess(
    layout: list[Layout], operations: list[tuple[int, list[float]]], path_mtu: int, trees: int, slots: int, loss: float,
    in_place: bool, disaster: int | None, seed: int,
) -> None:
    """Whatever the sums before were, whatever the network loses, and where trees are planned anew in the middle."""
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(layout, network, trees=trees, slots=slots, path_mtu=path_mtu)
    world = len(fabric.cores)
    sources = [tensors(world, size, tops, seed + number) for number, (size, tops) in enumerate(operations)]
    expected = [alone(layout, arrays, path_mtu=path_mtu) for arrays in sources]
    outs = sources if in_place else [[np.empty_like(array) for array in arrays] for arrays in sources]
    if disaster is not None:
        plan_anew(fabric, network, disaster, trees, again=1)
    calls = [
        [Call(sources[number][rank], outs[number][rank], 1.0, number) for number in range(len(operations))]
        for rank in range(world)
    ]
    for _ in run(fabric, calls):
        pass
    for number, result in enumerate(expected):
        for rank in range(world):
            assert bits(outs[number][rank]) == bits(result), (number, rank)


def requests(
    kind: RowsCollective, sources: list[Floats], rows: list[slice], number: int, root: int, *, in_place: bool
) -> list[RowsRequest]:
    """Each rank's part in a sum of rows."""
    return [
        RowsRequest(kind, source, source[mine] if in_place else np.empty(mine.stop - mine.start, np.float32), rows,
                    number, root, mine.start, Reduction("sum", "float32"))
        for source, mine in zip(sources, rows, strict=True)
    ]


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(["reduce", "reduce_scatter"]), min_size=2, max_size=6),
    tops=st.lists(st.lists(st.sampled_from(MAGNITUDES), min_size=1, max_size=3), min_size=6, max_size=6),
    size=st.sampled_from([1, 700, 2000]),
    path_mtu=st.sampled_from([1024, 4096]),
    presence=st.booleans(),
    loss=st.sampled_from([0.0, 0.1]),
    in_place=st.booleans(),
    disaster=st.none() | st.integers(0, 4 * MILLISECOND),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_have_the_bits_that_they_have_without_a_guess(
    kinds: list[RowsCollective], tops: list[list[float]], size: int, path_mtu: int, presence: bool, loss: float,
    in_place: bool, disaster: int | None, seed: int,
) -> None:
    """Reduces and reduce_scatters in turn, where a row's owner adds its own elements to sums in guessed scales."""
    layout: list[Layout] = [[0, 1], [2]]
    network = TerribleNetwork(random.Random(seed), loss=loss, duplicate=loss, reorder=loss)
    fabric = make_fabric(layout, network, path_mtu=path_mtu, presence=presence)
    if disaster is not None:
        plan_anew(fabric, network, disaster, 1, again=1)
    calls: list[list[Call | RowsRequest]] = [[], [], []]
    wanted = []
    for number, kind in enumerate(kinds):
        sources, root = tensors(3, size, tops[number], seed + number), number % 3
        rows = [slice(0, 0)] * 3 if kind == "reduce" else [slice(size * r // 3, size * (r + 1) // 3) for r in range(3)]
        if kind == "reduce":
            rows[root] = slice(0, size)
        expected = requests(kind, [array.copy() for array in sources], rows, number, root, in_place=False)
        fresh = make_fabric(layout, TerribleNetwork(random.Random(1)), path_mtu=path_mtu)
        for _ in run(fresh, [[request] for request in expected]):
            pass
        asked = requests(kind, sources, rows, number, root, in_place=in_place)
        for rank, request in enumerate(asked):
            calls[rank].append(request)
        wanted += [(got.out, right.out) for got, right in zip(asked, expected, strict=True)]
    for _ in run(fabric, calls):
        pass
    for out, right in wanted:
        assert bits(out) == bits(right)


def repeat(fabric: Fabric, *tops: list[float], size: int = 1024) -> list[tuple[int, int, int]]:
    """Sums arrays with these largest elements one after the other.  For each operation: nanoseconds, packets of data,
    packets of agreement."""
    seen = []
    for number, blocks in enumerate(tops):
        begin = fabric.network.now
        fold(fabric, tensors(len(fabric.cores), size, blocks, 7), number=number)
        core = fabric.cores[0]
        seen.append((fabric.network.now - begin, core.state(0, DATA).packets, core.state(0, AGREEMENT).packets))
    return seen


def steady() -> Fabric:
    """Four ranks under two switches and a third, without faults."""
    return make_fabric([[0, 1], [2, 3]], TerribleNetwork(random.Random(5)))


def test_a_right_guess_saves_a_round_trip() -> None:
    """The first sum of a length takes two, each later one with the same scales one."""
    (first, *_), (second, *_), (third, *_) = repeat(steady(), [1.0], [1.0], [1.0])
    assert second == third
    assert second * 2 == first


def test_only_packets_with_a_wrong_guess_leave_again() -> None:
    """Where two of four blocks get another scale, two packets follow the four that were guessed."""
    seen = repeat(steady(), [1.0, 1.0], [1.0, 8.0])
    assert [packets for _, packets, _ in seen] == [4, 6]


def test_a_block_between_two_scales_is_tried_in_both() -> None:
    """Once both were agreed on, packets leave twice and none a third time, whichever of the two comes."""
    seen = repeat(steady(), [1.9], [2.1], [1.9], [2.1], [1.9], [1.9])
    assert [packets for _, packets, _ in seen[3:]] == [8, 8, 8]


def test_wrong_guesses_make_guessing_pause() -> None:
    """Scales that never come again cost the sums of that length less and less: most do not guess any more."""
    seen = repeat(steady(), *([2.0**number] for number in range(-40, 40)))
    guessed = [packets > 4 for _, packets, _ in seen]
    assert 3 <= sum(guessed) <= 10
    assert sum(guessed[-32:]) <= 2


def test_other_lengths_and_long_ones_do_not_disturb_a_guess() -> None:
    """A remembered scale belongs to a length; that of a tensor beyond 64 KiB is not guessed, and its sums are right."""
    fabric = steady()
    repeat(fabric, [1.0])
    repeat(fabric, [1e20], size=700)
    ((_, packets, _),) = repeat(fabric, [1.0], size=20_000)
    assert packets == -(-20_000 // 256)
    ((_, packets, _),) = repeat(fabric, [1.0])
    assert packets == 4


def test_ranks_that_remember_different_scales_fail_by_name() -> None:
    """A rank that was replaced unnoticed guesses nothing where the other does: both learn it, and get no sum."""
    fabric = make_fabric([0, 1], TerribleNetwork(random.Random(5)))
    sources = tensors(2, 512, [1.0], 1)
    fold(fabric, sources)
    stranger = Core(address(1), 2, plan_trees(1, 2, trees=1, slots=64, psn=2), port=fabric.cores[1].port)
    fabric = Fabric([0, 1], fabric.network, [fabric.cores[0], stranger], 64)
    outs = [np.full(512, 7, np.float32) for _ in range(2)]
    for _ in run(fabric, [[Call(sources[rank], outs[rank], 1.0, 2)] for rank in range(2)], limit=SECOND):
        pass
    index = abi.FIELDS.index("guessed scales")
    for core, out in zip(fabric.cores, outs, strict=True):
        failure = core.failure()
        assert failure.error == abi.SIGNATURES_DIFFER
        assert failure.low[index] == 0 < failure.high[index]
        assert (out == 7).all()


@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_disagree_while_they_guess_learn_about_what(seed: int) -> None:
    """Lengths that both know, so that guessed data leaves beside the signature: it is the signature that says why."""
    network = TerribleNetwork(random.Random(seed), reorder=0.5)
    fabric = make_fabric([[0], [1]], network)
    sizes = (1000, 2000)
    for number, size in enumerate(sizes, start=1):
        fold(fabric, tensors(2, size, [1.0], 1), number=number)
    sources = [tensors(2, size, [1.0], 1)[0] for size in sizes]
    outs = [np.full_like(source, 7) for source in sources]
    for _ in run(fabric, [[Call(sources[rank], outs[rank], 1.0, 3)] for rank in range(2)], limit=SECOND):
        pass
    index = abi.FIELDS.index("elements")
    for core, out in zip(fabric.cores, outs, strict=True):
        failure = core.failure()
        assert failure.error == abi.SIGNATURES_DIFFER
        assert (failure.low[index], failure.high[index]) == sizes
        assert (out == 7).all()

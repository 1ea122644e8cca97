# SPDX-License-Identifier: Apache-2.0
"""Broadcast, reduce, scatter, gather, their combinations, and the barrier, against what they must leave on each
rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.collectives import all_to_all, barrier, broadcast, flow, gather, point_to_point, reduce, ring, scatter
from netfold.host.collectives.flow import Strand, run
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.arrays import Flat, by_counts
from netfold.host.operation.reduction import Reduction
from netfold.testing import MemoryFabric
from support.hosts.collectives import expected, inputs, values

CALL = Call(1, "test")
SUM = Reduction("sum", "int64")
RANKS = st.integers(1, 9)
How = Callable[..., Strand]
SEEDS = st.integers(0, 2**32)
quick = settings(max_examples=40, deadline=None)


def perform(ranks: int, seed: int, strand: Callable[[Mesh], Strand], *, segment: int = 64) -> MemoryFabric:
    """Runs a strand on every rank of a fabric, with segments so short that small arrays have many."""
    fabric = MemoryFabric(ranks, seed=seed)

    def work(mesh: Mesh) -> None:
        with mesh.operation(CALL):
            run(mesh, strand(mesh))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "SEGMENT", segment)
        values(fabric.run(work))
    return fabric


@pytest.mark.parametrize("how", [broadcast.binomial, broadcast.chain, broadcast.scatter_all_gather])
@quick
@given(ranks=RANKS, root=st.integers(0, 8), size=st.integers(0, 60), seed=SEEDS)
def test_broadcast_copies_the_roots_data(how: How, ranks: int, root: int, size: int, seed: int) -> None:
    """All ranks have the root's data, whatever they had before."""
    data, root = inputs(ranks, size, "int64", seed), root % ranks
    wanted = data[root].copy()
    fabric = perform(ranks, seed, lambda mesh: how(mesh, data[mesh.rank], root=root))

    for got in data:
        np.testing.assert_array_equal(got, wanted)
    assert sum(fabric.bytes.values()) >= (ranks - 1) * 8 * size


@quick
@given(ranks=RANKS, root=st.integers(0, 8), size=st.integers(0, 60), seed=SEEDS, segment=st.integers(1, 500))
def test_a_chain_takes_any_segment(ranks: int, root: int, size: int, seed: int, segment: int) -> None:
    """With any segment, no rank sends more than the data once."""
    data, root = inputs(ranks, size, "int64", seed), root % ranks
    wanted = data[root].copy()
    fabric = perform(ranks, seed, lambda m: broadcast.chain(m, data[m.rank], root=root, segment=segment))

    for got in data:
        np.testing.assert_array_equal(got, wanted)
    assert all(nbytes == 8 * size for nbytes in fabric.bytes.values())


@pytest.mark.parametrize("how", [reduce.binomial, reduce.reduce_scatter_gather])
@quick
@given(ranks=RANKS, root=st.integers(0, 8), size=st.integers(0, 60), seed=SEEDS)
def test_reduce_leaves_the_sum_at_the_root(how: How, ranks: int, root: int, size: int, seed: int) -> None:
    """The root has the sum, for any root."""
    data, root = inputs(ranks, size, "int64", seed), root % ranks
    wanted = expected(data, "sum", "int64")
    perform(ranks, seed, lambda mesh: how(mesh, data[mesh.rank], SUM, root=root))

    np.testing.assert_array_equal(data[root], wanted)


@quick
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=9), root=st.integers(0, 8), seed=SEEDS)
def test_scatter_then_gather_gives_everything_back(counts: list[int], root: int, seed: int) -> None:
    """Pieces may have any size, also none; each rank holds its own in between."""
    ranks, pieces = len(counts), by_counts(counts)
    root %= ranks
    whole = np.arange(1, sum(counts) + 1)
    data = [whole.copy() if rank == root else np.zeros_like(whole) for rank in range(ranks)]
    perform(ranks, seed, lambda mesh: scatter.scatter(mesh, data[mesh.rank], pieces, root=root))
    for rank in range(ranks):
        np.testing.assert_array_equal(data[rank][pieces[rank]], whole[pieces[rank]])

    data[root][:] = np.where(np.isin(whole, whole[pieces[root]]), whole, 0)
    perform(ranks, seed, lambda mesh: gather.gather(mesh, data[mesh.rank], pieces, root=root))
    np.testing.assert_array_equal(data[root], whole)


@quick
@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=9), seed=SEEDS)
def test_pieces_of_any_size_are_reduced_and_gathered(counts: list[int], seed: int) -> None:
    """Reduce-scatter leaves each rank its own piece of the sum, and all-gather gives all pieces to all."""
    ranks, pieces = len(counts), by_counts(counts)
    data = inputs(ranks, sum(counts), "int64", seed)
    wanted = expected(data, "sum", "int64")
    perform(ranks, seed, lambda mesh: ring.reduce_scatter(mesh, data[mesh.rank], pieces, SUM))
    for rank in range(ranks):
        np.testing.assert_array_equal(data[rank][pieces[rank]], wanted[pieces[rank]])

    perform(ranks, seed, lambda mesh: ring.all_gather(mesh, data[mesh.rank], pieces))
    for got in data:
        np.testing.assert_array_equal(got, wanted)


@quick
@given(ranks=RANKS, seed=SEEDS)
def test_all_to_all_transposes(ranks: int, seed: int) -> None:
    """For any table of counts, what rank a holds for b is what b gets from a."""
    counts = np.random.default_rng(seed).integers(0, 12, (ranks, ranks))
    source = [np.arange(counts[rank].sum()) + 1000 * rank for rank in range(ranks)]
    out = [np.full(counts[:, rank].sum(), -1) for rank in range(ranks)]
    given_ = [by_counts(counts[rank].tolist()) for rank in range(ranks)]
    taken = [by_counts(counts[:, rank].tolist()) for rank in range(ranks)]

    def strand(mesh: Mesh) -> Strand:
        r = mesh.rank
        return all_to_all.all_to_all(mesh, source[r], given_[r], out[r], taken[r])

    perform(ranks, seed, strand)
    for a in range(ranks):
        for b in range(ranks):
            np.testing.assert_array_equal(out[b][taken[b][a]], source[a][given_[a][b]])


def test_all_to_all_refuses_a_rank_that_disagrees_with_itself() -> None:
    """The rows that a rank sends to itself must have the size of those that it expects from itself."""
    mesh = MemoryFabric(1).meshes[0]
    with pytest.raises(ValueError, match="gives itself 2 elements and takes 1"):
        next(all_to_all.all_to_all(mesh, np.zeros(2), [slice(0, 2)], np.zeros(1), [slice(0, 1)]))


@pytest.mark.parametrize("ranks", range(1, 10))
def test_nobody_leaves_a_barrier_before_all_have_come(ranks: int) -> None:
    """Each rank records its arrival first, and whichever is through finds all records."""
    here: set[int] = set()
    seen: list[int] = []

    def work(mesh: Mesh) -> None:
        here.add(mesh.rank)
        with mesh.operation(CALL):
            run(mesh, barrier.barrier(mesh))
        seen.append(len(here))

    fabric = MemoryFabric(ranks)
    values(fabric.run(work))
    assert seen == [ranks] * ranks
    assert sum(fabric.messages.values()) == ranks * (ranks - 1).bit_length()


@quick
@given(size=st.integers(0, 100), seed=SEEDS)
def test_two_ranks_exchange_messages_without_the_others(size: int, seed: int) -> None:
    """Both send before they receive, with different tags in opposite order; the third rank takes no part."""
    data = inputs(3, size, "int64", seed)
    got: list[Flat] = [np.zeros(size, np.int64) for _ in range(4)]

    def strand(mesh: Mesh) -> Strand:
        if mesh.rank == 1:
            return
        peer = 2 - mesh.rank
        yield from flow.interleave(
            point_to_point.receive(mesh, got[mesh.rank], peer, tag=1),
            point_to_point.receive(mesh, got[mesh.rank + 1], peer, tag=2),
            point_to_point.send(mesh, data[mesh.rank], peer, tag=2),
            point_to_point.send(mesh, -data[mesh.rank], peer, tag=1),
        )

    perform(3, seed, strand)
    for rank in (0, 2):
        np.testing.assert_array_equal(got[rank], -data[2 - rank])
        np.testing.assert_array_equal(got[rank + 1], data[2 - rank])

# SPDX-License-Identifier: Apache-2.0
"""Every collective over machines of any numbers of ranks, on loopback with the reference switch, against numpy."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from netfold.host.api.communicator import Communicator
from netfold.host.client.plans import check_plan
from netfold.host.errors import CollectiveTimeout, PeerLost, PlanError, RankMismatch
from netfold.host.innet import parallel
from netfold.host.innet.saturating import SaturatingSum
from netfold.testing import combine, loopback_job, on_every_rank
from netfold.wire import roce
from support.hosts.host import impatient
from support.hosts.rows import cut, tensors

LOW, HIGH = np.iinfo(np.int32).min, np.iinfo(np.int32).max
FLOAT = np.finfo(np.float32)


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes rows so short that a tensor takes many windows."""
    monkeypatch.setattr(parallel, "SharedRows", functools.partial(parallel.SharedRows, row=4096))


@st.composite
def machines_of(draw: st.DrawFn) -> list[list[int]]:
    """Two or three machines with one to three ranks each, numbered in any order."""
    counts = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    ranks = draw(st.permutations(range(sum(counts))))
    found = [sorted(ranks[piece]) for piece in cut(counts)]
    return sorted(found, key=min)


def same(outs: list[Any], expected: list[Any]) -> None:
    """Every rank has what it is to have, in the same bits."""
    for rank, (out, right) in enumerate(zip(outs, expected, strict=True)):
        if isinstance(out, Exception):
            raise out
        assert np.array_equal(out, right), f"rank {rank}"


@settings(max_examples=25, deadline=None)
@given(st.data())
@pytest.mark.slow
def test_every_collective_is_numpys_on_any_machines(data: st.DataObject) -> None:
    """Any machines, dtypes, reductions, uneven and empty rows, and roots: exact, and the same bits on all ranks; whole
    numbers, so that float32 is exact too."""
    machines = data.draw(machines_of())
    world = sum(map(len, machines))
    row = data.draw(st.sampled_from([1000, 4096]))
    seed, dtype = data.draw(st.integers(0, 99)), data.draw(st.sampled_from(["int32", "float32"]))
    counts = data.draw(st.lists(st.sampled_from([0, 1, 100, 1500]), min_size=world, max_size=world))
    gathered = data.draw(st.lists(st.sampled_from([0, 1, 333, 5000]), min_size=world, max_size=world))
    op = data.draw(st.sampled_from(["sum", "max", "min"]))
    root = data.draw(st.integers(0, world - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "SharedRows", functools.partial(parallel.SharedRows, row=row))
        with loopback_job(world, members=machines) as comms:
            given_, rows = tensors(world, sum(counts), dtype, seed), cut(counts)
            fold = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
            whole = fold.reduce(given_, dtype=dtype)
            same(on_every_rank(comms, lambda c: c.allreduce(given_[c.rank], op=op)), [whole] * world)
            outs = on_every_rank(comms, lambda c: c.reduce_scatter(given_[c.rank], op=op, counts=counts))
            same(outs, [whole[piece] for piece in rows])
            outs = on_every_rank(comms, lambda c: c.reduce(given_[c.rank], op=op, root=root))
            assert [out is None for out in outs] == [rank != root for rank in range(world)]
            same([outs[root]], [whole])
            moved = np.random.default_rng(seed).integers(0, 256, sum(gathered)).astype(np.uint8)
            own = [moved[piece] for piece in cut(gathered)]
            same(on_every_rank(comms, lambda c: c.all_gather(own[c.rank], counts=gathered)), [moved] * world)
            sent = [moved.copy() if rank == root else np.zeros_like(moved) for rank in range(world)]
            same(on_every_rank(comms, lambda c: c.broadcast(sent[c.rank], root=root)), [moved] * world)
            assert on_every_rank(comms, lambda c: c.barrier()) == [None] * world

            def both(comm: Communicator) -> Any:
                with comm.together() as calls:
                    sums = calls.reduce_scatter(given_[comm.rank], op=op, counts=counts)
                    shards = calls.all_gather(own[comm.rank], counts=gathered)
                return np.concatenate([sums, shards.astype(np.float64)])

            right = [np.concatenate([whole[piece], moved.astype(np.float64)]) for piece in rows]
            same(on_every_rank(comms, both), right)
            assert all({one.path for one in comm.flight()} == {"innet"} for comm in comms)
            sources = [np.float32(source) / 3 for source in given_]
            means = on_every_rank(comms, lambda c: c.allreduce(sources[c.rank], op="average"))
            same(means, [means[0]] * world)
            most = max((float(np.abs(source).max()) for source in sources if source.size), default=0.0)
            wrong = np.abs(means[0] - np.mean(sources, axis=0, dtype=np.float64))
            assert (wrong <= 8 * FLOAT.eps * most).all(), (wrong.max(initial=0), most)


def test_only_the_first_ranks_of_each_machine_fold_and_all_say_so() -> None:
    """Machines of 2, 2, 1 and 2 ranks: one of each sends the whole tensor, the others send nothing."""
    machines = [[0, 1], [2, 3], [4], [5, 6]]
    with loopback_job(7, members=machines) as comms:
        ints = tensors(7, 50_000, "int32", 1)
        same(on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])), [np.sum(ints, axis=0, dtype=np.int32)] * 7)
        for ranks in machines:
            first, *others = (comms[rank].stats() for rank in ranks)
            assert first.by_tree["loop"].bytes_reduced == 200_000
            assert [other.packets_sent for other in others] == [0] * len(others)
            assert {one.bytes_reduced for one in (first, *others)} == {200_000}
        for comm in comms:
            said = comm.explain(200_000)
            assert "200000 bytes are reduced by the 1 to 2 ranks of each machine in shared memory" in said, said
            assert "the first rank of each folds its part: 200000 bytes fold in the network" in said, said


@pytest.mark.usefixtures("small_windows")
def test_a_saturating_sum_stops_inside_the_machine_and_stays_and_is_counted_once() -> None:
    """A partial sum of a machine that has reached an end stays there, though the exact sum is far from it; every rank
    counts each element at an end once."""
    machines = [[0, 1, 2], [3], [4, 5]]
    with loopback_job(6, members=machines) as comms:
        own = [np.full(3000, 7, np.int32) for _ in range(6)]
        for rank, value in enumerate((HIGH - 3, 10, -50)):
            own[rank][100] = value  # stops at the high end by its second rank
        for rank in (4, 5):
            own[rank][2500] = LOW
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            outs = on_every_rank(comms, lambda c: c.allreduce(own[c.rank], saturate=True, algorithm="innet"))
        assert sum("2 of 3000 elements of a saturating sum" in str(one.message) for one in told) == 6
        right = np.full(3000, 42, np.int32)
        right[100], right[2500] = HIGH, LOW
        same(outs, [right] * 6)
        assert [comm.stats().saturated for comm in comms] == [2] * 6


@given(st.lists(st.tuples(st.integers(LOW, HIGH), st.integers(LOW, HIGH)), max_size=70))
def test_a_host_saturates_as_a_switch_does(pairs: list[tuple[int, int]]) -> None:
    """Lane for lane, ends included."""
    ends = [(LOW, HIGH), (HIGH, LOW), (HIGH, -5), (LOW, 5), (5, HIGH), (HIGH - 1, 1), (LOW + 1, -1), (HIGH, HIGH)]
    a, b = (np.array(side, np.int32) for side in zip(*pairs, *ends, strict=True))
    out = np.empty_like(a)
    SaturatingSum("sum", "int32")(a, b, out=out)
    switched = combine(roce.LaneOperation.SAT32, a.view(np.uint32), b.view(np.uint32)).view(np.int32)
    assert np.array_equal(out, switched)
    SaturatingSum("sum", "int32")(a, b, out=a)
    assert np.array_equal(a, switched)


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("lane_bits", [16, 8])
def test_a_residual_is_kept_by_the_rank_that_folds_its_element_and_lost_nowhere(lane_bits: Any) -> None:
    """What a rank has kept of elements that another one folds by now, since machines have changed, is added all the
    same, once; then it keeps that of its own pieces alone."""
    machines, size = [[0, 1, 2], [3, 4]], 3000
    with loopback_job(5, members=machines) as comms:
        own = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(5)]
        residual = [np.full(size, 0.25 * (rank + 1), np.float32) for rank in range(5)]
        before = np.sum(own, axis=0, dtype=np.float64) + 0.25 * 15
        outs = on_every_rank(
            comms, lambda c: c.allreduce(own[c.rank], lane_bits=lane_bits, feedback=residual[c.rank])
        )
        same(outs, [outs[0]] * 5)
        left = np.sum(residual, axis=0, dtype=np.float64)
        assert np.abs(left).max() > 0
        np.testing.assert_allclose(outs[0] + left, before, atol=1e-4)
        keepers = np.count_nonzero(np.array(residual), axis=0)
        assert keepers.max() <= len(machines)
        assert not residual[2].any()


@pytest.mark.parametrize("machines", [[[0, 1], [2]], [[0, 1], [2, 3]]])
def test_ranks_of_a_machine_that_disagree_on_rows_or_lanes_are_told(machines: list[list[int]]) -> None:
    """As many elements, cut into other rows, or in lanes of another width: no rank gets a wrong result; those of the
    other machine wait in vain."""
    world = sum(map(len, machines))

    def rows(comm: Communicator) -> Any:
        mine = [1, 2] if comm.rank == 1 else [2, 1]
        counts = mine + [1] * (world - 2)
        return comm.all_gather(np.zeros(counts[comm.rank]), counts=counts)

    def lanes(comm: Communicator) -> Any:
        return comm.allreduce(np.ones(10, np.float32), lane_bits=16 if comm.rank == 1 else 8)

    for call in (rows, lanes):
        with loopback_job(world, members=machines) as comms:
            # once both ranks of the machine are told
            told = threading.Barrier(2, functools.partial(impatient, comms[2:], 0.3))

            def disagreeing(comm: Communicator, call: Any = call, told: threading.Barrier = told) -> Any:
                try:
                    return call(comm)
                finally:
                    if comm.rank < 2:
                        told.wait(60)

            got = on_every_rank(comms, disagreeing)
            assert any(isinstance(error, RankMismatch) for error in got), got
            assert all(isinstance(error, Exception) for error in got), got


@pytest.mark.parametrize("absent", [0, 1, 2, 3])
def test_a_rank_that_never_calls_ends_the_others_in_time(absent: int) -> None:
    """One that folds, one beside it, or one that is alone on its machine: all others raise, and name it or say what is
    missing; later operations raise as well."""
    with loopback_job(4, members=[[0, 1], [2], [3]]) as comms:
        impatient(comms, 0.5)
        present = [comm for comm in comms if comm.rank != absent]
        for _ in range(2):
            got = on_every_rank(present, lambda c: c.all_gather(np.ones(1000, np.int32)), timeout=30)
            assert all(isinstance(error, CollectiveTimeout | PeerLost) for error in got), got


def test_plans_that_contradict_themselves_are_refused() -> None:
    """A rank inside its machine has no trees, and is beyond the number of ranks that all machines have."""
    with loopback_job(5, members=[[0, 1], [2], [3, 4]]) as comms:
        plans = [comm.plan for comm in comms]
    for plan, says in (
        (structs.replace(plans[0], inside=True), "it has trees, and is rank 0 of its machine's 2, inside=True"),
        (structs.replace(plans[1], trees=plans[0].trees, inside=False), "is rank 1 of its machine's 2, inside=False"),
        (structs.replace(plans[2], trees=[], inside=True), "folds inside its machine alone, and is rank 0 of its 1"),
    ):
        with pytest.raises(PlanError, match=says):
            check_plan(plan)

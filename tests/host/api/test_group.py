# SPDX-License-Identifier: Apache-2.0
"""The collectives that a communicator offers: arrays of any kind, asynchronous, in groups, refused before sending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold import mpi
from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.api.work import OperationSequencer
from netfold.host.errors import NetFoldError
from netfold.host.mesh.mesh import Mesh
from netfold.host.parameters.optimizers import Sgd
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import Peers
from netfold.testing import MemoryFabric, loopback_job, on_every_rank
from support.hosts.collectives import as_bfloat16, values
from support.hosts.insides import ranks_of

SLOW = Measured(LinkCost(1e-4, 1e-8), 1.0)


def on_ranks(ranks: int, work: Callable[[Group], Any], *, seed: int = 0, algorithm: str = "ring") -> list[Any]:
    """Results of ``work`` on each rank's group, over the mesh in memory."""

    def one(mesh: Mesh) -> Any:
        return work(
            Group(Dispatch(Peers(mesh, algorithm=algorithm, measured=SLOW)), OperationSequencer(f"rank {mesh.rank}"))
        )

    return values(MemoryFabric(ranks, seed=seed).run(one))


def rows(rank: int, count: int) -> np.ndarray[Any, Any]:
    """Rows of two elements that show which rank they come from."""
    return np.stack([np.full(count, rank), np.arange(count)], axis=1)


# ---- arrays ---------------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), root=st.integers(0, 5), seed=st.integers(0, 2**32)
)
def test_rows_of_unlike_number_go_where_they_belong(counts: list[int], root: int, seed: int) -> None:
    """all_gather, gather, scatter and reduce_scatter with counts equal numpy's results."""
    ranks, root = len(counts), root % len(counts)
    whole = np.concatenate([rows(rank, count) for rank, count in enumerate(counts)])

    def work(group: Group) -> None:
        mine = rows(group.rank, counts[group.rank])
        np.testing.assert_array_equal(group.all_gather(mine, counts=counts), whole)
        gathered = group.gather(mine, root=root, counts=counts)
        assert (gathered is None) == (group.rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, whole)
        out = np.full_like(mine, -1)
        group.scatter(whole if group.rank == root else None, out, root=root, counts=counts)
        np.testing.assert_array_equal(out, mine)
        np.testing.assert_array_equal(group.reduce_scatter(whole, counts=counts), mine * ranks)

    on_ranks(ranks, work, seed=seed)


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_all_to_all_moves_rows(ranks: int, seed: int) -> None:
    """Rows move with counts in both directions, and with equally many rows for all ranks."""
    counts = np.random.default_rng(seed).integers(0, 4, (ranks, ranks)).tolist()

    def work(group: Group) -> None:
        r = group.rank
        given_ = np.concatenate([rows(10 * r + to, counts[r][to]) for to in range(ranks)])
        from_all = [counts[by][r] for by in range(ranks)]
        got = group.all_to_all(given_, counts=counts[r], out_counts=from_all)
        np.testing.assert_array_equal(got, np.concatenate([rows(10 * by + r, from_all[by]) for by in range(ranks)]))
        even = group.all_to_all(np.repeat(np.arange(ranks), 2))
        assert even.tolist() == [r] * 2 * ranks

    on_ranks(ranks, work, seed=seed)


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_and_reduce_take_any_layout(root: int) -> None:
    """Strided, transposed, big-endian, 0-d and empty arrays work, and booleans where nothing is added."""

    def work(group: Group) -> None:
        base = np.arange(24.0).reshape(4, 6) * (group.rank == root)
        for array in (base.T, base[::2, ::3], base.astype(">f8"), base[0, 5:6].reshape(()), base[:0], base > 3):
            wanted = np.array(np.arange(24.0).reshape(4, 6))
            group.broadcast(array, root=root)
        np.testing.assert_array_equal(base, wanted * (group.rank == root) if group.rank == root else base)
        flags = np.full((3, 2), group.rank == root)
        group.broadcast(flags[:, 1], root=root)
        assert flags[:, 1].all()
        total = group.reduce(np.full((2, 3), group.rank, ">i4"), root=root, op="max")
        assert (total is None) == (group.rank != root)
        if total is not None:
            assert total.tolist() == [[2] * 3] * 2

    on_ranks(3, work)


def test_bfloat16_goes_by_name() -> None:
    """uint16 arrays with dtype="bfloat16" are added as the values that they represent."""
    ones = as_bfloat16(np.array([1.0, 2.0, -0.5], np.float32))

    def work(group: Group) -> None:
        assert group.allreduce(ones, dtype="bfloat16").tolist() == as_bfloat16(np.array([4, 8, -2.0])).tolist()
        assert group.allreduce(ones, op="average", dtype="bfloat16").tolist() == ones.tolist()

    on_ranks(4, work)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g.broadcast(np.zeros(1), root=2), ValueError, "root=2: expected a rank of 0"),
        (lambda g: g.broadcast([1.0]), TypeError, "array is a list"),
        (lambda g: g.send(np.zeros(1), g.rank), ValueError, "this rank itself"),
        (lambda g: g.receive(np.zeros(1), 5), ValueError, "peer=5"),
        (lambda g: g.reduce_scatter(np.zeros(3)), ValueError, "3 rows: expected a multiple of 2, or"),
        (lambda g: g.reduce_scatter(np.zeros(3), counts=[1, 1]), ValueError, "are 2 rows, array has 3"),
        (lambda g: g.reduce_scatter(np.zeros(3), counts=[3]), ValueError, "expected 2 numbers of rows"),
        (lambda g: g.reduce_scatter(np.zeros(())), ValueError, "no axis to cut"),
        (lambda g: g.all_gather(np.zeros(())), ValueError, "single number"),
        (lambda g: g.all_gather(np.zeros(1), counts=[2, 2]), ValueError, "has 1 rows"),
        (lambda g: g.all_gather(np.zeros(1), out=np.zeros(3)), ValueError, r"float64\[3\]: expected float64\[2\]"),
        (lambda g: g.scatter(None, np.zeros(1), root=g.rank), ValueError, "expected an array, got None"),
        (lambda g: g.scatter(np.zeros(3), np.zeros(1), root=g.rank), ValueError, r"expected float64\[2\]"),
        (lambda g: g.all_to_all(np.zeros(3), counts=[1, 2]), ValueError, "need out_counts"),
        (lambda g: g.all_to_all(np.zeros(2), counts=[1, 1], out_counts=[2, 0]), ValueError, "what it gives itself"),
        (lambda g: g.allreduce(np.zeros(1), algorithm="magic"), ValueError, "expected one of auto, byteps"),
        (lambda g: g.group([1 - g.rank]), ValueError, "not in its own subset"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(
    call: Callable[[Group], Any], error: type[Exception], message: str
) -> None:
    """Each error says what was expected, and the group stays usable."""

    def work(group: Group) -> float:
        with pytest.raises(error, match=message):
            call(group)
        return float(group.allreduce(np.ones(1))[0])

    assert on_ranks(2, work) == [2.0, 2.0]


MOVES: list[Callable[[Group, Any], Any]] = [
    lambda g, a: g.broadcast(a),
    lambda g, a: g.all_gather(a),
    lambda g, a: g.all_gather_to_join(a, np.concatenate([a, a]), lambda: "none"),
    lambda g, a: g.gather(a),
    lambda g, a: g.scatter(None if g.rank else np.concatenate([a, a]), a),
    lambda g, a: g.all_to_all(a, a),
    lambda g, a: g.receive(a, 0) if g.rank else g.send(a, 1),
    lambda g, a: g.together().all_gather(a),
    lambda g, a: g.parameter_server({"array": a}, Sgd(0.1)),
    lambda g, a: mpi.Comm(g).Bcast(a),
]
FOLDS: list[Callable[[Group, Any], Any]] = [
    lambda g, a: g.allreduce(a, a),
    lambda g, a: g.allreduce(np.zeros(a.shape), a),
    lambda g, a: g.allreduce(np.zeros(a.shape, np.float32), feedback=a.astype(np.float32)),
    lambda g, a: g.allreduce(a, reproducible=True),
    lambda g, a: g.iallreduce(a).wait(10),
    lambda g, a: g.reduce(a),
    lambda g, a: g.reduce_scatter(a),
    lambda g, a: g.scatter_to_join(a, np.zeros(1)),
    lambda g, a: g.together().reduce_scatter(a),
    lambda g, a: mpi.Comm(g).Allreduce(mpi.IN_PLACE, a),
]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (lambda: np.array([1, None], object), "is object"),
    "object in a structure": (lambda: np.zeros(2, [("a", "i4"), ("b", "O")]), "'O'"),
    "mask": (lambda: np.ma.masked_array(np.ones(2), mask=[0, 1]), "MaskedArray.*filled"),
}
if hasattr(np.dtypes, "StringDType"):  # since numpy 2
    REFUSED["strings"] = (lambda: np.array(["a", "bb"], np.dtypes.StringDType()), "is StringDType")


@pytest.mark.parametrize("kind", REFUSED)
def test_arrays_with_more_than_their_memory_are_refused_before_anything_is_sent(kind: str) -> None:
    """Objects, strings elsewhere in memory and masks are a TypeError in every call, and the group stays usable."""
    make, message = REFUSED[kind]

    def work(group: Group) -> float:
        for call in [*MOVES, *FOLDS] if kind == "mask" else MOVES:  # of the others no reduction knows the dtype
            with pytest.raises(TypeError, match=message):
                call(group, make())
        return float(group.allreduce(np.ones(1))[0])

    assert on_ranks(2, work) == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_subclasses_of_arrays_are_taken_as_the_arrays_that_they_are(rail: Any) -> None:
    """A matrix, which stays two-dimensional when it is made flat, is filled in place, and is what a call returns."""

    def work(comm: Any) -> None:
        for dtype in ("float32", "float64", "float16"):
            def own(rows: int = 2, dtype: str = dtype) -> Any:
                return np.matrix(np.full((rows, 3), comm.rank + 1, dtype))

            for how in ({}, {"reproducible": True}):
                for out in (both := own(), np.matrix(np.zeros((2, 3), dtype))):
                    assert comm.allreduce(both if out is both else own(), out, **how) is out
                    assert (out == 3).all(), (dtype, how)
            assert (comm.broadcast(own(), root=1) == 2).all()
            assert (comm.all_gather(own(), own(4)) == np.repeat([[1], [2]], 2, 0)).all()
            assert (comm.reduce_scatter(own(), own(1)) == 3).all()
            summed = comm.reduce(own(), own())
            assert summed is None if comm.rank else (summed == 3).all()
            gathered = comm.gather(own(), own(4))
            assert gathered is None if comm.rank else (gathered[2:] == 2).all()
            assert (comm.scatter(None if comm.rank else own(4), own()) == 1).all()
            assert (comm.all_to_all(own(), own()) == [[1], [2]]).all()
            if comm.rank:
                assert (comm.receive(own(), 0) == 1).all()
            else:
                comm.send(own(), 1)
            with comm.together() as pair:
                part, rows = pair.reduce_scatter(own(), own(1)), pair.all_gather(own(), own(4))
            assert (part == 3).all()
            assert (rows[2:] == 2).all()
        residual = np.matrix(np.zeros((2, 3), np.float32))
        comm.allreduce(np.ones((2, 3), np.float32), feedback=residual, lane_bits=8)

    with loopback_job(2, rail=rail) as comms:
        assert on_every_rank(comms, work) == [None, None]


@pytest.mark.parametrize("how", ["alone", "together", "to join"])
def test_rows_that_lie_in_the_result_are_gathered_as_they_were(how: str) -> None:
    """They may have any place and any strides there, also over the memory that their place in the result takes."""
    size = 1000
    layouts = (slice(0, 2 * size, 2), slice(3, 3 + size), slice(0, 4 * size, 4), slice(2 * size, size, -1))

    def work(comm: Any) -> None:
        for layout in layouts:
            for at in (0, 3):
                memory = np.random.default_rng(comm.rank).integers(0, 250, 4 * size).astype(np.uint8)
                mine, out = memory[layout], memory[at : at + 2 * size]
                others = [np.random.default_rng(rank).integers(0, 250, 4 * size).astype(np.uint8) for rank in (0, 1)]
                if how == "alone":
                    comm.all_gather(mine, out)
                elif how == "to join":
                    comm.all_gather_to_join(mine, out, lambda: "none")
                else:
                    with comm.together() as both:
                        both.reduce_scatter(np.ones(2, np.float32))
                        both.all_gather(mine, out)
                np.testing.assert_array_equal(out, np.concatenate([other[layout] for other in others]))

    with pytest.MonkeyPatch.context() as patch, loopback_job(2, rail="innet") as comms:
        patch.setattr("netfold.host.api.joinable.PART_BYTES", 512)  # so that so few bytes are cut
        assert on_every_rank(comms, work) == [None, None]


# ---- over sockets ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_a_communicator_offers_all_collectives(rail: Any) -> None:
    """Operations that switches cannot do go over TCP, whether or not the rest folds, and explain() says so."""

    def work(comm: Communicator) -> None:
        x = np.full(1000, comm.rank + 1.0)
        assert comm.allreduce(x)[0] == 6
        assert comm.allreduce(x.astype(np.float32), op="max")[0] == 3
        assert comm.allreduce(x.astype(np.float32))[0] == 6
        assert comm.allreduce(x.astype(np.uint8), op="product", algorithm="halving_doubling")[0] == 6
        assert comm.broadcast(x, root=1)[0] == 2
        assert comm.all_gather(np.array([comm.rank])).tolist() == [0, 1, 2]
        comm.barrier()
        if comm.rank:
            pair = comm.group([2, 1])
            assert (pair.rank, pair.size) == (2 - comm.rank, 2)
            assert pair.allreduce(np.array([comm.rank]))[0] == 3
        if comm.rank == 0:
            comm.send(np.arange(5), 2, tag=9)
        if comm.rank == 2:
            assert comm.receive(np.zeros(5, np.int64), 0, tag=9).tolist() == [0, 1, 2, 3, 4]
        comm.barrier()

    with loopback_job(3, rail=rail) as comms:
        for result in on_every_rank(comms, work):
            if result is not None:
                raise AssertionError("a rank failed") from result
        folds = "does not fold" in comms[0].explain(4000, op="product")
        assert folds == (rail == "innet")
        assert "predicted" in comms[0].explain(4000, op="product")


# ---- operations that are cut off ------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["beginning", "record"])
def test_an_interrupt_beside_an_operation_ends_the_group_and_frees_it(where: str) -> None:
    """Ctrl-C while an operation begins, or while its failure is recorded: the next call says so, and none finds the
    group busy."""

    def work(group: Group) -> None:
        ranks = ranks_of(group)
        target: Any = ranks.dispatch.hosts if where == "beginning" else ranks.sequencer.flight

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        setattr(target, "count_from" if where == "beginning" else "end", interrupt)
        with pytest.raises(KeyboardInterrupt), ranks.operation("barrier"):
            raise KeyboardInterrupt
        with pytest.raises(NetFoldError, match=r"interrupted .*join anew"):
            group.barrier()

    on_ranks(1, work)

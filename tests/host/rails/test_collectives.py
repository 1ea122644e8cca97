# SPDX-License-Identifier: Apache-2.0
"""Every collective over several rails: cut where that pays, and complete when a rail dies in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.joinable import Next
from netfold.host.errors import RailDown
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import RowsRequest
from netfold.host.rails.cut import CutCollective
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.rail_peers import SHORT_BYTES, RailPeers
from netfold.host.selection.peers import Peers
from netfold.testing import on_every_rank
from support.hosts.loopback_rails import carried, even, loopback_rails

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
WORLD = 3


def rows(rank: int, count: int, width: int, dtype: str = "float64") -> Any:
    """A rank's rows, which are exact in any dtype here and have sums that are."""
    return np.random.default_rng([rank, count, width]).integers(0, 99, (count, width)).astype(dtype)


def all_gather(comm: Communicator, width: int) -> tuple[Any, Any]:
    counts = [5, 0, 3]
    got = comm.all_gather(rows(comm.rank, counts[comm.rank], width), counts=counts)
    return got, np.concatenate([rows(rank, counts[rank], width) for rank in range(WORLD)])


def broadcast(comm: Communicator, width: int) -> tuple[Any, Any]:
    data = rows(comm.rank, 4, width, "float32")
    return comm.broadcast(data, root=1), rows(1, 4, width, "float32")


def gather(comm: Communicator, width: int) -> tuple[Any, Any]:
    got = comm.gather(rows(comm.rank, 2, width, "int32"), root=2)
    want = np.concatenate([rows(rank, 2, width, "int32") for rank in range(WORLD)])
    return (got, want) if comm.rank == 2 else (np.zeros(1) if got is None else got, np.zeros(1))


def scatter(comm: Communicator, width: int) -> tuple[Any, Any]:
    counts = [1, 4, 2]
    whole = rows(9, sum(counts), width)
    out = np.empty((counts[comm.rank], width))
    comm.scatter(whole if comm.rank == 0 else None, out, root=0, counts=counts)
    at = sum(counts[: comm.rank])
    return out, whole[at : at + counts[comm.rank]]


def all_to_all(comm: Communicator, width: int) -> tuple[Any, Any]:
    table = [[1, 2, 0], [3, 1, 1], [0, 2, 2]]
    given, taken = table[comm.rank], [table[rank][comm.rank] for rank in range(WORLD)]
    got = comm.all_to_all(rows(comm.rank, sum(given), width), counts=given, out_counts=taken)
    want = []
    for rank in range(WORLD):
        at = sum(table[rank][: comm.rank])
        want.append(rows(rank, sum(table[rank]), width)[at : at + taken[rank]])
    return got, np.concatenate(want)


def reduce(comm: Communicator, width: int) -> tuple[Any, Any]:
    got = comm.reduce(rows(comm.rank, 3, width), op="max", root=1)
    want = np.maximum.reduce([rows(rank, 3, width) for rank in range(WORLD)])
    return (got, want) if comm.rank == 1 else (np.zeros(1), np.zeros(1))


def reduce_integers(comm: Communicator, width: int) -> tuple[Any, Any]:
    got = comm.reduce(rows(comm.rank, 3, width, "int32"), root=2)
    want = np.sum([rows(rank, 3, width, "int32") for rank in range(WORLD)], axis=0)
    return (got, want) if comm.rank == 2 else (np.zeros(1), np.zeros(1))


def reduce_floats(comm: Communicator, width: int) -> tuple[Any, Any]:
    got = comm.reduce(rows(comm.rank, 3, width, "float32"), root=2)
    want = np.sum([rows(rank, 3, width, "float32") for rank in range(WORLD)], axis=0)
    return (got, want) if comm.rank == 2 else (np.zeros(1), np.zeros(1))


def reduce_scatter(comm: Communicator, width: int) -> tuple[Any, Any]:
    counts = [2, 0, 4]
    got = comm.reduce_scatter(rows(comm.rank, 6, width, "float32"), counts=counts)
    at = sum(counts[: comm.rank])
    total = np.sum([rows(rank, 6, width, "float32") for rank in range(WORLD)], axis=0)
    return got, total[at : at + counts[comm.rank]]


def together(comm: Communicator, width: int) -> tuple[Any, Any]:
    counts, start = [2, 0, 4], [0, 2, 2]
    with comm.together() as both:
        sums = both.reduce_scatter(rows(comm.rank, 6, width, "int32"), counts=counts)
        shards = both.all_gather(rows(comm.rank, 2, width))
    total = np.sum([rows(rank, 6, width, "int32") for rank in range(WORLD)], axis=0)
    want = total[start[comm.rank] : start[comm.rank] + counts[comm.rank]]
    whole = np.concatenate([rows(rank, 2, width) for rank in range(WORLD)])
    return np.concatenate([sums.astype(float), shards]), np.concatenate([want.astype(float), whole])


def joined(comm: Communicator, width: int) -> tuple[Any, Any]:
    """A reduce_scatter that might join an all_gather, and over several rails is made after it."""
    sums, shards, asked = np.zeros((2, width), np.int32), np.empty((2 * WORLD, width)), []
    scatter = comm.scatter_to_join(data := rows(comm.rank, 2 * WORLD, width, "int32"), sums)

    def following() -> Next:
        asked.append(None)
        return scatter if len(asked) > comm.rank else "open"

    if not comm.all_gather_to_join(rows(comm.rank, 2, width), shards, following):
        comm.reduce_scatter(data, sums)
    total = np.sum([rows(rank, 2 * WORLD, width, "int32") for rank in range(WORLD)], axis=0)
    want = total[2 * comm.rank : 2 * comm.rank + 2]
    whole = np.concatenate([rows(rank, 2, width) for rank in range(WORLD)])
    return np.concatenate([sums.astype(float), shards]), np.concatenate([want.astype(float), whole])


def products(comm: Communicator, width: int) -> tuple[Any, Any]:
    got = comm.allreduce(rows(comm.rank, 2, width) % 4, op="product")
    return got, np.prod([rows(rank, 2, width) % 4 for rank in range(WORLD)], axis=0)


def rings(comm: Communicator, width: int) -> tuple[Any, Any]:
    data = rows(comm.rank, 2, width, "int32")
    comm.allreduce(data, out=data, algorithm="ring")
    return data, np.sum([rows(rank, 2, width, "int32") for rank in range(WORLD)], axis=0)


Operation = Callable[[Communicator, int], tuple[Any, Any]]
OPERATIONS: list[Operation] = [
    all_gather, broadcast, gather, scatter, all_to_all, reduce, reduce_scatter, together, joined, products, rings,
]
SHORT, LONG = 7, 15_001
"""Rows' widths: of an operation that is a sum, and of one that is cut."""


def exact(comms: list[Communicator], operation: Operation, width: int) -> None:
    """Every rank's result is what it must be."""
    for result in on_every_rank(comms, lambda comm: operation(comm, width)):
        if isinstance(result, Exception):
            raise result
        np.testing.assert_array_equal(*result)


@pytest.mark.parametrize("kinds", [["innet", "tcp"], ["tcp", "roce"], ["innet", "innet"]], ids="+".join)
def test_every_collective_is_cut_over_the_rails(kinds: Any) -> None:
    """Rows of any length, uneven and none at all arrive where they belong, and each rail has carried a part of what is
    long; barriers, and what is of some ranks or between two, work beside that."""
    with loopback_rails(kinds, WORLD) as comms:
        even(comms)
        for operation in OPERATIONS:
            exact(comms, operation, SHORT)
            before = carried(comms)
            exact(comms, operation, LONG)
            parts = [now - then for now, then in zip(carried(comms), before, strict=True)]
            assert min(parts) > SHORT_BYTES // 2, (operation.__name__, parts)
            assert comms[0].flight()[-1].path.count("%") == 2, comms[0].flight()[-1].path
        assert not any(on_every_rank(comms, lambda comm: comm.barrier()))
        got = on_every_rank(
            comms, lambda comm: None if comm.rank == 1 else comm.group([0, 2]).allreduce(np.ones(9))
        )
        assert got[0][0] == got[2][0] == 2


class Dying:
    """A rail that fails on one rank in the n-th part that it carries between the hosts, and tells the others."""

    def __init__(self, comm: Communicator, rail: int, after: int, after_carrying: bool) -> None:
        assert comm.rails is not None
        track = comm.rails.track(rail)
        assert isinstance(track, OpenRail)
        self.carry, self.left, self.late = track.between_hosts, after, after_carrying
        self.mesh = track.others.mesh
        track.between_hosts = self  # type: ignore[assignment, method-assign]

    def __call__(self, number: int, operation: Callable[[Peers], None]) -> None:
        if self.left or self.late:
            self.carry(number, operation)
        if self.left == 0:
            error = RailDown("a test ends this rail")
            self.mesh.abort(error)
            raise error
        self.left -= 1


OF_ROWS: list[Operation] = [all_gather, broadcast, reduce_integers, reduce_scatter, together]


@pytest.mark.parametrize("kinds", [["innet", "tcp"], ["innet", "innet"]], ids="+".join)
def test_rails_that_fold_carry_rows_through_their_switches(kinds: Any) -> None:
    """Each of them its part, whatever the others are; the flight recorder names the rail where its switches carried
    it, and its mesh where not."""
    with loopback_rails(kinds, WORLD) as comms:
        even(comms)
        counts = [count_rows(comms[0], rail) for rail in range(2)]
        for operation in OF_ROWS:
            before = [len(count) for count in counts]
            exact(comms, operation, LONG)
            grown = [len(count) > then for count, then in zip(counts, before, strict=True)]
            assert grown == [kind == "innet" for kind in kinds], operation.__name__
            path = comms[0].flight()[-1].path
            assert f"% {kinds[0]}@a + " in path, path
            assert f"% {kinds[1]}@b" in path, path
        said = comms[0].explain(1 << 20, collective="all_gather")
        assert said.startswith("all_gather of 1048576 bytes: "), said
        assert "tcp@a" not in said, said
        assert "innet" not in comms[0].explain(1 << 20, "product", "int64", collective="reduce_scatter")
        before = [len(count) for count in counts]
        ringed = on_every_rank(comms, lambda comm: comm.all_gather(rows(comm.rank, 5, LONG), algorithm="ring"))
        assert [(result == ringed[0]).all() for result in ringed] == [True] * WORLD
        assert [len(count) for count in counts] == before, "a ring was asked for"


def test_rows_over_several_rails_have_the_lanes_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reduce_scatter and a reduce of floats, long and short, in a job of 8-bit lanes: what long ones
    fold has these lanes, and every result is as near as they allow."""
    asked: list[int] = []
    carry = OpenRail.collect

    def collect(rail: OpenRail, request: RowsRequest) -> None:
        asked.append(request.coding.lane_bits)
        carry(rail, request)

    monkeypatch.setattr(OpenRail, "collect", collect)
    with loopback_rails(["innet", "innet"], WORLD, lane_bits=8) as comms:
        even(comms)
        for width in (SHORT, LONG):
            for operation in (reduce_scatter, reduce_floats):
                for result in on_every_rank(comms, lambda comm, call=operation, n=width: call(comm, n)):
                    got, want = result
                    assert np.abs(got - want).max(initial=0) <= WORLD * 99 / 32, operation.__name__
        assert set(asked) == {8}
        assert asked.count(8) >= 2 * 2 * WORLD


@pytest.mark.parametrize("owners", [[2, 0, 4], [0, 0, 6]])
def test_parts_of_equal_rows_are_not_rounded_by_the_same_draws(owners: list[int]) -> None:
    """Two parts of one operation, whose rows have the same elements in both, also where the first ranks own no row:
    narrow lanes are rounded up and down at other places in each, so that the errors of a tensor's parts are
    independent."""
    width = 2048  # whole blocks, so that both parts have the same scales; elements of a row in each of the two parts
    pieces = [slice(2 * width * sum(owners[:rank]), 2 * width * sum(owners[: rank + 1])) for rank in range(WORLD)]

    def halves(comm: Communicator) -> Any:
        assert comm.rails is not None
        data = np.empty(2 * width * sum(owners), np.float32)
        for piece in pieces:
            both = data[piece].reshape(2, -1)
            both[:] = np.random.default_rng(comm.rank).random(both.shape[1])
        want = data.copy()
        peers = RailPeers(comm.rails.track(0).others, comm.rails)  # type: ignore[attr-defined]
        fold = peers._folded(
            "reduce_scatter", data, pieces, Reduction("sum", "float32"), Coding(8, rounding="stochastic", seed=7)
        )
        assert fold is not None
        cut = CutCollective("reduce_scatter", "a sum", data.nbytes, lambda peers, part: None, folded=fold)
        for part in (slice(0, data.nbytes // 2), slice(data.nbytes // 2, data.nbytes)):
            cut.carry(comm.rails.track(0), part, 1000)  # a stripe's parts have the same position
        return data[pieces[comm.rank]].reshape(2, -1), want[pieces[comm.rank]].reshape(2, -1)

    with loopback_rails(["innet", "innet"], WORLD) as comms:
        for comm, result in zip(comms, on_every_rank(comms, halves), strict=True):
            if isinstance(result, Exception):
                raise result
            (first, second), (given, again) = result
            assert np.array_equal(given, again)
            np.testing.assert_allclose(first, second, atol=2 * WORLD / (127 // WORLD))
            assert (owners[comm.rank] == 0) == np.array_equal(first, second)


def count_rows(comm: Communicator, rail: int) -> list[str]:
    """The collectives that the switches of this rail carry from now on, for this rank."""
    assert comm.rails is not None
    track, made = comm.rails.track(rail), []
    assert isinstance(track, OpenRail)
    carry = track.collect

    def collect(request: RowsRequest) -> None:
        made.append(str(request.collective))
        carry(request)

    track.collect = collect  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("operation", OF_ROWS)
def test_a_rail_that_dies_while_it_folds_rows_leaves_its_part_to_the_mesh_of_another(
    operation: Operation, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank loses the switches in its second part, before or after it: what some rank lacks is done again between
    the hosts of the other plane, from what was there before."""
    monkeypatch.setattr("netfold.host.rails.striping.LEAST_CHUNK", 64 << 10)
    monkeypatch.setattr("support.hosts.loopback_rails.STALL", "1")
    with loopback_rails(["innet", "tcp"], WORLD) as comms:
        even(comms)
        assert comms[1].rails is not None
        track, left = comms[1].rails.track(0), [1]
        assert isinstance(track, OpenRail)
        carry = track.collect

        def collect(request: RowsRequest) -> None:
            if left[0] or late:
                carry(request)
            left[0] -= 1
            if left[0] < 0:
                raise RailDown("a test ends this rail")

        track.collect = collect  # type: ignore[method-assign]
        exact(comms, operation, LONG)
        for comm in comms:
            assert comm.rails is not None
            assert [use.deaths for use in comm.rails.use()] == [1, 0]
            assert "died: innet@a" in comm.flight()[-1].path


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS[:7])
def test_a_rail_that_dies_in_the_middle_leaves_its_part_to_the_others(
    operation: Operation, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that some rank lacks are repeated over the remaining rail, from the former contents; results are exact on
    all ranks, and all ranks say which rail died."""
    monkeypatch.setattr("netfold.host.rails.striping.LEAST_CHUNK", 64 << 10)
    with loopback_rails(["tcp", "tcp"], WORLD) as comms:
        even(comms)
        Dying(comms[1], 1, 1, late)
        exact(comms, operation, LONG)
        for comm in comms:
            assert comm.rails is not None
            assert [use.deaths for use in comm.rails.use()] == [0, 1]
            assert "died: tcp@b" in comm.flight()[-1].path
        exact(comms, operation, SHORT)


def test_a_late_rank_between_some_ranks_is_no_dead_rail() -> None:
    """Nobody asks how long a rail has been quiet while a group, or a pair, waits for one of its ranks."""
    with loopback_rails(["tcp", "tcp"], 2) as comms:
        waits = threading.Event()

        def receive(comm: Communicator) -> Any:
            if comm.rank == 0:
                return comm.receive(np.empty(5), 1)
            waits.wait(1.0)  # longer than any rail may be silent
            comm.send(np.arange(5.0), 0)
            return None

        np.testing.assert_array_equal(on_every_rank(comms, receive)[0], np.arange(5.0))
        assert comms[0].rails is not None
        assert [use.deaths for use in comms[0].rails.use()] == [0, 0]

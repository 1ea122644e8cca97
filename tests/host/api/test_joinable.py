# SPDX-License-Identifier: Apache-2.0
"""A reduce_scatter that is called late joins the all_gather under way: on all ranks or on none, with the right data,
whatever each rank knows when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.api.joinable import HOPES, PART_BYTES, PARTS, RARELY, Next
from netfold.host.errors import NetFoldError
from netfold.testing import loopback_job, on_every_rank

WORLD = 3
SHARD = PARTS * PART_BYTES // WORLD + 17
"""Bytes of a rank, no multiple of a packet: all PARTS parts, the last one shorter."""
ROWS = 700
NEVER = 99


def gathers(comm: Communicator, whole: NDArray[np.uint8]) -> bool:
    """True if every rank's shard has arrived."""
    return bool((whole.reshape(WORLD, -1) == np.arange(1, WORLD + 1)[:, None]).all())


def shard(comm: Communicator) -> NDArray[np.uint8]:
    return np.full(SHARD, comm.rank + 1, np.uint8)


class Call:
    """One rank's two calls, of which the second is made when the first has asked ``late`` times; ``late`` = NEVER:
    something else follows."""

    def __init__(self, comm: Communicator, late: int, kind: str = "int32") -> None:
        self.comm, self.late, self.asked = comm, late, 0
        self.array = (np.arange(WORLD * ROWS) * (comm.rank + 1)).astype(kind)
        self.out = np.zeros(ROWS, kind)
        self.scatter = comm.scatter_to_join(self.array, self.out)

    def following(self) -> Next:
        self.asked += 1
        if self.late == NEVER:
            return "none"
        return self.scatter if self.asked > self.late else "open"

    def make(self) -> bool:
        """Makes both, and returns whether they went together; fails where a byte is wrong."""
        whole = np.zeros(WORLD * SHARD, np.uint8)
        joined = self.comm.all_gather_to_join(shard(self.comm), whole, self.following)
        assert gathers(self.comm, whole)
        if not joined:
            assert not self.out.any(), "what has not joined has not been touched"
            self.comm.reduce_scatter(self.array, self.out)
        rank, each = self.comm.rank, sum(range(1, WORLD + 1))
        assert (self.out == np.arange(WORLD * ROWS)[ROWS * rank : ROWS * (rank + 1)] * each).all()
        return joined


def names(comm: Communicator) -> list[tuple[int, str, int]]:
    """The operations of the rank, in order."""
    return [(one.number, one.name, one.nbytes) for one in comm.flight()]


@pytest.mark.parametrize(
    ("seed", "loss", "machines"),
    [
        *((0, loss, [[0], [1], [2]]) for loss in (0.0, 0.01)),
        *(pytest.param(seed, 0.01, [[0], [1], [2]], marks=pytest.mark.long) for seed in range(1, 12)),
        (4, 0.01, [[0, 1], [2]]),
    ],
)
@pytest.mark.slow
def test_ranks_that_call_at_different_times_make_the_same_operations(
    seed: int, loss: float, machines: list[list[int]]
) -> None:
    """Each rank calls the reduce_scatter before another part, or something else instead; a decision by what one rank
    knows alone would put unlike operations against each other.  On machines of one rank, and of unlike numbers."""
    print(f"seed {seed}")
    random_ = random.Random(seed)
    lates = [[random_.randrange(PARTS + 2) for _ in range(WORLD)] for _ in range(4)]
    lates += [[0] * WORLD, [random_.choice([0, NEVER]) for _ in range(WORLD - 1)] + [NEVER]]
    with loopback_job(WORLD, rail="innet", loss=loss, members=machines) as comms:

        def calls(comm: Communicator) -> tuple[list[bool], list[tuple[int, str, int]]]:
            return [Call(comm, late[comm.rank]).make() for late in lates], names(comm)

        results = on_every_rank(comms, calls)
    assert results[0] == results[1] == results[2]
    assert results[0][0] == [max(late) < PARTS - 1 for late in lates]


def test_only_what_is_left_goes_together() -> None:
    """The parts before are gathered alone, and no byte is moved twice."""
    with loopback_job(WORLD, rail="innet") as comms:
        on_every_rank(comms, lambda comm: Call(comm, 2).make())
        made = names(comms[0])
    assert [name for _, name, _ in made] == ["all_gather"] * 3 + ["together"]
    votes, sums = 4 * WORLD, 4 * WORLD * ROWS
    assert sum(nbytes for *_, nbytes in made) == WORLD * SHARD + 3 * votes + sums


def test_when_one_rank_calls_something_else_the_rest_goes_at_once() -> None:
    """After the first part no rank asks again."""
    with loopback_job(WORLD, rail="innet") as comms:
        joined = on_every_rank(comms, lambda comm: Call(comm, NEVER if comm.rank == 1 else 0).make())
        made = names(comms[0])
    assert joined == [False] * WORLD
    assert [name for _, name, _ in made] == ["all_gather", "all_gather", "reduce_scatter"]


@pytest.mark.slow
def test_where_nothing_joins_for_long_few_ask_until_something_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that waits for each all_gather pays for few parts; the first that is joined has the next ones ask."""
    monkeypatch.setattr("netfold.host.api.joinable.PART_BYTES", 8 << 10)
    calls, size = HOPES + 2 * RARELY, (16 << 10) // WORLD + 1

    def asks(comm: Communicator, following: Callable[[], Next]) -> bool:
        asked = []
        comm.all_gather_to_join(
            np.zeros(size, np.uint8), np.zeros(WORLD * size, np.uint8), lambda: asked.append(1) or following()
        )
        return bool(asked)

    def turns(comm: Communicator) -> list[bool]:
        scatter = comm.scatter_to_join(np.ones(WORLD, np.int32), np.zeros(1, np.int32))
        said = [asks(comm, lambda: "none") for _ in range(calls)]
        return [*said, asks(comm, lambda: scatter), asks(comm, lambda: "open")]

    with loopback_job(WORLD, rail="innet") as comms:
        results = on_every_rank(comms, turns)
    rare = [True] + [False] * (RARELY - 1)
    assert results == [[True] * HOPES + rare + rare + [True, True]] * WORLD


def test_what_does_not_fold_follows_in_its_turn() -> None:
    """Sums of int64 are made after the all_gather, by the caller."""
    with loopback_job(WORLD, rail="innet") as comms:
        assert on_every_rank(comms, lambda comm: Call(comm, 0, "int64").make()) == [False] * WORLD


@pytest.mark.parametrize(("rail", "size"), [("tcp", SHARD), ("innet", PART_BYTES // WORLD)])
def test_what_would_gain_nothing_is_not_cut(rail: Any, size: int) -> None:
    """Between the hosts, where a ring fills both directions, and where the rows are short: one operation."""
    with loopback_job(WORLD, rail=rail) as comms:

        def call(comm: Communicator) -> bool:
            whole = np.zeros(WORLD * size, np.uint8)
            return comm.all_gather_to_join(np.full(size, comm.rank, np.uint8), whole, lambda: pytest.fail("asked"))

        assert on_every_rank(comms, call) == [False] * WORLD
        assert [name for _, name, _ in names(comms[0])] == ["all_gather"]


def test_a_result_that_is_not_plain_memory_is_filled_on_one_rank_as_on_the_others() -> None:
    """Every other byte of a larger array: the rank takes part in the same operations."""
    with loopback_job(WORLD, rail="innet") as comms:

        def call(comm: Communicator) -> bool:
            whole = np.zeros(2 * WORLD * SHARD, np.uint8)[:: 2 if comm.rank else 1][: WORLD * SHARD]
            comm.all_gather_to_join(shard(comm), whole, lambda: "open")
            return gathers(comm, whole)

        assert on_every_rank(comms, call) == [True] * WORLD


def test_calls_that_share_memory_on_one_rank_go_one_after_the_other_on_all() -> None:
    """The reduce_scatter of one rank takes what the all_gather brings."""
    with loopback_job(WORLD, rail="innet") as comms:

        def call(comm: Communicator) -> tuple[bool, bool]:
            whole = np.zeros(WORLD * SHARD, np.uint8)
            source = whole[: WORLD * ROWS] if comm.rank == 2 else np.ones(WORLD * ROWS, np.uint8)
            scatter = comm.scatter_to_join(source, np.zeros(ROWS, np.uint8))
            joined = comm.all_gather_to_join(shard(comm), whole, lambda: scatter)
            return joined, gathers(comm, whole)

        assert on_every_rank(comms, call) == [(False, True)] * WORLD


def test_a_rank_that_does_not_cut_is_an_error_on_all() -> None:
    """One rank calls a plain all_gather: nobody gets wrong bytes, all are told."""
    with loopback_job(WORLD, rail="innet", timeout=2.0) as comms:

        def call(comm: Communicator) -> None:
            whole = np.zeros(WORLD * SHARD, np.uint8)
            if comm.rank == 1:
                comm.all_gather(shard(comm), whole)
            else:
                comm.all_gather_to_join(shard(comm), whole, lambda: "open")

        results = on_every_rank(comms, call)
        assert all(isinstance(result, NetFoldError) for result in results), results


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda comm: comm.scatter_to_join(np.zeros(4), np.zeros(1)), "multiple of 3"),
        (lambda comm: comm.scatter_to_join(np.zeros(6), np.zeros(3)), r"out is float64\[3\]: expected float64\[2\]"),
        (lambda comm: comm.all_gather_to_join(np.zeros(6), np.zeros(6), lambda: "open"), r"expected float64\[18\]"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(
    call: Callable[[Communicator], object], words: str
) -> None:
    """Counts of elements, and results of another size."""
    with loopback_job(WORLD, rail="innet") as comms:
        with pytest.raises(ValueError, match=words):
            call(comms[0])
        assert comms[0].stats().packets_sent == 0

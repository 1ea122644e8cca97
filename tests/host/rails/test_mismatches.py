# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different operations over several rails: each of them raises an error, and none gets a result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.rails.rail_peers import NAMED_ROWS, SHORT_BYTES
from netfold.host.rails.shares import Figure
from netfold.testing import on_every_rank
from support.hosts.host import impatient
from support.hosts.loopback_rails import even, loopback_rails

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
WORLD = 3


def test_ranks_that_call_different_collectives_learn_it() -> None:
    """A broadcast is no gather, a root no other root, rows no other rows of the same size in all, and a barrier nothing
    else: each rank raises, with names."""
    calls: list[list[Callable[[Communicator], Any]]] = [
        [lambda comm: comm.broadcast(np.zeros(10), root=0), lambda comm: comm.broadcast(np.zeros(10), root=1)],
        [lambda comm: comm.broadcast(np.zeros(20)), lambda comm: comm.all_gather(np.zeros(10))],
        [lambda comm: comm.barrier(), lambda comm: comm.broadcast(np.zeros(0))],
        [lambda comm: comm.all_to_all(np.zeros((2, 0))), lambda comm: comm.all_to_all(np.zeros((2, 0), np.int64))],
        [lambda comm: comm.all_gather(np.ones(1), counts=[1, 2]),
         lambda comm: comm.all_gather(np.ones(1), counts=[2, 1])],
        [lambda comm: comm.gather(np.ones(1), counts=[1, 2]), lambda comm: comm.gather(np.ones(1), counts=[2, 1])],
    ]
    for one, other in calls:
        with loopback_rails(["innet", "tcp"], 2) as comms:
            for said in on_every_rank(comms, lambda comm, one=one, other=other: (one, other)[comm.rank](comm)):
                assert isinstance(said, RankMismatch), said
                assert "something else; call the same operations" in str(said)


def test_rows_of_many_ranks_that_differ_behind_the_named_ones_are_told_briefly() -> None:
    """Two of ten ranks' rows are the other way round on one rank: a checksum in the error stands for rows that it does
    not name."""
    world = NAMED_ROWS + 2
    with loopback_rails(["tcp", "tcp"], world) as comms:
        def call(comm: Communicator) -> Any:
            counts = [*[2] * NAMED_ROWS, *((1, 3) if comm.rank else (3, 1))]
            return comm.all_gather(np.ones(counts[comm.rank]), counts=counts)

        for said in on_every_rank(comms, call):
            assert isinstance(said, RankMismatch), said
            assert f"16 + ... bytes ({world} rows, checksum" in str(said)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("kinds", [["tcp", "tcp"], ["innet", "tcp"]], ids="+".join)
def test_a_short_collective_against_a_long_one_is_told_on_both(kinds: Any, cut: bool) -> None:
    """Ranks whose sizes lie on either side of the bound between a sum and a cut operation do not wait in vain, whether
    one rail carries the sum or several cut it."""
    most = SHORT_BYTES - 1024
    with loopback_rails(kinds, 2) as comms:
        even(comms)
        if not cut:
            comms[0].rails.shares.figures = [Figure(1e-4, 1e6), Figure(1e-4, 1.0)]  # type: ignore[union-attr]
        for said in on_every_rank(comms, lambda comm: comm.broadcast(np.zeros(most + 4096 * comm.rank, np.uint8))):
            assert isinstance(said, RankMismatch), said
            assert "call the same operations in the same order on every rank" in str(said)


@pytest.mark.parametrize("size", [8, 20_000])
def test_a_rank_that_hears_nothing_of_a_mismatch_learns_it_from_one_that_does(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a ring one rank receives data that it does not expect. The ranks that wait for it raise the same error."""
    monkeypatch.setattr("support.hosts.loopback_rails.STALL", "1")
    with loopback_rails(["tcp", "tcp"], WORLD) as comms:
        even(comms)
        said = on_every_rank(comms, lambda comm: comm.allreduce(np.ones(size + 4 * (comm.rank == 1), np.int32)))
        assert all(isinstance(error, RankMismatch) for error in said), said


LONG_CALLS: dict[str, Callable[[Communicator], Any]] = {
    "sum": lambda comm: comm.allreduce(np.ones(30_000)),
    "gather": lambda comm: comm.gather(np.ones(30_000)),
    "broadcast": lambda comm: comm.broadcast(np.ones(30_000)),
    "broadcast from 1": lambda comm: comm.broadcast(np.ones(30_000), root=1),
    "all_to_all": lambda comm: comm.all_to_all(np.ones((WORLD, 30_000))),
}


@pytest.mark.parametrize(("one", "other"), [
    ("gather", "sum"),  # nobody gets what it does not expect: all would wait for ever
    ("broadcast from 1", "broadcast"),  # each root has sent its data, and waits for nobody
    ("all_to_all", "gather"),
])
def test_long_collectives_that_differ_are_told_on_every_rank(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 calls another one than the others, cut over both rails: each rank raises RankMismatch, whether any message
    shows the difference or not, and no rail counts as dead."""
    monkeypatch.setattr("support.hosts.loopback_rails.STALL", "1")
    with loopback_rails(["tcp", "tcp"], WORLD) as comms:
        even(comms)
        for said in on_every_rank(comms, lambda comm: LONG_CALLS[other if comm.rank == 1 else one](comm)):
            assert isinstance(said, RankMismatch), said
            assert "no rail is left" not in str(said)


@pytest.mark.parametrize("other", [lambda comm: comm.allreduce(np.ones(4, np.int32)), lambda comm: comm.barrier()])
def test_a_short_call_between_hosts_against_one_through_switches_is_told(other: Callable[[Communicator], Any]) -> None:
    """Switches see nothing of a sum of float64, and the hosts' meshes see nothing of what switches carry: no message
    meets another, and no rail counts as dead for that."""
    with loopback_rails(["innet", "innet"], 2) as comms:
        for said in on_every_rank(comms, lambda comm: other(comm) if comm.rank else comm.allreduce(np.ones(4))):
            assert isinstance(said, RankMismatch), said
            assert "innet@a up" in str(said)
            assert "innet@b up" in str(said)


@pytest.mark.parametrize("kinds", [["tcp", "tcp"], ["innet", "tcp"]], ids="+".join)
def test_a_sum_of_integers_is_not_taken_for_what_another_rank_fills_in(kinds: Any) -> None:
    """A short broadcast is carried as a sum of int32: a rank that calls a sum of as many gets an error, and no sum."""
    with loopback_rails(kinds, 2) as comms:
        ranks = on_every_rank(
            comms, lambda comm: comm.allreduce(np.ones(12, np.int32)) if comm.rank else comm.broadcast(np.ones(5))
        )
        assert all(isinstance(said, RankMismatch) for said in ranks), ranks


def test_two_ranks_that_only_send_learn_that_they_call_different_collectives() -> None:
    """The root of a scatter and a rank of a gather wait for nothing: the report after both shows the difference, where
    no message of a mesh does, since switches carry the report."""

    def call(comm: Communicator) -> Any:
        if comm.rank:
            return comm.gather(np.ones(30_000))
        return comm.scatter(np.ones((2, 30_000)), np.empty((1, 30_000)))

    with loopback_rails(["innet", "tcp"], 2) as comms:
        even(comms)
        for comm in comms:
            comm.rails.shares.figures = [Figure(1e-4, 1e6), Figure(1e-3, 1e6)]  # type: ignore[union-attr]
        for said in on_every_rank(comms, call):
            assert isinstance(said, RankMismatch), said


def test_a_long_collective_against_another_call_ends_on_every_rank() -> None:
    """Whatever the other rank calls, and over whatever it goes: an error on each, and no result."""
    long = np.zeros(100_000)
    with loopback_rails(["innet", "tcp"], 2) as comms:
        even(comms)
        impatient(comms, 1.0)
        said = on_every_rank(comms, lambda comm: comm.broadcast(long) if comm.rank else comm.allreduce(np.ones(9)))
        assert all(isinstance(error, NetFoldError) for error in said), said

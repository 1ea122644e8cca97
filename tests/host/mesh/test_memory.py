# SPDX-License-Identifier: Apache-2.0
"""The mesh in memory: ranks die and messages are lost on request, races become visible, and no clock runs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.collectives import ALLREDUCE
from netfold.host.errors import CollectiveTimeout, PeerLost
from netfold.host.mesh.memory import Killed, MemoryFabric
from netfold.host.mesh.mesh import Call, Mesh
from support.hosts.collectives import allreduce, expected, inputs, values


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(2, 7), victim=st.integers(0, 6), after=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_a_rank_that_dies_leaves_no_wrong_sum(name: str, ranks: int, victim: int, after: int, seed: int) -> None:
    """Whichever message a rank dies at, every other rank has the exact sum or an error, and none hangs."""
    victim %= ranks
    arrays = inputs(ranks, 200, "float32", seed)
    fabric = MemoryFabric(ranks, seed=seed)
    fabric.kill(victim, after=after)
    results = fabric.run(lambda mesh: allreduce(mesh, arrays[mesh.rank].copy(), name))

    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            assert isinstance(result, Killed if rank == victim else PeerLost), result
            assert f"rank {victim}" in str(result)
        else:
            np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(2, 7), pair=st.integers(0, 48), nth=st.integers(0, 5), seed=st.integers(0, 2**32))
def test_a_lost_message_is_a_timeout_or_does_not_matter(name: str, ranks: int, pair: int, nth: int, seed: int) -> None:
    """A message that never arrives leads to errors that name ranks, unless it was never sent, and no rank has a wrong
    sum."""
    sender = pair % ranks
    receiver = (sender + 1 + pair // ranks % (ranks - 1)) % ranks
    arrays = inputs(ranks, 200, "float32", seed)
    fabric = MemoryFabric(ranks, seed=seed)
    fabric.lose(sender, receiver, nth)
    results = fabric.run(lambda mesh: allreduce(mesh, arrays[mesh.rank].copy(), name))

    lost = fabric.messages[sender, receiver] > nth
    assert lost == any(isinstance(result, CollectiveTimeout | PeerLost) for result in results)
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, CollectiveTimeout | PeerLost), result
        else:
            np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))


def test_ranks_that_wait_for_each_other_are_a_timeout_in_no_time() -> None:
    """The mesh detects that nothing can move, without a clock."""

    def work(mesh: Mesh) -> None:
        with mesh.operation(Call(1, "deadlock")):
            mesh.wait([mesh.receive((mesh.rank + 1) % 3, np.zeros(4, np.uint8))])

    for rank, error in enumerate(MemoryFabric(3).run(work)):
        assert isinstance(error, CollectiveTimeout)
        assert f"4 bytes with rank {(rank + 1) % 3}" in str(error)


def test_memory_touched_before_the_wait_is_noticed() -> None:
    """About half of the messages are copied late, so that a sender which reuses its memory too early is noticed."""

    def work(mesh: Mesh) -> float:
        data, got = np.ones(4), np.zeros(4)
        with mesh.operation(Call(1, "race")):
            if mesh.rank == 0:
                mesh.send(1, data)
                ready.wait(60)
                data[:] = 7
                written.set()
            else:
                arrived = mesh.receive(0, got)
                ready.set()
                written.wait(60)
                mesh.wait([arrived])
        return float(got[0])

    seen = set()
    for seed in range(20):
        ready, written = threading.Event(), threading.Event()
        seen.add(values(MemoryFabric(2, seed=seed).run(work))[1])
    assert seen == {1.0, 7.0}

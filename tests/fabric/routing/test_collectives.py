# SPDX-License-Identifier: Apache-2.0
"""The planners' table of collectives against what the hosts' algorithms and the simulator's workloads really send."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.fabric.routing import collectives
from netfold.host.collectives import ALLREDUCE, broadcast, double_binary_tree, flow, gather, reduce, scatter
from netfold.host.collectives.flow import Strand, run, split_evenly
from netfold.host.mesh.mesh import Mesh, Pending, Subset
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection.peers import Peers
from netfold.sim.workloads import workload
from netfold.testing import MemoryFabric
from support.hosts.collectives import values

SUM = Reduction("sum", "int32")
Pairs = set[tuple[int, int]]
ROOTED: dict[str, Callable[[Mesh, Flat, int], Strand]] = {
    "binomial": lambda mesh, data, root: broadcast.binomial(mesh, data, root=root),
    "chain": lambda mesh, data, root: broadcast.chain(mesh, data, root=root),
    "scatter_all_gather": lambda mesh, data, root: broadcast.scatter_all_gather(mesh, data, root=root),
    "binomial_reduce": lambda mesh, data, root: reduce.binomial(mesh, data, SUM, root=root),
    "reduce_scatter_gather": lambda mesh, data, root: reduce.reduce_scatter_gather(mesh, data, SUM, root=root),
    "scatter": lambda mesh, data, root: scatter.scatter(mesh, data, split_evenly(data.size, mesh.size), root=root),
    "gather": lambda mesh, data, root: gather.gather(mesh, data, split_evenly(data.size, mesh.size), root=root),
}


class Recorder(Subset):
    """All ranks of a mesh; writes down whom this one sends to since it said what comes next, and what that was."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh, range(mesh.size))
        self.sent: Pairs = set()
        self.messages: Counter[tuple[int, int, int]] = Counter()
        self.said: list[tuple[str, tuple[int, ...], int]] = []

    def expect(self, algorithm: str, *, ranks: Sequence[int] = (), root: int = 0) -> None:
        self.sent.clear()
        self.said.append((algorithm, tuple(ranks), root))

    def send(self, peer: int, data: Flat, *, tag: int = 0) -> Pending:
        if data.nbytes:
            self.sent.add((self.rank, peer))
            self.messages[self.rank, peer, data.nbytes] += 1
        return super().send(peer, data, tag=tag)


def told(name: str, n: int, root: int = 0) -> Pairs:
    """The table's flows of all steps."""
    return {pair for step in collectives.steps(name, n, root) for pair in step}


@given(st.sampled_from([*collectives.UNROOTED, *collectives.ROOTED]), st.integers(2, 40), st.integers(0, 39))
def test_a_rank_has_one_flow_to_each_peer_in_all_steps(name: str, n: int, root: int) -> None:
    """Messages to a peer are cut in one way, whatever the step; no step is empty, and nobody sends to itself."""
    steps = collectives.steps(name, n, root % n)
    pairs = [pair for step in steps for pair in step]
    assert len(set(pairs)) == len(pairs)
    assert all(step and all(size > 0 for size in step.values()) for step in steps)
    assert all(a != b and min(a, b) >= 0 and max(a, b) < n for a, b in pairs)


def sent(n: int, strand: Callable[[Mesh], Strand]) -> Pairs:
    """Pairs of sender and receiver when all ranks run this."""

    def rank(mesh: Mesh) -> Pairs:
        recorder = Recorder(mesh)
        run(recorder, strand(recorder))
        recorder.flush()
        return recorder.sent

    return set().union(*values(MemoryFabric(n, seed=1).run(rank)))


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@given(n=st.integers(2, 12))
@settings(max_examples=11, deadline=None)
def test_an_allreduce_sends_what_the_table_says(name: str, n: int) -> None:
    """The flows of all ranks are those of the table, for any number of ranks."""
    assert sent(n, lambda mesh: ALLREDUCE[name](mesh, np.ones(40 * n, np.int32), SUM)) == told(name, n)


@pytest.mark.parametrize("name", sorted(ROOTED))
@given(data=st.data(), n=st.integers(2, 12))
@settings(max_examples=20, deadline=None)
def test_a_collective_with_a_root_sends_what_the_table_says(name: str, data: st.DataObject, n: int) -> None:
    """The flows are those of the table for any root, and any number of ranks."""
    root = data.draw(st.integers(0, n - 1))
    assert sent(n, lambda mesh: ROOTED[name](mesh, np.ones(40 * n, np.int32), root)) == told(name, n, root)


def test_the_table_knows_every_name_that_the_hosts_use() -> None:
    """A name that is not in it would be planned as an all-to-all, and nobody would notice."""
    assert set(ROOTED) == set(collectives.ROOTED)
    # parameter server and byteps, every rank a server, are all-to-alls
    assert set(ALLREDUCE) - {"parameter_server", "byteps"} <= set(collectives.UNROOTED)


OPERATIONS: dict[str, Callable[[Peers, Flat], object]] = {
    **{f"allreduce {name}": lambda peers, data, name=name: peers.allreduce(
        AllreduceRequest(data, data, SUM, algorithm=name)) for name in ALLREDUCE},
    "reduce_scatter": lambda peers, data: peers.reduce_scatter(data, split_evenly(data.size, peers.size), SUM),
    "all_gather": lambda peers, data: peers.all_gather(data, split_evenly(data.size, peers.size)),
    "broadcast": lambda peers, data: peers.broadcast(data, 2),
    "reduce": lambda peers, data: peers.reduce(data, SUM, 2),
    "gather": lambda peers, data: peers.gather(data, split_evenly(data.size, peers.size), 1),
    "scatter": lambda peers, data: peers.scatter(data, split_evenly(data.size, peers.size), 1),
    "all_to_all": lambda peers, data: peers.all_to_all(
        data, split_evenly(data.size, peers.size), data.copy(), split_evenly(data.size, peers.size)),
}


@pytest.mark.parametrize("size", [60, 600_000])
@pytest.mark.parametrize("members", [None, (4, 0, 3)])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_an_operation_says_first_what_it_is_going_to_send(
    operation: str, members: tuple[int, ...] | None, size: int
) -> None:
    """All ranks name the same collective, whose flows are those that follow; of a group, among its ranks alone."""

    def rank(mesh: Mesh) -> tuple[Pairs, tuple[str, tuple[int, ...], int]] | None:
        if members and mesh.rank not in members:
            return None
        recorder = Recorder(mesh)
        peers = Peers(recorder)
        OPERATIONS[operation](peers.group(members) if members else peers, np.ones(size, np.int32))
        return recorder.sent, recorder.said[-1]

    found = [result for result in values(MemoryFabric(5, seed=3).run(rank)) if result is not None]
    (name, ranks, root), *others = {said for _, said in found}
    assert not others
    assert set(ranks) == set(members or ())
    order = ranks or range(5)
    expected = {(order[a], order[b]) for a, b in told(name, len(order), root)}
    assert set().union(*(pairs for pairs, _ in found)) == expected


@pytest.mark.parametrize("name", sorted(workload.COLLECTIVES))
def test_the_simulator_sends_the_same(name: str) -> None:
    """Flow by flow, on other hosts than 0 .. n-1."""
    hosts = [3, 9, 4, 7, 1, 0, 2, 8]
    made = workload.COLLECTIVES[name](hosts, 1 << 20)
    place = {host: rank for rank, host in enumerate(hosts)}
    pairs = {(place[int(a)], place[int(b)]) for a, b in zip(made.source, made.destination, strict=True)}
    assert pairs == told(name.replace("-", "_"), 8)


@pytest.mark.parametrize("n", [2, 3, 7, 8])
def test_simulated_trees_send_the_hosts_messages(n: int) -> None:
    """The simulator's flows are as many and as long as the hosts' messages, between the same ranks."""
    assert workload.SEGMENT == double_binary_tree.TREE_SEGMENT
    data = np.ones(70_000, np.int32)  # two segments and a shorter one for each tree

    def rank(mesh: Mesh) -> Counter[tuple[int, int, int]]:
        recorder = Recorder(mesh)
        run(recorder, double_binary_tree.allreduce(recorder, data.copy(), SUM))
        recorder.flush()
        return recorder.messages

    real = sum(values(MemoryFabric(n, seed=2).run(rank)), Counter())
    made = workload.double_binary_tree(range(n), data.nbytes)
    assert Counter(zip(made.source.tolist(), made.destination.tolist(), made.size.tolist(), strict=True)) == real


class Posted(Subset):
    """A mesh that only writes down what is received; nothing comes."""

    def __init__(self) -> None:
        self.peers: list[int] = []

    def receive(self, peer: int, into: Flat, *, tag: int = 0) -> Pending:
        self.peers.append(peer)
        return Pending()


@pytest.mark.parametrize("family", [1, 2])
def test_simulated_trees_run_as_far_ahead_as_the_hosts(family: int) -> None:
    """A segment to a parent waits for the one after which the parent's inbox has room for it."""
    parent = collectives.binary_tree(8, 0)
    children = next(c for p in parent.values() if len(c := [v for v in parent if parent[v] == p]) == family)
    _, waits = workload.tree_edges(8, 0)
    number = {child: list(parent).index(child) for child in children}
    expected = []  # by place in the inbox: the place that must be in before, if any
    for segment in range(9):
        for child in children:
            (before,) = [(segment - later) * family + children.index(other) for first, then, later in waits
                         for other in children if (first, then) == (number[other], number[child]) and later]
            expected.append(before if before >= 0 else None)

    mesh = Posted()
    inbox = flow.Inbox(mesh, np.dtype("int32"), [(child, 1) for _ in range(9) for child in children])
    found: list[int | None] = [None] * len(mesh.peers)
    for taken in range(9 * family):
        inbox.take()
        found += [taken - 1 if taken else None] * (len(mesh.peers) - len(found))
    assert found == expected


@given(n=st.integers(2, 40))
def test_both_trees_are_trees_and_nobody_is_inside_both(n: int) -> None:
    """Every rank but one has a parent and leads to the root; whoever has children in one is a leaf of the other."""
    inside = []
    for shift in (0, 1):
        parents = collectives.binary_tree(n, shift)
        assert len(parents) == n - 1
        for rank in parents:
            for _ in range(n):
                rank = parents.get(rank, rank)
            assert rank not in parents
        inside.append(set(parents.values()))
    assert n == 2 or n % 2 or not inside[0] & inside[1]


@pytest.mark.parametrize(("n", "root"), [(1, 0), (4, 4), (4, -1)])
def test_what_cannot_be_is_refused(n: int, root: int) -> None:
    """Fewer than two ranks, or a root that is none."""
    with pytest.raises(ValueError, match="expected 2 ranks or more, and one of them"):
        collectives.steps("binomial", n, root)

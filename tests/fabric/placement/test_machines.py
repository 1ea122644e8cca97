# SPDX-License-Identifier: Apache-2.0
"""Several ranks at one address: who folds with whom, what tells their packets apart, and what cannot be folded."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from netfold.controller.jobs import recovery
from netfold.controller.operations import stall
from netfold.controller.switch import fold_tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.slots import Allocator, Sizes
from netfold.fabric.folding.trees import NoTree
from netfold.fabric.generate import leafspine
from netfold.fabric.placement.machines import fold_groups, machines
from netfold.host.client.plans import check_plan
from netfold.wire import roce
from netfold.wire.plan import Peer, Plan, RankStream
from support.control.controller import until
from support.control.jobs import Rig, rig
from support.control.recovery import lose, resume
from support.models.slots import fold


@given(st.permutations([host for host in "abcd" for _ in range(3)]))
def test_each_rank_folds_with_one_rank_of_every_machine(hosts: list[str]) -> None:
    """However ranks are numbered: groups have one rank of each machine, in one order, and each rank is in one."""
    shared = machines(hosts)
    groups = fold_groups(shared, hosts)
    assert sorted(rank for group in groups for rank in group) == list(range(12))
    assert len({tuple(hosts[rank] for rank in group) for group in groups}) == 1
    assert [min(ranks) for ranks in shared] == sorted(min(ranks) for ranks in shared)
    for place, group in enumerate(groups):
        assert [ranks.index(rank) for ranks, rank in zip(shared, group, strict=True)] == [place] * 4


def test_ranks_of_one_machine_alone_are_not_folded() -> None:
    """The reason names the machine."""
    with pytest.raises(NoTree, match="every rank is on h1"):
        fold_groups(machines(["h1", "h1"]), ["h1", "h1"])


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12).filter(lambda hosts: len(set(hosts)) > 1))
def test_machines_of_unlike_numbers_of_ranks_have_as_many_groups_as_the_least(hosts: list[str]) -> None:
    """Each group has one rank of each machine, the first ranks of each are in one, and no rank is in two."""
    shared = machines(hosts)
    groups = fold_groups(shared, hosts)
    assert len(groups) == min(map(len, shared))
    for place, group in enumerate(groups):
        assert group == [ranks[place] for ranks in shared]


@given(st.integers(1, 5), st.integers(2, 4), st.integers(0, 2**32))
def test_connections_and_source_ports_tell_the_ranks_of_a_machine_apart(members: int, hosts: int, seed: int) -> None:
    """Nothing is given twice: no connection, and of a host no source port."""
    fabric = leafspine(2, 2, hosts)
    names = [host.name for host in fabric.hosts]
    allocator = Allocator([s.name for s in fabric.switches], slots.sizes_of("softswitch", 1024), random.Random(seed))
    by_rank = [name for name in names for _ in range(members)]
    groups = fold_groups(machines(by_rank), by_rank)
    streams = allocator.admit(trees.plan(fabric.graph(), names), groups)
    assert [stream.ranks for stream in streams] == [tuple(group) for group in groups for _ in range(4)]
    ports = [[port for s in streams for port in s.source_ports[host:host + 1]] for host in range(len(names))]
    for of_host in ports:
        assert all(0xC000 <= port < roce.PATH_PORT for port in of_host)
        assert of_host[::2] == of_host[1::2], "both streams of a tree have the same"
        assert len(set(of_host)) == len(of_host) // 2
    numbers = [n for s in streams for n in (*s.connections, *s.up.values(), *s.down.values())]
    assert len(set(numbers)) == len(numbers)
    keys = [
        (switch, entity.identity)
        for stream in streams
        for switch, entities in fold_tables.fold_entries(fabric, list(map(fabric.host, by_rank)), stream).items()
        for entity in entities
    ]
    assert len(set(keys)) == len(keys)
    most = max(allocator.used().values())
    assert most <= allocator.sizes.quota


def test_the_ranks_of_a_machine_share_its_window() -> None:
    """The bytes in flight on a machine's link do not grow with the number of its ranks, down to the least ranges."""
    sizes = Sizes(data=64, agreement=16, together=128)
    assert [sizes.fitted(2 * n).data for n in (1, 2, 3, 4, 8)] == [64, 32, 16, 16, 16]


def test_a_stall_names_ranks_of_the_job_not_of_their_group() -> None:
    """Ranks 1, 3, 5 fold together: where the second of them is missing, it is rank 3 that is named."""
    fabric = leafspine(2, 1, 3)
    names = [host.name for host in fabric.hosts]
    hosts = [name for name in names for _ in range(2)]
    allocator = Allocator([s.name for s in fabric.switches], slots.sizes_of("bmv2", 1024), random.Random(3))
    groups = fold_groups(machines(hosts), hosts)
    streams = allocator.admit(trees.plan(fabric.graph(), names), groups)
    second = next(stream for stream in streams if stream.ranks == (1, 3, 5))
    report = stall.report("j", 7, streams, hosts, fold(second, second.psn, {0, 2}))
    assert report.missing == [3]
    assert "rank 3 (h2)" in str(report)


def joined(r: Rig, hosts: list[int]) -> asyncio.Future[list[Plan]]:
    """Ranks on these hosts, all at once."""
    world = len(hosts)
    joins = [r.join(rank, world, address=r.fabric.hosts[host].address) for rank, host in enumerate(hosts)]
    return asyncio.gather(*(r.call("Join", join) for join in joins))


async def test_ranks_of_one_address_get_trees_of_their_own(tmp_path: Path) -> None:
    """Each place of the machines is a ring of its own over the same switches; no two ranks share a number."""
    async with rig(tmp_path) as r:
        plans = await joined(r, [0, 0, 1, 1, 2, 2])
        assert {tuple(map(tuple, plan.machines)) for plan in plans} == {((0, 1), (2, 3), (4, 5))}
        for rank, plan in enumerate(plans):
            after = plans[(rank + 2) % 6]
            assert [tree.name for tree in plan.trees] == ["spine1", "spine2"]
            for mine, theirs in zip(plan.trees, after.trees, strict=True):
                assert (mine.data.peer_qp, mine.agreement.peer_qp) == (theirs.data.qp, theirs.agreement.qp)
                assert mine.data.peer == r.fabric.hosts[(rank // 2 + 1) % 3].address
                assert mine.data.slots == 256
        streams: list[RankStream] = [
            s for plan in plans for tree in plan.trees for s in (tree.data, tree.agreement)
        ]
        assert len({stream.qp for stream in streams}) == len(streams)
        for plan in plans:
            await r.leave(plan)
        assert r.base_only()
        assert set(r.controller.allocator.used().values()) == {0}


async def test_ranks_beyond_the_least_number_of_a_machine_get_no_trees_and_take_part_in_rounds(tmp_path: Path) -> None:
    """Where h1 has three ranks, h2 one and h3 two, the first of each folds; the others' plans say that they fold inside
    their machine, and trees are planned anew once all have stopped, these too."""
    async with rig(tmp_path) as r:
        plans = await joined(r, [0, 1, 0, 2, 0, 2])
        assert [bool(plan.trees) for plan in plans] == [True, True, False, True, False, False]
        assert [plan.inside for plan in plans] == [False, False, True, False, True, True]
        peers = [Peer(peer.rank, peer.address, f"{peer.address}:{7000 + peer.rank}") for peer in plans[0].peers]
        for plan in plans:
            check_plan(structs.replace(plan, peers=peers))
        watcher = await r.watch(plans[2])
        lose(r, "spine1")
        await watcher.next()
        stopped = [asyncio.create_task(r.call("Resume", resume(plan))) for plan in plans if not plan.inside]
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and len(job.round.resumes) == 3)
        assert not any(task.done() for task in stopped)
        after = await asyncio.gather(*stopped, *(r.call("Resume", resume(plan)) for plan in plans if plan.inside))
        assert [plan.inside for plan in after] == [False] * 3 + [True] * 3
        assert all(plan.round == 1 and not plan.stand_in for plan in after)
        for plan in after:
            await r.leave(plan)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})


async def test_ranks_inside_a_machine_hear_that_their_job_went_over_to_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their plans name who stands in, and the last operation that folds, as those of the ranks that fold do."""
    monkeypatch.setattr(recovery, "FALLBACK_WAIT", 0.01)
    async with rig(tmp_path) as r:
        plans = await joined(r, [0, 2, 0])
        watcher = await r.watch(plans[0])
        for switch in r.switches.values():
            switch.refuse = lambda update: update.verb == "insert"
        lose(r, "spine1")
        await watcher.next()
        after = await asyncio.gather(*(
            r.call("Resume", resume(plan, begun=plan.rank, stand_in=f"10.0.0.1:{7000 + plan.rank}"))
            for plan in plans
        ))
        assert {(plan.stand_in, plan.folds_until) for plan in after} == {("10.0.0.1:7000", 2)}

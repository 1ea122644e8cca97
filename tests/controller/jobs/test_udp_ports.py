# SPDX-License-Identifier: Apache-2.0
"""UDP ports of ranks through the controller: from joins into plans and entries, and what becomes of a job whose ranks
cannot use its trees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.graph import ip_number
from netfold.wire import roce
from netfold.wire.jobs import AllOpened, Opened, Reform, Reformed, Watch
from netfold.wire.plan import Plan
from support.control.controller import until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import lose, resume

PORTS = [roce.UDP_PORT, roce.UDP_PORTS[0], roce.UDP_PORTS[7], roce.UDP_PORTS[-1]]


async def joined(r: Rig) -> list[Plan]:
    """Four ranks, each at its own one of PORTS."""
    return list(await asyncio.gather(*(r.call("Join", r.join(rank, 4, udp_port=PORTS[rank])) for rank in range(4))))


def told(plans: list[Plan]) -> set[tuple[int, ...]]:
    """For each stream of each rank: the port to which contributions go, less the next rank's; and the peers' ports."""
    return {(*(stream.peer_port - PORTS[(plan.rank + 1) % 4] for tree in plan.trees
               for stream in (tree.data, tree.agreement)), *(peer.udp_port for peer in plan.peers)) for plan in plans}


def written(r: Rig) -> set[int]:
    """UDP destination ports of what switches send to ranks."""
    hosts = {ip_number(host.address) for host in r.fabric.hosts}
    entries = [entry for switch in r.switches.values() for entry in switch.state.values() if isinstance(entry, Entry)]
    params = [dict(entry.params) for entry in entries if entry.action == tables.REWRITE]
    assert {one["dport"] for one in params if one["dst"] not in hosts} <= {roce.UDP_PORT}, "between switches"
    return {one["dport"] for one in params if one["dst"] in hosts}


async def test_ranks_keep_their_ports_through_all_that_befalls_a_job(tmp_path: Path) -> None:
    """They are in the first plan, in one over other trees, and in that of the next incarnation, and on the switches."""
    async with rig(tmp_path) as r:
        plans = await joined(r)
        trees = 2 * len(plans[0].trees)
        assert told(plans) == {(*[0] * trees, *PORTS)}
        assert written(r) == set(PORTS)
        watchers = [await r.watch(plan) for plan in plans]
        lose(r, "spine1")
        await watchers[0].next()
        after = list(await asyncio.gather(*(r.call("Resume", resume(plan)) for plan in plans)))
        assert after[0].round == 1
        assert told(after) == {(*[0] * 2 * len(after[0].trees), *PORTS)}
        reform = [Reform("j", p.rank, p.epoch, "10.0.0.1:1", 0, secret=p.rank_secret) for p in plans[1:]]
        watchers[0].die()
        answers = await asyncio.gather(*(r.call("Reform", one, Reformed) for one in reform))
        left = [answer.plan for answer in answers]
        assert [peer.udp_port for peer in left[0].peers] == PORTS[1:]
        assert [plan.trees[0].data.peer_port for plan in left] == [PORTS[2], PORTS[3], PORTS[1]]
        await until(lambda: written(r) == set(PORTS[1:]))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"udp_port": 0}, "4791, or 18432..19455"), ({"udp_port": 4792}, "4791, or 18432..19455"),
        ({"udp_port": roce.UDP_PORTS[-1] + 1}, "4791, or 18432..19455"), ({"udp_port": -1}, "4791, or 18432..19455"),
        ({"udp_port": roce.UDP_PORTS[0], "kind": "rc"}, "expected 4791, where"),
    ],
)
async def test_ports_that_are_not_rocev2s_are_refused(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    """Switches parse nothing else as RoCEv2, and a NIC has one port: others are refused at the border, by name."""
    async with rig(tmp_path) as r:
        code, words = await r.refusal(r.join(0, **changes))
        assert code is Code.INVALID_ARGUMENT
        assert "rank 0: udp_port: expected" in words
        assert expected in words


async def test_a_rank_that_lacks_something_keeps_all_from_folding(tmp_path: Path) -> None:
    """Every rank gets a plan without trees at once, with its address and what it lacks."""
    async with rig(tmp_path) as r:
        plans = await asyncio.gather(
            r.call("Join", r.join(0)), r.call("Join", r.join(1, lacks="no UDP port of 10.0.2.1 is free")),
        )
        address = r.fabric.hosts[1].address
        reason = f"rank 1 at {address} cannot fold: no UDP port of 10.0.2.1 is free"
        assert [(plan.trees, plan.reason) for plan in plans] == [([], reason)] * 2
        assert set(r.controller.allocator.used().values()) == {0}


async def test_of_many_ranks_that_lack_something_the_first_are_named_briefly(tmp_path: Path) -> None:
    """All ranks are told of each of them: at thousands of ranks their words would fill the controller's memory."""
    async with rig(tmp_path) as r:
        plans = await asyncio.gather(*(r.call("Join", r.join(rank, 20, lacks="x" * 4096)) for rank in range(20)))
        reason = "; ".join(f"rank {rank} at {plans[0].peers[rank].address} cannot fold: {'x' * 200}..."
                           for rank in range(8))
        assert [plan.reason for plan in plans] == [reason] * 20


def opened(plan: Plan, lacks: str = "", timeout: float = 30.0) -> Opened:
    """A rank's word that it has opened what it folds with, or what it lacks."""
    return Opened(plan.job, plan.rank, plan.epoch, lacks, timeout, plan.rank_secret)


async def test_trees_that_one_rank_cannot_use_are_taken_off_the_switches(tmp_path: Path) -> None:
    """Once all ranks have said whether they can: entries, slots and source ports are free, all hear the reason, and
    their new tickets let them go on under the next controller as a job without trees."""
    async with rig(tmp_path) as r:
        plans = await joined(r)
        watchers = [await r.watch(plan) for plan in plans]
        some = [asyncio.create_task(r.call("Opened", opened(plan), AllOpened)) for plan in plans[:3]]
        await until(lambda: len(r.controller.jobs.all()[0].opened) == 3)
        assert written(r), "one rank has not said so"
        answers = [await r.call("Opened", opened(plans[3], "a port"), AllOpened), *await asyncio.gather(*some)]
        await until(lambda: not written(r))
        assert set(r.controller.allocator.used().values()) == {0}
        assert not r.controller.allocator.bound
        status = (await r.controller.status()).jobs[0]
        assert (status.state, status.trees, status.reason) == ("active", [], "rank 3 cannot fold: a port")
        assert [answer.lacking for answer in answers] == [{3: "a port"}] * 4
        tickets = {answer.ticket.value for answer in answers}
        assert len(tickets) == 1
        assert tickets != {plans[0].ticket.value}
        key = r.controller.jobs.registry.key
        record = r.controller.adoption.record(
            Watch("j", 0, plans[0].epoch, plans[0].rank_secret, answers[0].ticket), key)
        assert record.streams == []
        assert await r.call("Opened", opened(plans[0]), AllOpened) == answers[0], "again, since the answer was lost"
        for watcher in watchers:
            watcher.die()


async def test_ranks_that_can_all_fold_are_answered_together(tmp_path: Path) -> None:
    """A rank alone waits for the others, and is told which of them have not said so; who does not know its secret is
    refused.  A rank that dies is waited for no more."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        code, words = await r.refusal(opened(plans[0], timeout=0.1), "Opened")
        assert code is Code.DEADLINE_EXCEEDED
        assert "rank 0: waited 0.1 s, and the ranks 1 have not said" in words
        forged = structs.replace(opened(plans[1]), secret=plans[0].rank_secret)
        assert (await r.refusal(forged, "Opened"))[0] is Code.PERMISSION_DENIED
        watcher = await r.watch(plans[1])
        waits = asyncio.create_task(r.call("Opened", opened(plans[0]), AllOpened))
        watcher.die()
        assert await waits == AllOpened()
        assert r.controller.jobs.all()[0].streams

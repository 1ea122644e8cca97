# SPDX-License-Identifier: Apache-2.0
"""Switches and links taken out of use by choice: everything leaves them, nobody is cut off, and it can be undone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller import client
from netfold.controller.health.drains import Drains, UnknownName
from netfold.controller.paths.steering import Steering
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.generate import leafspine, threetier
from netfold.fabric.graph import FabricError
from netfold.fabric.routing import routes
from netfold.rpc import rpc
from netfold.wire.jobs import Halt
from netfold.wire.operator import Drained
from support.control import ways
from support.control.controller import BOUND, until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import all_resume, connections, lose

pytestmark = pytest.mark.usefixtures("quick_sessions")


def drain(r: Rig, name: str, *, wait: float = BOUND) -> asyncio.Task[Drained]:
    """An operator's `netfold drain`, under way."""
    return asyncio.create_task(client.drain(r.fabric.jobs, name, True, wait=wait))


async def undrain(r: Rig, name: str) -> None:
    """Undrain a switch or link as `netfold undrain` does."""
    assert (await client.drain(r.fabric.jobs, name, False)).still == []


@pytest.mark.parametrize(("name", "why"), [("spine1", "spine1 is drained"), ("spine1:2", "leaf2:3 is drained")])
async def test_a_running_job_moves_away_and_back(tmp_path: Path, name: str, why: str) -> None:
    """Its entries are written before anybody halts, whoever drained hears when it is done, and nothing is left there;
    undrained, it is used again at once."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        before = connections(r, "spine1")
        asked = drain(r, name)
        assert await watcher.next() == Halt(1, why)
        assert len(connections(r, "spine2")) == 2 * len(before), "the tree that moves is there already"
        assert not asked.done()
        after = await all_resume(r, plans)
        assert [tree.name for tree in after[0].trees] == ["spine2", "spine2"]
        done = await asked
        assert (done.name, done.still) == (why.split()[0], [])
        await until(lambda: connections(r, "spine1") == set())
        await undrain(r, name)
        assert await watcher.next() == Halt(2, "spine1 is back")
        assert sorted(tree.name for tree in (await all_resume(r, after))[0].trees) == ["spine1", "spine2"]


async def test_new_jobs_and_the_status_know_of_it(tmp_path: Path) -> None:
    """Trees of jobs that join afterwards avoid it, and `netfold status` says so of the switch and its links."""
    async with rig(tmp_path) as r:
        assert (await drain(r, "spine2")).names == ["spine2"]
        plans = await r.together(4)
        assert [tree.name for tree in plans[0].trees] == ["spine1"]
        status = await client.status(r.fabric.jobs)
        assert [s.name for s in status.switches if s.drained] == ["spine2"]
        assert [link.b for link in status.links if link.drained] == ["spine2:1", "spine2:2"]
        assert all(s.up for s in status.switches)


async def test_where_there_is_no_room_a_job_stays_and_the_operator_hears_why(tmp_path: Path) -> None:
    """Nobody halts for nothing; once there is room, the job moves by itself."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        admit = r.controller.allocator.admit
        r.controller.allocator.admit = lambda *_, **__: (_ for _ in ()).throw(Exhausted("spine2 is full"))  # type: ignore[method-assign]
        moves = drain(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: bool(job.stay_reason))
        done = await drain(r, "spine1", wait=0.05)
        (line,) = done.still
        assert "job 'j': spine1 is drained, and its trees stay where they are: spine2 is full" in line
        assert "spine2 is full" in (await client.status(r.fabric.jobs)).jobs[0].stays
        r.controller.allocator.admit = admit  # type: ignore[method-assign]
        await r.controller.replan()
        assert await watcher.next() == Halt(1, "spine1 is drained")
        assert [tree.name for tree in (await all_resume(r, plans))[0].trees] == ["spine2", "spine2"]
        assert (await client.status(r.fabric.jobs)).jobs[0].stays == ""
        assert (await moves).still == []


async def test_what_is_drained_while_all_stand_still_is_left_afterwards(tmp_path: Path) -> None:
    """A round that had its trees already is followed by another one."""
    async with rig(tmp_path, steady=0.0) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        r.switches["spine1"].break_session()
        event = await watcher.next()
        assert isinstance(event, Halt)
        await until(lambda: r.controller.targets["spine1"].is_up)
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None and bool(job.round.leftovers))
        asked = drain(r, "spine1")
        await until(lambda: "spine1" in r.controller.drains)
        plans = await all_resume(r, plans)
        while {tree.name for tree in plans[0].trees} != {"spine2"}:
            assert isinstance(await watcher.next(), Halt)
            plans = await all_resume(r, plans)
        assert (await asked).still == []


async def test_what_is_drained_carries_when_nothing_else_will(tmp_path: Path) -> None:
    """The other spine dies: the job goes on over the drained one rather than stand still, and leaves it as soon as the
    other is back."""
    async with rig(tmp_path, steady=0.0) as r:
        await drain(r, "spine1")
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine2")
        assert await watcher.next() == Halt(1, "spine2 is down")
        plans = await all_resume(r, plans)
        assert [tree.name for tree in plans[0].trees] == ["spine1"]
        r.switches["spine2"].unreachable = False
        assert await watcher.next() == Halt(2, "spine1 is drained")
        assert [tree.name for tree in (await all_resume(r, plans))[0].trees] == ["spine2"]


async def test_a_leaf_with_ranks_is_not_drained_and_one_without_takes_none(tmp_path: Path) -> None:
    """The refusal says who is there; afterwards a rank that comes is told that the leaf is drained."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        with pytest.raises(rpc.CallRefused, match="leaf1 is the only switch of job 'j', rank 0 on h1, job 'j', "
                                                 "rank 1 on h2: stop those jobs"):
            await drain(r, "leaf1")
        assert (await drain(r, "leaf2")).still == []
        code, words = await r.refusal(r.join(2, 4, job="late"))
        assert (code, "h3 is at leaf2, which is drained" in words) == (Code.FAILED_PRECONDITION, True)
        assert [s.up for s in (await client.status(r.fabric.jobs)).switches] == [True] * 4
        await undrain(r, "leaf2")
        for plan in plans:
            await r.leave(plan)
        assert len(await r.together(4)) == 4


@pytest.mark.parametrize(("first", "second", "says"), [
    ("spine1", "spine2", r"without spine2, job 'j', rank 2 on h3, job 'j', rank 3 on h4 would be cut off. Drained so "
                         r"far: spine1"),
    ("leaf1:3", "spine2", "would be cut off"),
    (None, "leaf1:1", "leaf1:1 is the only link of the host h1"),
    (None, "spine9", "no switch and no link 'spine9'"),
    (None, "leaf1:77", "no switch and no link 'leaf1:77'"),
])
async def test_what_cannot_be_drained_is_refused(tmp_path: Path, first: str | None, second: str, says: str) -> None:
    """The operator gets the reason, and what was drained before stays drained."""
    async with rig(tmp_path) as r:
        if first is not None:
            await drain(r, first)
        await r.together(4)
        before = r.controller.drains.names
        with pytest.raises(rpc.CallRefused, match=says):
            await drain(r, second)
        assert r.controller.drains.names == before


async def test_a_controller_that_starts_anew_keeps_to_it(tmp_path: Path) -> None:
    """Drained parts are in the fabric's state file, and are drained before anything is planned."""
    state = str(tmp_path / "lab.state")
    async with rig(tmp_path, state=state) as r:
        await drain(r, "spine1")
        await drain(r, "spine1:2")
        await undrain(r, "leaf2:3")
    async with rig(tmp_path, state=state) as r:
        assert r.controller.drains.names == ["spine1"]
        assert [tree.name for tree in (await r.together(4))[0].trees] == ["spine2"]


@pytest.mark.parametrize(("content", "says"), [
    ('{"drained": ["spine9"]}', "lab.state: drained: .* no switch and no link 'spine9'"),
    ('{"drained": 3}', "cannot read .*lab.state: Expected `array`"),
    ('{"drai', "remove it to start with nothing drained"),
])
async def test_a_state_file_that_makes_no_sense_stops_the_start(tmp_path: Path, content: str, says: str) -> None:
    """The controller names the file and what is wrong in it; it does not start and use what was drained."""
    (tmp_path / "lab.state").write_text(content)
    with pytest.raises(FabricError, match=says):
        async with rig(tmp_path, state=str(tmp_path / "lab.state")):
            pass


async def test_what_cannot_be_kept_is_not_begun(tmp_path: Path) -> None:
    """The operator hears why, and nothing is drained."""
    async with rig(tmp_path, state=str(tmp_path / "nowhere" / "lab.state")) as r:
        with pytest.raises(rpc.CallRefused, match=r"cannot write .*lab\.state"):
            await drain(r, "spine1")
        assert r.controller.drains.names == []


def test_a_drained_switch_still_delivers_what_arrives_there() -> None:
    """Everybody else's routes avoid it; its own stay, straight to the leaves."""
    fabric = leafspine(3, 3, 3)
    steering = Steering(fabric)
    steering.drains.mark("spine2", True)
    found = ways.routes(steering, fabric.graph())
    before = {(route.switch, route.host): route.hops for route in routes.plan(fabric.graph())}
    assert found.keys() == before.keys()
    assert all(found["spine2", host] == before["spine2", host] for host in ("h1", "h2", "h3"))
    assert "spine2" not in {hop.node for hops in found.values() for hop in hops}


@given(st.data())
def test_drains_cut_nobody_off(data: st.DataObject) -> None:
    """Whatever is drained and down, hosts that reach each other over what is up do so over what is to be used; and
    where that is possible without what is drained, nothing of it is used."""
    fabric = data.draw(st.sampled_from([leafspine(2, 3, 4), leafspine(3, 2, 6), threetier(2, 2, 2, 2, 8)]))
    drains = Drains(fabric)
    ends = [link.b for link in fabric.links if not link.b.startswith("h")]
    for name in data.draw(st.lists(st.sampled_from([*ends, *(s.name for s in fabric.switches)]), unique=True)):
        drains.mark(drains.canonical(name), True)
    graph = fabric.graph()
    numbers = st.integers(0, len(fabric.links) - 1)
    dead = data.draw(st.sets(numbers, max_size=4))
    graph.remove_edges_from([edge for edge in graph.edges(keys=True) if edge[2] in dead])
    left = drains.left(graph)
    assert drains.cut_off(graph, left) == []
    used = {number for *_, number in left.edges(keys=True)} & drains.links
    assert not used or drains.cut_off(graph, drains.without(graph))


def test_the_smaller_part_of_the_hosts_is_what_is_cut_off() -> None:
    """A drain that would cut the fabric in two names the part with fewer hosts."""
    fabric = leafspine(2, 1, 3)
    graph, drains = fabric.graph(), Drains(fabric)
    smaller = min((drains.hosts_of(leaf) for leaf in ("leaf1", "leaf2")), key=len)
    assert len(smaller) == 1
    assert drains.cut_off(graph, drains.without(graph, "spine1")) == smaller


def test_names_of_links_are_those_of_either_end() -> None:
    """Either end of a link gives the name of its first end; an unknown name is refused, with what is expected."""
    drains = Drains(leafspine(2, 2, 4))
    assert drains.canonical("spine1:1") == drains.canonical("leaf1:3") == "leaf1:3"
    with pytest.raises(UnknownName, match="expected the name of a switch, or SWITCH:PORT"):
        drains.canonical("h1")

# SPDX-License-Identifier: Apache-2.0
"""The path service: what ranks are told, when they are told anew, and what operators can change."""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.paths import path_service
from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.generate import leafspine, threetier
from netfold.fabric.routing import collectives
from netfold.host.client.jobs import JobClient
from netfold.host.client.path_client import ALL_TO_ALL, PlannedPaths
from netfold.rpc import rpc
from netfold.wire import roce
from netfold.wire.paths import SERVICE, Follow, Noted, PathFlow, Paths, Suspect, tcp_ports
from netfold.wire.plan import Plan
from support.control.cables import Cables
from support.control.controller import until
from support.control.jobs import Rig, rig
from support.control.ways import next_ports

SPINE1, SPINE2 = (roce.PATH_PORT + number for number in (1, 2))
WAIT = 30.0


class Follower:
    """A rank that follows the plans of paths which the controller streams to it."""

    def __init__(self, r: Rig, request: Follow) -> None:
        method = r.channel.unary_stream(f"/{SERVICE}/Follow", bytes, bytes)
        self._answers = method(msgspec.json.encode(request)).__aiter__()

    async def next(self) -> Paths:
        """The next plan; fails where none comes."""
        async with asyncio.timeout(WAIT):
            return msgspec.json.decode(await self._answers.__anext__(), type=Paths)


def flows_of(collective: str) -> list[list[PathFlow]]:
    """The flows of a collective of four ranks, step by step."""
    return [[PathFlow(a, b, size) for (a, b), size in step.items()] for step in collectives.steps(collective, 4)]


def steps_of(plan: Plan, steps: list[list[PathFlow]], scope: str) -> list[list[PathFlow]]:
    """The flows that a rank sends along with its request: its own, or with scope "leaf" all of them."""
    return [[f for f in step if scope == "leaf" or f.source == plan.rank] for step in steps]


@asynccontextmanager
async def following(folder: Path, steps: list[list[PathFlow]], scope: str = "leaf") -> AsyncIterator[
        tuple[Rig, list[Plan], list[Follower]]]:
    """Four ranks, h1 and h2 under leaf1, h3 and h4 under leaf2, that follow their flows."""
    async with rig(folder) as r:
        plans = await r.together(4)
        yield r, plans, [
            Follower(r, Follow(p.job, p.rank, p.epoch, steps_of(p, steps, scope), scope,  # type: ignore[arg-type]
                               secret=p.rank_secret)) for p in plans
        ]


async def operate(r: Rig, method: str, request: msgspec.Struct) -> path_service.Table:
    """Call the operator service, as a command does."""
    where = f"{path_service.OPERATOR}/{method}"
    return await rpc.call(r.fabric.jobs, where, request, path_service.Table, WAIT)


def loads(paths: list[Paths]) -> dict[tuple[int, int], int]:
    """Bytes by source leaf's first rank and source port."""
    total: dict[tuple[int, int], int] = {}
    for rank, plan in enumerate(paths):
        for piece in plan.pieces:
            key = (rank // 2 * 2, piece.source_port)
            total[key] = total.get(key, 0) + piece.size
    return total


@pytest.mark.parametrize("scope", ["leaf", "host"])
async def test_flows_of_a_step_fill_all_uplinks_evenly(tmp_path: Path, scope: str) -> None:
    """All-to-all of four ranks: each leaf's two uplinks carry the same, every flow is whole, and none stays inside."""
    async with following(tmp_path, flows_of("all_to_all"), scope) as (_, _, followers):
        paths = [await follower.next() for follower in followers]
        assert all(plan.ports == [SPINE1, SPINE2] for plan in paths)
        assert loads(paths) == {(leaf, port): 2 * collectives.UNIT for leaf in (0, 2) for port in (SPINE1, SPINE2)}
        for rank, plan in enumerate(paths):
            others = {2, 3} if rank < 2 else {0, 1}
            assert {piece.peer for piece in plan.pieces} == others
            for peer in others:
                assert sum(piece.size for piece in plan.pieces if piece.peer == peer) == collectives.UNIT
            assert {reach.peer: reach.source_ports for reach in plan.reaches} == {
                peer: [SPINE1, SPINE2] if peer in others else [] for peer in range(4) if peer != rank}


async def test_a_lone_flow_is_cut_over_all_uplinks(tmp_path: Path) -> None:
    """A ring has one flow from leaf to leaf: two pieces, back to back."""
    async with following(tmp_path, flows_of("ring")) as (_, _, followers):
        paths = [await follower.next() for follower in followers]
        half = collectives.UNIT // 2
        assert [(p.peer, p.offset, p.size) for p in paths[1].pieces] == [(2, 0, half), (2, half, half)]
        assert {p.source_port for p in paths[1].pieces} == {SPINE1, SPINE2}
        assert not paths[0].pieces


@pytest.mark.parametrize("scope", ["leaf", "host"])
async def test_a_collective_may_be_named_instead_of_its_flows(tmp_path: Path, scope: str) -> None:
    """The same plan; and a group's ring, in its own order, is planned for its ranks alone."""
    async with following(tmp_path, flows_of("all_to_all"), scope) as (r, plans, followers):
        for plan, follower in zip(plans, followers, strict=True):
            def named(name: str, ranks: list[int], plan: Plan = plan) -> Follow:
                return Follow(plan.job, plan.rank, plan.epoch, collective=name, ranks=ranks,
                              scope=scope, secret=plan.rank_secret)  # type: ignore[arg-type]

            told = await follower.next()
            assert (await Follower(r, named("all_to_all", [])).next()).pieces == told.pieces
            assert (await Follower(r, named("somebody's own", [])).next()).pieces == told.pieces
            if plan.rank in (0, 3):
                ring = await Follower(r, named("ring", [3, 0])).next()
                assert {piece.peer for piece in ring.pieces} == {3 - plan.rank}


async def test_a_suspicion_moves_everybody_and_the_switches(tmp_path: Path) -> None:
    """One rank blames spine1 for leaf2: its neighbour gets new paths as well, and leaf1's routes for what no pin is for
    leave it; a pin goes on leading where it led, and what leaf2's ranks send stays as it was."""
    async with following(tmp_path, flows_of("all_to_all")) as (r, plans, followers):
        for follower in followers:
            await follower.next()
        me = plans[0]
        noted = msgspec.json.decode(await r.channel.unary_unary(f"/{SERVICE}/Suspect", bytes, bytes)(
            msgspec.json.encode(Suspect(me.job, 0, me.epoch, 2, SPINE1, me.rank_secret))), type=Noted)
        assert noted == Noted("leaf1:3")
        for follower in followers[:2]:
            paths = await follower.next()
            assert {piece.source_port for piece in paths.pieces} == {SPINE2}
            assert [reach.source_ports for reach in paths.reaches][1:] == [[SPINE2], [SPINE2]]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await followers[2].next()
        bent = [e for e in r.switches["leaf1"].state.values() if isinstance(e, Entry) and e.table == tables.BENT]
        assert [(dict(e.key)["path"], e.params) for e in bent] == [(1, (("roce", 3), ("connection", 4)))], (
            "a queue pair's port keeps its path, TCP's do not")
        assert next_ports(r.switches["leaf1"].state, r.fabric.hosts[2].address) == {4}, "one way is left"
        table = await operate(r, "Table", path_service.AskTable())
        assert [link.suspect_for for link in table.uplinks] == [["leaf2"], [], [], []]


async def test_a_suspicion_that_probes_contradict_is_lifted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path is given back as soon as all of its links answer.  If a rank blames it again, it stays barred, since
    probes may get through where packets do not.  Where the other path is blamed as well, and no probe gets through
    that one, ranks take it."""
    for module in ("steering", "path_service"):
        monkeypatch.setattr(f"netfold.controller.paths.{module}.SUSPECT_SECONDS", 600.0)  # it does not end by itself
    async with following(tmp_path, flows_of("all_to_all")) as (r, plans, followers):
        async def blame(port: int = SPINE1) -> None:
            await r.channel.unary_unary(f"/{SERVICE}/Suspect", bytes, bytes)(
                msgspec.json.encode(Suspect("j", 0, plans[0].epoch, 2, port, plans[0].rank_secret)))

        cables = Cables(r.fabric, r.switches)
        path, other = (r.controller.steering.path("h1", "h3", port) for port in (SPINE1, SPINE2))
        assert path is not None
        assert other is not None
        cables.cut.add(path[1].link)
        first = await followers[0].next()
        await blame()
        assert {piece.source_port for piece in (await followers[0].next()).pieces} == {SPINE2}
        cables.cut.clear()
        assert (await followers[0].next()).pieces == first.pieces
        assert r.controller.steering.suspects() == frozenset()
        await blame()
        assert {piece.source_port for piece in (await followers[0].next()).pieces} == {SPINE2}
        cables.cut.add(other[1].link)
        await blame(SPINE2)
        while {piece.source_port for piece in (await followers[0].next()).pieces} != {SPINE1}:
            pass


async def test_a_suspicion_stands_where_a_link_of_the_path_swallows(tmp_path: Path) -> None:
    """The uplink answers, the spine's other link does not; nobody is found down by the question."""
    async with following(tmp_path, flows_of("all_to_all")) as (r, _, _):
        cables = Cables(r.fabric, r.switches)
        path = r.controller.steering.path("h1", "h3", SPINE1)
        assert path is not None
        cables.cut.add(path[1].link)
        links = [hop.link for hop in path]
        assert await r.controller.liveness.links_respond(links[:1], WAIT)
        assert not await r.controller.liveness.links_respond(links, 0.0)
        assert not await r.controller.liveness.links_respond(links, 0.1)
        assert r.controller.liveness.links_down() == {}


async def test_each_end_of_a_suspicion_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One path is suspected all the time, another one again and again: the plans do not grow more with that."""
    now, replans = 0.0, 0
    sleeps: list[tuple[float, asyncio.Future[None]]] = []

    async def sleep(seconds: float) -> None:
        sleeps.append((now + seconds, asyncio.get_running_loop().create_future()))
        await sleeps[-1][1]

    async def replan() -> None:
        nonlocal replans
        replans += 1

    async def silent(*_: object) -> bool:
        return False

    async with rig(tmp_path) as r:
        plan = (await r.together(4))[0]
        service = r.controller.paths
        monkeypatch.setattr(r.controller.steering, "clock", lambda: now)
        for name, stand_in in {"sleep": sleep, "replan": replan, "links_respond": silent}.items():
            monkeypatch.setattr(service, name, stand_in)
        for second in range(120):
            for port in [SPINE1] if second % 6 else [SPINE1, SPINE2]:
                await service.suspect(Suspect(plan.job, 0, plan.epoch, 2, port, plan.rank_secret))
            now += 1
            for due in [sleeping for sleeping in sleeps if sleeping[0] <= now]:
                sleeps.remove(due)
                due[1].set_result(None)
            while not sleeps:
                await asyncio.sleep(0)
            assert len(sleeps) == 1
        assert 40 <= replans <= 80, "of 20 new suspicions, and of some 40 ends"
        now += 10
        sleeps.pop()[1].set_result(None)
        (ending,) = (task for task in asyncio.all_tasks() if task.get_name() == "suspicions end")
        await asyncio.wait_for(asyncio.shield(ending), WAIT)
        assert not r.controller.steering.suspects()


async def test_a_path_that_is_suspected_anew_is_probed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes that are under way are those of all suspicions of a path; those that have ended of none to come."""
    asked: list[asyncio.Future[bool]] = []

    async def probed(*_: object) -> bool:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    async with rig(tmp_path) as r:
        plan = (await r.together(4))[0]
        service = r.controller.paths
        monkeypatch.setattr(service, "links_respond", probed)
        for rounds in (1, 2):
            for _ in range(3):
                await service.suspect(Suspect(plan.job, 0, plan.epoch, 2, SPINE1, plan.rank_secret))
            await until(lambda rounds=rounds: len(asked) == rounds)  # type: ignore[misc]
            asked[-1].set_result(False)
            for _ in range(5):
                await asyncio.sleep(0)


async def test_the_page_shows_paths_of_flows_while_their_ranks_follow_alone(tmp_path: Path) -> None:
    """A rank's flows are shown from its first plan to the end of its stream."""
    async with rig(tmp_path) as r:
        plan = (await r.together(4))[0]
        steps = steps_of(plan, flows_of("all_to_all"), "host")
        answers = r.controller.paths.follow(Follow(plan.job, 0, plan.epoch, steps, "host", secret=plan.rank_secret))
        told = await anext(answers)
        assert len(r.controller.paths.pinned()) == len(told.pieces) > 0
        await answers.aclose()
        assert r.controller.paths.pinned() == []


async def test_a_rank_hears_in_the_middle_of_a_collective_what_others_blame(tmp_path: Path) -> None:
    """Its file descriptor becomes readable, the path is gone from its reaches, once; the next collective adopts it."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)

        def rank0(suspected: threading.Event) -> None:
            client = JobClient(r.fabric.jobs)
            planned = PlannedPaths(client, plans[0])
            try:
                first = planned.changed(ALL_TO_ALL)
                assert first is not None
                assert planned.newer() is None
                suspected.set()
                newer = None
                while newer is None:
                    assert select.select([planned.changed_fd], [], [], WAIT)[0], "no news"
                    newer = planned.newer()
                assert {tuple(reach.source_ports) for reach in newer.reaches} == {(), (SPINE2,)}
                assert planned.newer() is None
                assert not select.select([planned.changed_fd], [], [], 0)[0]
                assert planned.changed(ALL_TO_ALL) == newer
            finally:
                planned.close()
                planned.close()
                client.close()

        suspected = threading.Event()
        rank = asyncio.create_task(asyncio.to_thread(rank0, suspected))
        assert await asyncio.to_thread(suspected.wait, WAIT)
        await r.channel.unary_unary(f"/{SERVICE}/Suspect", bytes, bytes)(
            msgspec.json.encode(Suspect("j", 1, plans[1].epoch, 3, SPINE1, plans[1].rank_secret)))
        await rank


async def test_an_operator_chooses_the_planner(tmp_path: Path) -> None:
    """Ranks get the paths that the paper's rule gives at once: of three flows on two paths, one cut in half."""
    flows = [[PathFlow(0, 2, 600), PathFlow(0, 3, 600), PathFlow(1, 2, 600)]]
    async with following(tmp_path, flows) as (r, _, followers):
        def pieces(paths: Paths) -> list[tuple[int, int, int]]:
            return [(piece.peer, piece.offset, piece.size) for piece in paths.pieces]

        assert pieces(await followers[0].next()) == [(2, 0, 600), (3, 0, 300), (3, 300, 300)]
        table = await operate(r, "SetPlanner", path_service.SetPlanner("equal_split"))
        assert table.planner == "equal_split"
        assert pieces(await followers[0].next()) == [(2, 0, 600), (3, 0, 600)]
        table = await operate(r, "SetPlanner", path_service.SetPlanner("fewest_pieces"))
        assert pieces(await followers[0].next()) == [(2, 0, 600), (3, 0, 300), (3, 300, 300)]


async def test_an_operator_changes_modes_drains_and_pins(tmp_path: Path) -> None:
    """Each shows in the table and in the switches, and can be undone."""
    async with rig(tmp_path) as r:
        def policies(switch: str) -> set[str]:
            return {e.action.rpartition(".")[2] for e in r.switches[switch].state.values()
                    if isinstance(e, Entry) and e.table == tables.POLICY}

        table = await operate(r, "SetMode", path_service.SetMode("spray", ["leaf2"]))
        assert [(leaf.name, leaf.mode) for leaf in table.leaves] == [("leaf1", "pinned"), ("leaf2", "spray")]
        assert (policies("leaf1"), policies("leaf2")) == ({"spray"}, set()), "pinned needs no entry"
        table = await operate(r, "SetMode", path_service.SetMode("ecmp"))
        assert (policies("leaf1"), policies("leaf2")) == ({"ecmp"}, {"ecmp"})

        table = await operate(r, "SetPin", path_service.SetPin("leaf1", "leaf2", SPINE1, 4))
        tcp1, tcp2 = (tcp_ports(port)[0] for port in (SPINE1, SPINE2))
        assert [(p.leaf, p.source_port, p.port, p.chosen) for p in table.pins if p.switch == "leaf1"] == [
            ("", SPINE1, 3, False), ("", tcp1, 3, False), ("", SPINE2, 4, False), ("", tcp2, 4, False),
            ("leaf2", SPINE1, 4, True), ("leaf2", tcp1, 3, False)]
        table = await operate(r, "SetPin", path_service.SetPin("leaf1", "leaf2", SPINE1, 0))
        assert not any(pin.chosen for pin in table.pins)

        before = dict(r.switches["leaf1"].state)
        await client.drain(r.fabric.jobs, "spine1:1", True)
        table = await operate(r, "Table", path_service.AskTable())
        assert [link.drained for link in table.uplinks] == [True, False, False, False]
        assert {pin.port for pin in table.pins if pin.switch == "leaf1"} == {4}
        assert [(p.leaf, p.source_port, p.port) for p in table.pins if p.switch == "leaf2" and p.leaf] == [
            ("leaf1", SPINE1, 0), ("leaf1", tcp1, 4)]
        await client.drain(r.fabric.jobs, "leaf1:3", False)
        assert r.switches["leaf1"].state == before


async def test_a_pin_at_a_leaf_of_pods_is_that_of_a_plane(tmp_path: Path) -> None:
    """Set by any path of the plane, by UDP or either TCP port, it shows by the first one's port, the last one set
    holds, and any of them removes it; an aggregation switch tells the paths apart."""
    pods = threetier(2, 2, 2, 4, 8, rundir=tmp_path)
    first, second = SPINE2, SPINE2 + 2
    tcp = tcp_ports(first)[0]
    async with rig(tmp_path, switches=pods.switches, hosts=pods.hosts, links=pods.links) as r:
        async def rows(switch: str, source_port: int, port: int) -> list[tuple[int, int, bool]]:
            table = await operate(r, "SetPin", path_service.SetPin(switch, "leaf3", source_port, port))
            return [(p.source_port, p.port, p.chosen) for p in table.pins if (p.switch, p.leaf) == (switch, "leaf3")]

        assert await rows("leaf1", second, 3) == [(first, 3, True), (tcp, 4, False)]
        assert await rows("leaf1", first, 0) == []
        assert await rows("leaf1", second, 3) == await rows("leaf1", first, 3)
        assert await rows("leaf1", first, 4) == [(first, 4, True), (tcp, 4, False)]
        assert await rows("leaf1", second, 0) == []
        for port in (*tcp_ports(first), *tcp_ports(second)):
            assert await rows("leaf1", port, 3) == [(first, 4, False), (tcp, 3, True)]
            assert await rows("leaf1", tcp, 0) == []
        one, other = SPINE1, SPINE1 + 2
        assert [row for row in await rows("agg1", other, 3) if row[0] in (one, other)] == [(other, 3, True)]


async def test_a_pin_whose_port_has_no_link_left_does_not_show_as_chosen(tmp_path: Path) -> None:
    """Packets leave by another port, which nobody has chosen, until the link is back."""
    wide = leafspine(2, 4, 4, rundir=tmp_path)
    tcp = tcp_ports(SPINE1)[0]
    async with rig(tmp_path, switches=wide.switches, hosts=wide.hosts, links=wide.links) as r:
        def row(table: path_service.Table) -> tuple[int, bool]:
            return next((p.port, p.chosen) for p in table.pins if (p.leaf, p.source_port) == ("leaf2", tcp))

        chosen = await operate(r, "SetPin", path_service.SetPin("leaf1", "leaf2", tcp, 5))
        assert row(chosen) == (5, True)
        for end in ("leaf1:5", "leaf2:3"):
            await client.drain(r.fabric.jobs, end, True)
        assert row(await operate(r, "Table", path_service.AskTable())) == (4, False)
        await client.drain(r.fabric.jobs, "leaf1:5", False)
        assert row(await operate(r, "Table", path_service.AskTable())) == (5, True)


REFUSED = [
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 0, 1)]]), "two different ranks"),
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 9, 1)]]), "below 4"),
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 1, 0)]]), "at least"),
    ("Follow", Follow("j", 0, 0, [[PathFlow(1, 2, 1)]]), 'scope "leaf"'),
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 2, 1)]], scope="auto"), "named collective"),
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 2, 1)]], collective="ring"), "got both"),
    ("Follow", Follow("j", 0, 0, collective="ring", ranks=[1, 2]), "rank 0 among them"),
    ("Follow", Follow("j", 0, 0, collective="ring", ranks=[0, 1, 0]), "different ranks below 4"),
    ("Follow", Follow("j", 0, 0, collective="chain", ranks=[0, 9]), "different ranks below 4"),
    ("Follow", Follow("j", 0, 0, collective="chain", ranks=[0]), "2 ranks or more"),
    ("Follow", Follow("j", 0, 0, collective="binomial", root=4), "one of them"),
    ("Follow", Follow("j", 0, 0, [[PathFlow(0, 2, 1)], [PathFlow(0, 2, 1)]]), "one flow to each peer"),
    ("Suspect", Suspect("j", 0, 0, 7, SPINE1), "below 4"),
]


@pytest.mark.parametrize(("method", "request_", "words"), REFUSED, ids=lambda x: str(x)[:40])
async def test_what_cannot_be_is_refused(tmp_path: Path, method: str, request_: Follow | Suspect, words: str) -> None:
    """Impossible requests are refused at the border, with what was expected."""
    async with rig(tmp_path) as r:
        plan = (await r.together(4))[0]
        asked = msgspec.json.encode(
            msgspec.structs.replace(request_, job=plan.job, epoch=plan.epoch, secret=plan.rank_secret)
        )
        many, one = (kind(f"/{SERVICE}/{method}", bytes, bytes)
                     for kind in (r.channel.unary_stream, r.channel.unary_unary))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (many(asked).__aiter__().__anext__() if method == "Follow" else one(asked))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in (caught.value.details() or "")


@pytest.mark.parametrize(("method", "request_", "words"), [
    ("SetMode", path_service.SetMode("ecmp", ["leaf9"]), "no leaf 'leaf9'"),
    ("SetPin", path_service.SetPin("leaf1", "leaf2", 50_000, 3), "pins no source port 50000"),
    ("SetPin", path_service.SetPin("leaf1", "leaf2", 65_537, 4), "pins no source port 65537"),
    ("SetPin", path_service.SetPin("leaf1", "leaf2", SPINE1 - 65_536, 4), "pins no source port -4095"),
    ("SetPin", path_service.SetPin("leaf1", "leaf2", SPINE1, 1), r"one of \[3, 4\]"),
    ("SetPin", path_service.SetPin("leaf1", "leaf1", SPINE1, 4), "expected another one than leaf1"),
])
async def test_operators_hear_what_is_wrong(tmp_path: Path, method: str, request_: msgspec.Struct, words: str) -> None:
    """Requests with names that the fabric does not have are refused with those names."""
    async with rig(tmp_path) as r:
        with pytest.raises(rpc.CallRefused, match=words):
            await operate(r, method, request_)


async def test_a_port_without_a_path_is_no_suspicion(tmp_path: Path) -> None:
    """Packets from other source ports blame no uplink."""
    async with rig(tmp_path) as r:
        me = (await r.together(4))[0]
        answer = await r.channel.unary_unary(f"/{SERVICE}/Suspect", bytes, bytes)(
            msgspec.json.encode(Suspect(me.job, 0, me.epoch, 2, 50_000, me.rank_secret)))
        assert msgspec.json.decode(answer, type=Noted) == Noted("")
        assert not r.controller.steering.suspects()

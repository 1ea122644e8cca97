# SPDX-License-Identifier: Apache-2.0
"""Links that ranks suspect are looked at at once; what comes back has to stay before running jobs use it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from netfold.controller.switch import tables
from netfold.fabric.file import dumps, loads
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from netfold.wire.jobs import AskMissing, Done, Halt
from netfold.wire.plan import Plan
from support.control.cables import Cables, link_between
from support.control.controller import MemorySession, until
from support.control.jobs import Code, Rig, rig
from support.control.recovery import all_resume, lose, restart, streams

pytestmark = pytest.mark.usefixtures("quick_sessions", "time_to_answer")


@pytest.fixture(autouse=True)
def probed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspects are probed without a pause."""
    monkeypatch.setattr("netfold.controller.health.liveness.SUSPECT_INTERVAL", 0.001)
    monkeypatch.setattr("netfold.controller.health.liveness.DOWN_INTERVAL", 0.01)


async def suspect(r: Rig, plan: Plan) -> None:
    """The report of a rank whose first tree brings it no results."""
    waits = {place: stream.psn for place, stream in enumerate(streams(plan)[:2])}
    await r.call("Suspect", AskMissing(plan.job, plan.rank, plan.epoch, waits, plan.rank_secret), Done)


async def inquiry(r: Rig) -> None:
    """Wait until the inquiry after suspected ranks has ended."""
    task = r.controller.liveness.suspect_task
    assert task is not None
    await task


def ends_between_switches(r: Rig) -> list[tuple[str, int]]:
    """Both ends of each link that is probed."""
    return sorted((end.node, end.port) for link in r.fabric.links for end in link.ends
                  if {end.node for end in link.ends} <= r.switches.keys())


def requests_of(r: Rig, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, str]]:
    """What the controller sends from now on: the turn of the event loop, the switch, and what is sent."""
    sent: list[tuple[int, str, str]] = []
    kind, turn = type(r.switches["leaf1"].sessions[-1]), [0]

    async def count() -> None:
        while True:
            turn[0] += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    counting.set_name("turns")

    def noted(name: str) -> None:
        plain = getattr(kind, name)

        async def note(session: MemorySession, *arguments: object) -> object:
            sent.append((turn[0], session.switch.name, name))
            return await plain(session, *arguments)

        monkeypatch.setattr(kind, name, note)

    for name in ("heard", "packet_out_to_neighbours", "packet_out"):
        noted(name)
    return sent


async def test_a_round_of_probes_costs_each_switch_a_question_and_a_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All links are probed by that, both ways; all questions come before the frames, and no turn of the event loop
    sends more than its share."""
    monkeypatch.setattr("netfold.controller.health.liveness.AT_ONCE", 3)
    monkeypatch.setattr("netfold.controller.health.links.SAMPLE", 0)
    async with rig(tmp_path) as r:
        Cables(r.fabric, r.switches)
        liveness, sent = r.controller.liveness, requests_of(r, monkeypatch)
        for _ in range(3):
            sent.clear()
            await liveness.check()
            kinds = [what for *_, what in sent]
            assert kinds == ["heard"] * 4 + ["packet_out_to_neighbours"] * 4
            assert {name for _, name, what in sent if what == "heard"} == set(r.switches)
            assert max(Counter(when for when, *_ in sent).values()) == 3
        arrived = sorted((name, port) for name, switch in r.switches.items() for port in range(512)
                         if switch.heard >> port & 1)
        assert arrived == ends_between_switches(r)
        assert liveness.links.missing() == {}


async def test_some_links_have_their_delay_measured_in_each_round_and_all_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A suspect's silence is compared with it.  These probes do not count."""
    monkeypatch.setattr("netfold.controller.health.links.SAMPLE", 3)
    async with rig(tmp_path) as r:
        Cables(r.fabric, r.switches)
        liveness, sent = r.controller.liveness, requests_of(r, monkeypatch)
        ways = [(number, way) for number in liveness.links.probed for way in (0, 1)]
        for known in (6, 8):
            sent.clear()
            await liveness.check()
            assert [what for *_, what in sent].count("packet_out") == 2 * 3
            await liveness.listen()
            assert len([one for one in ways if liveness.links.delay(one) is not None]) == known


async def test_a_switch_that_tells_nothing_in_time_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others have heard counts, and they get their probes; what it hears is missing from the second time on.
    """
    monkeypatch.setattr("netfold.controller.health.liveness.ANSWER_TIMEOUT", 0.001)
    monkeypatch.setattr("netfold.controller.health.links.SAMPLE", 0)
    async with rig(tmp_path) as r:
        cables, liveness = Cables(r.fabric, r.switches), r.controller.liveness
        await liveness.check()
        monkeypatch.setattr(r.switches["leaf1"].sessions[-1], "heard", asyncio.Event().wait, raising=False)
        cables.cut.add(link_between(r.fabric, "leaf2", "spine2"))
        for missing in (set[str](), {"leaf1", "leaf2", "spine2"}):
            await liveness.check()
            assert {end.node for end in liveness.links.missing()} == missing


# ---- suspects --------------------------------------------------------------------------------------------------------


async def test_a_link_that_swallows_is_found_by_suspicion_alone(tmp_path: Path) -> None:
    """No port tells of it and nobody probes; one rank's word is enough to move the tree, and the other tree stays."""
    async with rig(tmp_path) as r:
        cables = Cables(r.fabric, r.switches)
        plans = await r.together(4)
        watcher = await r.watch(plans[3])
        cables.cut.add(link_between(r.fabric, "leaf1", "spine1"))
        await suspect(r, plans[0])
        assert await watcher.next() == Halt(1, "the link leaf1:3 - spine1 is down")
        after = await all_resume(r, plans)
        assert [tree.name for tree in after[0].trees] == ["spine2", "spine2"]
        cables.cut.clear()  # it is probed again, although nobody probes links that are up
        await until(lambda: r.controller.liveness.links_down() == {})


async def test_a_switch_that_a_hosts_port_keeps_deaf_is_woken(tmp_path: Path) -> None:
    """BMv2 hears nothing after a port was down until a frame arrives there, and ranks that halt send none: a question
    to the host behind it brings one, and the job goes on."""
    async with rig(tmp_path) as r:
        cables = Cables(r.fabric, r.switches)
        uplinks = {link_between(r.fabric, "leaf1", spine) for spine in ("spine1", "spine2")}
        before = r.switches["leaf1"].sends
        awake: list[int] = []

        def answers(port: int, frame: bytes) -> None:
            if port == 1 and frame[12:14] == b"\x08\x06" and len(awake) < patience:
                awake.append(port)
                if len(awake) == patience:  # its answer is lost until links have been found down
                    cables.cut.clear()
            before(port, frame)

        r.switches["leaf1"].sends = answers
        patience = 2 * r.fabric.misses
        plans = await r.together(4)
        watcher = await r.watch(plans[3])
        cables.cut |= uplinks
        await suspect(r, plans[0])
        # the far side's uplinks answer, so leaf1's are not put down to a late controller
        assert isinstance(await watcher.next(), Halt)
        after = await all_resume(r, plans)
        assert len(awake) == patience
        assert {tree.name for tree in after[0].trees} <= {"spine1", "spine2"}


async def test_a_suspect_at_which_packets_come_in_is_asked_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its probes are lost, as on a busy machine, and other packets are not: it is down only once they are as well."""
    monkeypatch.setattr("netfold.controller.health.silent_links.REPRIEVE", 3600.0)
    async with rig(tmp_path) as r:
        cables, asked = Cables(r.fabric, r.switches), 0
        number, answers = (link_between(r.fabric, "leaf1", spine) for spine in ("spine1", "spine2"))
        cables.cut.add(number)

        async def rising(session: object, name: str, index: int) -> int:
            nonlocal asked
            asked += name == tables.PORT_IN
            return min(asked, 60) * (name == tables.PORT_IN)

        monkeypatch.setattr(type(r.switches["leaf1"].sessions[-1]), "read_cell", rising)
        r.controller.liveness.suspect({number, answers})
        while asked < 60:
            assert r.controller.liveness.links_down() == {}
            await asyncio.sleep(0)
        await inquiry(r)
        assert list(r.controller.liveness.links_down()) == [number]
        assert "not judged by the probes that were lost" in caplog.text


async def test_links_that_answer_are_cleared(tmp_path: Path) -> None:
    """A rank that waits for a slow one blames nobody: all links answer, no job halts, and no probe is sent after."""
    async with rig(tmp_path) as r:
        Cables(r.fabric, r.switches)
        plans = await r.together(4)
        for plan in plans:
            await suspect(r, plan)
        await inquiry(r)
        assert r.controller.liveness.links_down() == {}
        assert r.controller.jobs.all()[0].round is None


async def test_where_nothing_answers_no_link_counts_as_down(tmp_path: Path) -> None:
    """A controller that hears no probe at all may be the one that is late; the usual probes go on and tell in time."""
    async with rig(tmp_path) as r:
        cables = Cables(r.fabric, r.switches)
        plans = await r.together(4)
        cables.cut.update(range(len(r.fabric.links)))
        await suspect(r, plans[0])
        task = r.controller.liveness.suspect_task
        while task is not None and not task.done():
            assert r.controller.liveness.links_down() == {}, "probes on their way count as lost"
            await asyncio.sleep(0)
        assert r.controller.liveness.links_down() == {}, "the probes of suspects must not decide it"
        assert r.controller.jobs.all()[0].round is None
        for _ in range(r.fabric.misses):
            await r.controller.liveness.check()
        assert len(r.controller.liveness.links_down()) == 4


async def test_regular_probes_do_not_decide_about_suspect_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular probes look at suspects as well, and leave the decision to the probes of suspects, which show whether
    anything answers at all."""
    monkeypatch.setattr("netfold.controller.health.liveness.SUSPECT_INTERVAL", 3600.0)
    async with rig(tmp_path) as r:
        cables = Cables(r.fabric, r.switches)
        plans = await r.together(4)
        cables.cut.update(range(len(r.fabric.links)))
        await suspect(r, plans[0])
        for _ in range(r.fabric.misses + 1):
            await r.controller.liveness.check()
        assert len(r.controller.liveness.links.down()) == 4
        assert r.controller.liveness.links_down() == {}
        await r.controller.replan()
        assert r.controller.jobs.all()[0].round is None


async def test_only_a_rank_of_the_job_may_suspect(tmp_path: Path) -> None:
    """A stranger's word costs nobody anything."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        code, _ = await r.refusal(AskMissing("j", 7, plans[0].epoch, {}), "Suspect")
        assert code is Code.PERMISSION_DENIED


@pytest.mark.parametrize(("name", "value"), [("misses", 1), ("misses", 1001), ("steady", -1.0), ("steady", 3601.0)])
def test_impossible_settings_are_refused(name: str, value: float) -> None:
    """The error names the setting and what it may be."""
    text = dumps(msgspec.structs.replace(leafspine(2, 2, 4), **{name: value}))
    with pytest.raises(FabricError, match=rf"fabric\.{name}: expected .* got"):
        loads(text)


# ---- jobs that move back ---------------------------------------------------------------------------------------------


async def test_a_spine_that_stays_is_used_again(tmp_path: Path) -> None:
    """The ranks halt once more, and each tree is at home again; the entries of the round before are gone."""
    async with rig(tmp_path, steady=0.05) as r:
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine1")
        assert await watcher.next() == Halt(1, "spine1 is down")
        moved = await all_resume(r, plans)
        restart(r, "spine1")
        assert await watcher.next() == Halt(2, "spine1 is back")
        back = await all_resume(r, moved, {0: 5, 1: 4, 2: 9, 3: 4})
        assert [tree.name for tree in back[0].trees] == ["spine1", "spine2"]
        assert back[0].round == 2
        for before, now in zip(streams(moved[2]), streams(back[2]), strict=True):
            assert now.psn == (before.psn + 4) & 0xFFFFFF
        for plan in back:
            await r.leave(plan)
        await until(lambda: set(r.controller.allocator.used().values()) == {0})
        assert r.base_only()


async def test_nobody_halts_for_what_has_only_just_come_back(tmp_path: Path) -> None:
    """Not even if everything is planned anew meanwhile; new jobs use it at once."""
    async with rig(tmp_path, steady=3600.0) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None)
        await all_resume(r, plans)
        restart(r, "spine1")
        await until(lambda: r.controller.targets["spine1"].is_up)
        await r.controller.replan()
        assert job.round is not None
        assert job.round.number == 1
        assert {tree.name for tree in (await r.together(4, job="k"))[0].trees} == {"spine1", "spine2"}


async def test_a_job_stays_where_there_is_no_room_to_move(tmp_path: Path) -> None:
    """Its new slots must fit beside the old ones: otherwise nobody halts, and it goes on as it was."""
    async with rig(tmp_path, steady=0.01) as r:
        plans = await r.together(4)
        lose(r, "spine1")
        (job,) = r.controller.jobs.all()
        await until(lambda: job.round is not None)
        await all_resume(r, plans)
        streams_before = job.streams
        await until(lambda: not r.controller.jobs.is_changing)  # the first trees' slots are free again
        allocator = r.controller.allocator
        for bits in reversed(range(14)):
            with contextlib.suppress(Exhausted):
                while True:
                    allocator.slots["leaf1"].allocate(1 << bits)
        restart(r, "spine1")
        refused: list[str] = []
        admit = allocator.admit

        def noted(*args: object, **options: object) -> object:
            try:
                return admit(*args, **options)  # type: ignore[arg-type]
            except Exception as error:
                refused.append(str(error))
                raise

        allocator.admit = noted  # type: ignore[method-assign, assignment]
        await until(lambda: bool(refused))
        await until(lambda: not job.stands_still)
        assert "leaf1 has no" in refused[0]
        assert job.streams == streams_before
        assert job.round is not None
        assert job.round.number == 1

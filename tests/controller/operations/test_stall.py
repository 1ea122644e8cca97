# SPDX-License-Identifier: Apache-2.0
"""The state of slots, and the ranks that a job waits for."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import grpc
import msgspec
import pytest
from finsy.proto import p4r
from hypothesis import given
from hypothesis import strategies as st

from netfold.cli.show import show_slots
from netfold.controller import client
from netfold.controller.operations import stall
from netfold.controller.switch import probe, switch
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.switch import SwitchError
from netfold.controller.web import serve
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.trees import FEW_CHILDREN, MAX_CHILDREN
from netfold.fabric.generate import leafspine
from netfold.plain_console import Terminal
from netfold.rpc.rpc import CallRefused, Refusal, Unreachable
from netfold.wire import stalls
from netfold.wire.jobs import AskMissing, MissingContributions
from support.control.controller import BOUND, MemorySession, ScriptedServer, session, until
from support.control.jobs import rig
from support.models.slots import fold

EMPTY = SlotState(0, 0, False, False, 0)


def packed(slot: int, state: SlotState, children: int = FEW_CHILDREN) -> bytes:
    """A probe as the switch answers it, field by field: epoch 32 | PSN 24 | done 1 | ECN 1 | operation 3 |
    acknowledgement asked for 1 | presence 1 | content 1 | bitmap of the children, then opcode 8 | 0 8 | UDP length 16 |
    RETH 96."""
    bits = f"{state.epoch:032b}{state.psn:024b}{state.done:b}{state.ecn:b}{state.operation:03b}{state.ack_req:b}"
    bits += f"{state.presence:b}{state.content:b}{state.bitmap:0{children}b}"
    bits += f"{state.opcode:08b}{0:08b}{state.udp_length:016b}{0:096b}"
    return slot.to_bytes(4, "big") + int(bits, 2).to_bytes(24 + children // 8, "big")


@given(st.integers(0, 2**32 - 1), st.builds(
    SlotState, st.integers(0, 2**32 - 1), st.integers(0, 2**24 - 1), st.booleans(), st.booleans(),
    st.integers(0, 2**256 - 1), st.integers(0, 7), st.booleans(), st.integers(0, 255), st.integers(0, 2**16 - 1),
    st.booleans(), st.booleans(),
), st.sampled_from([FEW_CHILDREN, MAX_CHILDREN]))
def test_states_are_read_as_the_program_lays_them_out(slot: int, state: SlotState, children: int) -> None:
    """Every field of an answer comes from its own bits, whatever follows the probe."""
    state = dataclasses.replace(state, bitmap=state.bitmap & (1 << children) - 1)
    assert probe.answer(packed(slot, state, children) + b"padding", children) == (slot, state)
    assert probe.question(slot, children) == packed(slot, EMPTY, children)


def test_an_answer_that_is_cut_short_is_an_error() -> None:
    """The error says how many bytes came."""
    with pytest.raises(ValueError, match="expected 36 bytes, got 19"):
        probe.answer(bytes(19), FEW_CHILDREN)


def answers_of(
    states: dict[int, SlotState], lose: set[int]
) -> Callable[[p4r.StreamMessageRequest], list[p4r.StreamMessageResponse]]:
    """A switch with these slots, which does not answer the first question about those in ``lose``."""

    def answers(request: p4r.StreamMessageRequest) -> list[p4r.StreamMessageResponse]:
        kind = next(m.value for m in request.packet.metadata if m.metadata_id == 2)
        assert int.from_bytes(kind, "big") == probe.PROBE
        slot, _ = probe.answer(request.packet.payload, FEW_CHILDREN)
        if slot in lose:
            lose.remove(slot)
            return []
        packet = p4r.PacketIn(payload=packed(slot, states.get(slot, EMPTY)))
        packet.metadata.add(metadata_id=1, value=b"\x01\xfe")
        packet.metadata.add(metadata_id=2, value=b"\x01")
        return [p4r.StreamMessageResponse(packet=packet)]

    return answers


async def test_many_slots_are_asked_at_once_and_again_where_an_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every slot gets its own state, also after a loss; answers do not mix with other packets from the switch."""
    states = {n: SlotState(7, n, n % 2 == 0, False, n) for n in range(0, 300, 3)}
    server = ScriptedServer()
    server.answers = answers_of(states, lose=set())
    async with session(tmp_path, server) as s:
        monkeypatch.setattr(switch, "PROBE_TIMEOUT", BOUND)  # nothing is lost, however late answers are
        found = await s.probe_all(range(300))
        assert found == {n: states.get(n, EMPTY) for n in range(300)}
        assert len(server.received) == 300
        monkeypatch.setattr(switch, "PROBE_TIMEOUT", 0.01)
        monkeypatch.setattr(switch, "PROBE_TRIES", round(BOUND / 0.01))
        server.answers = answers_of(states, lose={5, 6})
        assert await s.probe_all([5, 6]) == {5: EMPTY, 6: states[6]}
        assert len(server.received) >= 300 + 4
        assert s.packets.empty()


async def test_what_one_rank_asks_for_is_not_behind_a_reading_of_many_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a reading of many waits for its answers, another slot is asked for and answered."""
    monkeypatch.setattr(switch, "PROBE_TIMEOUT", BOUND)
    server = ScriptedServer()
    server.answers = answers_of({}, lose=set(range(300)))
    async with session(tmp_path, server) as s:
        many = asyncio.create_task(s.probe_all(range(300)))
        while len(server.received) < switch.PROBES // 2:
            await asyncio.sleep(0)
        assert await s.probe(1000) == EMPTY
        assert not many.done()
        many.cancel()


async def test_slots_are_read_once_for_all_who_ask_and_on_one_switch_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many operators ask, by whichever way, no more than one reading is under way."""
    read, under_way = [], 0
    async with rig(tmp_path) as r:
        plans = await r.together(4)

        async def probe_all(session: MemorySession, slots: Iterable[int]) -> dict[int, SlotState]:
            nonlocal under_way
            read.append(session.switch.name)
            assert under_way == 0
            under_way += 1
            await asyncio.sleep(0)
            under_way -= 1
            return dict.fromkeys(slots, EMPTY)

        monkeypatch.setattr(MemorySession, "probe_all", probe_all)
        names = [switch.name for switch in r.fabric.switches]
        asked = [r.controller.inspection.slots(name) for name in names for _ in range(50)]
        found = await asyncio.gather(*asked, *(r.controller.inspection.slots(names[0], "j") for _ in range(50)))
        assert sorted(read) == sorted({name for name, held in zip(names, found[::50], strict=False) if held})
        assert {held.epoch for held in found[0]} == {plans[0].epoch}
        await asyncio.gather(*(r.controller.inspection.stall("j") for _ in range(3)))


async def test_a_switch_that_does_not_answer_probes_is_a_bounded_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names switch, slot and what to check; a slot that cannot be is refused before anything is sent."""
    monkeypatch.setattr(switch, "PROBE_TIMEOUT", 0.01)
    server = ScriptedServer()
    async with session(tmp_path, server) as s:
        with pytest.raises(SwitchError, match=r"leaf1 .*probe of slot 9: no answer to 4 packets.*--cpu-port"):
            await s.probe(9)
        with pytest.raises(SwitchError, match="no answer"):
            await s.probe_all([1, 2, 3])
        with pytest.raises(ValueError, match=r"slot: expected 0\.\.16383, got 16384"):
            await s.probe(16384)


# ---- whom a job waits for --------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 12), st.data())
def test_a_stall_report_names_exactly_the_missing_ranks(
    leaves: int, spines: int, count: int, data: st.DataObject
) -> None:
    """Whatever ranks have sent, on trees of any width: those that have not are named, and nobody else."""
    fabric = leafspine(leaves, spines, count)
    names = [host.name for host in fabric.hosts]
    allocator = slots.Allocator([s.name for s in fabric.switches], slots.sizes_of("bmv2", 1024), random.Random(3))
    streams = allocator.admit(trees.plan(fabric.graph(), names), [range(count)])
    sent = data.draw(st.sets(st.integers(0, count - 1)))
    stream = streams[0]
    states = fold(stream, stream.psn, sent)

    report = stall.report("j", 7, streams, names, states)
    assert report.epoch == 7 != streams[0].epoch  # as the ranks and the status know the job

    assert report.missing == (sorted(set(range(count)) - sent) if sent else [])
    assert (report.open == 0) == (not sent or len(sent) == count)
    for rank in report.missing:
        assert any(rank in culprit.ranks for culprit in report.culprits)
        assert f"rank {rank} ({names[rank]})" in str(report)
    for slot in stall.open_slots(streams, names, states):
        assert len(slot.present) == slot.bitmap.bit_count()
        assert (slot.slot - stream.bases[slot.switch]) == slot.psn % stream.slots


def test_the_oldest_slot_says_whom_a_stream_waits_for() -> None:
    """Ranks ahead of the others leave younger slots open: they are counted, but the oldest one has the reason; PSNs
    are compared in serial arithmetic."""
    fabric = leafspine(1, 0, 3)
    names = ["h1", "h2", "h3"]
    allocator = slots.Allocator(["leaf1"], slots.sizes_of("bmv2", 1024), random.Random(3))
    stream = allocator.admit(trees.plan(fabric.graph(), names), [range(3)])[0]
    old, young = 2**24 - 1, 1
    held = fold(stream, old, {0, 1})["leaf1"] | fold(stream, 0, {0, 2})["leaf1"] | fold(stream, young, {0})["leaf1"]
    report = stall.report("j", 7, [stream], names, {"leaf1": held})
    assert (report.missing, report.open) == ([2], 3)
    assert (report.culprits[0].slot.psn, report.culprits[0].slot.missing) == (old, ["rank 2 (h3)"])
    assert [slot.psn for slot in stall.open_slots([stream], names, {"leaf1": held})] == [old, 0, young]


def test_a_sum_lost_between_switches_is_not_blamed_on_a_rank() -> None:
    """Where a leaf is complete and the spine has nothing of it, or the result has not come down, the link is named."""
    fabric = leafspine(2, 1, 4)
    names = [host.name for host in fabric.hosts]
    allocator = slots.Allocator([s.name for s in fabric.switches], slots.sizes_of("bmv2", 1024), random.Random(3))
    stream = allocator.admit(trees.plan(fabric.graph(), names), [range(4)])[0]
    states = fold(stream, 5, {0, 1, 2})
    leaf2 = states["leaf2"]
    leaf2.update({slot: SlotState(s.epoch, s.psn, False, False, 0b11) for slot, s in leaf2.items()})
    up = stall.report("j", 7, [stream], names, states)
    assert up.missing == []
    assert "leaf2 has its sum, which is lost on the way to spine1" in str(up)
    done = fold(stream, 5, {0, 1, 2, 3})
    done["leaf1"] = {slot: SlotState(s.epoch, s.psn, False, False, s.bitmap) for slot, s in done["leaf1"].items()}
    down = stall.report("j", 7, [stream], names, done)
    assert (down.missing, down.open) == ([], 1)
    assert "lost between leaf1 and spine1" in str(down)
    later = fold(stream, 5 + stream.slots, {0, 1, 2, 3})
    gone_on = stall.report("j", 7, [stream], names, {**done, "spine1": later["spine1"]})
    assert gone_on.missing == [], "the root's slot has gone on, so there was a result"
    assert "lost between leaf1 and spine1" in str(gone_on)


async def test_a_rank_that_waits_is_told_for_whom(tmp_path: Path) -> None:
    """Only the slots of the PSNs that it names are asked; what is none of its streams says nothing."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        (job,) = r.controller.jobs.all()
        stream = job.streams[2]
        for name, held in fold(stream, 77, {0, 2, 3}).items():
            r.switches[name].slots = held
        waits = {2: 77, 0: 5}
        ask = AskMissing("j", 3, job.epoch, waits, plans[3].rank_secret)
        told = await r.call("Missing", ask, MissingContributions)
        assert told.ranks == [1]
        (why,) = told.why
        assert "leaf1, tree spine2" in why
        assert "PSN 77" in why
        assert "missing rank 1 (h2)" in why
        other = await r.call(
            "Missing", msgspec.structs.replace(ask, waits={4: 77}), MissingContributions
        )
        assert (other.ranks, other.why) == ([], [])
        with pytest.raises(grpc.aio.AioRpcError, match="rank 9: secret: expected that of this rank"):
            await r.call("Missing", msgspec.structs.replace(ask, rank=9), MissingContributions)


async def test_a_switch_that_is_silent_or_down_is_not_taken_for_the_controller(tmp_path: Path) -> None:
    """The controller answers, and says which switch does not."""
    async with rig(tmp_path) as r:
        await r.together(4)
        r.controller.targets["leaf1"].fall_silent("its P4Runtime server has not answered in 2 times 0.2 s")
        with pytest.raises(CallRefused, match="refused: leaf1: its P4Runtime server has not"):
            await client.stall(r.fabric.jobs, "j")
        r.switches["leaf2"].unreachable = True
        r.switches["leaf2"].break_session("the machine is off")
        await until(lambda: not r.controller.targets["leaf2"].is_up)
        with pytest.raises(CallRefused, match="leaf2 is down: "):
            await client.slots(r.fabric.jobs, "leaf2")
        with pytest.raises(Refusal) as refused:
            await r.controller.inspection.slots("leaf2")
        assert serve.refused(refused.value).status == 503


async def test_operators_see_open_slots_and_who_is_missing(tmp_path: Path) -> None:
    """Over the controller's service: the slots of one switch, the stall of a job, and clear refusals."""
    async with rig(tmp_path) as r:
        await r.together(4)
        (job,) = r.controller.jobs.all()
        for name, held in fold(job.streams[2], 77, {0, 2, 3}).items():
            r.switches[name].slots = held
        (found,) = await client.slots(r.fabric.jobs, "leaf1", "j")
        assert (found.job, found.probed, len(found.open)) == ("j", 2 * (512 + 128), 1)
        assert (found.open[0].tree, found.open[0].missing) == ("spine2", ["rank 1 (h2)"])
        out = io.StringIO()
        show_slots("leaf1", [found], Terminal(file=out, width=160))
        assert "1 of 1280 slots of leaf1 are open" in out.getvalue()
        assert "rank 1 (h2)" in out.getvalue()
        assert "SUM16" in out.getvalue()
        assert await client.slots(r.fabric.jobs, "spine1") == [
            stalls.JobSlots("j", job.epoch, 512 + 128, [])]
        (stalled,) = await client.stall(r.fabric.jobs, "j")
        assert stalled.missing == [1]
        assert "waits for rank 1" in str(stalled)
        with pytest.raises(Unreachable, match="no switch 'leaf9'; it has leaf1"):
            await client.slots(r.fabric.jobs, "leaf9")
        with pytest.raises(Unreachable, match="no job 'k' holds slots; jobs that do: j"):
            await client.stall(r.fabric.jobs, "k")

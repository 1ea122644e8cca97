# SPDX-License-Identifier: Apache-2.0
"""P4Runtime sessions and the codec, against a server that a test scripts; targets, against switches in memory."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from finsy.proto import p4r, rpc_code
from helpers_controller import BOUND, PIPELINE, MemorySwitch, ScriptedServer, run, session, tiny_p4info, until
from helpers_program import p4_defines
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.operations import status
from netfold.controller.paths.steering import Steering
from netfold.controller.plan import slots, trees
from netfold.controller.plan.fabric import CPU_PORT
from netfold.controller.plan.generate import leafspine
from netfold.controller.switch import pipeline, probe, switch, tables
from netfold.controller.switch.codec import Codec, CodecError
from netfold.controller.switch.entities import Entity, Entry, Multicast
from netfold.controller.switch.pipeline import Pipeline, PipelineError
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import Count, NotPrimary, PacketIn, Session, SwitchError
from netfold.controller.switch.target import Target
from softswitch.p4runtime import port_status

ENTRY = Entry("In.t", (("port", 5), ("dst", (0x0A000000, 8))), "In.go", (("where", 300),))


@given(st.integers(0, 511), st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**16 - 1))
def test_entries_survive_the_wire(port: int, dst: int, prefix: int, where: int) -> None:
    """What is encoded decodes equal, and bytestrings are as short as can be."""
    codec = Codec(tiny_p4info())
    dst &= ~((1 << (32 - prefix)) - 1)
    entry = Entry("In.t", (("port", port), ("dst", (dst, prefix))), "In.go", (("where", where),))
    message = codec.encode(entry)
    assert codec.decode(message) == entry
    value = message.table_entry.action.action.params[0].value
    assert value == b"\0" or value[0] != 0


def test_groups_survive_the_wire_in_either_port_form() -> None:
    """Multicast replicas come back by number or by bytes, in any order."""
    codec = Codec(tiny_p4info())
    group = Multicast(7, ((1, 0), (510, 1)))
    message = codec.encode(group)
    assert codec.decode(message) == group
    replicas = message.packet_replication_engine_entry.multicast_group_entry.replicas
    for replica in replicas:
        replica.port = replica.egress_port.to_bytes(2, "big")
    replicas.reverse()
    assert codec.decode(message) == group


@pytest.mark.parametrize(("entry", "says"), [
    (Entry("In.x", (), "In.go"), "no table In.x; it has In.t"),
    (Entry("In.t", (("port", 1),), "In.go"), "expected the key fields port, dst"),
    (Entry("In.t", (("port", 512), ("dst", (0, 1))), "In.go", (("where", 1),)), "port: expected 0..2^9-1, got 512"),
    (Entry("In.t", (("port", 1), ("dst", 5)), "In.go", (("where", 1),)), "In.t dst: 5 does not suit"),
    (Entry("In.t", (("port", 1), ("dst", (0, 1))), "In.stop"), "no action In.stop; it has In.go"),
    (Entry("In.t", (("port", 1), ("dst", (0, 1))), "In.go"), "expected the parameters where"),
    (Entry("In.t", (("port", 1), ("dst", (0, 1))), "In.go", (("where", -1),)), "In.go where: expected"),
])
def test_entries_that_do_not_fit_the_program_are_refused(entry: Entry, says: str) -> None:
    """The message names table, field or action, expectation and value."""
    with pytest.raises(CodecError) as caught:
        Codec(tiny_p4info()).encode(entry)
    assert says in str(caught.value)


def test_the_pipeline_is_pushed_once(tmp_path: Path) -> None:
    """A switch without it gets it, with our cookie; one that runs it is left alone; another one's is replaced."""

    async def story() -> None:
        server = ScriptedServer()
        async with session(tmp_path, server) as s:
            assert await s.ensure_pipeline()
            assert not await s.ensure_pipeline()
            server.cookie = 1234
            assert await s.ensure_pipeline()
        first, second = server.pushed
        assert first == second
        assert first.config.p4_device_config == b"program"
        assert first.config.cookie.cookie == PIPELINE.cookie
        assert (first.device_id, first.election_id.low) == (3, 9)

    run(story())


def test_cookies_tell_programs_apart() -> None:
    """Other code or another p4info is another cookie."""
    other = tiny_p4info()
    other.tables[0].size = 9
    cookies = {Pipeline(tiny_p4info(), b"program").cookie, Pipeline(tiny_p4info(), b"other").cookie,
               Pipeline(other, b"program").cookie}
    assert len(cookies) == 3
    assert PIPELINE.cookie in cookies


def test_failed_updates_are_named_one_by_one(tmp_path: Path) -> None:
    """A Write that fails says UNKNOWN; the error tells which entry had what trouble, and leaves out the good ones."""

    async def story() -> None:
        server = ScriptedServer()
        server.write_errors = [p4r.Error(canonical_code=rpc_code.OK),
                               p4r.Error(canonical_code=rpc_code.ALREADY_EXISTS, message="there already")]
        async with session(tmp_path, server) as s:
            with pytest.raises(SwitchError) as caught:
                await s.write([Update("insert", Multicast(1, ((1, 0),))), Update("insert", ENTRY)])
        text = str(caught.value)
        assert "leaf1" in text
        assert "insert In.t port=5 dst=10.0.0.0/8 -> go(where=300): ALREADY_EXISTS there already" in text
        assert "multicast" not in text

    run(story())


def test_large_writes_go_in_batches(tmp_path: Path) -> None:
    """2500 updates are three requests, in order."""

    async def story() -> None:
        server = ScriptedServer()
        updates = [Update("insert", Multicast(n, ((1, 0),))) for n in range(1, 2501)]
        async with session(tmp_path, server) as s:
            await s.write(updates)
        assert [len(request.updates) for request in server.written] == [1000, 1000, 500]
        groups = [u.entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id
                  for request in server.written for u in request.updates]
        assert groups == list(range(1, 2501))

    run(story())


def test_reads_give_states_and_counters(tmp_path: Path) -> None:
    """Entries and groups by identity; counter cells that counted, by index."""

    async def story() -> None:
        server, codec = ScriptedServer(), Codec(tiny_p4info())
        group = Multicast(2, ((1, 0), (2, 1)))
        async with session(tmp_path, server) as s:
            server.entities = [codec.encode(ENTRY), codec.encode(group)]
            assert await s.read_state(["In.t"]) == {ENTRY.identity: ENTRY, group.identity: group}
            server.entities = []
            for index, packets in ((0, 0), (3, 7)):
                cell = p4r.Entity()
                cell.counter_entry.index.index = index
                cell.counter_entry.data.packet_count = packets
                cell.counter_entry.data.byte_count = packets * 10
                server.entities.append(cell)
            assert await s.read_counter("In.seen") == {3: Count(7, 70)}

    run(story())


def test_another_primary_is_reported(tmp_path: Path) -> None:
    """At the start it is an error that names the other's election id; later it ends the session."""

    async def story() -> None:
        server = ScriptedServer()
        server.primary = 50
        with pytest.raises(NotPrimary, match="election id 50; ours is 9"):
            async with session(tmp_path, server):
                pass
        async with session(tmp_path, server, election_id=60) as s:
            update = p4r.MasterArbitrationUpdate()
            update.election_id.low = 70
            update.status.code = rpc_code.ALREADY_EXISTS
            await server.to_send.put(p4r.StreamMessageResponse(arbitration=update))
            assert "election id 70; ours is 60" in await s.ended()

    run(story())


def test_a_switch_tells_which_ports_are_down(tmp_path: Path) -> None:
    """As a Struct in `other`; whatever else a target says there is not for us."""

    async def story() -> None:
        server = ScriptedServer()
        async with session(tmp_path, server) as s:
            changes: asyncio.Queue[set[int]] = asyncio.Queue()
            s.on_ports = lambda: changes.put_nowait(set(s.ports_down))
            foreign = p4r.StreamMessageResponse()
            foreign.other.Pack(p4r.Uint128(low=3))
            for message in (foreign, port_status.encode(3, up=False), port_status.encode(4, up=False),
                            port_status.encode(3, up=True)):
                await server.to_send.put(message)
            assert [await changes.get() for _ in range(3)] == [{3}, {3, 4}, {4}]

    run(story())


def test_packets_come_and_go_with_their_ports(tmp_path: Path) -> None:
    """packet-in carries its ingress port, packet-out its egress port."""

    async def story() -> None:
        server = ScriptedServer()
        async with session(tmp_path, server) as s:
            packet = p4r.PacketIn(payload=b"frame")
            packet.metadata.add(metadata_id=1, value=b"\x01\x02")
            await server.to_send.put(p4r.StreamMessageResponse(packet=packet))
            assert await s.packets.get() == PacketIn(0x102, b"frame")
            await s.packet_out(300, b"out")
            await until(lambda: bool(server.received))
            sent = server.received[0].packet
            assert (sent.payload, sent.metadata[0].value, sent.metadata[1].value) == (b"out", b"\x01\x2c", b"\0")

    run(story())


def test_the_end_of_the_stream_ends_the_session(tmp_path: Path) -> None:
    """Whether the switch closes it or dies, `ended` says so."""

    async def story() -> None:
        server = ScriptedServer()
        async with session(tmp_path, server) as s:
            await server.to_send.put(None)
            assert await s.ended() == "the switch closed the stream"
            with pytest.raises(SwitchError, match="packet-out to port 1"):
                await s.packet_out(1, b"")

    run(story())


def test_closing_a_session_does_not_cancel_who_waits_for_an_answer(tmp_path: Path) -> None:
    """A call that is cut off by `close` is a SwitchError: gRPC's CancelledError would end the waiting task, and with
    it whatever goes on beside switches that come and go.  Who is cancelled is cancelled."""

    async def story() -> None:
        server = ScriptedServer()
        server.answers_writes.clear()
        async with session(tmp_path, server) as s:
            cut_off, cancelled = (asyncio.create_task(s.write([Update("insert", ENTRY)])) for _ in range(2))
            await until(lambda: len(server.written) == 2)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await s.close()
            with pytest.raises(SwitchError, match="Write: the session was closed meanwhile"):
                await cut_off
            with pytest.raises(SwitchError, match="packet-out to port 1"):
                await s.packet_out(1, b"")
            server.answers_writes.set()

    run(story())


def test_nobody_at_the_address_is_a_bounded_error(tmp_path: Path) -> None:
    """Within its time it says which switch and address, and what to check."""

    async def story() -> None:
        with pytest.raises(SwitchError, match=r"leaf1: no P4Runtime server answers at unix:.*device id 3"):
            await Session.open("leaf1", f"unix:{tmp_path}/none", device_id=3, pipeline=PIPELINE, election_id=1,
                               timeout=0.2)

    run(story())


def test_a_switch_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    """A session opened before its server is there comes up with it."""

    async def story() -> None:
        address = f"unix:{tmp_path}/late.sock"
        opening = asyncio.create_task(
            Session.open("leaf1", address, device_id=1, pipeline=PIPELINE, election_id=1, timeout=60)
        )
        await asyncio.sleep(0)
        running = await ScriptedServer().serve(address)
        async with await opening as s:
            assert await s.ensure_pipeline()
        await running.stop(None)

    run(story())


def test_a_quiet_session_is_not_pinged_to_death() -> None:
    """gRPC servers take more pings than one in five minutes for abuse, unless told otherwise, and end the connection:
    a fabric of one leaf, which has no links to probe, lost its switch every two minutes."""
    assert dict(switch._CHANNEL_OPTIONS)["grpc.keepalive_time_ms"] > 300_000


# ---- targets ---------------------------------------------------------------------------------------------------------


async def no_wait(_: float) -> None:
    """Retries without their pauses."""
    await asyncio.sleep(0)


def route(port: int, dst: int = 1) -> Entry:
    """Some entry."""
    return Entry(tables.ROUTE, (("dst", (dst, 32)),), tables.FORWARD, (("port", port),))


def test_a_failed_install_is_taken_back(tmp_path: Path) -> None:
    """The part is not desired any more, half-written entries go, other parts stay."""

    async def story() -> None:
        switch = MemorySwitch("s")
        target = Target("s", switch.connect, sleep=no_wait)
        target.preset("fabric", [route(1)])
        target.start()
        await target.wait_up(BOUND)
        switch.refuse = lambda update: isinstance(update.entity, Entry) and dict(update.entity.params)["port"] == 3
        with pytest.raises(SwitchError, match=r"port=3"):
            await target.install("job", [route(2, 2), route(3, 3)])
        assert list(switch.state.values()) == [route(1)]
        assert (await target.compare())[1] == []
        await target.install("job", [route(2, 2)])
        assert len(switch.state) == 2
        await target.uninstall("job")
        assert list(switch.state.values()) == [route(1)]
        await target.stop()

    run(story())


def test_foreign_entries_are_removed_on_connecting() -> None:
    """What the switch holds and nobody wants goes; what is wanted otherwise is modified."""

    async def story() -> None:
        switch = MemorySwitch("s")
        switch.has_pipeline = True
        switch.state = {e.identity: e for e in (route(9, 1), route(9, 5), Multicast(4, ((1, 1),)))}
        target = Target("s", switch.connect, sleep=no_wait)
        target.preset("fabric", [route(1, 1)])
        target.start()
        await target.wait_up(BOUND)
        assert list(switch.state.values()) == [route(1, 1)]
        assert sorted(u.verb for u in switch.writes[0]) == ["delete", "delete", "modify"]
        await target.stop()

    run(story())


def test_installing_on_a_dead_switch_says_why() -> None:
    """The error carries the switch's last problem; once it is back, it has its parts."""

    async def story() -> None:
        switch = MemorySwitch("s")
        switch.unreachable = True
        target = Target("s", switch.connect, sleep=no_wait)
        target.start()
        await until(lambda: "nobody answers" in target.problem)
        with pytest.raises(SwitchError, match="s is down: s: nobody answers"):
            await target.install("job", [route(1)])
        switch.unreachable = False
        await target.wait_up(BOUND)
        assert switch.state == {}
        await target.stop()

    run(story())


def test_a_switch_taken_by_another_controller_is_let_go() -> None:
    """The target stops instead of fighting, and says who has it."""

    async def story() -> None:
        async def taken() -> None:
            raise NotPrimary("s: another controller is primary, with election id 8")

        target = Target("s", taken, sleep=no_wait)  # type: ignore[arg-type]
        target.start()
        with pytest.raises(SwitchError, match="election id 8"):
            await target.wait_up(BOUND)
        assert not target.is_up
        await target.stop()

    run(story())


# ---- pipelines -------------------------------------------------------------------------------------------------------


def test_a_missing_p4c_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without p4c on PATH the error names it, and the way without."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(PipelineError, match="p4c-bm2-ss is not on PATH"):
        pipeline.build("bmv2")


def everything() -> list[Entity]:
    """Entries of every kind that the controller makes."""
    fabric = leafspine(2, 2, 4, loss=0.01, duplicate=0.01)
    planned = trees.plan(fabric.graph(), ["h1", "h2", "h3"])
    ledger = slots.Ledger([s.name for s in fabric.switches], slots.SIZES["softswitch"], random.Random(1))
    streams = ledger.admit(ledger.open(), planned, [range(3)])
    parts = [Steering(fabric).base(fabric.graph()),
             tables.fixed(fabric),
             *(tables.folding(fabric, fabric.hosts[:3], stream) for stream in streams)]
    return [entity for entities in tables.merge(parts).values() for entity in entities]


def check_names(built: Pipeline) -> None:
    """All entries, tables and counters are the program's."""
    codec = Codec(built.p4info)
    made = everything()
    assert {e.table for e in made if isinstance(e, Entry)} == set(tables.MANAGED)
    for entity in made:
        assert codec.decode(codec.encode(entity)) == entity
    for counter in (*status.COUNTERS, tables.MARKED):
        codec.read_counter(counter)
    for table in tables.MANAGED:
        codec.read_table(table)
    assert codec.packet_out(b"", {"egress_port": 1}).metadata[0].value == b"\1"


def test_every_entry_fits_the_program() -> None:
    """The names, widths and parameters in controller/switch/tables.py are those of p4src, as softswitch compiles it."""
    check_names(pipeline.build("softswitch"))


def test_numbers_are_the_programs() -> None:
    """Constants that stand in p4src/sizes.p4 and in Python are equal."""
    p4 = p4_defines()
    assert p4["SLOTS"] == slots.SLOTS
    assert p4["PARENT"] == tables.PARENT
    assert p4["CPU_PORT"] == CPU_PORT
    assert 1 << p4["PORT_BITS"] > CPU_PORT
    assert (p4["CPU_FRAME"], p4["CPU_PROBE"]) == (probe.FRAME, probe.PROBE)
    fold = pipeline.program().with_name("fold.p4").read_text()
    assert f"bitmap {trees.MAX_CHILDREN}" in fold


def test_a_broken_program_shows_the_compilers_words(tmp_path: Path) -> None:
    """softswitch's error comes through, with the file."""
    broken = tmp_path / "broken.p4"
    broken.write_text("control C( {}")
    with pytest.raises(PipelineError, match=r"softswitch cannot compile .*broken\.p4"):
        pipeline.build("softswitch", broken)
    with pytest.raises(PipelineError, match=r"nowhere\.p4"):
        pipeline.build("softswitch", tmp_path / "nowhere.p4")


@pytest.mark.bmv2
def test_p4c_compiles_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second build comes from the cache, equal; a broken program shows p4c's words."""
    if shutil.which(pipeline.P4C) is None:
        pytest.skip("p4c-bm2-ss is not on PATH")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = pipeline.build("bmv2")
    check_names(first)
    monkeypatch.setattr(pipeline, "_p4c", None)
    assert pipeline.build("bmv2") == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "broken.p4"
    broken.write_text("control C( {}")
    with pytest.raises(PipelineError, match=r"broken\.p4.*exit status(.|\n)*syntax error"):
        pipeline.build("bmv2", broken)

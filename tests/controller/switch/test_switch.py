# SPDX-License-Identifier: Apache-2.0
"""P4Runtime sessions and the codec, against a server that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from finsy.proto import p4r, rpc_code
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.switch import channel, probe
from netfold.controller.switch.codec import Codec, CodecError, Count
from netfold.controller.switch.entities import Entity, Entry, Multicast, state
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import NotPrimary, PacketIn, Session, SwitchError
from softswitch.p4runtime import notices
from support.control.controller import BOUND, PIPELINE, ScriptedServer, session, tiny_p4info, until

ENTRY = Entry("In.t", (("port", 5), ("dst", (0x0A000000, 8))), "In.go", (("where", 300),))


@given(st.integers(0, 511), st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**16 - 1))
def test_entries_survive_the_wire(port: int, dst: int, prefix: int, where: int) -> None:
    """Encoded entries decode equal, and bytestrings are as short as can be."""
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


async def test_the_pipeline_is_pushed_once(tmp_path: Path) -> None:
    """A switch without it gets it, with our cookie; one that runs it is left alone; another one's is replaced."""
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


def test_cookies_tell_programs_apart() -> None:
    """Other code or another p4info is another cookie."""
    other = tiny_p4info()
    other.tables[0].size = 9
    cookies = {Pipeline(tiny_p4info(), b"program").cookie, Pipeline(tiny_p4info(), b"other").cookie,
               Pipeline(other, b"program").cookie}
    assert len(cookies) == 3
    assert PIPELINE.cookie in cookies


async def test_failed_updates_are_named_one_by_one(tmp_path: Path) -> None:
    """A Write that fails says UNKNOWN; the error tells which entry had what trouble, and leaves out the good ones."""
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


async def test_reads_give_states_and_counters(tmp_path: Path) -> None:
    """Entries and groups by identity; counter cells that counted, by index."""
    server, codec = ScriptedServer(), Codec(tiny_p4info())
    group = Multicast(2, ((1, 0), (2, 1)))
    async with session(tmp_path, server) as s:
        server.entities = [codec.encode(ENTRY), codec.encode(group)]
        assert await s.read_state(["In.t"]) == {ENTRY.identity: ENTRY, group.identity: group}
        server.entities = []
        for index, packets in ((0, 0), (3, 7)):
            cell = p4r.Entity()
            cell.counter_entry.counter_id = codec.read_counter("In.seen").counter_entry.counter_id
            cell.counter_entry.index.index = index
            cell.counter_entry.data.packet_count = packets
            cell.counter_entry.data.byte_count = packets * 10
            server.entities.append(cell)
        assert (await s.read_counters({"In.seen": None}))() == {"In.seen": {3: Count(7, 70)}}
        asked = codec.read_cells({"In.seen": [2, 3], "In.none": None})
        assert [(one.counter_entry.index.index, one.counter_entry.HasField("index")) for one in asked] == [
            (2, True), (3, True)]
        server.entities[0].counter_entry.counter_id = 77
        server.entities[0].counter_entry.data.packet_count = 1
        decode = await s.read_counters({"In.seen": None})
        with pytest.raises(SwitchError, match=r"leaf1 .*: counters: expected those that were asked for"):
            decode()


async def test_another_primary_is_reported(tmp_path: Path) -> None:
    """At the start it is an error that names the other's election id; later it ends the session.  An id in use by
    another connection is reported as another primary's."""
    server = ScriptedServer()
    server.primary = 50
    with pytest.raises(NotPrimary, match="election id 50; ours is 9; the switch says: from afar") as caught:
        async with session(tmp_path, server):
            pass
    assert caught.value.other == 50
    async with session(tmp_path, server, election_id=60) as s:
        update = p4r.MasterArbitrationUpdate()
        update.election_id.low = 70
        update.status.code = rpc_code.ALREADY_EXISTS
        await server.to_send.put(p4r.StreamMessageResponse(arbitration=update))
        assert "election id 70; ours is 60" in await s.ended()


async def test_an_election_id_in_use_is_reported_as_another_primary(tmp_path: Path) -> None:
    """A switch refuses the id of a connection that it has already: whoever has copied ours is there."""
    server = ScriptedServer()
    server.primary = 9
    with pytest.raises(NotPrimary, match="INVALID_ARGUMENT: election id in use") as caught:
        async with session(tmp_path, server):
            pass
    assert caught.value.other == 9


async def test_a_program_under_our_cookie_that_is_not_ours_is_replaced(tmp_path: Path) -> None:
    """Who took the switch can copy the cookie; the program itself is compared, where the switch tells it."""
    server = ScriptedServer()
    server.cookie = PIPELINE.cookie
    async with session(tmp_path, server) as s:
        assert not await s.ensure_pipeline()  # a switch that does not tell its program
        server.program = b"another program"
        assert await s.ensure_pipeline()
        assert server.program == PIPELINE.device_config
        assert not await s.ensure_pipeline()


async def test_after_another_client_the_program_is_pushed_anew(tmp_path: Path) -> None:
    """Though the switch still has it: default actions, registers and meters may be changed. One push is enough."""
    server = ScriptedServer()
    server.cookie = PIPELINE.cookie
    others: set[int] = set()
    async with session(tmp_path, server, others=others) as s:
        assert not await s.ensure_pipeline()
        update = p4r.MasterArbitrationUpdate()
        update.election_id.low = 70
        update.status.code = rpc_code.ALREADY_EXISTS
        await server.to_send.put(p4r.StreamMessageResponse(arbitration=update))
        assert "election id 70" in await s.ended()
    for pushed in (True, False):
        async with session(tmp_path, server, others=others) as s:
            assert await s.ensure_pipeline() == pushed


@pytest.mark.parametrize("left", [
    p4r.CloneSessionEntry(session_id=5, replicas=[p4r.Replica(egress_port=1), p4r.Replica(egress_port=2, instance=1)]),
    p4r.CloneSessionEntry(session_id=5),
    p4r.CloneSessionEntry(session_id=5, replicas=[p4r.Replica(egress_port=5)], packet_length_bytes=14),
    p4r.CloneSessionEntry(session_id=5, replicas=[p4r.Replica(egress_port=5)], class_of_service=3),
], ids=["two ports", "no port", "parts of packets", "a class"])
async def test_after_what_this_controller_never_writes_the_program_is_pushed_anew(
    left: p4r.CloneSessionEntry, tmp_path: Path
) -> None:
    """It would keep the switch out for good: nobody can write the difference to it."""
    server = ScriptedServer()
    server.cookie = PIPELINE.cookie
    server.entities = [p4r.Entity(
        packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(clone_session_entry=left))]
    others: set[int] = set()
    async with session(tmp_path, server, others=others) as s:
        assert not await s.ensure_pipeline()
        with pytest.raises(SwitchError, match=r"never writes.* a clone session of whole packets to one port"):
            await s.read_state([])
    async with session(tmp_path, server, others=others) as s:
        assert await s.ensure_pipeline()


async def test_a_primary_below_our_election_id_is_old_news(tmp_path: Path) -> None:
    """BMv2 names an observer after our claim; the session goes on, and ends with the next client above it."""
    server = ScriptedServer()
    async with session(tmp_path, server) as s:
        for other in (3, 70):
            update = p4r.MasterArbitrationUpdate()
            update.election_id.low, update.status.code = other, rpc_code.ALREADY_EXISTS
            await server.to_send.put(p4r.StreamMessageResponse(arbitration=update))
        assert "election id 70" in await s.ended()


async def test_after_another_controller_of_the_fabric_the_program_stays(tmp_path: Path) -> None:
    """The slots of its running jobs are in it."""
    server = ScriptedServer()
    server.cookie = PIPELINE.cookie
    others: set[int] = set()
    async with session(tmp_path, server, others=others, trusts=lambda other: other == 70) as s:
        update = p4r.MasterArbitrationUpdate()
        update.election_id.low = 70
        update.status.code = rpc_code.ALREADY_EXISTS
        await server.to_send.put(p4r.StreamMessageResponse(arbitration=update))
        assert "election id 70" in await s.ended()
    async with session(tmp_path, server, others=others) as s:
        assert not await s.ensure_pipeline()


async def test_a_session_looks_for_the_highest_election_id_before_it_takes_one(tmp_path: Path) -> None:
    """On the same stream, so that nobody's primary changes before; what the switch says of the look alone does not
    count."""
    server = ScriptedServer()
    server.primary = 50
    asked: list[int] = []

    def answers(request: p4r.StreamMessageRequest) -> list[p4r.StreamMessageResponse]:
        told = []
        for code, number in ((rpc_code.NOT_FOUND, 50), (rpc_code.OK, request.arbitration.election_id.low)):
            message = p4r.StreamMessageResponse()
            message.arbitration.election_id.low, message.arbitration.status.code = number, code
            told.append(message)
        return told

    server.answers = answers

    def claim(highest: int) -> int:
        asked.append(highest)
        return highest + 7

    server.looks = True
    async with session(tmp_path, server, election_id=0, claim=claim) as s:
        await s.write([])
    assert asked == [50]
    assert server.received[0].arbitration.election_id.low == 57


async def test_a_switch_tells_which_ports_are_down(tmp_path: Path) -> None:
    """Ports come as a Struct in `other` of the switch's messages; anything else there is ignored."""
    server = ScriptedServer()
    async with session(tmp_path, server) as s:
        changes: asyncio.Queue[set[int]] = asyncio.Queue()
        s.on_ports = lambda: changes.put_nowait(set(s.ports_down))
        foreign = p4r.StreamMessageResponse()
        foreign.other.Pack(p4r.Uint128(low=3))
        for message in (foreign, notices.port_status(3, up=False), notices.port_status(4, up=False),
                        notices.port_status(3, up=True)):
            await server.to_send.put(message)
        assert [await changes.get() for _ in range(3)] == [{3}, {3, 4}, {4}]


async def test_packet_ins_that_were_dropped_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the switch tells of, and those for which the session's own queue has no room."""
    monkeypatch.setattr("netfold.controller.switch.switch.PACKETS", 2)
    server = ScriptedServer()
    async with session(tmp_path, server) as s:
        changed = asyncio.Event()
        s.on_ports = changed.set
        for _ in range(5):
            await server.to_send.put(p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=b"probe")))
        for message in (notices.packet_ins_lost(100), notices.packet_ins_lost(20),
                        notices.port_status(3, up=False)):
            await server.to_send.put(message)
        await changed.wait()  # all before it has been read
        assert (s.packets.qsize(), s.packets_dropped) == (2, 3 + 120)


async def test_packets_come_and_go_with_their_ports(tmp_path: Path) -> None:
    """packet-in carries its ingress port, packet-out its egress port."""
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


async def test_the_ports_of_neighbours_that_were_heard_are_asked_for(tmp_path: Path) -> None:
    """The answer has a bit for each port.  One that comes after nobody waits any more counts with the next."""
    server = ScriptedServer()
    told = iter([1 << 3, 1 << 511 | 1 << 4, 1 << 5])

    def answers(request: p4r.StreamMessageRequest) -> list[p4r.StreamMessageResponse]:
        kind = request.packet.metadata[1].value
        assert kind == bytes([probe.HEARD])
        packet = p4r.PacketIn(payload=next(told).to_bytes(64, "big"))
        packet.metadata.add(metadata_id=2, value=kind)
        return [p4r.StreamMessageResponse(packet=packet)]

    server.answers = answers
    async with session(tmp_path, server) as s:
        assert await s.heard() == 1 << 3
        server.answers = lambda request: []
        waiting = asyncio.create_task(s.heard())
        await until(lambda: len(server.received) == 2)
        waiting.cancel()
        for message in answers(server.received[-1]):
            await server.to_send.put(message)
        await server.to_send.put(p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=b"after it")))
        assert (await s.packets.get()).payload == b"after it"
        server.answers = answers
        assert await s.heard() == 1 << 511 | 1 << 4 | 1 << 5
        server.answers = lambda request: []
        await s.packet_out_to_neighbours(b"frame")
        await until(lambda: len(server.received) == 4)
        sent = server.received[-1].packet
        assert (sent.payload, sent.metadata[1].value) == (b"frame", bytes([probe.NEIGHBOURS]))


async def test_the_end_of_the_stream_ends_the_session(tmp_path: Path) -> None:
    """`ended` reports it, whether the switch closes the stream or dies."""
    server = ScriptedServer()
    async with session(tmp_path, server) as s:
        await server.to_send.put(None)
        assert await s.ended() == "the switch closed the stream"
        with pytest.raises(SwitchError, match="packet-out to port 1"):
            await s.packet_out(1, b"")


async def test_closing_a_session_does_not_cancel_who_waits_for_an_answer(tmp_path: Path) -> None:
    """A call that is cut off by `close` is a SwitchError: gRPC's CancelledError would end the waiting task, and with
    it whatever goes on beside switches that come and go.  Who is cancelled is cancelled."""
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


async def test_nobody_at_the_address_is_a_bounded_error(tmp_path: Path) -> None:
    """Within its time it says which switch and address, and what to check."""
    with pytest.raises(SwitchError, match=r"leaf1: no P4Runtime server answers at unix:.*device id 3"):
        await Session.open("leaf1", f"unix:{tmp_path}/none", device_id=3, pipeline=PIPELINE, election_id=1,
                           timeout=0.2)


async def test_a_switch_that_starts_late_is_waited_for(tmp_path: Path) -> None:
    """A session opened before its server is there comes up with it."""
    address = f"unix:{tmp_path}/late.sock"
    opening = asyncio.create_task(
        Session.open("leaf1", address, device_id=1, pipeline=PIPELINE, election_id=1, timeout=60)
    )
    await asyncio.sleep(0)
    running = await ScriptedServer().serve(address)
    async with await opening as s:
        assert await s.ensure_pipeline()
    await running.stop(None)


async def test_a_switch_that_is_slow_to_greet_is_waited_for(tmp_path: Path) -> None:
    """The first bytes of its server come after half a second, as over a long way with TLS or from a busy machine:
    the connection is not given up and tried again for ever."""
    running = await ScriptedServer().serve(f"unix:{tmp_path}/behind.sock")
    passed_on = list[asyncio.Task[None]]()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(f"{tmp_path}/behind.sock")
        await asyncio.sleep(0.5)
        passed_on.extend([asyncio.create_task(pass_on(reader, ours)), asyncio.create_task(pass_on(theirs, writer))])

    async with await asyncio.start_unix_server(relay, f"{tmp_path}/slow.sock"):
        async with await Session.open("leaf1", f"unix:{tmp_path}/slow.sock", device_id=1, pipeline=PIPELINE,
                                      election_id=1, timeout=BOUND) as s:
            assert await s.ensure_pipeline()
        await running.stop(None)
        await asyncio.wait_for(asyncio.gather(*passed_on), BOUND)


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on what comes, until the end of either connection."""
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(ConnectionError):
        writer.close()
        await writer.wait_closed()


async def test_calls_of_a_closed_session_are_switch_errors(tmp_path: Path) -> None:
    """Whatever is asked after the end, as by a write that is tried again, says that the session was closed."""
    async with session(tmp_path, ScriptedServer()) as s:
        await s.close()
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: s.write([Update("insert", ENTRY)]), lambda: s.read_state(["In.t"]), s.hear, s.ensure_pipeline,
            lambda: s.read_counters({"In.seen": None}), lambda: s.read_cell("In.seen", 0),
            lambda: s.packet_out(1, b"frame"),
        ]
        for call in calls:
            with pytest.raises(SwitchError, match=r"leaf1 .*: (the session was closed meanwhile|the stream is down)"):
                await call()


def test_a_quiet_session_is_not_pinged_to_death() -> None:
    """gRPC servers take more pings than one in five minutes for abuse, unless told otherwise, and end the connection:
    a fabric of one leaf, which has no links to probe, lost its switch every two minutes."""
    assert dict(channel.OPTIONS)["grpc.keepalive_time_ms"] > 300_000


def test_what_was_read_before_is_not_decoded_again() -> None:
    """Switches in like places hold entities alike: the same bytes are decoded once, others are looked at for
    themselves."""
    codec, decoded = Codec(tiny_p4info()), list[Entity]()
    decode = codec.decode

    def noted(message: p4r.Entity) -> Entity:
        decoded.append(decode(message))
        return decoded[-1]

    codec.decode = noted  # type: ignore[method-assign]
    groups = [Multicast(n, ((1, 0),)) for n in (1, 2, 3)]
    answers = [p4r.ReadResponse(entities=[codec.encode(group) for group in some]).SerializeToString()
               for some in (groups[:2], groups[1:])]
    assert codec.held(answers[:1]) == state(groups[:2])
    assert codec.held(answers) == state(groups)
    assert decoded == groups
    with pytest.raises(CodecError, match="expected what was asked for"):
        codec.held([b"\x0a\x05\x00"])

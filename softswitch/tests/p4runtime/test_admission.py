# SPDX-License-Identifier: Apache-2.0
"""Clients that stand still, take all they can, or read nothing: the others are served, and memory stays bounded."""

from __future__ import annotations

import queue
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from finsy.proto import p4i, p4r

from softswitch.engine.errors import NotFound
from softswitch.engine.program_info import DigestInfo
from softswitch.p4runtime import admission, digests
from softswitch.p4runtime.admission import GUEST_BYTES, GUEST_CALLS
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.outbox import BYTES, MESSAGES, Outbox
from softswitch.p4runtime.primaries import Primaries
from softswitch.p4runtime.process import Settings
from softswitch.p4runtime.server import GUEST_STREAMS, MAX_STREAMS, Server
from switch_support.client import INSERT, MODIFY, TIMEOUT, Client, code_of
from switch_support.ports import wait_for
from switch_support.switch import probe_builder, probe_config, probe_p4info

pytestmark = pytest.mark.slow

COUNTER = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=0)))
EVERYTHING = p4r.Entity(table_entry=p4r.TableEntry())
CROWD = MAX_STREAMS + 40
"""More calls than the server has threads."""


@contextmanager
def bench(folder: Path, primaries: Primaries | None = None) -> Iterator[tuple[Server, Client, Client]]:
    """A switch with the probe, its primary at a unix socket, and a client at a TCP port."""
    server = Server(device_id=1, settings=Settings(cpu_port=510), builder=probe_builder, primaries=primaries)
    try:
        unix = f"unix:{folder}/switch.sock"
        port, _ = server.listen("127.0.0.1:0", unix)
        with Client(unix) as controller, Client(f"127.0.0.1:{port}") as other:
            controller.become_primary()
            controller.push(probe_config())
            yield server, controller, other
    finally:
        server.close()


def short_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are looked at often, and those over the primary's unix socket have as long as they like: a machine that
    stands still does not end them."""
    monkeypatch.setattr(admission, "SWEEP", 0.1)
    set_due = admission.Deadlines.set

    def set_most(deadlines: admission.Deadlines, context: Any, seconds: float) -> None:
        set_due(deadlines, context, seconds if context.peer().startswith("ipv4:") else 1000.0)

    monkeypatch.setattr(admission.Deadlines, "set", set_most)


class HalfOpen:
    """Calls that have begun and whose request never comes."""

    def __init__(self, address: str, number: int) -> None:
        self._over = threading.Event()
        self._channel = grpc.insecure_channel(address)
        write = self._channel.stream_unary("/p4.v1.P4Runtime/Write")
        self.calls: list[Any] = [write.future(self._nothing()) for _ in range(number)]

    def _nothing(self) -> Iterator[bytes]:
        self._over.wait()
        yield from ()

    def close(self) -> None:
        self._over.set()
        self._channel.close()


def test_calls_without_a_request_of_those_who_only_read_hold_nobody_up(tmp_path: Path) -> None:
    """More of them than there are threads: the primary writes meanwhile, and most are refused."""
    with bench(tmp_path, Primaries(["unix"])) as (server, controller, other):
        crowd = HalfOpen(other.address, CROWD)
        try:
            wait_for(lambda: sum(call.done() for call in crowd.calls) == CROWD - GUEST_CALLS)
            assert server.guests == GUEST_CALLS
            for _ in range(10):
                controller.write((MODIFY, COUNTER))
            assert {call.code() for call in crowd.calls if call.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        finally:
            crowd.close()
        wait_for(lambda: server.guests == 0)
        assert other.read(COUNTER)


def test_calls_without_a_request_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where everybody may be primary: each gives its thread back after a while, and who waits is served."""
    monkeypatch.setattr(admission, "REQUEST_WITHIN", 0.5)
    short_for_others(monkeypatch)
    with bench(tmp_path) as (_server, controller, other):
        crowd = HalfOpen(other.address, CROWD)
        try:
            controller.write((MODIFY, COUNTER))
            assert {call.code() for call in crowd.calls} == {grpc.StatusCode.CANCELLED}
        finally:
            crowd.close()


def test_readers_that_do_not_read_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads of far more than fits on the way, of which nothing is taken: the primary goes on, and they end."""
    monkeypatch.setattr(admission, "SWEEP", 0.1)
    ahead = 0.0
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))

    def ended() -> bool:
        nonlocal ahead
        ahead += admission.ANSWER_WITHIN
        return server.guests == 0

    rows = []
    for number in range(5000):
        entity = p4r.Entity()
        entity.table_entry.table_id = 0x02000001
        entity.table_entry.match.add(field_id=1).exact.value = struct.pack(">I", 1 << 28 | number)
        entity.table_entry.action.action.action_id = 0x01000003
        entity.table_entry.metadata = bytes(4000)
        rows.append(entity)
    request = p4r.ReadRequest(device_id=1, entities=[EVERYTHING])
    with bench(tmp_path, Primaries(["unix"])) as (server, controller, other):
        for at in range(0, len(rows), 1000):
            controller.write(*((INSERT, row) for row in rows[at:at + 1000]))
        calls = [other.stub.Read(request) for _ in range(GUEST_CALLS)]
        wait_for(lambda: server.guests == GUEST_CALLS)
        controller.write((MODIFY, COUNTER))
        assert server.guests == GUEST_CALLS
        wait_for(ended)
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert code_of(caught.value) is grpc.StatusCode.CANCELLED
        assert len(other.read(EVERYTHING)) >= len(rows)


def test_streams_of_those_who_only_read_leave_room_for_controllers(tmp_path: Path) -> None:
    """One too many is refused by name; a controller still gets its stream."""
    with bench(tmp_path, Primaries(["unix"])) as (_server, controller, other):
        for _ in range(GUEST_STREAMS):
            stream = other.stream()
            stream.arbitrate(0)
            stream.status()
        late = other.stream()
        late.arbitrate(0)
        with pytest.raises(grpc.RpcError) as caught:
            late.next()
        assert code_of(caught.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "may not be primary" in str(caught.value.details())
        controller.become_primary(2)


def test_a_stream_that_says_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is free again for others."""
    monkeypatch.setattr("softswitch.p4runtime.server.REQUEST_WITHIN", 0.2)
    short_for_others(monkeypatch)
    with bench(tmp_path) as (_server, _controller, other):
        with pytest.raises(grpc.RpcError) as caught:
            other.stream().next()
        assert code_of(caught.value) is grpc.StatusCode.CANCELLED


def test_calls_are_the_same_on_the_wire(tmp_path: Path) -> None:
    """A call that ends without a request, or is of an unknown method, is UNIMPLEMENTED as before; others work."""
    with bench(tmp_path) as (_server, controller, other):
        assert controller.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=TIMEOUT).p4runtime_api_version
        channel = grpc.insecure_channel(other.address)
        for method in ("Write", "Nothing"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.stream_unary(f"/p4.v1.P4Runtime/{method}")(iter(()), timeout=TIMEOUT)
            assert code_of(caught.value) is grpc.StatusCode.UNIMPLEMENTED
        channel.close()


def test_large_messages_of_those_who_only_read_are_not_even_decoded(tmp_path: Path) -> None:
    """Neither requests nor messages of a stream; what cannot be decoded is refused by name, and the primary may send
    more."""
    with bench(tmp_path, Primaries(["unix"])) as (_server, controller, other):
        many = [p4r.Entity(table_entry=p4r.TableEntry())] * GUEST_BYTES
        with pytest.raises(grpc.RpcError) as caught:
            other.read(*many)
        assert code_of(caught.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "cannot" not in str(caught.value.details())
        stream = other.stream()
        stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(GUEST_BYTES))))
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        assert code_of(caught.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert controller.read(*[COUNTER] * (GUEST_BYTES // 4))
        channel = grpc.insecure_channel(other.address)
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/p4.v1.P4Runtime/Write")(b"\xff", timeout=TIMEOUT)
        assert code_of(caught.value) is grpc.StatusCode.INVALID_ARGUMENT
        channel.close()


def test_what_waits_for_a_controller_is_bounded() -> None:
    """In number and in bytes, for each kind of message; what is read makes room."""
    outbox = Outbox()
    large = p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=bytes(BYTES // 4 + 1)))
    for _ in range(10):
        outbox.put(large)
    for _ in range(2 * MESSAGES):
        outbox.put(p4r.StreamMessageResponse(digest=p4r.DigestList(digest_id=1)))
    reading = iter(outbox)
    assert next(reading) == large
    outbox.put(large)
    outbox.put(large)
    outbox.close()
    kinds = [message.WhichOneof("update") for message in reading]
    assert kinds.count("digest") == MESSAGES
    assert kinds.count("packet") == 3
    assert kinds.count("other") == 1  # how many packet-ins were lost


def test_digests_that_nobody_acknowledges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of values from the data plane stays within the limit; an acknowledgement makes room again."""
    monkeypatch.setattr(digests, "KEPT_MAX", 1000)
    sent: list[p4r.DigestList] = []
    made = Digests(sent.append)
    (info,) = probe_digests()
    made.describe({0x17000001: info}, probe_p4info())
    config = p4r.DigestEntry.Config(max_list_size=100, ack_timeout_ns=10**15)
    made.configure("insert", p4r.DigestEntry(digest_id=0x17000001, config=config))
    size = sum((bits + 7) // 8 for bits in info.field_bits)
    values = [number.to_bytes(size, "big") for number in range(5000)]
    for value in values:
        made.receive(info.index, value)
    assert sum(len(one.data) for one in sent) == 1000
    made.acknowledge(p4r.DigestListAck(digest_id=0x17000001, list_id=sent[0].list_id))
    for value in values:
        made.receive(info.index, value)
    assert sum(len(one.data) for one in sent) == 1100
    made.close()


def test_values_that_nobody_acknowledges_in_time_are_reported_again() -> None:
    """Once ack_timeout_ns is over, those of that list alone; its acknowledgement comes too late."""
    sent: list[p4r.DigestList] = []
    now = [0.0]
    made = Digests(sent.append, clock=lambda: now[0])
    (info,) = probe_digests()
    made.describe({0x17000001: info}, probe_p4info())
    config = p4r.DigestEntry.Config(max_list_size=1, ack_timeout_ns=10**9)
    made.configure("insert", p4r.DigestEntry(digest_id=0x17000001, config=config))
    first, second = (bytes(sum((bits + 7) // 8 for bits in info.field_bits) - 1) + last for last in (b"\1", b"\2"))
    for seconds, value in ((0.0, first), (0.75, second), (0.75, first), (1.0, first), (1.0, second)):
        now[0] = seconds
        made.receive(info.index, value)
    assert [one.data for one in sent] == [sent[0].data, sent[1].data, sent[0].data]
    with pytest.raises(NotFound):
        made.acknowledge(p4r.DigestListAck(digest_id=0x17000001, list_id=sent[0].list_id))
    made.close()


def test_a_digests_new_config_counts_for_the_values_that_wait() -> None:
    """A shorter time sends them when it has passed since the first, and a shorter list in lists of that length."""
    sent: queue.Queue[p4r.DigestList] = queue.Queue()
    now = [0.0]
    made = Digests(sent.put, clock=lambda: now[0])
    (info,) = probe_digests()
    made.describe({0x17000001: info}, probe_p4info())
    size = sum((bits + 7) // 8 for bits in info.field_bits)

    def configure(kind: str, seconds: int, length: int) -> None:
        config = p4r.DigestEntry.Config(max_timeout_ns=seconds * 10**9, max_list_size=length, ack_timeout_ns=10**15)
        made.configure(kind, p4r.DigestEntry(digest_id=0x17000001, config=config))

    configure("insert", 10**6, 100)
    for number in range(2):
        made.receive(info.index, number.to_bytes(size, "big"))
    now[0] = 1.0
    configure("modify", 1, 100)
    assert len(sent.get(timeout=TIMEOUT).data) == 2
    for number in range(2, 7):
        made.receive(info.index, number.to_bytes(size, "big"))
    configure("modify", 10**6, 2)
    assert [len(sent.get(timeout=TIMEOUT).data) for _ in range(2)] == [2, 2]
    made.receive(info.index, (7).to_bytes(size, "big"))  # the one that was left over has company
    assert len(sent.get(timeout=TIMEOUT).data) == 2
    made.close()


def probe_digests() -> list[DigestInfo]:
    """The engine's list of the probe's digests."""
    from softswitch.engine.local import LocalEngine
    from switch_support.switch import PROBE

    assert isinstance(probe_p4info(), p4i.P4Info)
    with LocalEngine.open(PROBE) as engine:
        return list(engine.info.digests)

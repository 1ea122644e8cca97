# SPDX-License-Identifier: Apache-2.0
"""Malformed messages and hostile frames: refused or dropped, never a crash; with sanitizers where there are any."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

import grpc
import pytest
from finsy.proto import p4r

from softswitch.engine.errors import EngineError
from softswitch.p4runtime.program import Built
from softswitch.p4runtime.server import Server
from switch_support.client import DELETE, INSERT, Client, Stream, code_of, primary
from switch_support.entries import ENTRIES
from switch_support.namespace import in_own_network
from switch_support.ports import Tap, make_hosts, switch, wait_for
from switch_support.probe import Op, Probe
from switch_support.switch import SANITIZE, probe_executable, probe_p4info

ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
}


@pytest.fixture(scope="module")
def sanitized() -> bool:
    """True if a build with AddressSanitizer works here."""
    try:
        probe_executable(flags=SANITIZE)
    except EngineError:
        return False
    return True


@pytest.fixture(scope="module")
def bench(sanitized: bool) -> Iterator[tuple[Server, Client, Stream]]:
    def builder(device_config: bytes) -> Built:
        return Built(probe_executable(flags=SANITIZE if sanitized else ()), probe_p4info())

    with primary(builder=builder) as everything:
        yield everything


def _entities() -> list[p4r.Entity]:
    """One valid entity of every kind."""
    found = list(ENTRIES)
    member = p4r.Entity()
    member.action_profile_member.action_profile_id, member.action_profile_member.member_id = 0x11000001, 1
    member.action_profile_member.action.action_id = 0x01000003
    group = p4r.Entity()
    group.action_profile_group.action_profile_id, group.action_profile_group.group_id = 0x11000001, 1
    group.action_profile_group.members.add(member_id=1, weight=1)
    counter = p4r.Entity(counter_entry=p4r.CounterEntry(counter_id=0x12000001, index=p4r.Index(index=1)))
    meter = p4r.Entity(
        meter_entry=p4r.MeterEntry(meter_id=0x14000001, config=p4r.MeterConfig(cir=1, cburst=1, pir=1))
    )
    register = p4r.Entity(register_entry=p4r.RegisterEntry(register_id=0x16000001))
    register.register_entry.data.bitstring = b"\1\2"
    multicast, clone = p4r.Entity(), p4r.Entity()
    multicast.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 3
    multicast.packet_replication_engine_entry.multicast_group_entry.replicas.add(egress_port=1, instance=1)
    clone.packet_replication_engine_entry.clone_session_entry.session_id = 3
    clone.packet_replication_engine_entry.clone_session_entry.replicas.add(egress_port=1, instance=1)
    values = p4r.Entity(value_set_entry=p4r.ValueSetEntry(value_set_id=0x18000001))
    values.value_set_entry.members.add().match.add(field_id=1).ternary.value = b"\1"
    digest = p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=0x17000001))
    digest.digest_entry.config.max_list_size = 3
    return [*found, member, group, counter, meter, register, multicast, clone, values, digest]


def _spoil(draw: random.Random, entity: p4r.Entity) -> p4r.Entity | None:
    """Changes some bytes of the message; None where no message results."""
    data = bytearray(entity.SerializeToString())
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data))
        data[at] = draw.choice([data[at] ^ (1 << draw.randrange(8)), draw.randrange(256), 0, 255])
    try:
        return p4r.Entity.FromString(bytes(data))
    except Exception:
        return None


def _read_code(client: Client, entity: p4r.Entity) -> grpc.StatusCode | None:
    try:
        client.read(entity)
    except grpc.RpcError as error:
        return code_of(error)
    return None


@pytest.mark.slow
def test_spoiled_messages_are_answered_with_errors(bench: tuple[Server, Client, Stream]) -> None:
    """Thousands of writes and reads with random bytes changed: each is executed or refused, by a named code."""
    server, client, _ = bench
    seed = 20
    print(f"seed {seed}")
    draw, pid, entities = random.Random(seed), server.pid, _entities()
    for _ in range(300):
        batch = [e for e in (_spoil(draw, draw.choice(entities)) for _ in range(20)) if e is not None]
        updates = [(draw.choice([0, 1, 2, 3]), entity) for entity in batch]
        codes = client.codes(*updates)  # type: ignore[arg-type]
        assert all(code in range(17) and code != 13 for code in codes)
        for entity in batch[:4]:
            assert _read_code(client, entity) in (None, *ALLOWED)
    assert server.pid == pid
    assert client.read(p4r.Entity(table_entry=p4r.TableEntry()))


@pytest.mark.slow
@pytest.mark.long
def test_table_writes_by_the_ten_thousand(
    bench: tuple[Server, Client, Stream], thorough: Callable[[int], int]
) -> None:
    """Entries come and go in large batches; none is left, and the process lives."""
    server, client, _ = bench
    pid = server.pid
    for round_ in range(thorough(1)):
        rows = []
        for i in range(12_500):
            row = p4r.Entity()
            row.table_entry.table_id = 0x02000001
            row.table_entry.match.add(field_id=1).exact.value = struct.pack(">I", 1 << 28 | round_ << 20 | i)
            row.table_entry.action.action.action_id = 0x01000003
            rows.append(row)
        client.write(*((INSERT, row) for row in rows))
        client.write(*((DELETE, row) for row in rows))
    left = client.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=0x02000001)))
    assert not [
        e
        for e in left
        if len(e.table_entry.match[0].exact.value) == 4 and e.table_entry.match[0].exact.value[0] >> 4 == 1
    ]
    assert server.pid == pid


def test_random_packets_out_do_no_harm(bench: tuple[Server, Client, Stream]) -> None:
    """Every operation of the program with random fields and lengths, also cut short."""
    server, _, stream = bench
    draw, pid = random.Random(21), server.pid
    for _ in range(2000):
        probe = Probe(
            draw.randrange(256),
            draw.randrange(256),
            draw.choice([1, 2, 510, 511, draw.randrange(1 << 16)]),
            draw.randrange(1 << 32),
            draw.randbytes(draw.choice([0, 1, 100])),
        )
        if probe.op & 0x7F == Op.WIDE:
            continue  # indexes a register without looking: the hand-written probe's own fault
        stream.send(p4r.StreamMessageRequest(packet=p4r.PacketOut(payload=bytes(probe)[: draw.randint(0, 108)])))
    assert server.ports() == []
    assert server.pid == pid


@in_own_network
def test_hostile_frames_on_the_wire_do_no_harm(sanitized: bool) -> None:
    """Random, tiny, oversized and badly described frames are dropped or passed; the process, sanitized, lives."""
    make_hosts(mtu=9500)
    draw = random.Random(22)
    into = Tap("h1")
    with switch(flags=SANITIZE if sanitized else ()) as process:
        for _ in range(500):
            frame = b"\0\0\0\2" + draw.randbytes(draw.choice([10, 11, 30, 60, 1500, 9000]))
            into.send(frame)
        into.virtio()
        good = bytes.fromhex("00000002000200000001000108004500000000004000401100000a0000010a00000217701b5800000000")
        for _ in range(500):
            head = struct.pack(
                "=BBHHHH",
                draw.choice([0, 1]),
                draw.choice([0, 0, 1, 5]),
                draw.choice([0, 34, 42, 60]),
                draw.choice([0, 1, 100, 1400, 9000]),
                draw.choice([0, 14, 34, 34, 60]),
                draw.choice([0, 6, 6, 16, 100]),
            )
            described = bytearray(good + draw.randbytes(draw.choice([0, 1, 100, 2000, 30000])))
            if draw.random() < 0.5:
                described[draw.randrange(4, 42)] = draw.randrange(256)
            into.try_send(head + described)
        wait_for(lambda: process.ports()[0].received > 0)
        plain = Tap("h1")
        plain.send(b"\0\0\0\2\0\2" + bytes(60))
        before = process.ports()[0].received
        wait_for(lambda: process.ports()[0].received >= before)
        assert process.death is None
        process.engine.stats()

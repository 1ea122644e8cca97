# SPDX-License-Identifier: Apache-2.0
"""Registers, counters, meters, hashes, groups, sessions and value sets, read and written from both sides."""

from __future__ import annotations

import binascii
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from softswitch.engine.codec import split
from softswitch.engine.engine import Engine
from softswitch.engine.entities import CloneSession, Count, Event, EventKind, MeterConfig, Multicast
from softswitch.engine.errors import (
    AlreadyExists,
    EngineTimeout,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unimplemented,
)
from softswitch.engine.local import LocalEngine
from softswitch.engine.program_info import pack_key
from switch_support.insides import over_socket, transport
from switch_support.probe import PROBE, Op, probe, read


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalEngine]:
    with LocalEngine.open(PROBE, seed=7) as engine:
        yield engine


@pytest.fixture
def engine(shared: LocalEngine) -> LocalEngine:
    shared.reset()
    shared.take()
    return shared


def test_registers_are_shared_with_the_program(engine: LocalEngine) -> None:
    """Values that frames add can be read, frames see written values, and reset zeroes them."""
    sums = engine.register("sums")
    engine.write_register(sums, 2, [0xFFFFFFFE, 5])

    assert read(engine.inject(1, probe(Op.REGISTER, a=2, b=3, c=3))[0][1]).c == 1
    assert engine.read_register(sums, 1, 4) == [0, 1, 5, 0]

    engine.reset_register(sums)
    assert engine.read_register(sums) == [0] * 16


def test_wide_registers_keep_their_limbs_in_order(engine: LocalEngine) -> None:
    """A 100-bit cell is one integer for the control plane and limbs for the program."""
    wide = engine.register("wide")
    engine.inject(1, probe(Op.WIDE, a=3, b=0x123, c=0xABC))
    assert engine.read_register(wide, 3) == [0x123 << 64 | 0xABC]

    engine.write_register(wide, 0, [(1 << 100) - 1])
    assert engine.read_register(wide, 0, 1) == [(1 << 100) - 1]
    with pytest.raises(InvalidArgument, match="does not fit bit<100>"):
        engine.write_register(wide, 0, [1 << 100])


def test_cells_beyond_the_end_are_out_of_range(engine: LocalEngine) -> None:
    """An index beyond the end is OUT_OF_RANGE in reads and writes of registers, counters and meters."""
    for call in (
        lambda: engine.read_register(engine.register("sums"), 15, 2),
        lambda: engine.write_register(engine.register("sums"), 16, [0]),
        lambda: engine.read_counter(engine.counter("count"), 8, 1),
        lambda: engine.write_meter(engine.meter("meter"), 8, [None]),
        lambda: engine.read_register(engine.register("sums"), 1 << 63, 1),
    ):
        with pytest.raises(OutOfRange):
            call()
    with pytest.raises(InvalidArgument, match="is direct"):
        engine.read_counter(engine.counter("exact_count"), 0, 1)


def test_counters_count_frames_as_received(engine: LocalEngine) -> None:
    """Packets and bytes; indices beyond the end count nothing; both can be set."""
    count = engine.counter("count")
    engine.write_counter(count, 1, [Count(10, 100)])
    engine.inject(1, probe(Op.COUNT, a=1, b=2, rest=bytes(92)))
    engine.inject(1, probe(Op.COUNT, a=200, b=2))

    assert engine.read_counter(count, 0, 3) == [Count(), Count(11, 200), Count()]


def test_a_meter_colours_by_two_rates(engine: LocalEngine) -> None:
    """Bursts first, then the rates refill: yellow above committed, red above peak, green with no configuration."""
    meter = engine.meter("meter")
    engine.write_meter(meter, 1, [MeterConfig(cir=1000, cburst=2, pir=2000, pburst=4)])
    base = engine.now_us

    def color(at_us: int) -> int:
        ((_, frame),) = engine.inject(1, probe(Op.METER, a=1, b=2), now_us=base + at_us)
        return read(frame).c

    assert [color(0) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    assert [color(1000), color(1000), color(1000)] == [0, 1, 2]
    assert color(1499) == 2
    assert color(1500) == 1
    assert color(1_000_000) == 0
    assert engine.read_meter(meter, 0, 2) == [None, MeterConfig(1000, 2, 2000, 4)]
    assert read(engine.inject(1, probe(Op.METER, a=0, b=2))[0][1]).c == 0
    with pytest.raises(InvalidArgument, match="above peak rate"):
        engine.write_meter(meter, 0, [MeterConfig(2, 1, 1, 1)])


def crc16(data: bytes) -> int:
    """CRC-16/ARC bit by bit."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc


def csum16(data: bytes) -> int:
    """The Internet checksum (RFC 1071)."""
    padded = data + b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def xor16(data: bytes) -> int:
    """The xor of 16-bit words, the last one padded with zeros."""
    padded = data + b"\0" * (len(data) % 2)
    total = 0
    for (word,) in struct.iter_unpack(">H", padded):
        total ^= word
    return total


def test_hashes_agree_with_their_definitions_at_every_length(engine: LocalEngine) -> None:
    """crc32, crc16, identity, csum16, xor16 over 0..300 bytes and some longer ones (fast paths and tails)."""
    rng = random.Random(5)
    definitions: dict[int, Callable[[bytes], int]] = {0: binascii.crc32, 1: binascii.crc32, 2: crc16, 3: crc16,
                   5: lambda d: int.from_bytes(d[:8], "big") & 0xFFFFFFFF, 6: csum16, 7: xor16}
    for length in [*range(300), 1023, 1100, 4096, 9001]:
        data = rng.randbytes(length) if length % 3 else b"\xff" * length
        for algo, definition in definitions.items():
            got = read(engine.inject(1, probe(Op.HASH, a=algo, b=2, rest=data))[0][1]).c
            assert got == definition(data), (algo, length)


def test_random_is_uniform_within_its_bounds_and_follows_the_seed(engine: LocalEngine) -> None:
    """Every value of a small range comes about equally often; the same seed gives the same sequence."""
    def draw(n: int) -> list[int]:
        return [read(engine.inject(1, probe(Op.RANDOM, b=10, c=14))[0][1]).c for _ in range(n)]

    first = draw(2000)
    engine.reset()

    assert draw(2000) == first
    assert {value: 300 < first.count(value) < 500 for value in set(first)} == dict.fromkeys(range(10, 15), True)


def test_value_sets_match_by_mask(engine: LocalEngine) -> None:
    """A write replaces all members; too many are refused."""
    known = engine.value_set("known")
    members = [pack_key(known.keys, [field], "known") for field in ((0x0800, 0xFFFF), (0x8000, 0xF000))]
    engine.write_value_set(known, members)

    def has(b: int) -> bool:
        return bool(read(engine.inject(1, probe(Op.VALUE_SET, b=b))[0][1]).a)

    assert [has(b) for b in (0x0800, 0x0801, 0x8123, 0x9000)] == [True, False, True, False]
    assert engine.read_value_set(known) == members
    with pytest.raises(ResourceExhausted):
        engine.write_value_set(known, members * 3)
    engine.write_value_set(known, [])
    assert not has(0x0800)


def test_groups_and_sessions_can_be_written_read_and_deleted(engine: LocalEngine) -> None:
    """Identities are unique, replicas too, ports fit 9 bits."""
    group, session = Multicast(5, ((1, 1), (2, 2))), CloneSession(9, ((3, 3),), 100, 5)
    engine.write_multicast("insert", group)
    engine.write_clone_session("insert", session)

    assert engine.multicasts() == engine.multicasts(5) == [group]
    assert engine.clone_sessions() == engine.clone_sessions(9) == [session]
    with pytest.raises(AlreadyExists):
        engine.write_multicast("insert", group)
    with pytest.raises(InvalidArgument, match="port 1 instance 1 is there twice"):
        engine.write_multicast("modify", Multicast(5, ((1, 1), (1, 1))))
    with pytest.raises(InvalidArgument, match="ports go to 511"):
        engine.write_multicast("modify", Multicast(5, ((512, 1),)))
    with pytest.raises(InvalidArgument, match="group 0"):
        engine.write_multicast("insert", Multicast(0, ()))
    engine.write_multicast("modify", Multicast(5, ((7, 7),)))
    engine.write_clone_session("modify", CloneSession(9, ()))
    assert engine.multicasts(5) == [Multicast(5, ((7, 7),))]
    engine.write_multicast("delete", group)
    engine.write_clone_session("delete", session)
    with pytest.raises(NotFound):
        engine.write_multicast("delete", group)
    with pytest.raises(NotFound):
        engine.clone_sessions(9)


def test_many_groups_survive_growth_and_deletion(engine: LocalEngine) -> None:
    """The id map keeps every id through growth and gaps."""
    for i in range(1, 2001):
        engine.write_multicast("insert", Multicast(i * 31 % 65521, ((i % 500, 0),)))
    for i in range(1, 2001, 3):
        engine.write_multicast("delete", Multicast(i * 31 % 65521, ()))

    left = {g.group: g.replicas for g in engine.multicasts()}
    assert left == {i * 31 % 65521: ((i % 500, 0),) for i in range(1, 2001) if i % 3 != 1}


def test_reset_brings_back_the_start(engine: LocalEngine) -> None:
    """Entries, groups, cells and statistics are those of a new switch after a reset."""
    engine.write_multicast("insert", Multicast(5, ((1, 1),)))
    engine.write_register(engine.register("sums"), 0, [1])
    engine.inject(1, probe(Op.FORWARD, b=1))

    engine.reset()

    assert engine.multicasts() == []
    assert engine.read_register(engine.register("sums"), 0, 1) == [0]
    assert engine.stats().received == 0


@pytest.mark.parametrize("op", [1, *range(3, 50), 999])  # 2 is reset, which takes no body and is tested by itself
def test_requests_cut_short_or_made_of_noise_are_refused(engine: LocalEngine, op: int) -> None:
    """Whatever arrives, each request has one reply and the switch goes on."""
    rng = random.Random(op)
    local = transport(engine)
    for size in [*range(40), 200]:
        small = bytes(rng.choice(b"\0\1\2") for _ in range(size))
        for body in (bytes(size), b"\xff" * size, rng.randbytes(size), small):
            reply = local.exchange(struct.pack("<IH", size + 2, op) + body)
            (length, _status) = struct.unpack_from("<IH", reply)
            assert length + 4 == len(reply)
    assert struct.unpack_from("<H", local.exchange(struct.pack("<IH", 500, op)), 4)[0] == 3
    assert engine.inject(1, probe(Op.FORWARD, b=2)) != []


def test_an_unknown_request_is_unimplemented(engine: LocalEngine) -> None:
    """A request of an unknown kind raises Unimplemented."""
    with pytest.raises(Unimplemented, match="unknown request 999"):
        raise next(split(transport(engine).exchange(struct.pack("<IH", 2, 999))))  # type: ignore[misc]  # an error


# ---- over a socket ---------------------------------------------------------------------------------------------------


class Relay(threading.Thread):
    """A stand-in for a switch process, which serves the socket protocol from a switch in this process."""

    def __init__(self, engine: LocalEngine, sock: socket.socket) -> None:
        super().__init__(daemon=True)
        self.engine, self.sock, self.silent = engine, sock, False
        self.ended = threading.Event()

    def run(self) -> None:
        stream = self.sock.makefile("rb")
        while head := stream.read(4):
            body = stream.read(struct.unpack("<I", head)[0])
            if self.silent:
                continue
            reply = transport(self.engine).exchange(body[5:])
            self.sock.sendall(struct.pack("<IB", len(reply) + 5, 2) + body[1:5] + reply)

    def event(self, event: Event) -> None:
        data = struct.pack("<BBIQ", 3, event.kind, event.id, event.now_us) + event.data
        self.sock.sendall(struct.pack("<I", len(data)) + data)


@pytest.fixture
def pair(engine: LocalEngine) -> Iterator[tuple[Engine, Relay, list[Event], list[str]]]:
    near, far = socket.socketpair()
    relay = Relay(engine, far)
    relay.start()
    events: list[Event] = []
    ends: list[str] = []

    def on_end(why: str) -> None:
        ends.append(why)
        relay.ended.set()

    remote = Engine.over(near, on_event=events.append, on_end=on_end, timeout=60.0)
    yield remote, relay, events, ends
    remote.close()
    far.close()


def test_a_remote_engine_does_what_a_local_one_does(
    pair: tuple[Engine, Relay, list[Event], list[str]], engine: LocalEngine
) -> None:
    """A switch behind a socket gives the same replies as one in this process, and events arrive in between."""
    remote, relay, events, _ = pair
    assert remote.info == engine.info
    relay.event(Event(EventKind.DIGEST, 3, 77, b"abc"))
    remote.write_multicast("insert", Multicast(5, ((1, 1),)))

    assert engine.multicasts() == [Multicast(5, ((1, 1),))]
    assert events == [Event(EventKind.DIGEST, 3, 77, b"abc")]
    with pytest.raises(NotFound):
        remote.multicasts(6)


def test_a_switch_that_dies_or_keeps_silent_is_reported(pair: tuple[Engine, Relay, list[Event], list[str]]) -> None:
    """No call waits for ever: EngineTimeout while it is silent, Internal once it is gone, and on_end says so once."""
    remote, relay, _, ends = pair
    relay.silent = True
    over_socket(remote).timeout = 0.2
    with pytest.raises(EngineTimeout, match=r"within 0\.2 s"):
        remote.stats()

    relay.sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(Internal, match="gone"):
        remote.stats()
    assert relay.ended.wait(60.0)
    assert len(ends) == 1

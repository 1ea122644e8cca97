# SPDX-License-Identifier: Apache-2.0
"""What anybody on the machine may send to the Thrift port: the server answers others as before, whatever it was."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from softswitch.thrift import state, tables
from softswitch.thrift.connection import MESSAGE_MAX, STRING_MAX
from softswitch.thrift.server import ThriftServer
from softswitch.thrift.structs import TYPES
from switch_support import fuzz
from switch_support.thrift import LocalSwitch, client, served

T = TYPES["standard"]
CALL = struct.pack(">II", 0x80010001, len(b"standard:bm_mt_add_entry")) + b"standard:bm_mt_add_entry" + bytes(4)


@pytest.fixture
def both() -> Iterator[tuple[LocalSwitch, ThriftServer]]:
    with served(within=0.3, max_clients=4) as pair:
        yield pair


def answers(server: ThriftServer) -> bool:
    """True if a client is served."""
    with client(server, "standard") as standard:
        return bool(standard.bm_mt_get_num_entries(0, "I.const_t") == 3)


def connect(server: ThriftServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def ends(sock: socket.socket) -> bool:
    """True if the server ends the connection, without a word or after one."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def message(name: str, arguments: Any, kind: int = TMessageType.CALL) -> bytes:
    buffer = TMemoryBuffer()
    wire = TBinaryProtocol(buffer)
    wire.writeMessageBegin(name, kind, 1)
    arguments.write(wire)
    data: bytes = buffer.getvalue()
    return data


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    struct.pack(">I", 0x7FFFFFFF),                                                 # an old message of 2 GiB
    struct.pack(">II", 0x80010001, 0xFFFFFFFF),                                    # a name of -1 bytes
    struct.pack(">II", 0x80010001, STRING_MAX + 1),
    CALL + struct.pack(">BHBi", 15, 3, 12, 0x7FFFFFFF),                            # a key of 2^31 fields
    CALL + struct.pack(">BHBi", 15, 3, 12, -1),
    CALL + b"\x0c\0\x63" * 5000,                                                   # structs in structs
    CALL + struct.pack(">BH", 15, 99) + struct.pack(">Bi", 15, 1) * 5000,          # lists in lists
    CALL + struct.pack(">BHBi", 15, 99, 1, 1 << 20),                               # a million elements without a byte
    CALL + struct.pack(">BHI", 11, 2, 2) + b"\xff\xfe\0",                          # a name that is not UTF-8
    message("standard:no_such_method", T.BmAddEntryOptions(1)),
    message("nobody:bm_get_config", T.BmAddEntryOptions(1)),
    message("bm_get_config", T.BmAddEntryOptions(1)),
    message("standard:bm_get_config", T.BmAddEntryOptions(1), TMessageType.REPLY),
], ids=range(14))
def test_what_is_no_call_ends_the_connection(both: tuple[LocalSwitch, ThriftServer], data: bytes) -> None:
    """Sizes beyond the bounds, deep nesting, unknown names and other protocols end that connection alone."""
    with connect(both[1]) as sock:
        sock.sendall(data)
        assert ends(sock)
    assert answers(both[1])


def test_a_message_without_end_is_cut(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """More bytes than a message may have end the connection, however they are laid out."""
    block = struct.pack(">BHI", 11, 99, 1 << 20) + bytes(1 << 20)
    with connect(both[1]) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(CALL + block * (MESSAGE_MAX // len(block) + 16))
        assert ends(sock)
    assert answers(both[1])


def test_a_client_that_stalls_within_a_message_is_ended(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """The rest of a message must come in time; between messages a client may rest for as long as it likes."""
    with client(both[1], "standard") as rests:
        assert rests.bm_mt_get_num_entries(0, "I.const_t") == 3
        with connect(both[1]) as sock:
            sock.sendall(CALL[:10])
            assert ends(sock)
        assert rests.bm_mt_get_num_entries(0, "I.const_t") == 3


def test_a_new_client_takes_the_place_of_the_one_that_rested_longest(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """Clients that only connect do not keep others out."""
    idle = [connect(both[1]) for _ in range(12)]
    assert answers(both[1])
    assert ends(idle[0])
    for sock in idle:
        sock.close()


def test_messages_that_stop_half_way_keep_nobody_out() -> None:
    """Clients that send a part of a message and wait make room for who comes, long before their time is over."""
    with served(within=20.0, max_clients=4) as (_, server):
        stopped = [connect(server) for _ in range(12)]
        for sock in stopped:
            with contextlib.suppress(ConnectionError):
                sock.sendall(CALL[:10])
        assert answers(server)
        assert ends(stopped[0])
        for sock in stopped:
            sock.close()


def test_arguments_that_are_missing_are_named_errors(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """A call without its arguments is refused with an exception of its kind, and the connection stays."""
    with client(both[1], "standard") as standard:
        with pytest.raises(T.InvalidTableOperation):
            standard.bm_mt_add_entry(0, None, None, None, None, None)
        with pytest.raises(T.InvalidMeterOperation):
            standard.bm_meter_set_rates(0, "I.pm", 0, [T.BmMeterRateConfig(float("nan"), 1)] * 2)
        assert standard.bm_mt_get_num_entries(0, "I.const_t") == 3


def test_answers_are_bounded(both: tuple[LocalSwitch, ThriftServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be too long an answer is refused, and told to be read piece by piece."""
    monkeypatch.setattr(state, "CELLS_MAX", 7)
    monkeypatch.setattr(tables, "ENTRIES_MAX", 2)
    with client(both[1], "standard") as standard:
        with pytest.raises(T.InvalidRegisterOperation):
            standard.bm_register_read_all(0, "I.seen")
        assert standard.bm_register_read_all(0, "I.narrow") == [0, 0, 0]
        with pytest.raises(T.InvalidTableOperation):
            standard.bm_mt_get_entries(0, "I.const_t")
        for index in range(3):
            standard.bm_counter_write(0, "I.ports", index, T.BmCounterValue(1, 1))
        with pytest.raises(TApplicationException, match="more than 2 entries"):
            standard.bm_serialize_state()


def _value(rng: random.Random, kind: str) -> Any:
    """A value of a type of the interface, often at an edge."""
    edges = (0, 1, -1, 7, 2**15 - 1, -2**15)
    match kind:
        case "bool":
            return rng.random() < 0.5
        case "double":
            return rng.choice([0.0, -1.0, 1e300, float("inf"), float("nan"), 0.001])
        case "i16":
            return rng.choice(edges)
        case "i32" | "i64":
            return rng.choice([*edges, 2**31 - 1, -2**31])
        case "string":
            return rng.choice(["", "I.exact_t", "I.tern_t", "I.sel_t", "I.sel", "I.prof", "I.say", "I.drop", "I.pm",
                               "I.seen", "I.ports", "P.types", "101", "\0", "x" * 1000])
        case "binary":
            return rng.randbytes(rng.choice([0, 1, 2, 4, 6, 6, 33]))
    if kind.startswith("list<"):
        return [_value(rng, kind[5:-1]) for _ in range(rng.choice([0, 1, 1, 2, 3]))]
    made = getattr(T, kind, None) or getattr(TYPES["simple_switch"], kind)
    names = {8: "i32", 10: "i64", 2: "bool", 4: "double", 6: "i16"}
    fields = []
    for _, number, _, inner, _ in made.thrift_spec[1:]:
        inner_kind = names.get(number) or ("binary" if inner == "BINARY" else "string" if number == 11 else
                                           inner[0].__name__ if number == 12 else "list<binary>")
        fields.append(None if rng.random() < 0.3 else _value(rng, inner_kind))
    return made(*fields)


@pytest.mark.fuzz
def test_random_calls_and_random_bytes_break_nothing(fuzzing: fuzz.Fuzz, both: tuple[LocalSwitch, ThriftServer],
                                                     caplog: pytest.LogCaptureFixture) -> None:
    """Calls of every method with values at the edges, whole and with bytes changed: no exception of ours, and the
    server answers afterwards."""
    methods = [(service, *described) for service, types in TYPES.items() for described in types.methods.values()]
    for rng in fuzzing.inputs(400):
        service, method, arguments, _ = rng.choice(methods)
        values = [None if rng.random() < 0.05 else _value(rng, field.type) for field in method.arguments]
        data = message(f"{service}:{method.name}", arguments(*values))
        if rng.random() < 0.3:
            data = fuzz.spoil(rng, data)
        with connect(both[1]) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert ends(sock), f"input {fuzzing.tried}: {method.name}"
    assert answers(both[1])
    assert not [record for record in caplog.records if record.exc_info]


def test_a_closed_server_leaves_no_thread_behind() -> None:
    """Clients that rest are told, and all threads have ended when close returns."""
    before = set(threading.enumerate())
    with served(max_clients=4) as (_, server):
        assert answers(server)
        resting = connect(server)
        assert answers(server)
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before
    assert ends(resting)
    resting.close()

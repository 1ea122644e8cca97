# SPDX-License-Identifier: Apache-2.0
"""Digests for thrift's clients: which lists are sent when, and nanomsg's frames at the socket."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import pytest

from softswitch.thrift.notifications import KEPT_MAX, Learning, Notifications

HEADER = struct.Struct("<iQiiQi")
"""The header as controllers of courses unpack it."""

HELLO = b"\0SP\0\0\x21\0\0"
"""The greeting of a subscriber of nanomsg."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def learning(clock: Clock) -> Learning:
    return Learning(7, {0: 1, 1: 2}, clock=clock)


def test_sixteen_samples_make_a_message_at_once(learning: Learning) -> None:
    """A full list is sent without waiting: header, then the samples in the order in which they came."""
    samples = [struct.pack(">IH", i, i) for i in range(16)]
    messages = [learning.add(1, s) for s in samples]
    assert messages[:15] == [None] * 15
    whole = messages[15]
    assert whole is not None
    topic, device, context, ident, buffer, number = HEADER.unpack(whole[:32])
    assert topic.to_bytes(4, "little") == b"LEA|"
    assert (device, context, ident, buffer, number) == (7, 0, 2, 0, 16)
    assert whole[32:] == b"".join(samples)
    assert learning.due() is None


def test_a_list_that_is_not_full_is_sent_after_a_second(learning: Learning, clock: Clock) -> None:
    """The time runs from the first sample of the list."""
    assert learning.add(0, b"a") is None
    clock.now += 0.6
    assert learning.add(0, b"b") is None
    assert learning.due() == pytest.approx(101.0)
    assert learning.expired() == []
    clock.now = 101.0
    (message,) = learning.expired()
    assert message[32:] == b"ab"
    assert learning.due() is None


def test_a_sample_comes_again_only_after_its_acknowledgement(learning: Learning, clock: Clock) -> None:
    """One that waits, or was sent and is not acknowledged, is not repeated."""
    learning.set_samples(1, 2)
    assert learning.add(0, b"a") is None
    assert learning.add(0, b"a") is None, "it waits already"
    assert learning.add(0, b"b") is not None
    assert learning.add(0, b"a") is None
    assert learning.due() is None, "it was not taken"
    assert learning.acknowledge(1, 0, [0])
    assert learning.add(0, b"b") is None
    assert learning.due() is None
    assert learning.add(0, b"a") is None
    clock.now += 1
    (message,) = learning.expired()
    assert HEADER.unpack(message[:32])[4:] == (1, 1)
    assert message[32:] == b"a"
    assert learning.acknowledge(1, 1)
    assert learning.acknowledge(1, 0)
    assert learning.add(0, b"a") is None
    assert learning.add(0, b"b") is not None


def test_what_a_controller_sets_holds(learning: Learning, clock: Clock) -> None:
    """Time-out and length of a list; an unknown list is refused."""
    assert learning.set_timeout(1, 0)
    learning.add(0, b"a")
    assert learning.due() is None
    assert learning.set_timeout(1, 250)
    assert learning.due() == pytest.approx(clock.now + 0.25)
    learning.reset()
    assert learning.due() is None
    assert not learning.set_timeout(9, 1)
    assert not learning.set_samples(9, 1)
    assert not learning.acknowledge(9, 0)


def test_a_controller_that_never_acknowledges_costs_bounded_memory(learning: Learning) -> None:
    """Beyond the limit samples are dropped until others are acknowledged."""
    learning.set_samples(1, KEPT_MAX)
    messages = [learning.add(0, i.to_bytes(4, "big")) for i in range(KEPT_MAX + 5)]
    assert sum(m is not None for m in messages) == 1
    assert learning.due() is None
    assert learning.acknowledge(1, 0)
    learning.add(0, b"next")
    assert learning.due() is not None


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the connection ended"
        data += part
    return data


def _subscribe(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(path))
    connection.sendall(HELLO)
    assert _read(connection, 8) == b"\0SP\0\0\x20\0\0"
    return connection


def test_subscribers_get_frames_of_nanomsg(tmp_path: Path) -> None:
    """A byte of 1, the length, the message; to every subscriber; and only the owner may open the socket."""
    path = tmp_path / "n.ipc"
    published = Notifications(3, f"ipc://{path}")
    published.start()
    try:
        assert os.stat(path).st_mode & 0o777 == 0o600
        published.describe({0: 1})
        with _subscribe(path) as one, _subscribe(path) as two:
            published.learning.set_timeout(1, 20)
            published.learned(0, b"abc")  # sent when its time is over
            for connection in (one, two):
                kind, size = struct.unpack(">BQ", _read(connection, 9))
                assert (kind, size) == (1, 35)
                message = _read(connection, 35)
                assert HEADER.unpack(message[:32])[1:] == (3, 0, 1, 0, 1)
                assert message[32:] == b"abc"
    finally:
        published.close()
    assert not path.exists()


def test_what_does_not_speak_the_protocol_is_ended(tmp_path: Path) -> None:
    """A greeting of another protocol ends the connection, and others stay served."""
    path = tmp_path / "n.ipc"
    published = Notifications(3, f"ipc://{path}")
    published.start()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wrong:
            wrong.settimeout(10)
            wrong.connect(str(path))
            wrong.sendall(b"GET / HT")
            assert wrong.recv(8) == b""
        with _subscribe(path) as right:
            published.publish(b"x" * 32)
            assert _read(right, 9) == struct.pack(">BQ", 1, 32)
    finally:
        published.close()


def test_the_socket_of_a_killed_switch_is_replaced_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    """What else has the name stays as it is, and the error names it."""
    path = tmp_path / "n.ipc"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    first = Notifications(0, f"ipc://{path}")
    first.start()
    second = Notifications(0, f"ipc://{path}")
    with pytest.raises(OSError, match=r"n\.ipc"):
        second.start()
    second.close()
    _subscribe(path).close()
    first.close()
    path.write_text("a file of somebody")
    third = Notifications(0, f"ipc://{path}")
    with pytest.raises(OSError, match=r"n\.ipc"):
        third.start()
    third.close()
    assert path.read_text() == "a file of somebody"


def test_another_transport_is_refused() -> None:
    """Of nanomsg's transports ipc alone is spoken."""
    with pytest.raises(ValueError, match=r"tcp://127.0.0.1:1.*ipc://"):
        Notifications(0, "tcp://127.0.0.1:1")

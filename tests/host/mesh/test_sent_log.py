# SPDX-License-Identifier: Apache-2.0
"""What was sent and not acknowledged, and what arrives over one connection after another: bytes alone."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from netfold.host.mesh.arriving import Arriving
from netfold.host.mesh.sent_log import SentLog, unacknowledged


class LogMachine(RuleBasedStateMachine):
    """A log beside the whole stream: whatever is added, acknowledged, copied and sent again, it has the right bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.log = SentLog()
        self.stream = bytearray()
        self.memory: list[bytearray] = []
        self.first = 0

    @rule(data=st.binary(min_size=1, max_size=20))
    def add(self, data: bytes) -> None:
        """The kernel takes bytes of the caller's memory."""
        memory = bytearray(data)
        self.memory.append(memory)
        self.log.add(memoryview(memory))
        self.stream += data

    @rule(data=st.binary(min_size=1, max_size=20))
    def add_copy(self, data: bytes) -> None:
        """The kernel takes bytes of memory that stays as it is."""
        self.log.add(memoryview(data), owned=True)
        self.stream += data

    @rule(part=st.floats(0, 1))
    def acknowledge(self, part: float) -> None:
        """The peer's kernel acknowledges some of what is in flight."""
        end = self.first + int(part * (len(self.stream) - self.first))
        self.log.trim(end)
        self.first = max(self.first, end)

    @rule()
    def give_back(self) -> None:
        """The callers have their memory again, and write something else there."""
        self.log.own()
        assert not self.log.borrowed
        for memory in self.memory:
            memory[:] = b"?" * len(memory)
        self.memory.clear()

    @precondition(lambda self: len(self.stream) > self.first)
    @rule(part=st.floats(0, 1))
    def send_again(self, part: float) -> None:
        """Another connection goes on from where the peer says that it is."""
        end = self.first + int(part * (len(self.stream) - self.first))
        again = b"".join(self.log.take_from(end))
        assert again == self.stream[end:]
        self.first = end
        self.add(again)
        del self.stream[-len(again) or len(self.stream):]

    @rule(beyond=st.integers(1, 10))
    def refuse(self, beyond: int) -> None:
        """Nobody has received what was never sent, nor lost what was acknowledged."""
        for end in (len(self.stream) + beyond, self.first - beyond):
            with pytest.raises(ValueError, match="expected"):
                self.log.take_from(end)

    @invariant()
    def counts(self) -> None:
        """First, next and length are those of the stream."""
        assert (self.log.first, self.log.next, len(self.log)) == (
            self.first, len(self.stream), len(self.stream) - self.first)


TestLog = LogMachine.TestCase


@given(pieces=st.lists(st.binary(max_size=50), max_size=5), sizes=st.lists(st.integers(1, 40), min_size=1))
def test_a_stream_goes_on_over_one_connection_after_another(pieces: list[bytes], sizes: list[int]) -> None:
    """Each byte is read once and in order, however much of each connection was read before the next one came."""
    stream, got = Arriving(), bytearray()
    stream.socket = None
    for at, piece in enumerate(pieces):
        near, far = socket.socketpair()
        near.setblocking(False)
        stream.socket = near
        far.sendall(piece)
        size = sizes[at % len(sizes)]
        view = memoryview(bytearray(size))
        if piece or stream.kept:
            got += view[: stream.recv_into(view)]
        assert stream.drain() == stream.received + len(stream.kept)
        near.close()
        far.close()
    while stream.kept:
        view = memoryview(bytearray(sizes[0]))
        got += view[: stream.recv_into(view)]
    assert got == b"".join(pieces)
    assert stream.received == len(got)


def test_the_kernel_says_what_is_not_acknowledged() -> None:
    """Nothing once the peer's kernel has it all; what does not fit there is still on this side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            near.sendall(b"x" * 1000)
            assert far.recv(1, socket.MSG_PEEK) == b"x"
            while unacknowledged(near):
                pass
            near.setblocking(False)
            sent = 0
            with suppress(BlockingIOError):
                while sent < 1 << 30:
                    sent += near.send(b"x" * (1 << 20))
            assert 0 < unacknowledged(near) <= sent


def test_what_is_sent_again_is_one_piece() -> None:
    """However many operations have left a piece each: the kernel takes 1024 pieces in one call at most."""
    log = SentLog()
    for number in range(3000):
        log.add(memoryview(bytes([number % 251])))
        log.own()
    (again,) = log.take_from(10)
    assert again == bytes(number % 251 for number in range(10, 3000))
    assert log.take_from(10) == []

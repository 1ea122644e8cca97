# SPDX-License-Identifier: Apache-2.0
"""A stream whose sender asks for other connections, goes on over them and thinks better of it, at any time, while
bytes, handshakes and ends of connections arrive in any order, or never: a model of both ends, without sockets."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Any

import pytest

from netfold.host.mesh.arriving import Arriving
from netfold.host.mesh.sending import Send, Sending
from netfold.host.mesh.sent_log import SentLog

MOST = 1 << 20


class Pipe:
    """One connection, from the sender's process to the receiver's; it has the methods of a socket at both ends."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.arrived = self.acknowledged = self.read = 0
        self.closed = self.end_arrived = self.left = False

    def sendmsg(self, parts: list[memoryview]) -> int:
        assert not self.closed
        self.sent += b"".join(parts)
        return sum(map(len, parts))

    def recv(self, size: int, flags: int = 0) -> bytes:
        assert not self.left
        data = bytes(self.sent[self.read : min(self.arrived, self.read + size)])
        if not data and not self.end_arrived:
            raise BlockingIOError
        if not flags & socket.MSG_PEEK:
            self.read += len(data)
        return data

    def recv_into(self, view: memoryview) -> int:
        data = self.recv(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """The receiver closes its end."""
        self.left = True

    def getsockopt(self, *_: Any) -> bytes:
        return b"reno\0"


class Streams:
    """Both ends of a stream, and what is under way between them.

    first  whether there is a first connection, of which the sender knows and the receiver is going to learn; else the
           sender has asked for none yet
    """

    def __init__(self, *, first: bool = True) -> None:
        self.sending = Sending(SentLog())
        self.arriving = Arriving()
        self.arriving.socket = None
        self.now = self.first = Pipe()
        self.pipes = [self.now]
        if first:
            self.sending.write_to(self.now)  # type: ignore[arg-type]
        self.has_first = first
        self.asked: Pipe | None = None
        self.hellos: list[tuple[Pipe, int, int]] = []
        self.verdicts: list[tuple[Pipe, int, int]] = []
        self.posted, self.got = bytearray(), bytearray()

    # ---- the sender ------------------------------------------------------------------------------------------------
    def post(self, size: int) -> None:
        """More is to be sent."""
        data = bytes((len(self.posted) + number) % 251 for number in range(size))
        self.posted += data
        self.sending.sends.append(Send(memoryview(data)))

    def write(self, most: int) -> None:
        """The kernel takes what is posted."""
        if not self.sending.moving and self.sending.out is not None:
            self.sending.write(most)

    def forget(self, *, own: bool) -> None:
        """What is acknowledged is forgotten, as ``LoggedMesh`` does."""
        log = self.sending.log
        assert log is not None
        if not self.sending.moving:
            log.trim(log.next - (len(self.now.sent) - self.now.acknowledged))
        if own:
            log.own()

    def ask(self) -> None:
        """Another connection, also where one is asked for already."""
        self._close_asked()
        turn, now = self.sending.ask()
        self.asked = Pipe()
        self.pipes.append(self.asked)
        self.hellos.append((self.asked, turn, now))

    def _close_asked(self) -> None:
        if self.asked is not None:
            self.asked.closed, self.asked = True, None

    def withdraw(self) -> None:
        """It thinks better of it."""
        if self.asked is not None:
            self._close_asked()
            self.sending.stay()

    def hear(self, which: int) -> None:
        """A receiver's answer arrives."""
        if not self.verdicts:
            return
        pipe, turn, received = self.verdicts.pop(which % len(self.verdicts))
        if pipe is self.asked:
            assert self.sending.log is not None
            assert self.sending.log.covers(received), "what the receiver lacks was forgotten"
            self.now.closed = True
            self.now, self.asked = pipe, None
            self.sending.go_on(pipe, turn, received)  # type: ignore[arg-type]

    # ---- what is between -------------------------------------------------------------------------------------------
    def deliver(self, pipe: Pipe, most: int) -> None:
        """Bytes, and the end, of a connection come to the receiver's kernel."""
        pipe.arrived = min(len(pipe.sent), pipe.arrived + most)
        pipe.end_arrived = pipe.closed and pipe.arrived == len(pipe.sent)

    def acknowledge(self) -> None:
        """The sender's kernel learns what has arrived."""
        self.now.acknowledged = self.now.arrived

    # ---- the receiver ----------------------------------------------------------------------------------------------
    def attach(self) -> None:
        """The receiver hears that the sender has accepted the first connection, if it does not read another one."""
        if self.has_first and self.arriving.socket is None:
            self.arriving.socket = self.first  # type: ignore[assignment]

    def admit(self, which: int, *, answered: bool = True) -> None:
        """A request arrives, as ``MovingMesh`` admits it."""
        if not self.hellos:
            return
        pipe, turn, now = self.hellos.pop(which % len(self.hellos))
        if self.first.arrived:  # and so has the answer before it
            self.attach()
        if not self.arriving.admits(turn, now):
            return
        received = self.arriving.drain()
        if answered:  # else the connection broke under the answer
            self.arriving.offer(pipe, turn)  # type: ignore[arg-type]
            self.verdicts.append((pipe, turn, received))

    def look(self) -> None:
        """The receiver looks at the connection that it was offered."""
        goes_on = self.arriving.hear_successor() if self.arriving.successor is not None else None
        if goes_on:
            self.arriving.succeed()
        elif goes_on is not None:
            self.arriving.withdraw_successor()

    def read(self, size: int) -> None:
        """The receiver reads what has come.  The end of the connection would be taken for the sender's."""
        view = memoryview(bytearray(size))
        if self.arriving.socket is None:
            return
        with suppress(BlockingIOError):
            got = self.arriving.recv_into(view)
            assert got, "the receiver takes the sender for lost"
            self.got += view[:got]
        assert self.got == self.posted[: len(self.got)], "other bytes than were sent"

    # ---- all -------------------------------------------------------------------------------------------------------
    def step(self, rng: random.Random) -> None:
        """Anything that can happen next."""
        which = rng.randrange(100)
        rng.choice([
            lambda: self.post(rng.randint(1, 9)),
            lambda: self.write(rng.choice((1, MOST))),
            lambda: self.write(rng.choice((1, MOST))),
            lambda: self.forget(own=rng.random() < 0.5),
            self.ask,
            self.withdraw,
            lambda: self.hear(which),
            lambda: self.hear(which),
            lambda: self.deliver(rng.choice(self.pipes[-4:]), rng.choice((1, 5, MOST))),
            lambda: self.deliver(self.now, rng.choice((1, 5, MOST))),
            self.acknowledge,
            lambda: self.admit(which, answered=rng.random() < 0.8),
            self.look,
            self.attach,
            lambda: self.read(rng.randint(1, 30)),
        ])()

    def finish(self) -> None:
        """All connections deliver what they have, as kernels do that repeat what is not acknowledged."""
        self.withdraw()
        if self.sending.out is None:
            self.ask()
            self.admit(len(self.hellos) - 1)
            self.hear(len(self.verdicts) - 1)
        self.attach()
        self.write(MOST)
        for pipe in self.pipes:
            self.deliver(pipe, MOST)
        self.look()
        for _ in range(2):  # what was kept, and what has come since
            self.read(MOST)
        assert self.got == self.posted, "not all that was sent"


def walk(seeds: range, steps: int = 60) -> None:
    """Random runs.  Raises AssertionError, which names the seed."""
    for seed in seeds:
        streams, rng = Streams(first=seed % 3 > 0), random.Random(seed)
        try:
            for _ in range(steps):
                streams.step(rng)
            streams.finish()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_whatever_happens_each_byte_is_read_once() -> None:
    """What the receiver reads is what was posted, in order; and once all connections deliver what they have, all of
    it."""
    walk(range(5000))


def reads_on(stream: Arriving, view: memoryview) -> int:
    """``Arriving.recv_into`` without the rule that nothing is read where the peer may go on elsewhere."""
    if stream.kept:
        got = min(len(stream.kept), len(view))
        view[:got], stream.kept = stream.kept[:got], stream.kept[got:]
    else:
        assert stream.socket is not None
        got = stream.socket.recv_into(view)
    stream.received += got
    return got


def forgets_always(streams: Streams, *, own: bool) -> None:
    """``Streams.forget`` without the rule that nothing is forgotten while a stream moves."""
    log = streams.sending.log
    assert log is not None
    log.trim(log.next - (len(streams.now.sent) - streams.now.acknowledged))
    del own


def admits_any_now(stream: Arriving, turn: int, now: int) -> bool:
    """``Arriving.admits`` without the sender's word on where it has written."""
    del now
    stream.withdraw_successor()
    return turn > stream.latest_turn


def admits_any_turn(stream: Arriving, turn: int, now: int) -> bool:
    """``Arriving.admits`` of what comes too late as well."""
    stream.latest_turn = min(stream.latest_turn, turn - 1)
    return admits(stream, turn, now)


admits = Arriving.admits


@pytest.mark.parametrize(("where", "name", "broken"), [
    (Arriving, "recv_into", reads_on),
    (Streams, "forget", forgets_always),
    (Arriving, "admits", admits_any_now),
    (Arriving, "admits", admits_any_turn),
])
def test_the_model_finds_each_rule_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, broken: Any
) -> None:
    """Without any one of its rules the protocol loses bytes, repeats some, or takes the sender for lost."""
    monkeypatch.setattr(where, name, broken)
    with pytest.raises(AssertionError, match="seed"):
        walk(range(5000))

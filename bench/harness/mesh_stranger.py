# SPDX-License-Identifier: Apache-2.0
"""A stranger at the ports at which ranks wait for each other: it speaks the handshake of today (host/mesh/handshake.py)
and has everything that a rank has but the job's secret."""

from __future__ import annotations

import contextlib
import random
import select
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from netfold.bench.harness.overhearing import OverheardHandshake
from netfold.host.mesh.handshake import CHALLENGE, HELLO, MAGIC, PROOF_BYTES, VERDICT, Identity, Initiator, Outcome

HELD: Final = 32
"""Connections that are open at once."""
CONNECT_SECONDS: Final = 0.2
MOST_NOISE: Final = 4096
"""Bytes of noise."""

Answer = Callable[[bytes], bytes]
"""Makes the answer to a challenge."""


@dataclass
class _Talk:
    socket: socket.socket
    kind: str
    answer: Answer
    data: bytearray = field(default_factory=bytearray)
    challenged: bool = False


class MeshStranger:
    """Greets ranks in all ways that are not right.

    listeners  where they accept connections
    overheard  handshakes of theirs, from which it knows the job's epoch, its ranks, and who listens where.  Raises
               ValueError where there is none: it would be refused with its first words
    """

    def __init__(
        self, rng: random.Random, listeners: Sequence[tuple[str, int]], overheard: Sequence[OverheardHandshake]
    ) -> None:
        if not overheard:
            raise ValueError("overheard: expected a handshake between ranks of the job, got none")
        self._rng = rng
        self._listeners, self._overheard = listeners, overheard
        self._epoch, self._world = overheard[0].epoch, overheard[0].world
        self._ranks = {one.listener: one.listens for one in overheard}
        self._talks: list[_Talk] = []
        self._kinds: list[str] = []
        """Kinds that are still to come until each of KINDS had its turn; the last is the next."""
        self.met: Counter[str] = Counter()
        """Tries by their kinds, and of "challenged" and "refused" how many came so far."""
        self.broken: list[str] = []
        """Verdicts that no rank may give."""

    def close(self) -> None:
        """Close all connections."""
        for talk in self._talks:
            talk.socket.close()
        self._talks.clear()

    def attempt(self) -> None:
        """Greet one rank, and go on with those that were greeted before.  Raises OSError where nobody listens.

        Each of KINDS has its turn before one comes again, in an order that is drawn.
        """
        self._kinds = self._kinds or self._rng.sample(list(KINDS), len(KINDS))
        self.greet(self._rng.choice(self._listeners), self._kinds.pop())
        self.listen()

    def greet(self, where: tuple[str, int], kind: str) -> None:
        """Greet the rank that listens there in one of KINDS.  Raises OSError where nobody does."""
        said, answer = KINDS[kind](self, where)
        connection = socket.create_connection(where, timeout=CONNECT_SECONDS)
        connection.setblocking(False)
        self.met[kind] += 1
        self._talks.append(_Talk(connection, kind, answer))
        with contextlib.suppress(OSError):
            connection.send(said)
        if len(self._talks) > HELD:
            self._talks.pop(self._rng.randrange(HELD)).socket.close()

    def listen(self, seconds: float = 0.0) -> None:
        """Answer what ranks have said, or say within so many seconds."""
        ready = set(select.select([talk.socket for talk in self._talks], [], [], seconds)[0]) if self._talks else ()
        for talk in [talk for talk in self._talks if talk.socket in ready]:
            if not self._hear(talk):
                talk.socket.close()
                self._talks.remove(talk)

    def _hear(self, talk: _Talk) -> bool:
        """True if the connection goes on."""
        try:
            data = talk.socket.recv(4096)
            talk.data += data
            if not talk.challenged and len(talk.data) >= CHALLENGE.size:
                challenge = bytes(talk.data[: CHALLENGE.size])
                del talk.data[: CHALLENGE.size]
                talk.challenged = challenge.startswith(MAGIC)
                self.met["challenged" if talk.challenged else "answered otherwise"] += 1
                talk.socket.send(talk.answer(challenge))
        except OSError:
            return False
        if talk.challenged and len(talk.data) >= VERDICT.size:
            outcome = VERDICT.unpack(talk.data[: VERDICT.size])[0]
            self.met["refused"] += outcome == Outcome.REFUSED
            if outcome != Outcome.REFUSED or len(talk.data) > VERDICT.size:
                self.broken.append(f"{talk.kind}: a rank answered {bytes(talk.data).hex()}, expected a refusal alone")
            return False
        return bool(data)

    # ---- what it says --------------------------------------------------------------------------------------------
    def _me(self, where: tuple[str, int]) -> tuple[Identity, int]:
        """Some rank, but for its key, and the rank that it greets."""
        peer = self._ranks.get(where, self._rng.randrange(self._world))
        rank = self._rng.choice([rank for rank in range(self._world) if rank != peer])
        return Identity(rank, self._world, self._epoch, self._rng.randbytes(32)), peer

    def _hello(self, where: tuple[str, int]) -> tuple[Identity, bytes]:
        me, peer = self._me(where)
        lane = self._rng.choice([None, self._rng.randrange(4)])
        return me, Initiator(me, peer, lane=lane, random_bytes=self._rng.randbytes).hello

    def _wrong_secret(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        me, hello = self._hello(where)
        return hello, lambda challenge: me.proof("initiator", hello, challenge) + self._noise()

    def _reflected(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        _, hello = self._hello(where)
        return hello, lambda challenge: challenge[-PROOF_BYTES:]

    def _truncated(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        me, hello = self._hello(where)
        if self._rng.random() < 0.5:
            return hello[: self._rng.randrange(len(hello))], lambda challenge: b""
        return hello, lambda challenge: me.proof("initiator", hello, challenge)[: self._rng.randrange(PROOF_BYTES)]

    def _replayed(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        here = [one for one in self._overheard if one.listener == where] or self._overheard
        one = self._rng.choice(here)
        return one.hello, lambda challenge: one.proof

    def _replayed_proof(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        _, hello = self._hello(where)
        proof = self._rng.choice(self._overheard).proof
        return hello, lambda challenge: proof

    def _at_once(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        _, hello = self._hello(where)
        return hello + self._rng.randbytes(PROOF_BYTES) + self._noise(), lambda challenge: b""

    def _foreign(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        me, peer = self._me(where)
        magic, epoch, rank, to, world = self._rng.choice([
            (b"netfold1", me.epoch, me.rank, peer, me.world), (MAGIC, me.epoch ^ 1, me.rank, peer, me.world),
            (MAGIC, me.epoch, peer, peer, me.world), (MAGIC, me.epoch, me.world, peer, me.world),
            (MAGIC, me.epoch, me.rank, peer, me.world + 1), (MAGIC, me.epoch, me.rank, me.world, me.world),
        ])
        return HELLO.pack(magic, epoch, rank, to, world, self._rng.randbytes(32)), lambda challenge: b""

    def _noisy(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        return self._noise(), lambda challenge: b""

    def _silent(self, where: tuple[str, int]) -> tuple[bytes, Answer]:
        return b"", lambda challenge: b""

    def _noise(self) -> bytes:
        return self._rng.randbytes(self._rng.randrange(1, MOST_NOISE))


KINDS: Final[Mapping[str, Callable[[MeshStranger, tuple[str, int]], tuple[bytes, Answer]]]] = {
    "wrong secret": MeshStranger._wrong_secret, "reflected": MeshStranger._reflected,
    "truncated": MeshStranger._truncated, "replayed": MeshStranger._replayed,
    "replayed proof": MeshStranger._replayed_proof, "at once": MeshStranger._at_once,
    "foreign": MeshStranger._foreign, "noise": MeshStranger._noisy, "silent": MeshStranger._silent,
}
"""Ways to greet a rank by their names: the first words, and what is said to a challenge."""

# SPDX-License-Identifier: Apache-2.0
"""The handshake with which every TCP connection between two ranks begins: each proves to the other that it knows the
job's secret, without showing it.  Bytes alone, without sockets or clocks.

    initiator -> responder   hello      magic 8 | epoch 8 | initiator's rank 4 | responder's rank 4 | world size 4 |
                                        initiator's nonce 32 (| lane 4)
    responder -> initiator   challenge  magic 8 | responder's nonce 32
    initiator -> responder   proof      HMAC-SHA256(key, "initiator" | hello | challenge)
    responder -> initiator   verdict    outcome 1 | HMAC-SHA256(key, "responder" | outcome | hello | challenge)

This is three-pass mutual authentication by a message authentication code (ISO/IEC 9798-4, mechanism 4), behind a hello.
Both nonces are in both proofs, so that none counts a second time; the role is, so that none counts when it is sent
back; both ranks are, so that none counts for another pair; and the key is derived for the job, epoch and purpose of
the connection, so that none counts elsewhere.  The responder proves nothing to those who have not proven themselves.
What follows on the connection is neither encrypted nor authenticated.

A hello with another magic names the initiator's lane that the connection is for (``lanes``).
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal

from netfold.host.job_secret import derive
from netfold.wire.plan import Plan

MAGIC: Final = b"netfold4"
LANE_MAGIC: Final = b"netfold="
"""Begins the hello of a connection for a lane instead of MAGIC."""
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HELLO = struct.Struct(f"!8sQIII{NONCE_BYTES}s")
CHALLENGE = struct.Struct(f"!8s{NONCE_BYTES}s")
LANE = struct.Struct("!I")
VERDICT = struct.Struct(f"!B{PROOF_BYTES}s")
SECRET_HINT: Final = "all ranks of a job need the secret of the same join; end processes of earlier runs, and join anew"
"""Advice on a wrong proof, for its message."""


class HandshakeRefused(Exception):
    """The other side is not the rank that it should be, or does not take this one for it; the message says why, as a
    clause about the other side."""


class Outcome(IntEnum):
    """A responder's verdict on an initiator."""

    REFUSED = 0
    """The initiator's proof is wrong.  A verdict with this outcome carries no proof of the responder either."""
    ACCEPTED = 1
    TAKEN = 2
    """It already has, or had, a connection with this rank, which stays."""
    CROSSED = 3
    """It is connecting to this rank itself, and that connection stays."""


@dataclass(frozen=True)
class Identity:
    """A rank's identity in the handshakes of one purpose."""

    rank: int
    world: int
    epoch: int
    key: bytes = field(repr=False)

    @classmethod
    def of_plan(cls, plan: Plan, purpose: str) -> Identity:
        """The rank of a plan.  Raises PlanError for a plan without a secret."""
        return cls(plan.rank, plan.world, plan.epoch, derive(plan.secret, purpose, plan.job, plan.epoch))

    def proof(self, role: Literal["initiator", "responder"], *parts: bytes) -> bytes:
        """A proof of knowing the key; all ``parts`` have fixed sizes."""
        return hmac.digest(self.key, b"".join((role.encode(), *parts)), "sha256")


class Initiator:
    """The side that has connected.  Send ``hello``, pass what arrives to ``receive`` and send what it returns, until
    ``outcome`` is there."""

    def __init__(
        self, me: Identity, peer: int, *, lane: int | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._me = me
        self.peer = peer
        magic = MAGIC if lane is None else LANE_MAGIC
        self.hello = HELLO.pack(magic, me.epoch, me.rank, peer, me.world, random_bytes(NONCE_BYTES))
        self.hello += b"" if lane is None else LANE.pack(lane)
        self._challenge = b""
        self._data = bytearray()
        self.outcome: Outcome | None = None

    @property
    def wanted(self) -> int:
        """Bytes that ``receive`` takes at most; what comes after the handshake stays in the socket."""
        if self.outcome is not None:
            return 0
        return (VERDICT.size if self._challenge else CHALLENGE.size) - len(self._data)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes that have arrived, at most ``wanted``.  Returns bytes to send.  Raises HandshakeRefused."""
        if len(data) > self.wanted:
            raise ValueError(f"{len(data)} bytes: expected at most {self.wanted}")
        self._data += data
        if not data or self.wanted:
            return b""
        message = bytes(self._data)
        self._data.clear()
        if not self._challenge:
            if CHALLENGE.unpack(message)[0] != MAGIC:
                raise HandshakeRefused("answers, but not as a rank of this version of NetFold")
            self._challenge = message
            return self._me.proof("initiator", self.hello, message)
        outcome, proof = VERDICT.unpack(message)
        if outcome == Outcome.REFUSED:
            raise HandshakeRefused(f"refuses this rank's proof of the job's secret: {SECRET_HINT}")
        expected = self._me.proof("responder", message[:-PROOF_BYTES], self.hello, self._challenge)
        if not hmac.compare_digest(proof, expected) or outcome not in list(Outcome):
            raise HandshakeRefused(f"does not prove that it knows the job's secret: {SECRET_HINT}")
        self.outcome = Outcome(outcome)
        return b""


class Responder:
    """The side that has accepted.  Pass what arrives to ``receive`` and send what it returns, until ``peer`` is there:
    the rank that has proven itself.  Then send ``verdict``.

    lanes  whether the connection may be one for a lane; ``lane`` says for which
    """

    def __init__(
        self, me: Identity, *, lanes: bool = False, random_bytes: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self._me = me
        self._magics = (MAGIC, LANE_MAGIC) if lanes else (MAGIC,)
        self._challenge = CHALLENGE.pack(MAGIC, random_bytes(NONCE_BYTES))
        self._hello = b""
        self._data = bytearray()
        self.peer: int | None = None

    @property
    def wanted(self) -> int:
        """Bytes that ``receive`` takes at most; what comes after the handshake stays in the socket."""
        if self.peer is not None:
            return 0
        return (PROOF_BYTES if self._hello else self._hello_bytes) - len(self._data)

    @property
    def _hello_bytes(self) -> int:
        of_lane = LANE_MAGIC in self._magics and self._data.startswith(LANE_MAGIC)
        return HELLO.size + (LANE.size if of_lane else 0)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes that have arrived, at most ``wanted``.  Returns bytes to send.  Raises HandshakeRefused;
        ``refusal`` is then what to send."""
        if len(data) > self.wanted:
            raise ValueError(f"{len(data)} bytes: expected at most {self.wanted}")
        self._data += data
        if not data or self.wanted:
            return b""
        message = bytes(self._data)
        self._data.clear()
        me = self._me
        if not self._hello:
            magic, epoch, peer, to, world, _ = HELLO.unpack(message[: HELLO.size])
            if magic not in self._magics:
                raise HandshakeRefused("is no rank of this version of NetFold")
            if (epoch, to, world) != (me.epoch, me.rank, me.world) or not 0 <= peer < world or peer == me.rank:
                raise HandshakeRefused(
                    f"says that it is rank {peer} of {world} in epoch {epoch} and looks for rank {to}; expected "
                    f"another rank of {me.world} in epoch {me.epoch} that looks for rank {me.rank}"
                )
            self._hello = message
            return self._challenge
        peer = HELLO.unpack(self._hello[: HELLO.size])[2]
        if not hmac.compare_digest(message, me.proof("initiator", self._hello, self._challenge)):
            raise HandshakeRefused(f"says that it is rank {peer}, but does not know the job's secret: {SECRET_HINT}")
        self.peer = peer
        return b""

    def verdict(self, outcome: Outcome) -> bytes:
        """The last message, with this side's own proof; only for a rank that has proven itself."""
        if self.peer is None:
            raise ValueError("a verdict before the other side has proven itself")
        said = VERDICT.pack(outcome, bytes(PROOF_BYTES))[:-PROOF_BYTES]
        return said + self._me.proof("responder", said, self._hello, self._challenge)

    @property
    def lane(self) -> int | None:
        """The lane that the connection is for, as the hello says, which the proofs cover; None: it is the one for
        messages."""
        return int(LANE.unpack(self._hello[HELLO.size :])[0]) if len(self._hello) > HELLO.size else None

    @property
    def refusal(self) -> bytes:
        """The bytes to send before closing the connection: a verdict if the initiator waits for one, else nothing."""
        return VERDICT.pack(Outcome.REFUSED, bytes(PROOF_BYTES)) if self._hello else b""

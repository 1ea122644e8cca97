# SPDX-License-Identifier: Apache-2.0
"""A standby's check that a fabric's controller is working: a controller may hang, and then no connection ends.

Two signs of life, at the address where it serves jobs:

    each second     a new connection is greeted (HTTP/2).  gRPC's own threads do that, so that a controller answers
                    whose event loop is held, by planning for hundreds of switches, say: the process runs
    all the while   a question with a nonce is answered by HMAC under the fabric key, from the event loop.  It proves
                    that the loop turns, and that this is the fabric's controller: nobody else's answer counts

A controller that has proven itself once hangs when for SILENCE seconds no connection has been greeted and no question
answered, or no question for HELD, though its address takes connections.  An address that takes none has no process
behind it, if the machine says so; where nothing is heard of the machine, nothing is known.  Nor is anything known of a
process that greets nobody, but answers, if only by a TLS alert: it runs, and this one cannot ask it.  After a
standstill of this process itself, nobody counts as hung until both have had time to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import grpc

from netfold.controller.jobs.standstill import Standstill
from netfold.controller.switch import reach
from netfold.rpc import channel, rpc
from netfold.rpc.certificates import TlsError
from netfold.wire.operator import SERVICE, AskBeat, Beat

log = logging.getLogger("netfold.controller")

INTERVAL: Final = 1.0
"""Seconds between two connections, and between two questions."""
GREETING: Final = 3.0
"""Seconds for a greeting."""
SILENCE: Final = 5.0
"""Seconds without a greeting after which the process hangs: on a busy machine a greeting may take one or two."""
HELD: Final = 120.0
"""Seconds without an answer after which the event loop hangs: far more than any work in it, on a busy machine too."""
ANSWER: Final = HELD / 4
"""Seconds for one answer: a question that is lost on its way must not use up all of HELD."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of an HTTP/2 client (RFC 9113, section 3.4), which TLS takes for a broken greeting."""

Health = Literal["unknown", "alive", "hung", "gone"]
Greeting = Literal["greeted", "answered", "silent", "refused", "unreachable"]


def proof(key: bytes, nonce: str) -> str:
    """The answer to a nonce of a controller with the fabric's key."""
    return hmac.digest(key, b"beat\0" + nonce.encode(), "sha256").hex()


class Heartbeat:
    """Watches the controller at one address until cancelled.

    key        the fabric's key
    token      an operator's, where callers need one
    on_change  called when `health` may have changed
    claimed    returns whether most switches have election ids of this fabric, which its controllers alone can make
    greet      connects once; default: `greeting` of the address
    ask        asks once, and returns whether the answer is right; default: by gRPC
    clock      monotonic seconds
    sleep      waits so many seconds
    """

    def __init__(
        self, address: str, key: bytes, token: str, on_change: Callable[[], None], *,
        claimed: Callable[[], bool] = lambda: False,
        greet: Callable[[], Awaitable[Greeting]] | None = None, ask: Callable[[], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._address = address
        self._key = key
        self._token = token
        self._on_change = on_change
        self._claimed = claimed
        self._greet = greet or self._connect
        self.ask = ask or self._question
        self._clock = clock
        self._sleep = sleep
        self._last: Greeting = "unreachable"
        self._greeted = self._proven = clock()
        self._was_proven = self._warned = False
        self._standstill = Standstill(clock, sleep)

    def begin(self) -> None:
        """Forget what was known: another controller may serve there from now on."""
        self._was_proven = self._warned = False
        self._greeted = self._proven = self._clock()

    @property
    def health(self) -> Health:
        """The state of the controller as far as it is known; "unknown" until it has proven itself.

        A controller that hung before it could is known by this: its address takes connections and greets none, and the
        switches have the fabric's election ids.
        """
        now = self._clock()
        if self._last in ("answered", "unreachable"):
            return "unknown"
        if not self._was_proven:
            silent = self._last == "silent" and now > self._greeted + SILENCE
            return "hung" if silent and self._claimed() and not self._standstill.was_recent else "unknown"
        if self._last == "refused":
            return "gone"
        hangs = now > max(self._greeted, self._proven) + SILENCE or now > self._proven + HELD
        return "hung" if hangs and not self._standstill.was_recent else "alive"

    async def run(self) -> None:
        """Connect and ask again and again."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._greetings(), name="greetings of the controller")
            tasks.create_task(self._answers(), name="proofs of the controller")
            tasks.create_task(self._standstill.run(), name="ticks of the standby")

    async def _greetings(self) -> None:
        while True:
            self._last = await self._greet()
            if self._last in ("greeted", "answered"):
                self._greeted = self._clock()
            if self._last == "answered":  # nor could it be asked
                self._proven = self._greeted
                self._warn(f"{self._address} answers, but does not greet this process.{channel.hint(self._address)}")
            self._on_change()
            await self._sleep(INTERVAL)

    async def _answers(self) -> None:
        while True:
            if await self.ask():
                # an answer is a greeting, too: a refusal before it was of another controller, or of none yet
                self._proven, self._was_proven, self._last = self._clock(), True, "greeted"
                self._on_change()
            await self._sleep(INTERVAL)

    async def _connect(self) -> Greeting:
        return await greeting(self._address)

    async def _question(self) -> bool:
        nonce = secrets.token_hex(16)
        try:
            beat = await rpc.call(self._address, f"{SERVICE}/Beat", AskBeat(nonce), Beat, ANSWER, token=self._token)
        except rpc.Unreachable as error:
            # one that does not answer may be starting, or gone
            if isinstance(error, rpc.CallRefused) or not isinstance(error.__cause__, grpc.RpcError):
                self._warn(str(error))
            return False
        if hmac.compare_digest(beat.proof.encode(), proof(self._key, nonce).encode()):
            return True
        self._warn(f"{self._address} answers with another fabric key")
        return False

    def _warn(self, why: str) -> None:
        """Say once that it will not be noticed if the controller hangs."""
        if not self._warned:
            log.warning("whether the first controller hangs is not known, since it cannot prove itself: %s", why)
        self._warned = True


async def greeting(address: str) -> Greeting:
    """How an address takes a new connection: something greets, answers otherwise, takes it and is silent, the machine
    refuses it, or nothing is heard."""
    with contextlib.suppress(TimeoutError, TlsError, grpc.RpcError):
        async with asyncio.timeout(GREETING), channel.aio_channel(address) as opened:
            await opened.channel_ready()
            return "greeted"
    return await reach.answers(address, PREFACE, GREETING)

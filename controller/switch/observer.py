# SPDX-License-Identifier: Apache-2.0
"""A standby's view of one switch: whether it has a primary controller, as its P4Runtime server says by itself.

Every client of a switch arbitrates, and those that are not primary are told at once when the primary's stream ends
(P4Runtime specification, section 5.3).  A standby arbitrates by an election id below that of any controller, so that it
takes the switch from nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
from finsy.proto import p4r, p4r_grpc, rpc_code

from netfold.controller.switch import channel
from netfold.controller.switch.arbitration import EOF, message_of, number_of
from netfold.rpc.certificates import TlsError

log = logging.getLogger("netfold.controller")

RETRY: Final = 0.5
"""Seconds until a switch that does not answer is asked again."""
WAIT: Final = 10.0
"""Seconds for a connection, before the files of TLS are read anew: they may have been renewed meanwhile."""


class Observer:
    """Watches one switch until cancelled.

    credentials  reads those of one connection, or None for a plain one; raises TlsError
    mine         makes an election id that takes the switch from no controller (`Elections.looking`)
    on_change    called when ``primary`` changes
    """

    def __init__(
        self, name: str, address: str, device_id: int, credentials: Callable[[], grpc.ChannelCredentials | None],
        mine: Callable[[], int], on_change: Callable[[], None],
    ) -> None:
        self.name = name
        self.primary: int | None = None
        """Election id of the switch's primary, if that is another client, or 0; None: the switch does not answer."""
        self.last = 0
        """Highest election id of a primary that was seen: some switches forget it."""
        self._address = address
        self._device_id = device_id
        self._credentials = credentials
        self._mine = mine
        self._on_change = on_change
        self._warned = False

    async def run(self) -> None:
        """Keep a stream to the switch open."""
        while True:
            try:
                await self._listen()
            except TlsError as error:
                self._warn(str(error))
            except grpc.aio.AioRpcError as error:
                log.debug("%s: %s: %s", self.name, error.code().name, error.details())
            except asyncio.InvalidStateError:  # the stream ended between write and read
                pass
            self._set(None)
            await asyncio.sleep(RETRY)

    async def _listen(self) -> None:
        """Arbitrate, and follow what the switch says until its stream ends.  Raises AioRpcError and TlsError."""
        credentials = self._credentials()
        async with channel.opened(self._address, credentials) as opened:
            try:
                async with asyncio.timeout(WAIT):
                    await opened.channel_ready()
            except TimeoutError:
                self._warn(f"no P4Runtime server answers at {self._address} within {WAIT:g} s. "
                           f"{channel.hint(credentials)}")
                return
            stub: Any = p4r_grpc.P4RuntimeStub(opened)
            stream = stub.StreamChannel()
            mine = p4r.MasterArbitrationUpdate(device_id=self._device_id, election_id=message_of(self._mine()))
            await stream.write(p4r.StreamMessageRequest(arbitration=mine))
            while (message := await stream.read()) is not EOF:
                self._warned = False
                if message.HasField("arbitration"):
                    # OK: this client is primary, which BMv2 makes of the next one when the first has gone; NOT_FOUND:
                    # nobody is
                    told = message.arbitration
                    self._set(number_of(told.election_id) if told.status.code == rpc_code.ALREADY_EXISTS else 0)

    def _warn(self, why: str) -> None:
        """Say once, until the switch answers, that this standby does not see it."""
        if not self._warned:
            log.warning("%s cannot be watched: %s", self.name, why)
        self._warned = True

    def _set(self, primary: int | None) -> None:
        if primary != self.primary:
            self.primary = primary
            self.last = max(primary or 0, self.last)
            self._on_change()

# SPDX-License-Identifier: Apache-2.0
"""A switch without a data plane, in the controller's own process: it holds what is written to it, and answers at once.

With such switches the controller's time goes into its own planning and comparing, and, with a codec, into making
P4Runtime's messages, which are not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from finsy.proto import p4r

from netfold.controller.switch import probe
from netfold.controller.switch.codec import Cells, Codec, Wanted
from netfold.controller.switch.entities import Entry, Identity, State
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import PacketIn


class MemorySwitch:
    """Implements netfold.controller.switch.target.Client; one session, which never ends by itself.

    codec  makes P4Runtime's messages of what is written and sent; None: nothing does
    """

    def __init__(self, codec: Codec | None = None) -> None:
        self._codec = codec
        self.cables: dict[int, tuple[MemorySwitch, int]] = {}
        """The switch and its port at the other end of each port's link, where there is one."""
        self.state: State = {}
        self._messages: dict[Identity, bytes] = {}
        """The entries as P4Runtime's messages, if there is a codec."""
        self.updates = 0
        """Number of updates that were written."""
        self.packets: asyncio.Queue[PacketIn] = asyncio.Queue()
        self.packets_dropped = 0
        self.ports_down: set[int] = set()
        self.on_ports: Callable[[], None] = lambda: None
        self._heard = 0
        """Ports at which probes have come in since the last question, a bit for each."""
        self._has_pipeline = False
        self._closed = asyncio.Event()

    async def connect(self) -> MemorySwitch:
        """Begin a session, as a controller does that comes after another one."""
        self._closed = asyncio.Event()
        self.packets = asyncio.Queue()
        return self

    async def packet_out(self, port: int, payload: bytes) -> None:
        """Let the packet come in at the other end of the link, to be sent to the controller from there; where there is
        none, drop it."""
        if self._codec is not None:
            self._codec.packet_out(payload, {"egress_port": port}).SerializeToString()
        if port in self.cables:
            switch, there = self.cables[port]
            switch.packets.put_nowait(PacketIn(there, payload))

    async def packet_out_to_neighbours(self, payload: bytes) -> None:
        """Let the packet come in at all neighbours, as a probe that each expects."""
        if self._codec is not None:
            self._codec.packet_out(payload, {"kind": probe.NEIGHBOURS}).SerializeToString()
        for switch, there in self.cables.values():
            switch._heard |= 1 << there

    async def heard(self) -> int:
        """The ports at which probes have come in since the last question."""
        if self._codec is not None:
            self._codec.packet_out(probe.HEARD_QUESTION, {"kind": probe.HEARD}).SerializeToString()
        heard, self._heard = self._heard, 0
        return heard

    async def hear(self) -> None:
        """It has said nothing."""

    async def ensure_pipeline(self) -> bool:
        """Take the program at the first time."""
        pushed, self._has_pipeline = not self._has_pipeline, True
        return pushed

    async def read_state(self, tables: Iterable[str]) -> State:
        """The stored entries of these tables, and all groups and sessions."""
        wanted = set(tables)
        if self._codec is not None:
            some = (message for key, message in self._messages.items()
                    if not isinstance(held := self.state[key], Entry) or held.table in wanted)
            # field 1 of a ReadResponse for each: tag, length as a varint of two bytes, and the message
            answer = b"".join(b"\x0a" + bytes((len(message) & 127 | 128, len(message) >> 7)) + message
                              for message in some)
            return await asyncio.to_thread(self._codec.held, [answer])
        return {key: entity for key, entity in self.state.items()
                if not isinstance(entity, Entry) or entity.table in wanted}

    async def read_counters(self, wanted: Wanted) -> Callable[[], Cells]:
        """Nothing was counted."""
        return dict

    async def read_cell(self, name: str, index: int) -> int:
        """Nothing was counted."""
        return 0

    async def write(self, updates: list[Update]) -> None:
        """Hold what the updates say."""
        self.updates += len(updates)
        if self._codec is not None:
            request = p4r.WriteRequest(updates=[p4r.Update(entity=self._codec.encode(update.entity))
                                                for update in updates])
            request.SerializeToString()
            self._messages |= {update.entity.identity: message.entity.SerializeToString()
                               for update, message in zip(updates, request.updates, strict=True)}
        for update in updates:
            if update.verb == "delete":
                del self.state[update.entity.identity]
                self._messages.pop(update.entity.identity, None)
            else:
                self.state[update.entity.identity] = update.entity

    async def probe_all(self, slots: Iterable[int]) -> dict[int, SlotState]:
        """All slots are empty."""
        return {slot: SlotState(0, 0, False, False, 0) for slot in slots}

    async def ended(self) -> str:
        """Wait until the session is closed."""
        await self._closed.wait()
        return "closed"

    async def close(self) -> None:
        """End the session."""
        self._closed.set()

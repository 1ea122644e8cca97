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
from netfold.controller.switch.entities import Entity, Identity, State, state
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
        self.state: dict[Identity, Entity | bytes] = {}
        """The entities; with a codec, as P4Runtime's messages."""
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
        codec, wanted = self._codec, {*tables, "multicast", "clone"}  # as the identities of these begin
        held = [entity for (kind, _), entity in self.state.items() if kind in wanted]
        if codec is None:
            return state(entity for entity in held if not isinstance(entity, bytes))

        def read() -> State:
            # field 1 of a ReadResponse for each: tag, length as a varint of two bytes, and the message
            return codec.held([b"".join([b"\x0a" + bytes((len(message) & 127 | 128, len(message) >> 7)) + message
                                         for message in held if isinstance(message, bytes)])])

        return await asyncio.to_thread(read)

    async def read_counters(self, wanted: Wanted) -> Callable[[], Cells]:
        """Nothing was counted."""
        return dict

    async def read_cell(self, name: str, index: int) -> int:
        """Nothing was counted."""
        return 0

    async def write(self, updates: list[Update]) -> None:
        """Hold what the updates say."""
        self.updates += len(updates)
        held: list[Entity | bytes] = [update.entity for update in updates]
        if self._codec is not None:
            request = p4r.WriteRequest(updates=[p4r.Update(entity=self._codec.encode(update.entity))
                                                for update in updates])
            request.SerializeToString()
            held = [message.entity.SerializeToString() for message in request.updates]
        for update, entity in zip(updates, held, strict=True):
            if update.verb == "delete":
                del self.state[update.entity.identity]
            else:
                self.state[update.entity.identity] = entity

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

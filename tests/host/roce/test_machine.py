# SPDX-License-Identifier: Apache-2.0
"""Queue pairs against an adversary that decides packet by packet what is lost, duplicated, reordered or marked."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from netfold.host.native.library import NEVER, Origin
from netfold.host.roce.endpoint import Endpoint
from netfold.host.roce.native import ARRIVED, BROKEN, SENT
from support.models.roce import PORT, address, connect
from support.models.slot_model import MICROSECOND, SECOND

ROOM = 1 << 18
MTU = 256


class Connection(RuleBasedStateMachine):
    """Two endpoints that write into each other; packets stay on the wire until the adversary decides."""

    @initialize(window=st.sampled_from([2, 4, 16]), psn=st.sampled_from([0, 0xFFFFFD]), reorder=st.sampled_from([1, 3]))
    def open(self, window: int, psn: int, reorder: int) -> None:
        self.now = 0
        self.ends = [Endpoint(address(i), path_mtu=MTU, window=window, reorder=reorder) for i in range(2)]
        connect(*self.ends, psn=psn)
        self.memory = [np.zeros(ROOM, np.uint8) for _ in range(2)]
        self.keys = [end.register(memory.ctypes.data, ROOM) for end, memory in zip(self.ends, self.memory, strict=True)]
        self.origins = [Origin.of(address(side), PORT + side) for side in (0, 1)]  # as `connect` has them
        self.wire: list[tuple[int, bytes]] = []
        """Packets on the wire as (receiver, packet)."""
        self.posted: list[list[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = [[], []]
        self.arrived = [0, 0]
        """Messages of each writer that have arrived completely."""
        self.acknowledged = [0, 0]

    def _flush(self) -> None:
        for side, end in enumerate(self.ends):
            end.tick(self.now)
            while run := end.send(self.now):
                self.wire.extend((1 - side, packet) for packet in run.packets())
        for side, end in enumerate(self.ends):
            for event in end.events():
                assert event.what != BROKEN
                if event.what == SENT:
                    assert event.id == self.acknowledged[side]
                    self.acknowledged[side] += 1
                elif event.what == ARRIVED:
                    self._check_arrival(1 - side, event.offset, event.length)

    def _check_arrival(self, writer: int, offset: int, length: int) -> None:
        index = self.arrived[writer]
        message = self.posted[writer][index]
        assert (offset, length) == (sum(m.size for m in self.posted[writer][:index]), message.size)
        assert (self.memory[1 - writer][offset : offset + length] == message).all()
        self.arrived[writer] += 1

    @rule(side=st.integers(0, 1), length=st.integers(1, 20 * MTU), seed=st.integers(0, 255))
    def write(self, side: int, length: int, seed: int) -> None:
        """Posts another message."""
        offset = sum(message.size for message in self.posted[side])
        if offset + length > ROOM:
            return
        message = np.random.default_rng(seed).integers(1, 256, length, dtype=np.uint8)
        identity = len(self.posted[side])
        self.posted[side].append(message)
        assert self.ends[side].write(
            0, message.ctypes.data, length, key=self.keys[1 - side], offset=offset, id=identity
        )
        self._flush()

    @rule(which=st.integers(0, 10**6), marked=st.booleans(), again=st.booleans())
    def deliver(self, which: int, marked: bool, again: bool) -> None:
        """Delivers any packet of the wire, which may stay there to be delivered again."""
        if self.wire:
            at = which % len(self.wire)
            receiver, packet = self.wire[at] if again else self.wire.pop(at)
            self.ends[receiver].receive(packet, self.now, self.origins[1 - receiver], marked=marked)
            self._flush()

    @rule(count=st.integers(1, 40))
    def deliver_in_order(self, count: int) -> None:
        """Delivers packets in order for a while."""
        for _ in range(min(count, len(self.wire))):
            receiver, packet = self.wire.pop(0)
            self.ends[receiver].receive(packet, self.now, self.origins[1 - receiver])
        self._flush()

    @rule(which=st.integers(0, 10**6), count=st.integers(1, 10))
    def lose(self, which: int, count: int) -> None:
        """Loses some adjacent packets of the wire."""
        if self.wire:
            at = which % len(self.wire)
            del self.wire[at : at + count]

    @rule(microseconds=st.integers(1, 50_000))
    def wait(self, microseconds: int) -> None:
        """Advances the clock, so that timers run out."""
        self.now += microseconds * MICROSECOND
        self._flush()

    @invariant()
    def no_write_completes_early(self) -> None:
        """A write is acknowledged only when it has arrived completely."""
        for side in range(2):
            assert self.acknowledged[side] <= self.arrived[side] <= len(self.posted[side])

    def teardown(self) -> None:
        """Once the network behaves, everything arrives in bounded time."""
        if not hasattr(self, "ends"):
            return
        limit = self.now + 60 * SECOND
        while any(self.acknowledged[side] < len(self.posted[side]) for side in range(2)):
            self.deliver_in_order(max(1, len(self.wire)))
            if not self.wire and any(self.acknowledged[side] < len(self.posted[side]) for side in range(2)):
                deadline = min(end.deadline() for end in self.ends)
                assert deadline != NEVER, "something is missing, and no timer runs"
                assert deadline < limit
                self.now = max(self.now, deadline)
                self._flush()
        for side, memory in enumerate(self.memory):
            used = sum(message.size for message in self.posted[1 - side])
            assert not memory[used:].any()
        for end in self.ends:
            end.close()


TestConnection = Connection.TestCase
TestConnection.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

# SPDX-License-Identifier: Apache-2.0
"""The messages that wait for one controller, bounded in number and bytes."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Iterator

from finsy.proto import p4r

from softswitch.engine.errors import EngineError
from softswitch.p4runtime import notices

log = logging.getLogger(__name__)

MESSAGES = 10_000
"""Most messages of each kind that may wait for a controller. Further ones are dropped and counted; the number of lost
packet-ins is reported to the controller."""
BYTES = 8 << 20
"""Most bytes of the messages of each kind that may wait for a controller."""


class Outbox:
    """The messages for one controller, from any thread; iterating waits for the next message, or until it is closed.

    Each kind of message has room of its own, so that a flood of packet-ins costs no word of a port its place.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[p4r.StreamMessageResponse | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._untold = 0
        """Lost packet-ins that have not been reported to the controller yet."""
        self.failure: EngineError | None = None

    def put(self, message: p4r.StreamMessageResponse) -> None:
        """Append a message; one beyond its kind's room is dropped and counted."""
        kind, size = message.WhichOneof("update") or "", message.ByteSize()
        with self._lock:
            if self._waiting[kind] < MESSAGES and self._bytes[kind] + size <= BYTES:
                self._waiting[kind] += 1
                self._bytes[kind] += size
                self._queue.put(message)
                return
            self._lost[kind] += 1
            self._untold += kind == "packet"
            lost = self._lost[kind]
        if lost.bit_count() == 1:
            log.warning("a controller does not read its stream: %d messages of kind %s lost so far", lost, kind)

    def close(self, failure: EngineError | None = None) -> None:
        """End the iteration after what waits; ``failure`` is why."""
        self.failure = self.failure or failure
        self._queue.put(None)

    def __iter__(self) -> Iterator[p4r.StreamMessageResponse]:
        while (message := self._queue.get()) is not None:
            with self._lock:
                kind = message.WhichOneof("update") or ""
                self._waiting[kind] -= 1
                self._bytes[kind] -= message.ByteSize()
                room = self._waiting["packet"] < MESSAGES / 2 and self._bytes["packet"] < BYTES / 2
                tell = self._untold if room else 0
                self._untold -= tell
            yield message
            if tell:
                yield notices.packet_ins_lost(tell)

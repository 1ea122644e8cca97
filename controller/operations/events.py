# SPDX-License-Identifier: Apache-2.0
"""A bounded log of what happened in a fabric: for the page, `netfold top`, and whoever asks later why a job moved.

It is told where such things are decided: by liveness (switches and links), recovery and jobs, and by operators.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from netfold.wire.operator import AskEvents, EventKind, Events, FabricEvent

LENGTH: Final = 500
"""Most events that are kept; older ones make room."""
LONGEST: Final = 300
"""Most characters of an event's text: ranks and switches may say much."""


class EventLog:
    """The last events of one fabric.

    wall  unix seconds
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._events: deque[FabricEvent] = deque(maxlen=LENGTH)
        self._seq = 0
        self._lock = threading.Lock()

    def note(self, kind: EventKind, target: str, text: str) -> None:
        """Record that something has happened now; from any thread."""
        said = text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        with self._lock:
            self._seq += 1
            self._events.append(FabricEvent(self._seq, self._wall(), kind, target, said))

    def since(self, seq: int) -> list[FabricEvent]:
        """Events with a number above ``seq``, the oldest first.  A number that was never given out is another
        controller's, whose events are gone: all are returned."""
        with self._lock:
            if seq > self._seq:
                seq = 0
            return [event for event in self._events if event.seq > seq]

    async def answer(self, request: AskEvents) -> Events:
        """The gRPC method Events."""
        return Events(self.since(request.since))

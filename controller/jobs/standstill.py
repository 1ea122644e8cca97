# SPDX-License-Identifier: Apache-2.0
"""Notices that this process, or its event loop, stood still: what it sees then is old, and another controller may have
taken over meanwhile, which ranks have gone to.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

TICK: Final = 0.5
"""Seconds between two ticks."""
LATE: Final = 3.0
"""Seconds without a tick after which the process stood still: less than a standby waits (heartbeat.py)."""
RECENT: Final = 5.0
"""Seconds after a standstill in which incoming events may be due to it."""


class Standstill:
    """Ticks until cancelled.

    clock  monotonic seconds
    sleep  waits so many seconds
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._ticked = clock()
        self._until = self._ticked

    @property
    def was_recent(self) -> bool:
        """True if the process has just stood still, even if no tick has noticed it yet."""
        now = self._clock()
        if now > self._ticked + LATE:
            self._until = now + RECENT
        return now < self._until

    async def run(self) -> None:
        """Tick."""
        self._ticked = self._clock()
        while True:
            await self._sleep(TICK)
            _ = self.was_recent
            self._ticked = self._clock()

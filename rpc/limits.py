# SPDX-License-Identifier: Apache-2.0
"""What keeps many requests from costing a server more than a few: a rate for each caller, and one answer for all who
ask at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RateLimit:
    """A token bucket (RFC 2697's, with one rate): ``rate`` requests a second, and up to ``burst`` at once.

    clock  monotonic seconds
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._then = clock()

    def wait(self) -> float:
        """Count a request.  Returns 0 where it may be served, else the seconds until the next one may be."""
        now = self._clock()
        self._left = min(self._burst, self._left + self._rate * (now - self._then))
        self._then = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


class Shared(Generic[T]):
    """Gives all who ask while an answer is being made the next one: however many ask, answers are made one at a time,
    and nobody gets one that was begun before it asked."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or the exception that making it raised."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return await asyncio.shield(self._next)  # others wait for it, too

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        return await self._make()

# SPDX-License-Identifier: Apache-2.0
"""Bounds the cost of many requests to a server: a rate for each caller, and one answer for all callers that ask at the
same time."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RateLimit:
    """A token bucket (RFC 2697's, with one rate): ``rate`` requests a second, and up to ``burst`` at once.  Threads may
    share it.

    clock  monotonic seconds
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._then = clock()
        self._lock = threading.Lock()

    def wait(self) -> float:
        """Count a request.  Returns 0 where it may be served, else the seconds until the next one may be."""
        with self._lock:
            now = self._clock()
            self._left = min(self._burst, self._left + self._rate * (now - self._then))
            self._then = now
            if self._left < 1:
                return (1 - self._left) / self._rate
            self._left -= 1
            return 0.0


class Shared(Generic[T]):
    """Makes one answer for all who ask at the same time: however many ask, answers are made one at a time.

    fresh  seconds for which an answer is given to those who ask later, too; who asks while one is being made gets that.
           With 0 it gets the next one: nobody gets one that was begun before it asked
    clock  monotonic seconds
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], *, fresh: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._fresh = fresh
        self._clock = clock
        self._made = -math.inf
        """When the last answer was there; an error is nobody's answer for later."""
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The answer, or the exception that making it raised."""
        if self._running is not None and self._fresh and (
                not self._running.done() or self._clock() - self._made < self._fresh):
            return await asyncio.shield(self._running)
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._running))
            self._next.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        return await asyncio.shield(self._next)  # others wait for it, too

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next, self._made = self._next, None, -math.inf
        made = await self._make()
        self._made = self._clock()
        return made

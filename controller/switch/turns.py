# SPDX-License-Identifier: Apache-2.0
"""Shares out the turns of the controller's event loop among those that have much to compute for their switches.

Without that, a failure that gives hundreds of switches new entries would have all of them compared and encoded in one
turn, and nothing else would happen meanwhile: no rank's call, no probe, no standby's question.
"""

from __future__ import annotations

import asyncio
from typing import Final

SIZE: Final = 256
"""Updates in one turn of the loop: some 10 ms of comparing them, and of making P4Runtime's messages."""


class Turns:
    """The turns of one event loop.

    size  updates in one turn
    """

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self._left = size
        """Updates left for this turn."""
        self._urgent: dict[object, tuple[asyncio.Future[None], int]] = {}
        self._others: dict[object, tuple[asyncio.Future[None], int]] = {}
        """Waiting callers in their order, each with the future that it waits for and its number of updates."""
        self._is_used = False
        """True if part of this turn has been used, so that a next one must come."""

    async def wait(self, who: object, updates: int, *, urgent: bool = False) -> None:
        """Wait for a turn that has room for so many updates, all of one where they are more.  Whoever is urgent comes
        before all who are not.

        who  waits for one turn at a time
        """
        waiting = self._urgent if urgent else self._others
        if not self._urgent and not (self._others and not urgent) and self._fits(updates):
            self._take(updates)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting[who] = turn, updates
        try:
            await turn
        finally:
            for queue in (self._urgent, self._others):
                queue.pop(who, None)  # where this was cancelled

    def hurry(self, who: object) -> None:
        """Something urgent waits for what this one does: it is urgent, too."""
        if (waiting := self._others.pop(who, None)) is not None:
            self._urgent[who] = waiting

    def _fits(self, updates: int) -> bool:
        return self._left == self.size or updates <= self._left

    def _take(self, updates: int) -> None:
        self._left -= updates
        if not self._is_used:
            self._is_used = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Begin the next turn with those that wait, as many as have room in it."""
        self._left, self._is_used = self.size, False
        while queue := self._urgent or self._others:
            who, (turn, updates) = next(iter(queue.items()))
            if not turn.done():
                if not self._fits(updates):
                    return
                self._take(updates)
                turn.set_result(None)
            del queue[who]

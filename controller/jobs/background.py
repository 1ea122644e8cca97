# SPDX-License-Identifier: Apache-2.0
"""Work in the background of the controller's event loop that nobody waits for at once: a task that fails says so in the
log, and none is forgotten when the controller ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

log = logging.getLogger("netfold.controller")


class Background:
    """The tasks that have been begun and have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begin something; ``name`` says in the log what failed."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, name))
        return task

    async def wait(self) -> None:
        """Wait until all of it has ended, with what it begins meanwhile."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel all that is under way, and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", name, exc_info=error)

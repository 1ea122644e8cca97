# SPDX-License-Identifier: Apache-2.0
"""Work in the background of the controller's event loop: tasks that nobody waits for at once, of which one that fails
says so in the log and none is forgotten when the controller ends, and a thread for what takes longer than the loop may
stand still."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger("netfold.controller")

P = ParamSpec("P")
T = TypeVar("T")


class PlanningThread:
    """The thread on which jobs are planned, one after the other: for one of 1,023 ranks it takes a second."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``work``, and returns its value."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))

    def shutdown(self) -> None:
        """End it, whatever it computes."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class Background:
    """The tasks that have been begun and have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __bool__(self) -> bool:
        """True if anything is under way."""
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

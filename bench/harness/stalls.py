# SPDX-License-Identifier: Apache-2.0
"""An event loop that knows its longest turn, and what took the most of it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec


class LongTurn(msgspec.Struct, frozen=True):
    """One turn of an event loop.  Times are seconds of the processor in the loop's own thread."""

    seconds: float = 0.0
    callback: str = ""
    """The longest part of the turn: a task's coroutine, or the callback itself."""
    callback_seconds: float = 0.0
    collecting: float = 0.0
    """Seconds of the turn in which garbage was collected."""

    def __str__(self) -> str:
        return (f"{self.seconds:.3f} s, {self.callback_seconds:.3f} of them {self.callback}, "
                f"{self.collecting:.3f} garbage collection")


class WatchedLoop(asyncio.SelectorEventLoop):
    """Remembers its longest turn of each stage.  Turns are timed while `watched` is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = ""
        """Name of the work under way from the next turn on."""
        self.longest: dict[str, LongTurn] = {}
        """The longest turn by stage."""
        self._turn = LongTurn()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time all turns; no other loop may run meanwhile."""
        handles: Any = asyncio.Handle
        plain = handles._run
        collecting, thread = [0.0], threading.get_ident()

        def run(handle: Any) -> None:
            began = time.thread_time()
            plain(handle)
            took = time.thread_time() - began
            if took > self._turn.callback_seconds:
                self._turn = LongTurn(0.0, _name(handle._callback), took, self._turn.collecting)

        def collected(phase: str, _: object) -> None:
            if threading.get_ident() != thread:
                return
            if phase == "start":
                collecting[0] = time.thread_time()
            else:
                took = time.thread_time() - collecting[0]
                self._turn = msgspec.structs.replace(self._turn, collecting=self._turn.collecting + took)

        handles._run = run
        gc.callbacks.append(collected)
        try:
            yield
        finally:
            handles._run = plain
            gc.callbacks.remove(collected)

    def _run_once(self) -> None:
        began, stage, self._turn = time.thread_time(), self.stage, LongTurn()
        super()._run_once()  # type: ignore[misc]
        took = time.thread_time() - began
        if took > self.longest.get(stage, LongTurn()).seconds:
            self.longest[stage] = msgspec.structs.replace(self._turn, seconds=took)


def _name(callback: Any) -> str:
    """The name of a task's coroutine, or of a callback."""
    owner = getattr(callback, "__self__", callback)
    if isinstance(owner, asyncio.Task):
        return f"{getattr(owner.get_coro(), '__qualname__', owner.get_coro())} ({owner.get_name()})"
    return str(getattr(callback, "__qualname__", callback))

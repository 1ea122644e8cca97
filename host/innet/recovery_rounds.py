# SPDX-License-Identifier: Apache-2.0
"""Recovery rounds, in which a fold halts because its trees failed, and goes on over others.

A fold with an operation under way is interrupted and takes part by itself; for one without, a thread takes part,
because the other ranks may lack results that this rank had long ago.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable


class RecoveryRounds:
    """Which recovery rounds were requested, and which are complete.

    serve  called on a thread of its own after each request; the operation under way may have served it by then
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._asked = self._served = 0
        self.pending = False
        """True while a requested round is incomplete."""
        self._state = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """An eventfd that is readable while a round is pending."""

    def request(self, number: int) -> None:
        """Requests that round ``number`` is served; returns at once."""
        with self._state:
            if self._closed or number <= self._asked:
                return
            self._asked, self.pending = number, True
            os.eventfd_write(self.fd, 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="netfold-recovery", daemon=True)
                self._thread.start()
            self._state.notify()

    def complete(self, number: int) -> None:
        """Marks all rounds up to this one as complete."""
        with self._state:
            self._served = max(self._served, number)
            self.pending = self._asked > self._served
            if not self.pending and not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.fd)

    def close(self) -> None:
        """Waits for the round that is being served, and ends the thread; safe to call twice."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            self._state.notify()
        if self._thread is not None:
            self._thread.join()
        os.close(self.fd)

    def _run(self) -> None:
        seen = 0
        while True:
            with self._state:
                while not self._closed and self._asked == seen:
                    self._state.wait()
                if self._closed:
                    return
                seen = self._asked
            self._serve()

# SPDX-License-Identifier: Apache-2.0
"""Rounds in which a fold stands still because its trees went away.

A fold that works is interrupted and sees to it itself; one that idles has a thread for it: what it has may be what the
others lack.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable


class RecoveryRounds:
    """What was asked for, and what was done.

    serve  called on a thread of our own after each request; whoever works may have seen to it by then
    """

    def __init__(self, serve: Callable[[], None]) -> None:
        self._serve = serve
        self._asked = self._served = 0
        self._state = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable while a round waits for us."""

    def request(self, number: int) -> None:
        """Round ``number`` is to be served; returns at once."""
        with self._state:
            if self._closed or number <= self._asked:
                return
            self._asked = number
            os.eventfd_write(self.fd, 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="netfold-halts", daemon=True)
                self._thread.start()
            self._state.notify()

    @property
    def pending(self) -> bool:
        """A round waits for us."""
        return self._asked > self._served

    def complete(self, number: int) -> None:
        """Everything up to this round is done."""
        with self._state:
            self._served = max(self._served, number)
            if not self.pending and not self._closed:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.fd)

    def close(self) -> None:
        """Waits for what is being served; safe to call twice."""
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

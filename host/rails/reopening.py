# SPDX-License-Identifier: Apache-2.0
"""Reopens a dead rail in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from netfold.host.errors import NetFoldError
from netfold.host.operation.reduction import INT32_SUM
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.rail_set import WatchedRail

RETRY_SECONDS = 0.5
"""Seconds before the first attempt to open a dead rail again, and between a job's attempts."""
RENEW_SECONDS = 10.0
"""Seconds after which a rail that is open here, and not on all ranks, is closed and opened again."""
FIRST_SUM_ELEMENTS = 256
"""Elements of the first sum on a reopened rail, which shows whether it carries anything."""

log = logging.getLogger("netfold")


class BackgroundReopening:
    """Reopens a dead rail on a thread of its own until it is open on all ranks; a ``rail_set.RailReopening``.

    open_   joins with all ranks; raises NetFoldError where that fails, any other error is logged
    most    most seconds between two attempts: each failed one doubles them up to that
    """

    def __init__(self, open_: Callable[[], OpenRail], *, most: float = RETRY_SECONDS) -> None:
        self._open = open_
        self._most = most
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._rail: OpenRail | None = None
        self._taken = False
        self.epoch = 0
        threading.Thread(target=self._run, name="netfold-rail-open", daemon=True).start()

    def _run(self) -> None:
        pause, told = RETRY_SECONDS, ""
        while not self._over.wait(pause):
            try:
                self._attempt()
            except Exception as error:  # whatever it is, the next attempt may succeed
                expected, why = isinstance(error, NetFoldError), f"{type(error).__name__}: {error}"
                log.log(logging.DEBUG if expected or why == told else logging.WARNING,
                        "a dead rail could not be reopened, and is tried again: %s", why)
                told = why
                pause = min(2 * pause, self._most)

    def _attempt(self) -> None:
        """Opens the rail, and keeps it open until it is taken or given up, or for ``RENEW_SECONDS``."""
        with ExitStack() as failed:
            rail = self._open()
            failed.callback(rail.close)
            if not self._over.is_set():
                some = np.ones(FIRST_SUM_ELEMENTS, np.int32)
                # joining may succeed where no packet gets through
                rail.allreduce(AllreduceRequest(some, some, INT32_SUM))
            with self._lock:
                if self._over.is_set():
                    return
                self._rail, self.epoch = rail, rail.plan.epoch
            failed.pop_all()
        if not self._over.wait(RENEW_SECONDS):
            with self._lock:
                if not self._taken:
                    self.epoch = 0
                    rail.close()

    def take(self) -> WatchedRail:
        with self._lock:
            assert self._rail is not None, "nothing was open"
            self._taken = True
        self._over.set()
        return self._rail  # if it was closed a moment ago, its first use fails

    def cancel(self) -> None:
        self._over.set()
        with self._lock:
            if self._rail is not None and not self._taken:
                self._rail.close()

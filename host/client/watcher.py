# SPDX-License-Identifier: Apache-2.0
"""A rank's open stream from the controller: how the controller sees that the rank lives, and how the rank learns that
another one does not.

The switches report to nobody that a rank is gone: its contributions just stop.  The controller sees the rank's
connection break and reports it to all others, so that a blocked collective ends long before its timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from netfold.host import errors
from netfold.host.client.stream_listener import StreamListener
from netfold.host.errors import NetFoldError, PeerLost
from netfold.wire.jobs import Event, Halt, JobEndedEvent, RankLost, Settle

log = logging.getLogger("netfold")


class Watcher:
    """Listens to the controller's events on a thread of its own, from the plan until the rank has left.

    call     the stream of the controller's events
    me       job and rank, for messages
    settled  tells the controller that this rank lacks no result
    """

    def __init__(self, call: Any, me: str, settled: Callable[[], None]) -> None:
        self._settled = settled
        self._me = me
        self._job_error: NetFoldError | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._halt = 0
        self._on_halt: Callable[[int], None] = lambda number: None
        self._on_settle: Callable[[Callable[[], None]], None] = lambda done: done()
        self._listening = StreamListener(call, "netfold-watch", self._on_event, self._on_end)

    def job_error(self) -> NetFoldError | None:
        """The first event that ended the job for this rank, as an exception; None while all is well."""
        return self._job_error

    def on_halt(self, call: Callable[[int], None]) -> None:
        """Registers a function that is called, on the watcher's thread, with the number of each recovery round in which
        the trees are planned anew; it must return at once."""
        with self._lock:
            self._on_halt = call
            if self._halt:
                call(self._halt)

    def on_settle(self, call: Callable[[Callable[[], None]], None]) -> None:
        """Registers a function that is called, on the watcher's thread, when another rank wants to leave.  It must
        return at once, and must call its argument once every operation that this rank has begun is finished.  Without
        it, the argument is called at once."""
        self._on_settle = call

    def leaving(self) -> None:
        """Called before leaving: from now on the controller may end the stream without that being an error."""
        self._closing = True

    def close(self) -> None:
        """Closes the stream.  To be called after leaving: earlier, the controller takes it for this rank's death."""
        self._closing = True
        self._listening.close()

    def _on_end(self, why: str) -> None:
        if not self._closing and self._job_error is None:
            log.warning("%s: no longer watched (%s): only time-outs tell now that a rank is gone", self._me, why)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Halt):
            log.warning("%s: %s; going on over other trees", self._me, event.why)
            with self._lock:
                self._halt = event.round
                self._on_halt(event.round)
        elif isinstance(event, Settle):
            self._on_settle(self._settled)
        if self._job_error is not None:
            return
        if isinstance(event, RankLost):
            self._job_error = PeerLost(
                f"lost rank {event.rank} at {event.address} ({event.host}): {event.why}. Look at that rank's own "
                "error; then join anew"
            )
            log.warning("%s: %s", self._me, self._job_error)
        elif isinstance(event, JobEndedEvent):
            self._job_error = errors.JobEnded(f"the controller ended the job: {event.why}; join anew")
            log.warning("%s: %s", self._me, self._job_error)

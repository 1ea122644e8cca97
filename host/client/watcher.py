# SPDX-License-Identifier: Apache-2.0
"""A rank's open stream from the controller: how the controller sees that the rank lives, and how the rank learns that
another one does not.

The switches report to nobody that a rank is gone: its contributions just stop.  The controller sees the rank's
connection break and reports it to all others, so that a blocked collective ends long before its timeout.

A stream that breaks is the controller's end, not the job's: the rank goes on, and registers with the next controller
that answers, by the ticket of its plan.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from netfold.host import errors, shared_log
from netfold.host.client.controller_channel import AWAY
from netfold.host.client.stream_listener import StreamListener
from netfold.host.errors import NetFoldError, PeerLost
from netfold.host.mesh.connection import printable
from netfold.wire.jobs import Event, EvictedEvent, Halt, JobEndedEvent, RankLeft, RankLost, Settle, Tell, Watching

log = logging.getLogger("netfold")

FIRST_PAUSE: Final = 0.05
"""Seconds between the loss of a controller and the first attempt to find one; doubled with each attempt."""
LONGEST_PAUSE: Final = 0.25


class Watcher:
    """Listens to the controller's events on a thread of its own, from the plan until the rank has left.

    call     opens the stream of the controller's events; called with the number of the last recovery round that the
             controller has told of
    me       job and rank, for messages
    settled  tells the controller that this rank lacks no result
    lost     called when the controller has gone, to look for another one; None: the plan has no ticket, and this rank
             cannot register again
    rank     of this process in the job
    folds    whether the job needs what switches hold for it, which a controller that does not know the job has removed
    """

    def __init__(
        self, call: Callable[[int], Any], me: str, settled: Callable[[], None], lost: Callable[[], None] | None = None,
        *, folds: bool = False, rank: int = 0,
    ) -> None:
        self._call = call
        self._settled = settled
        self._lost = lost
        self._folds = folds
        self._me = me
        self._shared = shared_log.level(rank)
        self._job_error: NetFoldError | None = None
        self._lost_rank: tuple[int, str] | None = None
        self._left: dict[int, str] = {}
        self._left_error: NetFoldError | None = None
        self._leaving = self._closing = False
        self._lock = threading.Lock()
        self._halt = 0
        self._on_halt: Callable[[int], None] = lambda number: None
        self._on_settle: Callable[[int, Callable[[], None]], None] = lambda folded, done: done()
        self._on_tell: Callable[[], None] = lambda: None
        self._registered = threading.Condition()
        self._registrations = 0
        self._watched = self._refused = False
        self._gone_since: float | None = None
        self._pause = FIRST_PAUSE
        self._listening = self._listen()

    @property
    def registrations(self) -> int:
        """How often a controller has said that it watches this rank."""
        return self._registrations

    def job_error(self, left: bool = True) -> NetFoldError | None:
        """The first event that ended the job for this rank, or after which no operation of all ranks can end, as an
        exception; None while all is well.

        left  whether a rank that has left in order counts, as for operations of all ranks
        """
        return self._job_error or (self._left_error if left else None)

    def lost_rank(self) -> tuple[int, str] | None:
        """The first rank of which the controller has said that it is lost, and how; None while it has of none."""
        return self._lost_rank

    def ranks_left(self) -> dict[int, str]:
        """Ranks that have left in order, and after what, as they have said."""
        return self._left

    def on_halt(self, call: Callable[[int], None]) -> None:
        """Registers a function that is called, on the watcher's thread, with the number of each recovery round in which
        the trees are planned anew; it must return at once."""
        with self._lock:
            self._on_halt = call
            if self._halt:
                call(self._halt)

    def on_settle(self, call: Callable[[int, Callable[[], None]], None]) -> None:
        """Registers a function that is called, on the watcher's thread, when another rank wants to leave, with the
        number of the last operation that has folded there.  It must return at once, and must call its second argument
        once this rank has finished that operation.  Without it, that argument is called at once."""
        self._on_settle = call

    def unfold(self) -> None:
        """The job needs nothing any more of what switches held for it."""
        self._folds = False

    def on_tell(self, call: Callable[[], None]) -> None:
        """Registers a function that is called, on the watcher's thread, when somebody looks at the job; it must return
        at once."""
        self._on_tell = call

    @property
    def is_registered(self) -> bool:
        """True if a controller watches this rank now, or none ever can again."""
        return self._watched or self._lost is None or self._refused

    def registers_again(self, since: int, timeout: float) -> bool:
        """Waits until this rank has registered with a controller more than ``since`` times (`registrations`).  Returns
        False after ``timeout`` seconds, or at once if it cannot register again."""
        if self._lost is None:
            return False
        until = time.monotonic() + timeout
        with self._registered:
            while self._registrations <= since:
                if self._refused or self._job_error is not None or time.monotonic() >= until:
                    return False
                if not self._listening.is_listening:  # the stream ended when this rank began to leave
                    self._lost()
                    self._listening = self._listen()
                self._registered.wait(FIRST_PAUSE)
        return True

    def leaving(self) -> None:
        """Called before leaving: from now on the controller may end the stream without that being an error."""
        self._leaving = True

    def close(self) -> None:
        """Closes the stream.  To be called after leaving: earlier, the controller takes it for this rank's death."""
        self._closing = True
        self._listening.close()

    def _listen(self) -> StreamListener:
        return StreamListener(lambda: self._call(self._halt), "netfold-watch", self.on_event, self.on_end)

    def on_end(self, why: str, status: grpc.StatusCode) -> float | None:
        """The stream has ended.  Returns the seconds until it is to be opened again; None: never."""
        self._watched = False
        if self._closing or isinstance(self._job_error, errors.JobEnded | errors.Evicted):
            return None
        if self._leaving and status is grpc.StatusCode.OK:
            return None
        if self._lost is None or (status not in AWAY and status is not grpc.StatusCode.OK):
            if not self._leaving and self._job_error is None:
                log.warning("%s: no longer watched (%s): only time-outs tell now that a rank is gone", self._me, why)
            with self._registered:
                self._refused = True
                if self._gone_since is not None and self._folds:
                    self._job_error = self._job_error or errors.JobEnded(f"a new controller refuses the job: {why}")
                self._registered.notify_all()
            return None
        if self._gone_since is None:
            self._gone_since, self._pause = time.monotonic(), FIRST_PAUSE
            log.log(self._shared, "%s: the controller has gone (%s): the job goes on, and looks for another one",
                    self._me, why)
        self._lost()
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause

    def on_event(self, event: Event) -> None:
        """The controller has sent this."""
        if isinstance(event, Watching):
            if self._gone_since is not None:
                log.log(self._shared, "%s: registered with a controller again after %.2f s", self._me,
                        time.monotonic() - self._gone_since)
                self._gone_since = None
            with self._registered:
                self._watched = True
                self._registrations += 1
                self._registered.notify_all()
        elif isinstance(event, Halt):
            log.log(self._shared, "%s: %s; going on over other trees", self._me, event.why)
            with self._lock:
                self._halt = event.round
                self._on_halt(event.round)
        elif isinstance(event, Tell):
            self._on_tell()
        elif isinstance(event, Settle):
            self._on_settle(event.folded, self._settled)
        elif isinstance(event, EvictedEvent):
            with self._registered:
                self._job_error = errors.Evicted(f"{self._me}: {event.why}")
                self._registered.notify_all()
            log.warning("%s", self._job_error)
        elif isinstance(event, RankLeft):
            last = printable(event.last)
            self._left = {**self._left, event.rank: last}
            self._left_error = self._left_error or PeerLost(
                f"rank {event.rank} at {event.address} ({event.host}) left {last}. Let all ranks end after the same "
                "operation, or go on without it: shrink()"
            )
            log.info("%s: rank %d left %s", self._me, event.rank, last)
        if self._job_error is not None:
            return
        if isinstance(event, RankLost):
            self._lost_rank = event.rank, f"is lost, says the controller: {event.why}"
            self._job_error = PeerLost(
                f"lost rank {event.rank} at {event.address} ({event.host}): {event.why}. Look at that rank's own "
                "error; then join anew, or go on without it: shrink()"
            )
            log.warning("%s: %s", self._me, self._job_error)
        elif isinstance(event, JobEndedEvent):
            with self._registered:
                self._job_error = errors.JobEnded(f"the controller ended the job: {event.why}; join anew")
                self._registered.notify_all()
            log.warning("%s: %s", self._me, self._job_error)

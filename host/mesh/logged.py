# SPDX-License-Identifier: Apache-2.0
"""A laned mesh that keeps what it has sent until it is acknowledged, where another path could carry it again.

What may have to be sent again lies in the caller's memory (``sent_log``), which becomes the caller's again when the
operation ends, or somebody waits for the send: then it is copied.  Short messages are copied when they are sent.
Within an operation memory that was sent may also be overwritten by what depends on its arrival, as in a ring, since the
peer has it then.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from netfold.host.mesh.connection import PeerConnection
from netfold.host.mesh.laned import LanedMesh
from netfold.host.mesh.lanes import InLane, OutLane, Striped
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.sending import Send
from netfold.host.mesh.sent_log import MOST_KEPT, unacknowledged
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

COPIED_BYTES: Final = 16 << 10
"""Longest message that is copied when it is sent."""
OutStream: TypeAlias = PeerConnection | OutLane
"""A stream on which this rank sends."""


class LoggedMesh(LanedMesh):
    """The ranks of a plan, connected over TCP, with a log of each stream where there are several paths.

    Parameters and errors are those of ``LanedMesh``.
    """

    def __init__(
        self,
        plan: Plan,
        listener: socket.socket,
        *,
        timeout: float,
        planned: PathSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(plan, listener, timeout=timeout, planned=planned, clock=clock, timeline=timeline)
        self._logging: set[OutStream] = set()
        """Streams whose logs may hold bytes, since something was written that may not be acknowledged yet."""
        self._borrowing: set[OutStream] = set()
        """Streams whose logs may refer to memory of callers, which must be copied before the callers change it."""
        if self._keeps_logs:
            for link in self._links.values():
                link.keep_log()

    def _out_streams(self) -> list[OutStream]:
        return [*self._links.values(), *(lane for lanes in self._lanes.values() for lane in lanes.out.values())]

    def _whole(self, head: bytes, view: memoryview) -> Send:
        """A message that travels whole, to be posted.  Where it is logged and short, its memory is copied at once:
        that costs less than asking the kernel for acknowledgements as soon as the caller has its memory back."""
        if self._keeps_logs and len(view) <= COPIED_BYTES:
            return Send(memoryview(head + view), owned=True)
        return Send(memoryview(head), view)

    def _write(self, link: PeerConnection) -> bool:
        return self._wrote(link) if super()._write(link) else False

    def _write_lane(self, lane: OutLane) -> bool:
        return self._wrote(lane) if super()._write_lane(lane) else False

    def _wrote(self, stream: OutStream) -> bool:
        log = stream.log
        if log is not None:
            self._logging.add(stream)
            if log.borrowed:
                self._borrowing.add(stream)
            if log.next - log.first > MOST_KEPT:
                self._forget_acknowledged(stream)
        return True

    def _forget_acknowledged(self, stream: OutStream) -> None:
        if stream.log is None or stream.out is None or stream.moving:
            return  # what comes late on a connection that the peer may have left is acknowledged, and not read
        try:
            waiting = unacknowledged(stream.out)
        except OSError:  # a connection that has broken acknowledges nothing more
            return
        stream.log.trim(stream.log.next - waiting)

    def _unacknowledged(self) -> set[OutStream]:
        """The streams on which something that was sent is not acknowledged, as far as this rank knows."""
        for stream in self._logging:
            self._forget_acknowledged(stream)
        self._logging = {stream for stream in self._logging if stream.log}
        return self._logging

    def _settle(self) -> None:
        """Gives all memory back to its owners: what the peers have is forgotten, the rest is copied."""
        for stream in self._borrowing:
            self._forget_acknowledged(stream)
            if stream.log is not None and stream.log.borrowed:
                stream.log.own()
        self._borrowing.clear()

    def _forget_stream(self, stream: OutStream) -> None:
        self._logging.discard(stream)
        self._borrowing.discard(stream)

    def _release(self, lane: OutLane | InLane) -> None:
        if isinstance(lane, OutLane):
            self._forget_stream(lane)
        super()._release(lane)

    def _drop(self, link: PeerConnection, why: str) -> None:
        self._forget_stream(link)
        super()._drop(link, why)

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        super().wait(pending, first=first)
        if self._borrowing:
            for one in pending:
                if isinstance(one, (Send, Striped)):
                    self._settle()
                    return

    def begin(self, call: Call) -> None:
        super().begin(call)
        if self._borrowing:
            self._settle()

# SPDX-License-Identifier: Apache-2.0
"""A laned mesh that keeps what it has sent until it is acknowledged, where another path could carry it again.

What may have to be sent again lies in the caller's memory (``sent_log``), which becomes the caller's again when the
operation ends, or somebody waits for the send: then it is copied.  Within an operation memory that was sent may also be
overwritten by what depends on its arrival, as in a ring, since the peer has it then.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from netfold.host.mesh.connection import PeerConnection
from netfold.host.mesh.laned import LanedMesh
from netfold.host.mesh.lanes import InLane, OutLane, Striped
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.sending import Send
from netfold.host.mesh.sent_log import MOST_KEPT, unacknowledged
from netfold.host.tracing.timeline import Timeline
from netfold.wire.jobs import Plan

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
        self._unsettled: set[OutStream] = set()
        """Streams whose logs may hold views of callers' memory, or what is not acknowledged."""
        if self._keeps_logs:
            for link in self._links.values():
                link.keep_log()

    def _out_streams(self) -> list[OutStream]:
        return [*self._links.values(), *(lane for lanes in self._lanes.values() for lane in lanes.out.values())]

    def _write(self, link: PeerConnection) -> bool:
        moved = super()._write(link)
        if self._keeps_logs:
            self._wrote(link)
        return moved

    def _write_lane(self, lane: OutLane) -> bool:
        moved = super()._write_lane(lane)
        if self._keeps_logs:
            self._wrote(lane)
        return moved

    def _wrote(self, stream: OutStream) -> None:
        self._unsettled.add(stream)
        if stream.log is not None and len(stream.log) > MOST_KEPT:
            self._forget_acknowledged(stream)

    def _forget_acknowledged(self, stream: OutStream) -> None:
        if stream.log is None or stream.out is None or stream.moving:
            return  # what comes late on a connection that the peer may have left is acknowledged, and not read
        with suppress(OSError):  # a connection that has broken acknowledges nothing more
            stream.log.trim(stream.log.next - unacknowledged(stream.out))

    def _settle(self) -> None:
        """Gives all memory back to its owners: what the peers have is forgotten, the rest is copied."""
        for stream in self._unsettled:
            self._forget_acknowledged(stream)
            if stream.log is not None:
                stream.log.own()
        self._unsettled = {stream for stream in self._unsettled if stream.log}

    def _release(self, lane: OutLane | InLane) -> None:
        if isinstance(lane, OutLane):
            self._unsettled.discard(lane)
        super()._release(lane)

    def _drop(self, link: PeerConnection, why: str) -> None:
        self._unsettled.discard(link)
        super()._drop(link, why)

    def wait(self, pending: Sequence[Pending], *, first: bool = False) -> None:
        super().wait(pending, first=first)
        if self._unsettled and any(isinstance(one, Send | Striped) for one in pending):
            self._settle()

    def begin(self, call: Call) -> None:
        super().begin(call)
        if self._unsettled:
            self._settle()

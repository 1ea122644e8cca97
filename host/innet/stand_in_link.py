# SPDX-License-Identifier: Apache-2.0
"""A rank's end of the connection to the rank that stands in for the switches (``stand_in``)."""

from __future__ import annotations

import select
import socket
from itertools import groupby

from netfold.host.innet import native
from netfold.host.innet.core import Core, result_origin
from netfold.host.innet.packet_link import AGAIN, DONE, FAILED
from netfold.host.innet.stand_in import RECEIVE, RUN, Broken, RunBuffer, result_routes
from netfold.wire import roce
from netfold.wire.plan import RankStream

AHEAD = 1 << 20
"""Bytes that may wait for the kernel before further packets are created."""


class StandInLink:
    """Runs a core over a connection, as ``packet_link.Io`` does over UDP sockets.

    sock     the connection, after its handshake; taken over
    streams  of the rank, in the order in which all ranks number them
    """

    def __init__(self, core: Core, sock: socket.socket, streams: list[RankStream]) -> None:
        sock.setblocking(False)
        self._core = core
        self._sock = sock
        self._origins = [result_origin(stream) for stream in streams]
        self._numbers = {stream.peer_qp: number for number, stream in enumerate(streams)}
        self._arrived = RunBuffer()
        self._waiting = bytearray(result_routes(streams, core.address, core.port))

    def run(self, until: int) -> int:
        """Runs until the core is done (DONE), has failed (FAILED), or CLOCK_MONOTONIC is ``until`` nanoseconds (AGAIN).
        Raises Broken, OSError."""
        clock = native.library().nf_now
        while True:
            now = clock()
            self._collect(now)
            self._send()
            if self._core.failure().error:
                return FAILED
            if self._core.finished() and not self._waiting:
                return DONE
            if now >= until:
                return AGAIN
            wanted = [self._sock] if self._waiting else []
            readable, _, _ = select.select([self._sock], wanted, [], (until - now) / 1e9)
            if readable:
                for segment, number, data in self._arrived.add(self._sock.recv(RECEIVE)):
                    if number >= len(self._origins):
                        raise Broken(f"results of stream {number}: expected one below {len(self._origins)}")
                    # the handshake has proven who sends them, as source address and TTL do of what a switch sends
                    self._core.receive(data, clock(), self._origins[number], segment=segment)

    def close(self) -> None:
        """Closes the connection; safe to call twice."""
        self._sock.close()

    def _collect(self, now: int) -> None:
        """Takes the runs that the core wants to send, each cut by streams: a short tensor's agreement and data leave as
        one."""
        while len(self._waiting) < AHEAD and (run := self._core.send(now)) is not None:
            for number, packets in groupby(run.packets(), self._stream_of):
                data = b"".join(packets)
                self._waiting += RUN.pack(len(data), run.segment, number) + data

    def _stream_of(self, packet: bytes) -> int:
        """The number of the stream that a packet belongs to."""
        return self._numbers[roce.BTH.unpack_from(packet)[3] // roce.QUEUE_PAIRS * roce.QUEUE_PAIRS]

    def _send(self) -> None:
        while self._waiting:
            try:
                del self._waiting[: self._sock.send(self._waiting)]
            except BlockingIOError:
                return



# SPDX-License-Identifier: Apache-2.0
"""The rail "tcp": a ring allreduce between the hosts, for fabrics that do not fold.

N ranks, M bytes: N-1 steps of reduce-scatter and N-1 of all-gather, each sending and receiving one of N chunks:
2 (N-1) steps, 2 (N-1)/N M bytes each way on every host's link (Patarasuk and Yuan 2009).

    step s of reduce-scatter: rank r sends chunk r-s, receives chunk r-s-1 and adds its own
    step s of all-gather:     rank r sends chunk r+1-s, receives chunk r-s

A chunk is summed in one order, on one rank after another, and then copied: every rank gets the same bits.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass

import numpy as np

from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RankMismatch, TransportError
from netfold.host.rail import Flat, Op, RailStats
from netfold.wire.jobs import Plan

HELLO = struct.Struct("!8sQII32s")
"""magic, epoch, rank, world, job (cut to 32 bytes)."""
MAGIC = b"netfold1"
CALL = struct.Struct("!QQBB")
"""operation number, elements, dtype, average: what neighbours must agree on before each operation."""
DTYPES = ("float32", "int32")
POLL = 0.1
"""Seconds between looks at the deadline."""


def listen(address: str) -> socket.socket:
    """A bound, listening TCP socket on a free port.  Raises TransportError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
        sock.listen(4)
    except OSError as error:
        sock.close()
        raise TransportError(
            error.errno,
            f"cannot listen on {address} for the TCP ring: {error.strerror}; give this host's own IPv4 address",
        ) from error
    return sock


@dataclass(frozen=True)
class _Call:
    number: int
    elements: int
    dtype: str
    average: bool

    def pack(self) -> bytes:
        return CALL.pack(self.number, self.elements, DTYPES.index(self.dtype), self.average)

    @staticmethod
    def unpack(data: bytearray) -> _Call:
        number, elements, dtype, average = CALL.unpack(data)
        return _Call(number, elements, DTYPES[dtype] if dtype < len(DTYPES) else f"dtype {dtype}", bool(average))

    def __str__(self) -> str:
        return f"operation {self.number}: {'average' if self.average else 'sum'} of {self.elements} x {self.dtype}"


class RingRail:
    """Ring allreduce over TCP.  Owns ``listener``; connects at the first operation, so that opening costs nothing.

    timeout  seconds without a byte moving after which an operation gives up
    """

    name = "tcp"

    def __init__(self, plan: Plan, listener: socket.socket, *, timeout: float) -> None:
        self._plan = plan
        self._timeout = timeout
        self._listener = listener
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None
        self._operations = 0
        self._bytes = 0
        self._seconds = 0.0
        peers = {peer.rank: peer for peer in plan.peers}
        self._after = peers[(plan.rank + 1) % plan.world]
        self._before = peers[(plan.rank - 1) % plan.world]

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        begin = time.monotonic()
        call = _Call(number, source.size, source.dtype.name, op == "average")
        try:
            if self._next is None:
                self._connect(call)
            self._agree(call)
            if source.ctypes.data != out.ctypes.data:
                out[...] = source
            self._ring(out, call)
        except BaseException:
            self.close()  # so that the neighbours, and theirs, learn it now rather than by their timeouts
            raise
        if call.average:
            np.divide(out, np.float32(self._plan.world), out=out)
        self._operations += 1
        self._bytes += source.nbytes
        self._seconds += time.monotonic() - begin

    def _ring(self, data: Flat, call: _Call) -> None:
        n, rank = self._plan.world, self._plan.rank
        borders = [i * data.size // n for i in range(n + 1)]

        def chunk(i: int) -> Flat:
            i %= n
            return data[borders[i] : borders[i + 1]]

        arrived = np.empty(-(-data.size // n), data.dtype)
        for step in range(n - 1):
            own = chunk(rank - step - 1)
            theirs = arrived[: own.size]
            self._exchange(_bytes(chunk(rank - step)), _bytes(theirs), call)
            with np.errstate(over="ignore", invalid="ignore"):  # Inf and NaN travel like any other value
                np.add(own, theirs, out=own)
        for step in range(n - 1):
            self._exchange(_bytes(chunk(rank + 1 - step)), _bytes(chunk(rank - step)), call)

    def _agree(self, call: _Call) -> None:
        theirs = bytearray(CALL.size)
        self._exchange(memoryview(call.pack()), memoryview(theirs), call)
        got = _Call.unpack(theirs)
        if got != call:
            raise RankMismatch(
                f"{self._who(call)}: rank {self._before.rank} is at {got}; expected {call}; "
                "call the same operations in the same order on every rank, then join anew"
            )

    def _exchange(self, send: memoryview, receive: memoryview, call: _Call) -> None:
        """Sends to the next rank while receiving from the one before; neither waits for the other."""
        assert self._next is not None
        assert self._previous is not None
        deadline = time.monotonic() + self._timeout
        poller = select.poll()
        if receive:
            poller.register(self._previous, select.POLLIN)
        if send:
            poller.register(self._next, select.POLLOUT)
        while send or receive:
            moved = False
            for fd, _ in poller.poll(POLL * 1000):
                if fd == self._previous.fileno() and receive:
                    got = self._receive(receive, call)
                    receive, moved = receive[got:], moved or got > 0
                    if not receive:
                        poller.unregister(self._previous)
                elif fd == self._next.fileno() and send:
                    sent = self._send(send, call)
                    send, moved = send[sent:], moved or sent > 0
                    if not send:
                        poller.unregister(self._next)
            now = time.monotonic()
            if moved:
                deadline = now + self._timeout
            elif now >= deadline:
                stuck = []
                if receive:
                    stuck.append(f"rank {self._before.rank} ({self._before.tcp}) owes {len(receive)} bytes")
                if send:
                    stuck.append(f"rank {self._after.rank} ({self._after.tcp}) does not take {len(send)} bytes")
                raise CollectiveTimeout(
                    f"{self._who(call)}: nothing moved for {self._timeout:g} s: {'; '.join(stuck)}. That rank, or one "
                    "behind it in the ring, is gone, stopped, or never called; expected: every rank within the timeout"
                )

    def _receive(self, into: memoryview, call: _Call) -> int:
        assert self._previous is not None
        try:
            got = self._previous.recv_into(into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self._before.rank, self._before.tcp, call, str(error)) from error
        if got == 0:
            raise self._lost(self._before.rank, self._before.tcp, call, "it closed the connection")
        return got

    def _send(self, data: memoryview, call: _Call) -> int:
        assert self._next is not None
        try:
            return self._next.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(self._after.rank, self._after.tcp, call, str(error)) from error

    # ---- connections -----------------------------------------------------------------------------------------------
    def _connect(self, call: _Call) -> None:
        """Connects to rank + 1 and takes rank - 1's connection, both at once."""
        plan, deadline = self._plan, time.monotonic() + self._timeout
        host, _, port = self._after.tcp.rpartition(":")
        hello = HELLO.pack(MAGIC, plan.epoch, plan.rank, plan.world, plan.job.encode()[:32])
        try:
            # The peer listens since before it joined: its backlog takes us even while it computes.
            self._next = socket.create_connection((host, int(port)), timeout=self._timeout)
            self._next.sendall(hello)
        except (OSError, ValueError) as error:
            raise self._lost(self._after.rank, self._after.tcp, call, f"cannot connect: {error}") from error
        while self._previous is None:
            self._listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                candidate, _ = self._listener.accept()
            except TimeoutError:
                raise CollectiveTimeout(
                    f"{self._who(call)}: rank {self._before.rank} ({self._before.address}) did not connect within "
                    f"{self._timeout:g} s; it is gone, stopped, or has not called its first operation"
                ) from None
            if self._welcome(candidate, deadline):
                self._previous = candidate
            else:  # a port scanner, or another job's rank: not ours to fail on
                candidate.close()
        for sock in (self._next, self._previous):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)

    def _welcome(self, candidate: socket.socket, deadline: float) -> bool:
        plan, data = self._plan, b""
        candidate.settimeout(max(0.001, min(1.0, deadline - time.monotonic())))
        try:
            while len(data) < HELLO.size:
                more = candidate.recv(HELLO.size - len(data))
                if not more:
                    return False
                data += more
        except OSError:
            return False
        return data == HELLO.pack(MAGIC, plan.epoch, self._before.rank, plan.world, plan.job.encode()[:32])

    # ---- what it says ----------------------------------------------------------------------------------------------
    def stats(self) -> RailStats:
        return RailStats(operations=self._operations, bytes_reduced=self._bytes, seconds=self._seconds)

    def describe(self, nbytes: int) -> str:
        n = self._plan.world
        steps = 2 * (n - 1)
        return f"{nbytes} bytes go round a TCP ring of {n} hosts: {steps} steps, {steps * nbytes // n} bytes each way"

    def close(self) -> None:
        for sock in (self._listener, self._next, self._previous):
            if sock is not None:
                sock.close()

    def _who(self, call: _Call) -> str:
        return f"job {self._plan.job!r}, rank {self._plan.rank} of {self._plan.world}, TCP ring, {call}"

    def _lost(self, rank: int, where: str, call: _Call, why: str) -> NetFoldError:
        return PeerLost(
            f"{self._who(call)}: lost rank {rank} at {where}: {why}. Look at that rank's own error; then join anew"
        )


def _bytes(array: Flat) -> memoryview:
    return memoryview(array.view(np.uint8)) if array.size else memoryview(b"")  # type: ignore[arg-type]

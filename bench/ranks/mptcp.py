# SPDX-License-Identifier: Apache-2.0
"""One rank of Multipath TCP in `netfold bench rails`: a ring of plain allreduces over one connection to each neighbour.

    python -m netfold.bench.ranks.mptcp TIMEOUT FURTHER ADDRESS...    with RANK set, planes besides the first, and all
                                                                      ranks' addresses on the first

The kernel adds a subflow over each further plane to each connection.  Answers a line of JSON to each `MptcpCommand`.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.topo.processes.rank_program import print_message

IPPROTO_MPTCP: Final = 262
PORT: Final = 29_262
"""The port at which each rank listens, in the namespace of its host."""
SUBFLOW_SECONDS: Final = 1.0
"""Seconds after which a further subflow does not come any more."""
SETTLED: Final = 0.5
"""Seconds after which a subflow is not refused any more: the kernel counts it as soon as it asks for it."""
_SOL_MPTCP, _MPTCP_INFO = 284, 1  # as the kernel numbers them


class MptcpCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Time ``iterations`` sums of ``nbytes``, 1 or more, after one other."""

    nbytes: int
    iterations: int


class MptcpResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `MptcpCommand`."""

    seconds: float
    """Time of one sum."""
    processor: float
    """Processor seconds of this process for one sum."""
    sent: list[int]
    """Bytes that the timed sums sent, by the numbers of the host's interfaces, one on each plane."""
    wrong: int
    """Wrong elements of the last sum, which is exact in int32."""
    subflows: int
    """Subflows of the connection to the next rank, besides the first."""


def mptcp_socket() -> socket.socket:
    """A socket of Multipath TCP.  Raises OSError where the kernel has none."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP)


@dataclass(frozen=True)
class Ring:
    """The connections of a rank: one to the next rank, one from the rank before."""

    rank: int
    size: int
    next: socket.socket
    before: socket.socket

    def exchange(self, out: NDArray[np.int32], back: NDArray[np.int32]) -> None:
        """Send a part to the next rank while one from the rank before arrives."""
        sender = threading.Thread(target=self.next.sendall, args=(out.data.cast("B"),))
        sender.start()
        room = back.data.cast("B")
        while room:
            got = self.before.recv_into(room)
            if not got:
                raise ConnectionError(f"rank {self.rank}: the rank before has closed its connection")
            room = room[got:]
        sender.join()

    def allreduce(self, data: NDArray[np.int32]) -> None:
        """Sum over all ranks in place, by a ring: reduce-scatter, then all-gather."""
        ends = [len(data) * n // self.size for n in range(self.size + 1)]
        parts = [data[a:b] for a, b in pairwise(ends)]
        for step in range(self.size - 1):
            mine = parts[(self.rank - step - 1) % self.size]
            got = np.empty_like(mine)
            self.exchange(parts[(self.rank - step) % self.size], got)
            mine += got
        for step in range(self.size - 1):
            self.exchange(parts[(self.rank + 1 - step) % self.size], parts[(self.rank - step) % self.size])


def connect(rank: int, addresses: Sequence[str], timeout: float, further: int, listener: socket.socket) -> Ring:
    """The connections of a rank, by its listener, once all listen: this waits for a line of input, and until each
    connection has so many further subflows.  Raises OSError."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", PORT))
    listener.listen()
    listener.settimeout(timeout)
    print_message(rank)
    sys.stdin.readline()
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(_accepted, listener, timeout)
        after = _connected((addresses[(rank + 1) % len(addresses)], PORT), further, timeout, rank)
        return Ring(rank, len(addresses), after, before.result())


def _accepted(listener: socket.socket, timeout: float) -> socket.socket:
    """The connection that the rank before keeps."""
    while True:
        sock, _ = listener.accept()
        sock.settimeout(timeout)
        if sock.recv(1):
            return sock
        sock.close()


def _connected(address: tuple[str, int], further: int, timeout: float, rank: int) -> socket.socket:
    """A connection with all further subflows, of which the other end is told by a byte.

    If both ends add one at once, each refuses the other's, since its own is the last that it allows, and the kernel
    does not try again.  So then the connection is made anew.
    """
    end = time.monotonic() + timeout
    while True:
        sock = mptcp_socket()
        sock.settimeout(timeout)
        sock.connect(address)
        have, since = 0, time.monotonic()
        lacking = since
        while lacking < since + SUBFLOW_SECONDS and (now := time.monotonic()) < lacking + SETTLED:
            if (have := subflows(sock)) < further:
                lacking = now
            time.sleep(0.01)  # the kernel tells by no event that it has one more, or one less
        if have >= further:
            sock.sendall(b"!")
            return sock
        sock.close()
        if time.monotonic() >= end:
            raise TimeoutError(f"rank {rank}: the connection to the next rank has {have} further subflows, again and "
                               f"again for {timeout:g} s, expected {further}: do planes reach each other's addresses?")


def subflows(sock: socket.socket) -> int:
    """Subflows of a connection besides its first: mptcpi_subflows of MPTCP_INFO."""
    return sock.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 1)[0]


def sent() -> list[int]:
    """Bytes that this host has sent over each of its interfaces, in order of their names."""
    with open("/proc/net/dev", encoding="ascii") as file:
        counters = dict(line.split(":", 1) for line in file if ":" in line)
    return [int(counters[name].split()[8]) for name in sorted(counters) if name.strip() != "lo"]


def serve(rank: int, timeout: float, further: int, addresses: Sequence[str]) -> None:
    """Execute commands until the input ends."""
    listener = mptcp_socket()  # stays, on all planes: subflows join where something listens
    ring = connect(rank, addresses, timeout, further, listener)
    for line in sys.stdin:
        command = msgspec.json.decode(line, type=MptcpCommand)
        every = [np.arange(command.nbytes // 4, dtype=np.int32) * np.int32(2 * n + 1) for n in range(ring.size)]
        seconds, before, processor = 0.0, sent(), 0.0
        for number in range(command.iterations + 1):
            if number == 1:
                seconds, before, processor = 0.0, sent(), time.process_time()
            data = every[rank].copy()
            begin = time.monotonic()
            ring.allreduce(data)
            seconds += time.monotonic() - begin
        processor = (time.process_time() - processor) / command.iterations
        carried = [now - then for now, then in zip(sent(), before, strict=True)]
        wrong = int((data != np.sum(every, axis=0, dtype=np.int32)).sum())
        print_message(MptcpResult(seconds / command.iterations, processor, carried, wrong, subflows(ring.next)))


if __name__ == "__main__":
    serve(int(os.environ["RANK"]), float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

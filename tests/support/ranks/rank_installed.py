# SPDX-License-Identifier: Apache-2.0
"""Two ranks in one process, which sum over TCP by an installed netfold: prints "exact"."""

from __future__ import annotations

import socket
import threading

import numpy as np

from netfold import Communicator
from netfold.wire.jobs import Peer, Plan

RANKS = 2
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(RANKS)]
peers = [Peer(rank, "127.0.0.1", "{}:{}".format(*listeners[rank].getsockname())) for rank in range(RANKS)]
sums: dict[int, np.ndarray] = {}


def rank(number: int) -> None:
    """One rank's part."""
    plan = Plan("installed", 1, number, RANKS, peers, [], "a test")
    with Communicator(plan, address="127.0.0.1", rail="tcp", listener=listeners[number]) as comm:
        sums[number] = comm.allreduce(np.arange(100_000, dtype=np.float32) + number)


threads = [threading.Thread(target=rank, args=(number,)) for number in range(RANKS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for total in (sums[number] for number in range(RANKS)):
    np.testing.assert_array_equal(total, 2 * np.arange(100_000, dtype=np.float32) + 1)
print("exact")

# SPDX-License-Identifier: Apache-2.0
"""The messengers of several ranks of one job, in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch.distributed as dist

from netfold.host.job_secret import draw
from netfold.host.torch.messenger import Messenger, open_messenger
from netfold.wire.plan import Peer, Plan

SOON: Final = 20.0
"""Seconds within which what must happen has happened."""


@contextmanager
def messengers(count: int, timeout: float = SOON) -> Iterator[list[Messenger]]:
    """A messenger for each of several ranks of one job, on loopback."""
    store, secret = dist.HashStore(), draw()
    peers = [Peer(rank, "127.0.0.1", "") for rank in range(count)]
    ours: dict[int, Messenger] = {}

    def begin(rank: int) -> None:
        plan = Plan("j", 3, rank, count, peers, [], secret=secret)
        ours[rank] = open_messenger(store, plan, f"rank {rank}", timedelta(seconds=SOON), timeout)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    try:
        yield [ours[rank] for rank in range(count)]
    finally:
        for one in ours.values():
            one.close()

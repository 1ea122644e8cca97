# SPDX-License-Identifier: Apache-2.0
"""Scheduler settings of the thread that folds."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from netfold.host.innet.core import Core
from netfold.host.innet.packet_link import AGAIN, Io
from netfold.host.native.sockets import bind_port, open_sockets
from netfold.testing import subnet
from netfold.wire.plan import RankStream, RankTree

LONG = 10_000_000_000
"""Nanoseconds that no run takes."""


@pytest.mark.parametrize(("elements", "before", "meanwhile"), [
    (1 << 18, os.SCHED_OTHER, os.SCHED_BATCH),
    (1 << 18, os.SCHED_IDLE, os.SCHED_IDLE),
    ((1 << 18) - 1, os.SCHED_OTHER, os.SCHED_OTHER),
], ids=["large", "large, of a policy of its own", "small"])
def test_threads_are_batch_threads_during_large_operations(elements: int, before: int, meanwhile: int) -> None:
    """From 1 MiB on, where the program has given the thread no other policy; afterwards it is what it was."""
    address = f"{subnet()}.1"

    def stream(number: int) -> RankStream:
        return RankStream(peer=address, peer_qp=number, qp=number, source_port=port, psn=0, slots=1024,
                          predecessor=address, predecessor_port=port)

    sockets = open_sockets(bind_port(address), [0], room=1 << 20, ttl=64)
    port, = sockets.senders
    core = Core(address, 2, [RankTree(name="t", weight=1.0, agreement=stream(8), data=stream(16))])
    io = Io(core, sockets.receiver, sockets.senders)
    reader, writer = os.pipe()
    io.interrupt_by(reader)
    source = np.ones(elements, np.float32)
    core.start(1, source, source, 1.0, core.now())
    after: list[int] = []

    def fold() -> None:
        os.sched_setscheduler(0, before, os.sched_param(0))
        started.set()
        after.append(io.run(core.now() + LONG)[0])
        after.append(os.sched_getscheduler(0))

    started = threading.Event()
    thread = threading.Thread(target=fold)
    thread.start()
    started.wait()
    while not core.state(0, 0).counters.sent and time.monotonic_ns() < core.progress() + LONG:
        pass
    seen = os.sched_getscheduler(thread.native_id or 0)
    os.write(writer, b"!")
    thread.join()
    assert seen == meanwhile
    assert after == [AGAIN, before]
    io.close()
    core.close()
    os.close(reader)
    os.close(writer)

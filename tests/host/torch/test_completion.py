# SPDX-License-Identifier: Apache-2.0
"""Torch's futures of what was started: their callbacks may wait for whatever else was started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

import torch.distributed as dist  # noqa: E402
from torch.futures import Future  # noqa: E402

from netfold.host.staging.copies import Staging  # noqa: E402
from netfold.host.torch.completion import StartedOperation, Threads  # noqa: E402
from netfold.host.torch.process_group import NetfoldGroup  # noqa: E402
from netfold.host.torch.reducer import Reducer  # noqa: E402
from netfold.testing import loopback_job, on_every_rank  # noqa: E402
from support.devices.late_device import LateDevice, LateStream  # noqa: E402
from support.hosts.insides import reducer_of  # noqa: E402
from support.hosts.messengers import SOON, messengers  # noqa: E402

DEPTH = 5
"""Callbacks that wait inside each other."""
Begin = Callable[[int, int], StartedOperation]
"""Starts a rank's operation at a depth."""


def value_of(future: Future[float]) -> float:
    """The value of a future; the test fails if it does not come in time."""
    come = threading.Event()
    future.add_done_callback(lambda _: come.set())
    assert come.wait(SOON), "a callback that waits for what it has started never ends"
    return float(future.wait())


def nested(begin: Begin, rank: int, depth: int = DEPTH) -> Future[float]:
    """The sum of what this rank's operation brings and of what its callback starts and waits for."""

    def then(done: Future[list[torch.Tensor]]) -> float:
        mine = float(done.value()[0][0])
        return mine + (float(nested(begin, rank, depth - 1).wait()) if depth else 0.0)

    return begin(rank, depth).future.then(then)


def test_a_callback_may_wait_for_collectives_that_it_starts_itself() -> None:
    """Callbacks that start collectives and wait for them, whose callbacks do the same, all end, in two groups at once.
    """
    with loopback_job(2, rail="tcp") as first, loopback_job(2, rail="tcp") as second:
        groups = [[Reducer(comm) for comm in comms] for comms in (first, second)]
        found = [
            nested(lambda rank, depth, mine=mine: mine[rank].allreduce(  # type: ignore[misc]
                torch.full((3,), float(depth + rank)), "sum"), rank)
            for mine in groups for rank in range(2)
        ]
        assert [value_of(one) for one in found] == [sum(2 * depth + 1 for depth in range(DEPTH + 1))] * 4
        for mine in groups:
            for reducer in mine:
                reducer.close()


def test_a_callback_may_wait_for_messages_that_it_starts_itself() -> None:
    """The callbacks of messages, too: rank 0 receives, and sends what came on, before the outer callback ends."""
    with messengers(2) as both:

        def begin(rank: int, depth: int) -> StartedOperation:
            values = torch.full((1,), float(depth) if rank else -1.0)
            data = values.numpy().view(np.uint8)
            if rank:
                return both[1].send(data, 0, depth, [values])
            return both[0].receive(data, 1, depth, [values], lambda: None)

        found = [nested(begin, rank) for rank in range(2)]
        assert [value_of(one) for one in found] == [sum(range(DEPTH + 1))] * 2


def test_a_callback_that_raises_ends_its_own_future_alone() -> None:
    """Its future has the error; the operation's own, and those of later operations, have their values."""
    with loopback_job(2, rail="tcp") as comms:
        reducers = [Reducer(comm) for comm in comms]
        first, later = (reducers[0].allreduce(torch.ones(2), "sum") for _ in range(2))
        wrong = first.future.then(lambda _: 1 // 0)
        right = later.future.then(lambda done: float(done.value()[0][0]))
        for _ in range(2):
            reducers[1].allreduce(torch.ones(2), "sum")
        assert value_of(right) == 2.0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            wrong.wait()
        assert first.future.wait()[0].tolist() == [2.0, 2.0]
        for reducer in reducers:
            reducer.close()


@pytest.mark.parametrize("kind", ["broadcast", "allreduce"])
def test_a_device_that_fails_after_the_collective_ends_the_work_and_the_communicator(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device takes no copy back, nor anything else: the work has its error, and the next call would have it."""
    store, take = dist.HashStore(), LateStream.take
    lost: list[LateStream] = []

    def gone(stream: LateStream, item: Any) -> None:
        if stream in lost:
            raise RuntimeError("the device is gone")
        take(stream, item)

    def rank(comm: Communicator) -> list[str]:
        group, device, tensor = NetfoldGroup(store, comm, timedelta(seconds=SOON)), LateDevice(), torch.ones(3)
        reducer_of(group).staging = Staging(device.of)
        lane = reducer_of(group).staging.lane("this", [tensor])
        assert lane is not None
        lost.append(lane.back)
        work: Any = group.allreduce([tensor]) if kind == "allreduce" else group.broadcast([tensor], root=0)
        ended = threading.Event()
        work.pending.when_done(ended.set)
        assert ended.wait(SOON)
        assert work.is_completed()
        problem = comm.problem
        group.shutdown()
        return [str(work.exception()), type(problem).__name__, str(problem).partition(": ")[2]]

    monkeypatch.setattr(LateStream, "take", gone)
    with loopback_job(2, rail="tcp") as comms:
        found = on_every_rank(comms, rank)
    assert found == [["the device is gone", "TransportError", "cpu has failed: the device is gone"]] * 2


def test_no_call_waits_for_another(caplog: pytest.LogCaptureFixture) -> None:
    """Each call runs while those before it wait, threads are used again, and one that raises is logged."""
    threads, begun, end = Threads(), [threading.Event() for _ in range(4)], threading.Event()
    names: set[int] = set()

    def call(place: int) -> None:
        names.add(threading.get_ident())
        begun[place].set()
        assert end.wait(SOON)

    for place, one in enumerate(begun):
        threads.run(lambda place=place: call(place))  # type: ignore[misc]
        assert one.wait(SOON)
    assert len(names) == 4
    end.set()
    failed = threading.Event()

    def fail() -> None:
        names.add(threading.get_ident())
        failed.set()
        raise KeyError("on purpose")

    while threads.idle < 4:
        os.sched_yield()
    threads.run(fail)
    assert failed.wait(SOON)
    while threads.idle < 4:
        os.sched_yield()
    assert len(names) == 4, "a new thread although four have nothing to do"
    assert "on purpose" in caplog.text

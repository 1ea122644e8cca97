# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations: their order, callbacks, errors, and the end of the thread that runs them."""

from __future__ import annotations

import queue
import sys
import threading
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.work import OperationSequencer, Work
from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost
from netfold.testing import loopback_job, on_every_rank


def test_asynchronous_operations_keep_their_order() -> None:
    """Several are under way and waited for in any order, and a synchronous one comes after them."""

    def work(comm: Communicator) -> list[float]:
        works = [comm.iallreduce(np.full(3000, i + comm.rank, np.float64)) for i in range(8)]
        ranks = comm.later(lambda: comm.all_gather(np.array([comm.rank])).tolist(), "who is there")
        last = comm.allreduce(np.ones(1))[0]
        assert all(one.done() for one in works)
        assert ranks.wait(0) == [0, 1]
        return [*[float(one.wait(60)[0]) for one in reversed(works)][::-1], float(last)]

    with loopback_job(2, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [[2.0 * i + 1 for i in range(8)] + [2.0]] * 2


def test_callbacks_come_once_the_work_is_done() -> None:
    """They come in the order in which they were added, also for work that is done or failed; one that raises stops
    nothing."""
    with loopback_job(2, rail="tcp", timeout=60) as comms:
        called: list[object] = []
        work = comms[0].iallreduce(np.ones(3))
        work.add_done_callback(lambda done: called.append(done.wait(0).tolist()))
        work.add_done_callback(lambda done: 1 // 0)
        work.add_done_callback(lambda done: sys.exit("on the communicator's thread"))
        work.add_done_callback(lambda done: called.append(done.done()))
        comms[1].allreduce(np.ones(3))
        work.wait(20)
        late: list[bool] = []
        work.add_done_callback(lambda done: late.append(done.done()))
        assert late == [True]
        failed = comms[0].iallreduce(np.ones(3))
        failed.add_done_callback(called.append)
        comms[1].close()
        with pytest.raises(PeerLost):
            failed.wait(20)
        comms[0].close()  # the thread that calls them has ended
        assert called == [[2.0] * 3, True, failed]


def test_what_fails_before_an_operation_reaches_the_waiter() -> None:
    """The timeline has no room, say: the work is done, with that error."""
    order = OperationSequencer("rank 0")
    order.flight.timeline = Mock(add=Mock(side_effect=OSError("no room")))
    work = order.later(lambda: 1, "an operation")
    with pytest.raises(OSError, match="no room"):
        work.wait(20)
    order.close()


def test_waiting_is_bounded_and_errors_come_out_of_wait() -> None:
    """wait(timeout) gives up alone; the operation's own timeout ends it with an error that later calls raise again."""
    with loopback_job(2, rail="tcp", timeout=60) as comms:
        work = comms[0].iallreduce(np.ones(10))
        with pytest.raises(CollectiveTimeout, match=r"sum of 10 x float64: not done within the 0.01 s of wait"):
            work.wait(0.01)
        comms[1].allreduce(np.ones(10))
        assert work.wait(20).tolist() == [2.0] * 10
    with loopback_job(2, rail="tcp", timeout=0.5) as comms:
        work = comms[0].iallreduce(np.ones(10))
        with pytest.raises(CollectiveTimeout, match=r"rank 1 gone, stopped, or never called"):
            work.wait(20)
        assert work.done()
        with pytest.raises(NetFoldError, match="never called"):
            comms[0].barrier()
        comms[0].close()
        with pytest.raises(Closed):
            comms[0].iallreduce(np.ones(10))


def test_nothing_is_begun_while_a_communicator_waits_for_its_close() -> None:
    """It is refused, and what was begun before is done: nothing stands behind the end of the queue for ever."""
    order, gate = OperationSequencer("rank 0"), threading.Event()
    first = order.later(lambda: gate.wait(20), "first")
    closing = threading.Thread(target=order.close, daemon=True)
    closing.start()
    begun: list[Work[int]] = []

    def begin_more() -> None:
        for _ in range(5000):
            begun.append(order.later(lambda: 1, "next"))
            gate.wait(0.001)

    with pytest.raises(Closed):
        begin_more()
    gate.set()
    assert first.wait(20)
    assert [work.wait(20) for work in begun] == [1] * len(begun)
    closing.join(20)
    assert not closing.is_alive()


def test_what_a_close_overtakes_on_its_way_to_the_queue_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends with Closed, as where a signal's handler closes in the middle of the call that begins it."""

    class Overtaken(queue.SimpleQueue[Any]):
        def put(self, work: Any, block: bool = True, timeout: float | None = None) -> None:
            if work is not None:
                order.close()
            super().put(work)

    with monkeypatch.context() as patch:
        patch.setattr("netfold.host.api.work.queue.SimpleQueue", Overtaken)
        order = OperationSequencer("rank 0")
    late = order.later(lambda: 1, "late")
    with pytest.raises(Closed):
        late.wait(20)


def test_threads_that_begin_the_first_work_at_once_share_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread runs both works if the second is begun while the thread of the first is made; then the thread ends."""
    order = OperationSequencer("rank 0")
    second: list[Work[int]] = []
    beside = threading.Thread(target=lambda: second.append(order.later(lambda: 2, "second")))
    made: list[threading.Thread] = []

    class Slow(threading.Thread):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            made.append(self)
            if len(made) == 1:
                beside.start()
                beside.join(0.2)  # it waits until this one was made

    monkeypatch.setattr("netfold.host.api.work.threading.Thread", Slow)
    first = order.later(lambda: 1, "first")
    beside.join(20)
    assert (first.wait(20), second[0].wait(20)) == (1, 2)
    order.close()
    assert [thread.is_alive() for thread in made] == [False]


def test_a_close_while_the_first_thread_is_made_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends, and its thread, as where a signal's handler closes in the middle of the call that begins it."""
    order = OperationSequencer("rank 0")
    begun: list[Work[int]] = []
    caller = threading.Thread(target=lambda: begun.append(order.later(lambda: 1, "late")), daemon=True)
    made: list[threading.Thread] = []

    class Interrupted(threading.Thread):
        def __init__(self, **how: Any) -> None:
            super().__init__(**how)
            made.append(self)
            order.close()

    monkeypatch.setattr("netfold.host.api.work.threading.Thread", Interrupted)
    caller.start()
    caller.join(20)
    assert begun[0].done(), "the call that begins a work waits for ever"
    assert [thread.is_alive() for thread in made] == [False]


def test_a_communicator_that_a_callback_closes_leaves_no_thread() -> None:
    """The callback runs on that very thread, which ends after it; what stands behind is refused."""
    order, gate = OperationSequencer("rank 0"), threading.Event()
    work = order.later(lambda: gate.wait(20) and threading.current_thread(), "first")
    work.add_done_callback(lambda done: order.close())
    gate.set()
    thread = work.wait(20)
    assert isinstance(thread, threading.Thread)
    thread.join(20)
    assert not thread.is_alive()

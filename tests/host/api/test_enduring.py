# SPDX-License-Identifier: Apache-2.0
"""Communicators that go on by themselves when a rank is lost, and such that are given up.  All ranks live: the loss is
scripted, and what they agree on is real."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from netfold.host.api.assembly import RailName
from netfold.host.api.change import RankChange
from netfold.host.api.communicator import Communicator
from netfold.host.api.enduring import EnduringCommunicator
from netfold.host.api.together import Together
from netfold.host.errors import Aborted, PeerLost, RanksChanged
from netfold.host.operation.arrays import Array
from netfold.testing import loopback_job, on_every_rank

OLD = np.full(100, 77, np.int32)
"""The sum that some have finished before rank 3 was lost."""
LOST = (3,)


class Scripted(EnduringCommunicator):
    """Its operations end as ``script`` says, one word each: "finish" with OLD, "lose" a rank, or "real"."""

    def __init__(self, comm: Communicator, script: list[str]) -> None:
        super().__init__(comm._parts)
        self.script = script
        self.shrinks = 0

    def _reform(self, finished: int | None, *, grows: bool, timeout: float | None) -> RankChange:
        self.shrinks += 1
        return RankChange(tuple(range(self.size)), LOST, (0,) * self.size)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of the class below are what the script says."""
    real: dict[str, Any] = {name: getattr(Communicator, name) for name in ("allreduce", "barrier")}

    def allreduce(self: Any, array: Array, out: Array | None = None, op: Any = "sum", **how: Any) -> Array:
        word = self.script.pop(0) if isinstance(self, Scripted) else "real"
        if word == "lose":
            if out is not None:
                out[...] = -1  # an operation in place may have overwritten a part of it
            raise PeerLost("rank 3 is lost")
        if word == "finish":
            return OLD.copy()
        result: Array = real["allreduce"](self, array, out, op, **how)
        return result

    def barrier(self: Any) -> None:
        if isinstance(self, Scripted) and self.script.pop(0) == "lose":
            raise PeerLost("rank 3 is lost")
        real["barrier"](self)

    monkeypatch.setattr(Communicator, "allreduce", allreduce)
    monkeypatch.setattr(Communicator, "barrier", barrier)


def test_what_nobody_has_finished_is_repeated_from_what_was_given() -> None:
    """In place too, though the first attempt has overwritten a part; with the same number of operations on all."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose", "lose", "real", "real"])
        array = np.arange(100, dtype=np.int32) * (comm.rank + 1)
        assert mine.allreduce(array, out=array) is array
        np.testing.assert_array_equal(array, np.arange(100) * 6)
        np.testing.assert_array_equal(mine.allreduce(np.ones(5, np.int32)), np.full(5, 3))
        assert mine.shrinks == 2

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_what_some_have_finished_is_handed_to_the_others() -> None:
    """They return the very result, with the lost rank's part; who had it repeats what it was in."""

    def work(comm: Communicator) -> None:
        ahead = comm.rank == 1
        mine = Scripted(comm, ["finish", "lose", "real"] if ahead else ["lose", "real"])
        out = np.empty(100, np.int32)
        first = mine.allreduce(np.ones(100, np.int32), *(() if ahead else (out,)))
        np.testing.assert_array_equal(first, OLD)
        np.testing.assert_array_equal(mine.allreduce(np.ones(4, np.int32)), np.full(4, 3))
        assert mine.shrinks == 1

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_what_cannot_be_repeated_ends_on_all_ranks_by_name() -> None:
    """One was in a barrier, the others in an allreduce: all are told, and all go on together."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose", "real"])
        call = mine.barrier if comm.rank == 2 else partial(mine.allreduce, np.ones(4, np.int32))
        with pytest.raises(RanksChanged, match="repeat all operations after number 0") as caught:
            call()
        assert isinstance(caught.value.change, RankChange)
        assert caught.value.change.lost == LOST
        np.testing.assert_array_equal(mine.allreduce(np.ones(4, np.int32)), np.full(4, 3))

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_calls_that_go_together_are_an_operation_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank is lost while two ranks reduce and gather at the same time through the switches, and one has finished
    that: all are told by name, and all go on together."""
    real = Together._exchange

    def exchange(self: Any, *calls: Any) -> bool:
        if self._comm.script.pop(0) == "lose":
            raise PeerLost("rank 3 is lost")
        return real(self, *calls)

    monkeypatch.setattr(Together, "_exchange", exchange)

    def both(comm: Communicator) -> None:
        with comm.together() as pair:
            sums, rows = pair.reduce_scatter(np.ones(3, np.int32)), pair.all_gather(np.ones(1))
        assert (sums.tolist(), rows.tolist()) == ([3], [1, 1, 1])

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["real", "lose", "real"])
        both(mine)
        call = partial(both, mine) if comm.rank != 1 else partial(mine.allreduce, np.ones(4, np.int32))
        with pytest.raises(RanksChanged, match="repeat all operations after number 1,"):
            call()
        np.testing.assert_array_equal(mine.allreduce(np.ones(4, np.int32)), np.full(4, 3))

    with loopback_job(3) as comms:
        assert on_every_rank(comms, work) == [None] * 3


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_what_is_given_up_ends_at_once(rail: RailName) -> None:
    """The operation under way, and every later one; closing does not wait for the ranks that have not called it."""
    with loopback_job(2, rail=rail, timeout=300.0) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(1000, np.float32), algorithm=None))
        errors: list[Exception] = []

        def call() -> None:
            try:
                comms[0].allreduce(np.ones(1000, np.float32))
            except Aborted as error:
                errors.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        while comms[0].flight()[-1].state != "running" and caller.is_alive():
            pass
        comms[0].abort("the test says so")
        caller.join(60)
        assert len(errors) == 1, errors
        assert "the test says so" in str(errors[0])
        with pytest.raises(Aborted):
            comms[0].allreduce(np.ones(3))
        assert isinstance(comms[0].problem, Aborted)

# SPDX-License-Identifier: Apache-2.0
"""Communicators that go on by themselves when a rank is lost, and such that are given up.  All ranks live: the loss is
scripted, and what they agree on is real."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from netfold.host.api.change import RankChange
from netfold.host.api.communicator import Communicator
from netfold.host.api.enduring import EnduringCommunicator
from netfold.host.api.join_settings import RailName
from netfold.host.api.members import Members
from netfold.host.api.together import Together
from netfold.host.api.work import OperationSequencer
from netfold.host.errors import Aborted, Closed, PeerLost, RankMismatch, RanksChanged
from netfold.host.operation.arrays import Array
from netfold.host.tracing.flight import Flight
from netfold.testing import loopback_job, on_every_rank
from support.hosts.insides import parts_of, ranks_of

OLD = np.full(100, 77, np.int32)
"""The sum that some have finished before rank 3 was lost."""
LOST = (3,)


class Scripted(EnduringCommunicator):
    """Its operations end as ``script`` says, one word each: "finish" with OLD, "lose" a rank, or "real"."""

    def __init__(self, comm: Communicator, script: list[str]) -> None:
        super().__init__(parts_of(comm))
        self.script = script
        self.shrinks = 0
        self.lost: tuple[int, ...] = LOST

    def _reform(self, finished: int | None, *, grows: bool, timeout: float | None) -> RankChange:
        self.shrinks += 1
        return RankChange(tuple(range(self.size)), self.lost, (0,) * self.size)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations of the class below are what the script says."""
    real: dict[str, Any] = {name: getattr(Communicator, name) for name in ("allreduce", "barrier")}

    def allreduce(self: Any, array: Array, out: Array | None = None, op: Any = "sum", **how: Any) -> Array:
        word = self.script.pop(0) if isinstance(self, Scripted) else "real"
        if word == "lose":
            if out is not None:
                out[...] = -1  # an operation in place may have overwritten a part of it
            if how.get("feedback") is not None:
                how["feedback"][...] = 9
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


@pytest.mark.parametrize("finished", [{1}, {0, 1}, {1, 2}])
def test_what_some_have_finished_is_handed_to_the_others(finished: set[int]) -> None:
    """They return the very result, with the lost rank's part; who had it repeats what it was in, of whatever size."""

    def work(comm: Communicator) -> None:
        ahead = comm.rank in finished
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


def test_what_is_not_finished_leaves_arrays_and_residuals_as_they_were() -> None:
    """Where the program is to repeat an operation in place, it finds what it gave; so does error feedback."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose"])
        array, residual = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)
        call = mine.barrier if comm.rank == 2 else partial(mine.allreduce, array, out=array, feedback=residual)
        with pytest.raises(RanksChanged):
            call()
        np.testing.assert_array_equal(array, np.arange(4))
        np.testing.assert_array_equal(residual, np.full(4, 2))

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_a_sum_that_is_handed_out_keeps_its_byte_order_and_residual() -> None:
    """An array of the other byte order gets the sum's values; the residual is what this rank's part in it has left."""
    foreign = np.dtype(np.int32).newbyteorder()

    def work(comm: Communicator) -> None:
        ahead = comm.rank == 1
        mine = Scripted(comm, ["finish", "lose", "real"] if ahead else ["lose", "real"])
        residual = np.zeros(100, np.float32)
        first = mine.allreduce(np.ones(100, foreign), **({} if ahead else {"feedback": residual}))
        np.testing.assert_array_equal(first, OLD)
        np.testing.assert_array_equal(residual, np.full(100, 0 if ahead else 9))
        mine.allreduce(np.ones(4, np.int32))

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_operations_that_were_started_before_the_program_is_told_end_alike() -> None:
    """One rank was in a barrier, the others had three sums under way: none of the later ones runs beside another
    rank's next one, and what is started once the program knows sums exactly."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose"])
        if comm.rank == 2:
            with pytest.raises(RanksChanged):
                mine.barrier()
        else:
            works = [mine.iallreduce(np.full(4, number, np.int32)) for number in range(3)]
            ended = threading.Event()
            works[-1].add_done_callback(lambda work: ended.set())
            assert ended.wait(60)
            works.append(mine.iallreduce(np.full(4, 3, np.int32)))  # it has not been told yet
            for one in works:
                with pytest.raises(RanksChanged):
                    one.wait(60)
        mine.script = ["real"] * 2
        np.testing.assert_array_equal(mine.iallreduce(np.full(4, 10, np.int32)).wait(60), np.full(4, 30))
        np.testing.assert_array_equal(mine.allreduce(np.full(4, 10, np.int32)), np.full(4, 30))

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_a_call_tells_of_what_an_operation_that_nobody_waits_for_has_ended_with() -> None:
    """The next operation of the program's own thread is refused with it, once."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose"])
        if comm.rank == 2:
            with pytest.raises(RanksChanged):
                mine.barrier()
        else:
            mine.iallreduce(np.ones(4, np.int32))
            with pytest.raises(RanksChanged):
                mine.allreduce(np.ones(4, np.int32))
        mine.script = ["real"]
        np.testing.assert_array_equal(mine.allreduce(np.ones(4, np.int32)), np.full(4, 3))

    with loopback_job(3, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 3


def test_without_a_loss_an_error_ends_the_communicator_until_it_shrinks() -> None:
    """The ranks may be in different operations: a later one would sum what does not belong together."""

    def work(comm: Communicator) -> None:
        mine = Scripted(comm, ["lose", "real"])
        mine.lost = ()
        for _ in range(2):
            with pytest.raises(PeerLost, match="rank 3"):
                mine.allreduce(np.ones(4, np.int32))
        with pytest.raises(PeerLost, match="rank 3"):
            mine.barrier()
        mine.shrink()
        np.testing.assert_array_equal(mine.allreduce(np.ones(4, np.int32)), np.full(4, 2))

    with loopback_job(2, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 2


def test_groups_of_ranks_that_were_are_refused_and_break_nothing() -> None:
    """By name; the communicator of the ranks that are there goes on."""

    def work(comm: Communicator) -> None:
        group = comm.group([0, 1])
        parts = parts_of(comm)
        parts.sequencer.begin_anew("job 'x', rank 0 of 2", Flight("x", comm.rank, 2))
        comm._begin_anew(Members(parts.dispatch, parts.sequencer), parts.coding)
        with pytest.raises(Closed, match="make the group anew"):
            group.allreduce(np.ones(4, np.int32))
        np.testing.assert_array_equal(comm.allreduce(np.ones(4, np.int32)), np.full(4, 2))

    with loopback_job(2, rail="tcp") as comms:
        assert on_every_rank(comms, work) == [None] * 2


def test_a_communicator_that_is_given_up_while_its_ranks_change_stays_so() -> None:
    """Neither a new incarnation nor another error makes it usable again, and it asks for no other one."""
    sequencer = OperationSequencer("rank 0")
    sequencer.fail(Aborted("given up"))
    sequencer.begin_anew("rank 0", Flight("x", 0, 1))
    assert isinstance(sequencer.broken, Aborted)
    with pytest.raises(Aborted), sequencer.paused():
        pass


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


def test_an_operation_that_has_failed_is_not_finished() -> None:
    """The number that a rank tells the others when they go on is that of its last operation that has succeeded."""
    with loopback_job(2, rail="tcp") as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(4, np.int32)))
        assert [ranks_of(comm).finished() for comm in comms] == [1, 1]

        def unlike(comm: Communicator) -> None:
            with pytest.raises(RankMismatch):
                comm.allreduce(np.ones(4 + comm.rank, np.int32))

        on_every_rank(comms, unlike)
        assert [ranks_of(comm).finished() for comm in comms] == [1, 1]

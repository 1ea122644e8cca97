# SPDX-License-Identifier: Apache-2.0
"""Errors that a rank meets: of netfold.host, over real sockets on loopback."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from netfold.host import errors
from netfold.host.api import objects
from netfold.host.api.change import RankChange
from netfold.host.api.communicator import Communicator
from netfold.host.api.enduring import EnduringCommunicator
from netfold.host.client.watcher import Watcher
from netfold.host.innet.fallback import Fallback
from netfold.host.job_secret import draw
from netfold.host.native import sockets
from netfold.testing import loopback_job, on_every_rank
from netfold.wire.jobs import EvictedEvent, JobEndedEvent, RankLost
from netfold.wire.plan import Peer, Plan
from support.handbook.scenes import raise_the, scene
from support.hosts.rails import Death, Plane, Ranks


@scene(errors.JoinRefused)
def nobody_answers() -> None:
    Communicator.join("digits", 0, 8, address="127.0.0.1", controller="unix:/run/netfold/lab.sock", timeout=1)


@scene(errors.CollectiveTimeout)
def a_rank_never_calls() -> None:
    with loopback_job(2, timeout=0.3) as comms:
        comms[0].allreduce(np.ones(1000, np.float32))


@scene(errors.RankMismatch)
def ranks_call_different_sizes() -> None:
    with loopback_job(2) as comms:
        raise_the(errors.RankMismatch,
                  on_every_rank(comms, lambda comm: comm.allreduce(np.zeros(1000 - comm.rank, np.float32))))


def told(event: RankLost | EvictedEvent | JobEndedEvent) -> None:
    """Raises what a rank raises once the controller has told it this."""
    watcher = Watcher(lambda halt: iter(()), "job 'digits', rank 3 of 8", lambda: None)
    watcher.on_event(event)
    watcher.close()
    error = watcher.job_error()
    assert error is not None
    raise error


@scene(errors.PeerLost)
def a_rank_is_killed() -> None:
    told(RankLost(5, "10.0.1.6", "h6", "its connection to the controller ended"))


@scene(errors.Evicted)
def the_others_go_on_without() -> None:
    told(EvictedEvent("taken for dead, since its machine did not answer for 3 s, and the others go on without it"))


@scene(errors.JobEnded)
def an_operator_drops_the_job() -> None:
    told(JobEndedEvent("dropped by the operator"))


@scene(errors.RanksChanged)
def what_was_under_way_cannot_be_repeated() -> None:
    """The loss of rank 3 is made up; what the others agree on is real."""

    class Lossy(EnduringCommunicator):
        def _reform(self, finished: int | None, *, grows: bool, timeout: float | None) -> RankChange:
            return RankChange(tuple(range(self.size)), (3,), (0,) * self.size)

    def work(comm: Communicator) -> None:
        mine = Lossy(comm._parts)
        (mine.barrier if comm.rank == 2 else partial(mine.allreduce, np.ones(4, np.int32)))()

    lost = mock.Mock(side_effect=errors.PeerLost("rank 3 is lost"))
    with (loopback_job(3, rail="tcp") as comms, mock.patch.object(Communicator, "allreduce", lost),
          mock.patch.object(Communicator, "barrier", lost)):
        raise_the(errors.RanksChanged, on_every_rank(comms, work))


@scene(errors.RailDown)
def no_rail_is_left() -> None:
    planes = [Plane(2, [Death(0, errors=[0, 1])]), Plane(2, [Death(0, errors=[0, 1])])]
    ranks = Ranks(planes)
    try:
        ranks.sum(1_500_000, 1)
    finally:
        ranks.close()


@scene(errors.TreesLost)
def nothing_folds_and_nothing_else_gets_through() -> None:
    plan = Plan("digits", 1, 1, 2, [Peer(0, "10.0.1.1", "10.0.1.1:4000"), Peer(1, "10.0.1.2", "10.0.1.2:4000")], [],
                "spine1 is down, and no trees in its place", secret=draw(), stand_in="127.0.0.1:1")
    fallback = Fallback("127.0.0.1", 1.0)
    fallback.begin(plan, mock.Mock())


@scene(errors.TransportError)
def an_address_of_another_machine() -> None:
    sockets.bind_port("192.0.2.1")


@scene(errors.PlanError)
def folding_where_nothing_folds() -> None:
    plan = Plan("digits", 1, 0, 2, [Peer(0, "10.0.1.1", "10.0.1.1:4000"), Peer(1, "10.0.1.2", "10.0.1.2:4000")], [],
                "no switch reaches all 2 ranks over links that are up", secret=draw())
    Communicator.of_plan(plan, address="127.0.0.1", rail="innet")


@scene(errors.Unproven)
def an_object_is_changed_on_its_way() -> None:
    with loopback_job(2, rail="tcp") as comms:
        gather, calls = comms[0].all_gather, iter(range(2))

        def changed(*arguments: Any, **options: Any) -> Any:
            """The first gathering is of sizes, the second of the objects."""
            result = gather(*arguments, **options)
            if next(calls) == 1:
                result[-1] ^= 1
            return result

        with mock.patch.object(comms[0], "all_gather", changed):
            raise_the(errors.Unproven, on_every_rank(comms, lambda comm: objects.allgather(comm, "weights" * 100)))


@scene(errors.Busy)
def two_threads_at_once() -> None:
    with loopback_job(2) as comms:
        sequencer = comms[0]._parts.sequencer
        entered, leave = threading.Event(), threading.Event()

        def first() -> None:
            with sequencer._lock:
                entered.set()
                leave.wait(60)

        inside = threading.Thread(target=first, daemon=True)
        inside.start()
        entered.wait(60)
        try:
            comms[0].barrier()
        finally:
            leave.set()
            inside.join(60)


@scene(errors.Aborted)
def the_program_gives_up() -> None:
    with loopback_job(2, rail="tcp") as comms:
        comms[0].abort("the loss is not a number")
        comms[0].barrier()


@scene(errors.Closed)
def a_call_after_close() -> None:
    with loopback_job(2, rail="tcp") as comms:
        comms[0].close()
        comms[0].barrier()

# SPDX-License-Identifier: Apache-2.0
"""A communicator over several rails: one job that says who its ranks are, and each rail as a job of its own for them.

    the job     JOB, at the controller of the first plane, which watches the ranks.  It has no trees: nothing that
                happens to a rail ends it
    its rails   JOB+0, JOB+1, ... at the controllers of their planes, opened for one incarnation of the job

So one controller decides who is a rank.  After its decision all rails of the former ranks are closed, and opened anew
for those of the next incarnation: a packet of a former rank belongs to no job any more.  If a rank is lost while they
are opened, the others ask the controller again.
"""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack

from msgspec import structs

from netfold.host.api.change import following
from netfold.host.api.join_settings import FOLDING, JoinSettings
from netfold.host.api.parts import Parts, RailsAsked, checked, coding_of
from netfold.host.api.rail_groups import of_several_rails
from netfold.host.api.work import OperationSequencer
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan, path_reason
from netfold.host.errors import CollectiveTimeout, JobEnded, NetFoldError, PeerLost, RailDown
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.sockets import listen
from netfold.host.opening.planes import RAILS_VARIABLE
from netfold.host.operation.rail import RailStats
from netfold.host.rails import group_rails
from netfold.host.rails.joining import REJOIN, join_rails
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.peers import Peers
from netfold.host.tracing.flight import Flight
from netfold.wire.jobs import Join
from netfold.wire.plan import RailEnd

LOST = (PeerLost, CollectiveTimeout, RailDown)
"""The errors with which rails cannot be opened when a rank is lost meanwhile."""

log = logging.getLogger("netfold")


class Ends:
    """The sockets at which a rank answers the others' questions, one on each plane; closed with the context unless
    ``take`` has given them away.  Raises TransportError."""

    def __init__(self, asked: RailsAsked) -> None:
        self._kinds = [spec.kind for spec in asked.specs]
        self._undo = ExitStack()
        self._listeners: list[socket.socket] = []
        with self._undo:
            for spec in asked.specs:
                self._listeners.append(self._undo.enter_context(listen(spec.plane.address)))
            self._undo = self._undo.pop_all()

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    @property
    def told(self) -> list[RailEnd]:
        """The ends as the controller is told of them."""
        at = ["{}:{}".format(*listener.getsockname()) for listener in self._listeners]
        return [RailEnd(kind, where) for kind, where in zip(self._kinds, at, strict=True)]

    def take(self) -> list[socket.socket]:
        """The sockets, which the caller closes."""
        self._undo.pop_all()
        return self._listeners


def join(
    asked: RailsAsked, job: str, rank: int, world: int, settings: JoinSettings, *, joining: bool
) -> Parts:
    """Joins a job and its rails with all ranks; parameters and errors are those of ``assembly.join``."""
    plane, options = asked.specs[0].plane, asked.options
    for spec in asked.specs:
        if spec.kind == "verbs":
            from netfold.host.verbs.rail import check_host  # its library is built only where it is wanted

            check_host(spec.plane.address)
    client = JobClient(plane.controller, token=options.token)
    membership = None
    try:
        with Ends(asked) as ends:
            told = ends.told
            plan = client.join(
                Join(
                    job=job, world=world, rank=rank, address=plane.address, tcp=told[0].at,
                    path_mtu=options.path_mtu or 0, timeout=options.join_timeout, fold=False,
                    lane_bits=options.lane_bits, joining=joining, rails=told,
                )
            )
            check_plan(plan)
            membership = Membership(plan, client)
            return _opened(membership, asked, settings, ends)
    except BaseException as error:
        if membership is None:
            client.close()
            raise
        if plan.change is None or not isinstance(error, LOST):
            _give_up(membership, error)
            raise
        lost = error
    return _reformed(membership, asked, settings, plan.change.finished[plan.rank], lost=lost)


def reform(
    parts: Parts, asked: RailsAsked, client: JobClient, finished: int, *, grows: bool, timeout: float | None
) -> Parts:
    """``assembly.reform`` of a job over several rails."""
    before, settings = parts.membership, parts.settings
    with Ends(asked) as ends:
        now = client.reform(
            before.plan, ends.told[0].at, finished, grows=grows, rails=ends.told,
            timeout=settings.timeout if timeout is None else timeout,
        )
        if now is None:
            return parts
        if parts.folds is not None:
            parts.folds.close(ended=True)
        if parts.rails is not None:
            parts.rails.end("its job's ranks have changed")
        parts.dispatch.close()
        membership = Membership(now, client.follow(now))
        try:
            check_plan(now)
            membership.wait_registered(settings.timeout)
            before.close()
            return _opened(membership, asked, settings, ends, parts.sequencer)
        except LOST as error:
            lost = error
        except BaseException as error:
            _give_up(membership, error)
            raise
    return _reformed(membership, asked, settings, finished, parts.sequencer, lost=lost)


def _reformed(
    membership: Membership, asked: RailsAsked, settings: JoinSettings, finished: int,
    sequencer: OperationSequencer | None = None, *, lost: NetFoldError,
) -> Parts:
    """Goes on without the ranks that were lost while the rails were opened, until they are open.

    lost  the error by which this rank knows
    Raises JobEnded if there is no such rank.
    """
    me = f"job {membership.plan.job!r}, rank {membership.plan.rank} of {membership.plan.world}"
    while True:
        before, client = membership, membership.client
        assert client is not None
        try:
            log.warning("%s: going on without lost ranks: %s", me, lost)
            with Ends(asked) as ends:
                now = client.reform(  # others may open rails yet, until they notice the loss themselves
                    before.plan, ends.told[0].at, finished, grows=False, timeout=2 * (settings.timeout + REJOIN),
                    rails=ends.told,
                )
                if now is None or now.change is None or not now.change.lost:
                    raise JobEnded(f"{me}: its rails could not be opened, and no rank is lost: {lost}; join anew")
                assert before.plan.change is not None
                whole = structs.replace(now, change=following(before.plan.change, now.change))
                membership = Membership(whole, client.follow(now))
                membership.wait_registered(settings.timeout)
                before.close()
                try:
                    return _opened(membership, asked, settings, ends, sequencer)
                except LOST as error:
                    lost = error
        except BaseException as error:
            _give_up(membership, error)
            raise


def _give_up(membership: Membership, error: BaseException) -> None:
    """Leaves the job, for which the others must not wait."""
    membership.leave(RailStats(), str(error))
    membership.close()


def _opened(
    membership: Membership, asked: RailsAsked, settings: JoinSettings, ends: Ends,
    sequencer: OperationSequencer | None = None,
) -> Parts:
    """The parts over the rails of these ranks.  Raises what ``join_rails`` raises.

    sequencer  of the former ranks, after a change of ranks
    """
    plan = membership.plan
    me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
    if plan.world == 1:
        flight = Flight(plan.job, plan.rank, plan.world)
        dispatch = Dispatch(Peers(MemoryFabric(1).meshes[0]), why=path_reason(plan, "auto", ()), flight=flight, me=me)
        rails = folds = None
    else:
        joined = join_rails(asked.specs, membership, ends.take(), asked.options)
        rails, flight, folds = joined.rails, joined.flight, None
        if any(spec.kind in FOLDING for spec in asked.specs):
            opens = group_rails.GroupRails(asked.specs, asked.options, rails, joined.job_error, joined.stall)
            folds = of_several_rails(opens, me=me, always=all(spec.kind in FOLDING for spec in asked.specs))
        dispatch = Dispatch(
            joined.peers(), rails=rails, why=f"asked for by rails= or {RAILS_VARIABLE}", flight=flight, me=me,
            groups=folds,
        )
        rails.on_change(lambda: dispatch.go_over(joined.peers()))
        membership.on_tell(rails.progress)
    if sequencer is None:
        sequencer = OperationSequencer(me, flight)
    else:
        sequencer.begin_anew(me, flight)
    return checked(
        Parts(membership, dispatch, sequencer, coding_of(plan, settings), settings, rails, asked, folds=folds)
    )

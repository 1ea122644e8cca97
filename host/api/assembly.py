# SPDX-License-Identifier: Apache-2.0
"""Puts a communicator together: its plan, the mesh between the hosts, the rail that folds, and the dispatch.

    join       with a plan from the controller, or with several rails used as one
    of_plan    with a plan that the caller already has
"""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from netfold.host import shared_log
from netfold.host.api.folding import connect, open_fold
from netfold.host.api.group_folds import GroupFolds
from netfold.host.api.join_settings import FOLDING, JoinSettings, check_rails
from netfold.host.api.one_rail_groups import GroupMeans, JoinedGroup, of_one_rail
from netfold.host.api.parts import Parts, RailsAsked, checked, coding_of
from netfold.host.api.work import OperationSequencer
from netfold.host.client.fold_client import CONNECT_TIMEOUT
from netfold.host.client.jobs import ANSWER_MARGIN, JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan, fabric_of, path_reason, ring_order, sharing
from netfold.host.collectives.open_on_all import Unfit
from netfold.host.environment import ADDRESS_VARIABLE
from netfold.host.errors import JoinRefused, PlanError
from netfold.host.innet.fold import FoldRail
from netfold.host.mesh.sockets import listen
from netfold.host.native.sockets import copy_of
from netfold.host.opening.open_mesh import open_mesh
from netfold.host.opening.own_port import own_port, udp_port_of
from netfold.host.opening.planes import RailSpec, specs_of
from netfold.host.operation.coding import LaneBits, lane_bits_from_environment
from netfold.host.operation.rail import FoldingRail, RailStats
from netfold.host.selection.choice import INNET
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import Peers
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import Timeline, timeline_from_environment
from netfold.rpc.channel import CONTROLLER_VARIABLE
from netfold.wire.jobs import MAX_WORLD, Join
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")


def join(
    job: str,
    rank: int,
    world: int,
    settings: JoinSettings,
    *,
    controller: str | None = None,
    join_timeout: float = 30.0,
    path_mtu: int | None = None,
    token: str = "",
    rails: str | Sequence[RailSpec] | None = None,
    joining: bool = False,
) -> Parts:
    """Joins a job and waits until all its ranks have joined; parameters and errors are those of ``Communicator.join``.

    joining  the job is already running, and its ranks admit this one (``Communicator.join_running``): rank 0, world 1
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank}, world={world}: expected 0 <= rank < world")
    if world > MAX_WORLD:
        raise ValueError(f"world={world}: at most {MAX_WORLD} ranks are in one job")
    specs = specs_of(rails, asked=settings.rail != "auto")
    if specs:
        check_rails(specs, settings, controller)
    if len(specs) > 1 and (world > 1 or joining):
        from netfold.host.api import several_rails
        from netfold.host.rails.policy import RailOptions

        options = RailOptions(
            timeout=settings.timeout, join_timeout=join_timeout, algorithm=settings.resolved().algorithm,
            lane_bits=settings.lane_bits or lane_bits_from_environment(), path_mtu=path_mtu, token=token,
            paths=settings.paths,
        )
        return several_rails.join(RailsAsked(specs, options), job, rank, world, settings, joining=joining)
    if specs:
        plane = specs[0].plane
        settings, controller = replace(settings, rail=specs[0].kind, address=plane.address), plane.controller
    where = controller or os.environ.get(CONTROLLER_VARIABLE, "")
    settings = replace(settings, address=settings.address or os.environ.get(ADDRESS_VARIABLE, ""))
    if not settings.address:
        raise ValueError(f"job {job!r}, rank {rank}: address='': expected this host's IPv4 address on the fabric, as "
                         f"an argument or in {ADDRESS_VARIABLE}")
    if not where:
        raise JoinRefused(
            f"job {job!r}, rank {rank}: no controller named; give controller='host:port' or set "
            f"{CONTROLLER_VARIABLE} (`netfold up` prints the address)"
        )
    rail = settings.resolved().rail
    if rail == "verbs" and (world > 1 or joining):
        from netfold.host.verbs.rail import check_host

        check_host(settings.address)
    listener = listen(settings.address)
    client = membership = receiver = None
    try:
        receiver, lacks = own_port(rail, settings.address) if not settings.helpers else (None, "")
        client = JobClient(where, token=token)
        plan = client.join(
            Join(
                job=job,
                world=world,
                rank=rank,
                address=settings.address,
                tcp="{}:{}".format(*listener.getsockname()),
                path_mtu=path_mtu or 0,
                timeout=join_timeout,
                fold=rail in ("auto", *FOLDING) and not settings.helpers,
                lane_bits=settings.lane_bits or lane_bits_from_environment(),
                kind="rc" if rail == "verbs" and (world > 1 or joining) else "windowed",
                joining=joining,
                udp_port=udp_port_of(receiver),
                lacks=lacks,
            )
        )
        if not joining and (plan.job, plan.rank, plan.world) != (job, rank, world):
            raise PlanError(
                f"job {job!r}: asked to be rank {rank} of {world}, the plan of {where} is for job {plan.job!r}, "
                f"rank {plan.rank} of {plan.world}: the controller mixed two joins up"
            )
        check_plan(plan)
        membership = Membership(plan, client)
        return _of_membership(membership, settings, listener, receiver)
    except BaseException:
        listener.close()
        if receiver is not None:
            receiver.close()
        if membership is not None:
            membership.close()
        elif client is not None:
            client.close()
        raise


def of_plan(
    plan: Plan, settings: JoinSettings, listener: socket.socket | None, group_of: tuple[Parts, Sequence[int]] | None
) -> Parts:
    """The parts for a plan that the caller already has; no controller watches the rank.  Raises PlanError, ValueError,
    TransportError.

    group_of  parts of which these ranks are a group, and the ranks' numbers there; None: they are no group
    """
    try:
        check_plan(plan)
        return _of_membership(Membership(plan), settings, listener, None, group_of=group_of)
    except BaseException:
        if listener is not None:
            listener.close()
        raise


def reform(parts: Parts, finished: int, *, grows: bool, timeout: float | None) -> Parts:
    """The parts with which the remaining ranks of a job go on; they replace these.  Returns the same parts if the job
    is unchanged.  Raises the errors of ``JobClient.reform``, PlanError, TransportError, and ValueError for parts that
    cannot go on; ``Communicator.shrink`` describes the parameters."""
    settings, before = parts.settings, parts.membership
    plan, client = before.plan, before.client
    me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
    if client is None:
        raise ValueError(f"{me}: only a controller says who is a rank, and this job has none, since its plan came from "
                         "elsewhere (of_plan, controller='store'): close the communicator, and make another one of the "
                         "ranks that are left")
    if parts.several is not None:
        from netfold.host.api import several_rails

        return several_rails.reform(parts, parts.several, client, finished, grows=grows, timeout=timeout)
    if settings.helpers:
        raise ValueError(f"{me}: helpers={list(settings.helpers)}: which ranks they are would change; join anew")
    listener = listen(settings.address)
    membership = None
    try:
        # until the answer all connections stay open: ranks that have yet to stop would take this one for lost
        tcp = "{}:{}".format(*listener.getsockname())
        wait = settings.timeout if timeout is None else timeout
        now = client.reform(plan, tcp, finished, grows=grows, timeout=wait)
        if now is None:
            listener.close()
            return parts
        check_plan(now)
        remembered = parts.dispatch.hosts.chooser.measured
        if parts.folds is not None:
            parts.folds.close(ended=True)
        parts.dispatch.close()  # the next rail takes its place at the rank's UDP port
        membership = Membership(now, client.follow(now))
        after = _of_membership(membership, settings, listener, parts.receiver, parts.sequencer, remembered)
    except BaseException as error:
        listener.close()
        if membership is not None:  # the others must not wait for it
            membership.leave(RailStats(), str(error))
            membership.close()
        raise
    membership.wait_registered(settings.timeout)
    before.close()
    return after


def _of_membership(
    membership: Membership, settings: JoinSettings, listener: socket.socket | None, receiver: socket.socket | None,
    sequencer: OperationSequencer | None = None, remembered: Measured | None = None,
    group_of: tuple[Parts, Sequence[int]] | None = None,
) -> Parts:
    """Opens one mesh between the hosts, and the folding rail if the plan has trees and the settings want it.

    receiver    the socket of this rank's UDP port; None: a rail that needs one binds it as the plan says
    sequencer   of the former ranks, after a change of ranks
    remembered  measurements of the former ranks
    group_of    as in ``of_plan``
    """
    said = settings
    plan, settings = membership.plan, settings.resolved()
    rail, helpers = settings.rail, settings.helpers
    coding = coding_of(plan, settings)
    me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
    shared = any(len(ranks) > 1 for ranks in plan.machines)
    timeline = timeline_from_environment(plan.job, plan.rank, plan.world)
    folds = folds_of_groups(membership, settings, timeline, coding.lane_bits)
    groups, members = (folds, ()) if group_of is None else (group_of[0].folds, group_of[1])
    prospect = None
    if groups is not None and group_of is not None and plan.world > 1 and rail in ("auto", *FOLDING):
        prospect = groups.of(members)
    if rail in FOLDING and plan.world > 1 and not plan.folds and prospect is None:
        raise PlanError(
            f"{me}: rail={rail!r} asked for, but the plan has no tree: "
            f"{plan.reason or 'the controller gave no reason'}; use rail='auto' to fall back to TCP"
        )
    if rail in ("roce", "verbs") and shared:
        raise PlanError(f"{me}: rail={rail!r} needs an address for each rank, and {sharing(plan)}; use rail='tcp'")
    flight = Flight(plan.job, plan.rank, plan.world, timeline=timeline)
    with ExitStack() as undo:  # whoever is told that it failed may try again at once, at the same ports
        own = None if receiver is None else copy_of(receiver)
        if own is not None:
            undo.callback(own.close)
        mesh = open_mesh(
            plan, listener, settings.timeout, rail, membership.client, timeline, settings.paths,
            receiver=own if rail == "roce" else None,
        )
        undo.callback(mesh.close)
        mesh.told_by(membership.lost_rank, membership.ranks_left)
        peers = Peers(
            mesh,
            algorithm=settings.algorithm,
            order=ring_order(plan),
            helpers=helpers,
            machines=plan.machines if shared else (),
            fabric=fabric_of(plan),
            note=flight.note,
            remembered=remembered,
            places=plan.places,
        )
        switches: FoldingRail | None = None
        if plan.world > 1 and rail in ("auto", *FOLDING) and not helpers:
            if plan.folds:
                try:
                    connected = connect(
                        membership, rail, settings.address, settings.timeout, timeline, coding.lane_bits
                    )
                    switches = open_fold(
                        membership, peers, settings.address, own, connected, settings.timeout, timeline,
                        falls_back=rail == "auto", lane_bits=coding.lane_bits,
                    )
                    undo.callback(switches.close)
                    membership.steer(switches)
                except Unfit as unfit:
                    if rail != "auto":
                        raise unfit.error(f"{me}, rail={rail!r}") from unfit.own
                    membership.unfold(str(unfit))
                    plan = membership.plan
            if not plan.folds and prospect is None:
                words = (f"{me}: no aggregation tree, every allreduce goes over TCP between the hosts. "
                        f"Reason: {plan.reason or 'none given by the controller'}")
                if shared_log.level(plan.rank) == logging.WARNING:
                    warnings.warn(words, RuntimeWarning, stacklevel=4)
                else:
                    log.info("%s", words)
        dispatch = Dispatch(
            peers, switches=switches, always=rail in FOLDING, why=path_reason(plan, rail, helpers), flight=flight,
            me=me, groups=groups, members=members, prospect=prospect,
        )
        log.info("%s: %s (%s)", me, dispatch.rail, dispatch.why)
        if sequencer is None:
            sequencer = OperationSequencer(me, flight)
        else:
            sequencer.begin_anew(me, flight)
        membership.on_tell(dispatch.progress)
        if timeline is not None:
            timeline.is_joined()
        undo.pop_all()
    return checked(Parts(membership, dispatch, sequencer, coding, said, receiver=receiver, folds=folds))


def folds_of_groups(
    membership: Membership, settings: JoinSettings, timeline: Timeline | None, lane_bits: LaneBits
) -> GroupFolds | None:
    """Opens the folds of a communicator's groups; None if no controller plans for it.  Either all ranks have this
    object or none: a rank that cannot fold reports it when the others ask."""
    plan, client = membership.plan, membership.client
    if client is None or plan.world == 1 or settings.helpers:
        return None
    refusal = f"asked for by rail={settings.rail!r}" if settings.rail in ("tcp", "roce") else ""
    kind = settings.rail if settings.rail == "verbs" else INNET
    # windowed ranks wait for their plans while RC ranks connect; if those fail, the group ends
    planning = ANSWER_MARGIN + (max(settings.timeout, CONNECT_TIMEOUT) if plan.verb == "send" else 0.0)

    def join_group(members: Sequence[int], number: int, patience: float) -> JoinedGroup:
        receiver, lacks = own_port(kind, settings.address)
        try:
            made, its = client.join_group(
                membership.plan, members, number, lane_bits, udp_port_of(receiver), lacks, patience,
                kind="rc" if kind == "verbs" else "windowed", planning=planning,
            )
        except BaseException:
            if receiver is not None:
                receiver.close()
            raise
        return JoinedGroup(Membership(made, its), receiver)

    def connect_group(group: Membership) -> FoldRail | None:
        return connect(group, kind, settings.address, settings.timeout, timeline, lane_bits)

    def open_rail(
        group: Membership, peers: Peers, receiver: socket.socket | None, connected: FoldRail | None
    ) -> FoldingRail:
        return open_fold(
            group, peers, settings.address, receiver, connected, settings.timeout, timeline, falls_back=True,
            lane_bits=lane_bits,
        )

    return of_one_rail(GroupMeans(
        refusal, join=join_group, connect=connect_group, open=open_rail, timeout=settings.timeout,
        me=f"job {plan.job!r}, rank {plan.rank} of {plan.world}", always=settings.rail in FOLDING,
    ))

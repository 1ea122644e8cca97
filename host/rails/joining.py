# SPDX-License-Identifier: Apache-2.0
"""Joins several rails with all ranks: each at its plane's controller, and all together as one ``MultiRail``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from netfold.host.errors import NetFoldError
from netfold.host.mesh.handshake import Identity
from netfold.host.mesh.sockets import listen
from netfold.host.opening.planes import RailSpec
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.out_of_band import PURPOSE, TcpOutOfBand
from netfold.host.rails.policy import OutOfBand, RailListeners, RailOptions, RailPolicy, Start
from netfold.host.rails.rail_peers import RailPeers
from netfold.host.rails.rail_set import STALL_SECONDS, ReopenRail, WatchedRail
from netfold.host.rails.rank_state import RankState
from netfold.host.rails.reopening import BackgroundReopening
from netfold.host.rails.shares import Figure
from netfold.host.selection import calibration, saved_figures
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import timeline_from_environment
from netfold.wire.jobs import Plan

STALL_VARIABLE = "NETFOLD_RAIL_STALL"
START_VARIABLE = "NETFOLD_RAIL_START"
REJOIN = 5.0
"""Seconds that an attempt to reopen a rail waits for the other ranks."""


@dataclass(frozen=True)
class Joined:
    """Several rails that make one job.

    plan       that of the first rail
    flight     records what carries the rank's operations
    job_error  as of ``OutOfBand``
    stall      as of ``join_rails``
    """

    plan: Plan
    rails: MultiRail
    flight: Flight
    job_error: Callable[[bool], NetFoldError | None]
    stall: float

    def peers(self) -> RailPeers:
        """The ranks for operations that do not fold: over all rails; what is of some ranks alone is on the plane of the
        first one that is up."""
        first = self.rails.track(self.rails.live[0])
        assert isinstance(first, OpenRail)
        return RailPeers(first.others, self.rails)


def join_rails(
    specs: Sequence[RailSpec],
    job: str,
    rank: int,
    world: int,
    options: RailOptions,
    *,
    start: Start | None = None,
    stall: float | None = None,
) -> Joined:
    """Joins all rails' jobs with all ranks, and combines them.

    start, stall  default: $NETFOLD_RAIL_START, or "hot"; $NETFOLD_RAIL_STALL, or STALL_SECONDS
    Raises JoinRefused, PlanError, TransportError, ValueError.
    """
    start, stall = _from_environment(start, stall)
    names = [str(spec) for spec in specs]
    file, key = os.environ.get(calibration.COST_VARIABLE), f"{'+'.join(names)}, {world} ranks"
    known = saved_figures.read(f"{file}.rails", key, list[Figure]) if file and start == "hot" else None
    timeline = timeline_from_environment(job, rank, world)
    flight = Flight(job, rank, world, timeline=timeline)
    rails: list[OpenRail] = []
    listeners: list[socket.socket] = []

    def open_rail(index: int, life: int, options: RailOptions) -> OpenRail:
        name = (job if index == 0 else f"{job}+{index}") + (f".{life + 1}" if life else "")
        return OpenRail(specs[index], name, rank, world, options, timeline=timeline, note=flight.note)

    def reopen(index: int, deaths: int) -> BackgroundReopening:
        return BackgroundReopening(lambda: open_rail(index, deaths, replace(options, join_timeout=REJOIN)))

    def keep(figures: list[Figure]) -> None:
        if file and rank == 0:
            saved_figures.write(f"{file}.rails", key, figures)

    def job_error(left: bool) -> NetFoldError | None:
        told = [error for rail in rails if (error := rail.job_error(left)) is not None]
        return told[0] if len(told) == len(rails) else None  # a rank is gone where all planes say so

    try:
        for index in range(len(specs)):
            rails.append(open_rail(index, 0, options))
        for spec in specs:
            listeners.append(listen(spec.plane.address))
    except BaseException:
        for listener in listeners:
            listener.close()
        for rail in rails:
            rail.close()
        raise
    multi = used_as_one(
        rails, listeners, job_error,
        policy=RailPolicy(
            start=start, known=known if known is not None and len(known) == len(rails) else (), stall=stall,
            timeout=options.timeout,
        ),
        told=RailListeners(
            me=f"job {job!r}, rank {rank} of {world}", job=job, note=flight.note, timeline=timeline, keep=keep,
            hosts=[peer.where for peer in rails[0].plan.peers],
        ),
        reopen=reopen,
    )
    return Joined(rails[0].plan, multi, flight, job_error, stall)


def used_as_one(
    rails: Sequence[OpenRail],
    listeners: Sequence[socket.socket],
    job_error: Callable[[bool], NetFoldError | None],
    *,
    policy: RailPolicy,
    told: RailListeners,
    reopen: ReopenRail,
    spare: WatchedRail | None = None,
) -> MultiRail:
    """Open rails of one rank as one; all their ranks call it alike.  Raises what ``MultiRail`` raises.

    rails, listeners  by plane: the rail, and the socket for the other ranks' questions; taken over
    job_error         as of ``OutOfBand``
    """
    channel: TcpOutOfBand | None = None
    try:
        plan, state = rails[0].plan, RankState()
        channel = TcpOutOfBand(listeners, state.answer, Identity.of_plan(plan, PURPOSE))
        _exchange_ports(channel, rails)
        return MultiRail(
            rails, plan.rank, plan.world, OutOfBand(state, channel, job_error), policy=policy, listeners=told,
            reopen=reopen, spare=spare,
        )
    except BaseException:
        if channel is not None:
            channel.close()
        for listener in listeners:
            listener.close()
        for rail in rails:
            rail.close()
        raise


def _from_environment(start: Start | None, stall: float | None) -> tuple[Start, float]:
    """The arguments, or where they are None the environment's values.  Raises ValueError."""
    how = os.environ.get(START_VARIABLE, "hot") if start is None else start
    if how not in get_args(Start):
        raise ValueError(f"{START_VARIABLE}={how}: expected one of {', '.join(get_args(Start))}")
    text = os.environ.get(STALL_VARIABLE, str(STALL_SECONDS)) if stall is None else str(stall)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{STALL_VARIABLE}={text}: expected seconds above 0")
    return cast(Start, how), seconds


def _exchange_ports(channel: TcpOutOfBand, rails: Sequence[OpenRail]) -> None:
    """Exchanges the ports at which all ranks' out-of-band channels listen."""
    rank, world = rails[0].plan.rank, rails[0].plan.world
    ports = np.zeros((world, len(rails)), np.int32)
    ports[rank] = channel.ports()
    flat = ports.reshape(-1)
    width = len(rails) * ports.itemsize
    pieces = [slice(r * width, (r + 1) * width) for r in range(world)]
    rails[0].others.all_gather(flat.view(np.uint8), pieces)
    addresses = [{peer.rank: peer.address for peer in rail.plan.peers} for rail in rails]
    channel.set_addresses(
        {
            r: [(where[r], int(port)) for where, port in zip(addresses, ports[r], strict=True)]
            for r in range(world)
            if r != rank
        }
    )

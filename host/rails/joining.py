# SPDX-License-Identifier: Apache-2.0
"""Joins several rails with all ranks of a job: each at its plane's controller, and all together as one ``MultiRail``.

After a change of the job's ranks all rails are opened anew.  Each rank says at the job's controller which ones it could
not open: so all ranks begin with the same rails, and open the others in the background as any that has died.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import cast, get_args

from netfold.host.client.membership import Membership
from netfold.host.errors import Evicted, JobEnded, JoinRefused, NetFoldError, RailDown
from netfold.host.mesh.handshake import Identity
from netfold.host.opening.planes import RailSpec
from netfold.host.rails.absent_rail import AbsentRail
from netfold.host.rails.multirail import NONE_DOWN, MultiRail
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.out_of_band import PURPOSE, TcpOutOfBand
from netfold.host.rails.policy import OutOfBand, RailListeners, RailOptions, RailPolicy, Start
from netfold.host.rails.rail_peers import RailPeers
from netfold.host.rails.rail_set import STALL_SECONDS, ReopenRail, WatchedRail
from netfold.host.rails.rank_state import RankState, first_line
from netfold.host.rails.reopening import BackgroundReopening
from netfold.host.rails.shares import Figure
from netfold.host.selection import calibration, saved_figures
from netfold.host.tracing.flight import Flight
from netfold.host.tracing.timeline import timeline_from_environment
from netfold.wire.bounds import MAX_TEXT
from netfold.wire.plan import Plan

STALL_VARIABLE = "NETFOLD_RAIL_STALL"
START_VARIABLE = "NETFOLD_RAIL_START"
REJOIN = 5.0
"""Seconds that an attempt to reopen a rail waits for the other ranks."""


@dataclass(frozen=True)
class Joined:
    """Several rails that make one job.

    flight     records what carries the rank's operations
    job_error  as of ``OutOfBand``
    stall      seconds of silence after which a rail is given up
    """

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
    membership: Membership,
    listeners: Sequence[socket.socket],
    options: RailOptions,
) -> Joined:
    """Joins all rails' jobs with all ranks of a job, and combines them.

    membership   in the job.  After a change of its ranks, rails that some rank cannot open are down at first; before
                 any, they are an error
    listeners    of its ``Join.rails``; taken over
    Raises JoinRefused, PlanError, TransportError, ValueError; RailDown, PeerLost, JobEnded and CollectiveTimeout after
    a change.
    """
    plan = membership.plan
    job, rank, world = plan.job, plan.rank, plan.world
    start, stall = _from_environment()
    names = [str(spec) for spec in specs]
    file, key = os.environ.get(calibration.COST_VARIABLE), f"{'+'.join(names)}, {world} ranks"
    known = saved_figures.read(f"{file}.rails", key, list[Figure]) if file and start == "hot" else None
    timeline = timeline_from_environment(job, rank, world)
    flight = Flight(job, rank, world, timeline=timeline)
    opened: dict[int, OpenRail] = {}
    team: list[MultiRail] = []
    incarnation = "" if plan.change is None else f":{plan.epoch}"

    def open_rail(index: int, life: int, options: RailOptions) -> OpenRail:
        name = f"{job}+{index}{incarnation}" + (f".{life + 1}" if life else "")
        return OpenRail(specs[index], name, rank, world, options, timeline=timeline, note=flight.note)

    def reopen(index: int, deaths: int) -> BackgroundReopening:
        return BackgroundReopening(lambda: open_rail(index, deaths, replace(options, join_timeout=REJOIN)))

    def keep(figures: list[Figure]) -> None:
        if file and rank == 0:
            saved_figures.write(f"{file}.rails", key, figures)

    def job_error(left: bool) -> NetFoldError | None:
        own = membership.job_error(left)
        if own is None or isinstance(own, Evicted | JobEnded):
            return own
        up = [rail for multi in team for rail in map(multi.track, multi.live) if isinstance(rail, OpenRail)]
        # a rank is gone where the planes that carry anything say so, too: it may have lost one of them alone
        return own if all(rail.job_error(left) is not None for rail in up) else None

    with ExitStack() as undo:
        for listener in listeners:
            undo.callback(listener.close)
        undo.callback(_close, opened)
        if plan.change is None:
            for index in range(len(specs)):
                opened[index] = open_rail(index, 0, options)
            down: dict[int, NetFoldError] = {}
        else:
            brief = replace(options, join_timeout=REJOIN)
            within = options.timeout + 2 * REJOIN
            down = _open_anew(names, membership, opened, lambda index: open_rail(index, 0, brief), within)
        rails = [opened[index] if index in opened else AbsentRail(spec) for index, spec in enumerate(specs)]
        where = {peer.rank: [end.at for end in peer.rails] for peer in plan.peers}
        channel_of = OutOfBandEnds(plan, listeners, {
            peer: [(at.partition(":")[0], int(at.partition(":")[2])) for at in ends]
            for peer, ends in where.items() if peer != rank
        })
        undo.pop_all()
    multi = used_as_one(
        rails, channel_of, job_error,
        policy=RailPolicy(
            start=start, known=known if known is not None and len(known) == len(rails) else (), stall=stall,
            timeout=options.timeout,
        ),
        told=RailListeners(
            me=f"job {job!r}, rank {rank} of {world}", job=job, note=flight.note, timeline=timeline, keep=keep,
            hosts=[peer.where for peer in plan.peers],
        ),
        reopen=reopen, down=down,
    )
    team.append(multi)
    return Joined(multi, flight, job_error, stall)


def _close(opened: dict[int, OpenRail]) -> None:
    for rail in opened.values():
        rail.close()


def _open_anew(
    names: Sequence[str], membership: Membership, opened: dict[int, OpenRail], open_rail: Callable[[int], OpenRail],
    within: float,
) -> dict[int, NetFoldError]:
    """Opens all rails at once for the ranks of a new incarnation of their job, as far as every rank can, into
    ``opened``.  Returns the others by their indices, each with what it lacks, the same on all ranks.  Raises RailDown
    if there is none that all ranks have, PeerLost, JobEnded, CollectiveTimeout.

    within  seconds to wait until the others have opened theirs; a rank that dies meanwhile is not waited for
    """
    lacks: dict[int, str] = {}
    with ThreadPoolExecutor(len(names)) as pool:
        for index, attempt in enumerate([pool.submit(open_rail, index) for index in range(len(names))]):
            try:
                opened[index] = attempt.result()
            except (NetFoldError, OSError, ValueError) as error:
                waited = isinstance(error, JoinRefused) and error.code == "DEADLINE_EXCEEDED"
                lacks[index] = "" if waited else first_line(error)  # who did not come knows why
    text = json.dumps({index: why[: MAX_TEXT // 2 // len(names)] for index, why in lacks.items()}) if lacks else ""
    told = membership.opened(text, within)
    reasons: dict[int, str] = {}
    for rank, lacking in sorted(told.items()):
        for word, why in json.loads(lacking).items():
            said = reasons.setdefault(int(word), "")
            reasons[int(word)] = said or (why and f"rank {rank} could not open {names[int(word)]}: {why}")
    down: dict[int, NetFoldError] = {
        index: RailDown(said or f"some rank did not open {names[index]}") for index, said in sorted(reasons.items())
    }
    for index in sorted(down.keys() & opened.keys()):
        opened.pop(index).close()
    if (lost := membership.job_error()) is not None:
        raise lost
    if not opened:
        raise RailDown("; ".join(map(str, down.values())))
    return down


@dataclass(frozen=True)
class OutOfBandEnds:
    """The place where ranks ask one another.

    plan       of the rank in their job
    listeners  of this rank, one on each plane
    others     addresses and ports of the other ranks' by rank, in the same order
    """

    plan: Plan
    listeners: Sequence[socket.socket]
    others: Mapping[int, Sequence[tuple[str, int]]]


def used_as_one(
    rails: Sequence[OpenRail | AbsentRail],
    ends: OutOfBandEnds,
    job_error: Callable[[bool], NetFoldError | None],
    *,
    policy: RailPolicy,
    told: RailListeners,
    reopen: ReopenRail,
    spare: WatchedRail | None = None,
    down: Mapping[int, NetFoldError] = NONE_DOWN,
) -> MultiRail:
    """The rails of one rank as one; all their ranks call it alike.  Raises what ``MultiRail`` raises.

    rails      by plane; taken over
    ends       its listeners are taken over
    job_error  as of ``OutOfBand``
    down       as of ``MultiRail``
    """
    channel: TcpOutOfBand | None = None
    try:
        plan, state = ends.plan, RankState()
        channel = TcpOutOfBand(ends.listeners, state.answer, Identity.of_plan(plan, PURPOSE))
        channel.set_addresses(ends.others)
        return MultiRail(
            rails, plan.rank, plan.world, OutOfBand(state, channel, job_error), policy=policy, listeners=told,
            reopen=reopen, spare=spare, down=down,
        )
    except BaseException:
        if channel is not None:
            channel.close()
        for listener in ends.listeners:
            listener.close()
        for rail in rails:
            rail.close()
        raise


def _from_environment() -> tuple[Start, float]:
    """How rails start, and after how many silent seconds one is given up.  Raises ValueError."""
    how = os.environ.get(START_VARIABLE, "hot")
    if how not in get_args(Start):
        raise ValueError(f"{START_VARIABLE}={how}: expected one of {', '.join(get_args(Start))}")
    text = os.environ.get(STALL_VARIABLE, str(STALL_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{STALL_VARIABLE}={text}: expected seconds above 0")
    return cast(Start, how), seconds

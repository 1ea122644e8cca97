# SPDX-License-Identifier: Apache-2.0
"""The rails of a group of some ranks of a job that has several: a group's trees on each plane that has any for it.

The planes of a group are those of its job's rails whose switches fold.  Beside them it has the mesh between its ranks,
on which it goes on while no plane folds for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from netfold.host.errors import NetFoldError, RailDown
from netfold.host.mesh.sockets import listen
from netfold.host.opening.planes import RailSpec
from netfold.host.rails.joining import REJOIN, OutOfBandEnds, used_as_one
from netfold.host.rails.mesh_rail import MeshRail
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.open_rail import FOLDING, OpenRail
from netfold.host.rails.policy import RailListeners, RailOptions, RailPolicy
from netfold.host.rails.reopening import BackgroundReopening
from netfold.host.selection.peers import Peers
from netfold.wire.jobs import GroupOf

LIVES: Final = 1 << 20
"""Distance of the numbers of a group's lives on a plane, which no group of the same ranks has at once."""
MOST_PAUSE: Final = 4.0
"""Most seconds between two requests for a plane's trees that a group has lost: less than a request waits for the other
ranks, so that theirs meet."""

@dataclass
class JoinedPlanes:
    """The planes on which this rank has joined a group, before the ranks know which all of them have.

    rails      by the index of the job's rail
    listeners  for the questions between ranks, by the same
    refusals   why the others could not be joined
    """

    rails: dict[int, OpenRail] = field(default_factory=dict)
    listeners: dict[int, socket.socket] = field(default_factory=dict)
    refusals: dict[int, Exception] = field(default_factory=dict)

    def keep(self, planes: Sequence[int]) -> None:
        """Leaves the group on all planes but these."""
        for index in [index for index in self.rails if index not in planes]:
            self.listeners.pop(index).close()
            self.rails.pop(index).close()


@dataclass(frozen=True)
class GroupRails:
    """Opens the rails of the groups of one communicator.

    specs, options  as of ``join_rails``
    whole           the job's rails
    job_error       what has ended the job, as of ``OutOfBand``
    stall           seconds of silence after which a rail is given up
    """

    specs: Sequence[RailSpec]
    options: RailOptions
    whole: MultiRail
    job_error: Callable[[bool], NetFoldError | None]
    stall: float

    def planes(self) -> list[int]:
        """Indices of the job's rails that are up and may fold for a group."""
        return [index for index in self.whole.live if self.specs[index].kind in FOLDING]

    def join(self, planes: Sequence[int], members: Sequence[int], number: int, within: float) -> JoinedPlanes:
        """Joins the group of these ranks of the job on each of these planes, as far as that can be done.

        number  of the group of these ranks (`wire.jobs.GroupOf`)
        within  seconds to wait for its other ranks, in all
        """
        joined = JoinedPlanes()
        for index in planes:
            with ExitStack() as undo:
                try:
                    listener = listen(self.specs[index].plane.address)
                    undo.callback(listener.close)
                    joined.rails[index] = self._open(index, members, number, within / len(planes))
                    joined.listeners[index] = listener
                    undo.pop_all()
                except (NetFoldError, OSError, ValueError) as error:
                    joined.refusals[index] = error
        return joined

    def use(self, joined: JoinedPlanes, members: Sequence[int], number: int, hosts: Peers) -> MultiRail:
        """The rails that the ranks have joined, as one; all ranks of the group call it alike.  Takes them over.  Raises
        what ``MultiRail`` raises.

        hosts  the group's ranks, over the mesh
        """
        planes = sorted(joined.rails)
        rails = [joined.rails[index] for index in planes]
        plan = rails[0].plan

        def watched(rail: OpenRail) -> OpenRail:
            rail.give_up_with(lambda error: team.give_up(rail, error))
            return rail

        def reopen(place: int, deaths: int) -> BackgroundReopening:
            index, life = planes[place], number + deaths * LIVES
            return BackgroundReopening(lambda: watched(self._open(index, members, life, REJOIN)), most=MOST_PAUSE)

        known = [self.whole.shares.figures[index] for index in planes]
        try:
            ends = _ends(rails, [joined.listeners[index] for index in planes])
        except BaseException:
            joined.keep(())
            raise
        team = used_as_one(
            rails, ends, self.job_error,
            policy=RailPolicy(start="cold", known=[*known, None], stall=self.stall, timeout=self.options.timeout),
            told=RailListeners(
                me=f"group {plan.job!r}, rank {plan.rank} of {plan.world}", job=plan.job, note=hosts.note,
                hosts=[peer.where for peer in plan.peers],
            ),
            reopen=reopen, spare=MeshRail(hosts),
        )
        for rail in rails:
            watched(rail)
        return team

    def _open(self, index: int, members: Sequence[int], number: int, within: float) -> OpenRail:
        """The rail of a group on a plane.  Raises what ``OpenRail`` raises, and RailDown while the job has none
        there."""
        if index not in self.whole.live:
            raise RailDown(f"{self.specs[index]} is down for the job")
        whole = self.whole.track(index)
        assert isinstance(whole, OpenRail)
        plan = whole.plan
        group = GroupOf(plan.job, plan.epoch, plan.rank, plan.rank_secret, list(members), number)
        options = replace(self.options, path_mtu=plan.path_mtu, join_timeout=within)
        return OpenRail(
            self.specs[index], plan.job, group.members.index(plan.rank), len(members), options, group=group
        )


def _ends(rails: Sequence[OpenRail], listeners: Sequence[socket.socket]) -> OutOfBandEnds:
    """The ends of all ranks of a group, which exchange their ports over its first rail."""
    plan = rails[0].plan
    rank, world = plan.rank, plan.world
    ports = np.zeros((world, len(rails)), np.int32)
    ports[rank] = [listener.getsockname()[1] for listener in listeners]
    width = len(rails) * ports.itemsize
    pieces = [slice(r * width, (r + 1) * width) for r in range(world)]
    rails[0].others.all_gather(ports.reshape(-1).view(np.uint8), pieces)
    addresses = [{peer.rank: peer.address for peer in rail.plan.peers} for rail in rails]
    return OutOfBandEnds(plan, listeners, {
        r: [(where[r], int(port)) for where, port in zip(addresses, ports[r], strict=True)]
        for r in range(world)
        if r != rank
    })

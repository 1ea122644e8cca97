# SPDX-License-Identifier: Apache-2.0
"""Where a job folds: its trees over what is up, their slots, and their entries on the switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import Entity
from netfold.fabric import slots, trees
from netfold.fabric.graph import Fabric
from netfold.fabric.machines import fold_groups, machines
from netfold.fabric.pools import Exhausted
from netfold.fabric.slots import Allocator

if TYPE_CHECKING:
    import networkx as nx

    from netfold.controller.jobs.job import Job
    from netfold.controller.jobs.rounds import Round

LEAST_GAIN: Final = 0.01
"""Share of a job's bytes by which the load of its busiest link must fall for the job to move by choice."""


class Installer(Protocol):
    """Writes parts of the desired state to switches; the controller implements it."""

    async def install(self, part: str, entities: Mapping[str, Sequence[Entity]]) -> None:
        """Write a part of the desired state to all of its switches, or raise SwitchError and write nothing of it."""

    async def uninstall(self, part: str) -> None:
        """Remove a part from all switches."""

    async def confirm(self) -> None:
        """Hear from every switch whether another client has taken it."""

    def session(self, switch: str) -> int:
        """Number of the current session with a switch; after a change, the switch may have lost its slots."""


class TreePlacement:
    """Plans trees of one fabric's jobs, and brings them onto the switches."""

    def __init__(
        self, fabric: Fabric, allocator: Allocator, installer: Installer, liveness: Liveness, drains: Drains
    ) -> None:
        self._fabric = fabric
        self._allocator = allocator
        self._installer = installer
        self._liveness = liveness
        self._drains = drains

    def sessions(self, planned: Sequence[trees.Tree]) -> dict[str, int]:
        """Session number of every switch of the trees; to be read before anything is written there."""
        return {fold.switch: self._installer.session(fold.switch) for tree in planned for fold in tree.folds}

    def entries(self, job: Job, streams: Sequence[slots.Stream]) -> tables.BySwitch:
        """The entries of a job's streams, by switch."""
        hosts = [self._fabric.host(name) for name in job.hosts]
        return tables.merge(fold_tables.fold_entries(self._fabric, hosts, stream) for stream in streams)

    async def clean(self, part: str, epoch: int) -> None:
        """Remove a part's entries, then free its slots."""
        await self._installer.uninstall(part)
        self._allocator.release(epoch)

    async def leave(self, job: Job) -> None:
        """Remove a job's entries, then free its slots."""
        if job.trees:
            await self._installer.uninstall(job.part)
        self._allocator.release(job.slots_epoch)

    # ---- whether a job is where it should be -----------------------------------------------------------------------

    def broken_part(self, job: Job, graph: nx.MultiGraph[str] | None = None) -> str:
        """Describes the part of the job's trees that is broken; empty if nothing is.

        graph  what is up; default: as it is now
        """
        graph = self._liveness.graph() if graph is None else graph
        for tree in job.trees:
            for fold in tree.folds:
                if fold.switch not in graph:
                    return f"{fold.switch} is down"
                if self._installer.session(fold.switch) != job.sessions[fold.switch]:
                    return f"{fold.switch} was away"
                if fold.parent is not None and not _linked(graph, fold.switch, fold.parent_port, fold.parent):
                    return f"the link {fold.switch}:{fold.parent_port} - {fold.parent} is down"
        return ""

    def reason_to_move(self, job: Job) -> str:
        """Why the job should move: a part of its trees is drained, or other trees would put less load on its busiest
        link.  Empty if it should not or cannot move."""
        if job.is_group and job.trees is job.first_trees and not self._drains.under(job.trees):
            return ""  # it has some of the trees that there are, which others share: these are the ones
        planned = self._replanned(job, steady=True)
        if planned is None:
            return ""
        if drained := self._drains.under(job.trees):
            return f"{', '.join(drained)} is drained"
        if trees.crowding(planned) > trees.crowding(job.trees) - LEAST_GAIN:
            return ""
        roots = {tree.root for tree in planned} - {tree.root for tree in job.trees}
        return f"{', '.join(sorted(roots)) or 'a link'} is back"

    def hosts_reach_each_other(self, job: Job) -> bool:
        """Whether links that are up connect all of the job's hosts."""
        import networkx as nx

        graph = self._liveness.graph()
        return job.hosts[0] in graph and set(job.hosts) <= nx.node_connected_component(graph, job.hosts[0])

    def _replanned(self, job: Job, *, steady: bool) -> list[trees.Tree] | None:
        """The job's trees over what is up now.  With ``steady``, only over what flap damping does not suppress and what
        is not drained, and None if that has no trees; without, NoTree is raised if there are none."""
        groups = fold_groups(machines(job.hosts), job.hosts)
        graph = self._liveness.graph(steady=steady, writable=True)
        graph = self._drains.without(graph) if steady else self._drains.left(graph)
        try:
            planned = trees.plan(graph, [job.hosts[rank] for rank in groups[0]])
        except trees.NoTree:
            if steady:
                return None
            raise
        return trees.moved(job.first_trees, planned)

    # ---- another place ---------------------------------------------------------------------------------------------

    async def move(self, job: Job, here: Round, *, by_choice: bool = False) -> None:
        """Plan trees, allocate their slots and write their entries; those of a job with RC ranks are written once
        they have connected.

        Trees use what flap damping suppresses only where there are no others.  With ``by_choice``, they must fit beside
        the old ones.  Raises NoTree, Exhausted and SwitchError."""
        groups = fold_groups(machines(job.hosts), job.hosts)
        planned = self._replanned(job, steady=True) or self._replanned(job, steady=False)
        assert planned is not None
        sessions = self.sessions(planned)
        epoch = self._allocator.open()
        try:
            try:
                streams = self._allocator.admit(epoch, planned, groups, like=job.streams)
            except Exhausted as refusal:  # they do not fit beside the old ones: free those once all ranks stopped
                if by_choice or len(here.resumes) < job.world:
                    raise Exhausted(f"{refusal}, before all ranks have stopped") from None
                self._allocator.release(epoch)
                for leftover in [*here.leftovers, (job.part, job.slots_epoch)]:
                    await self.clean(*leftover)
                here.leftovers.clear()
                epoch = self._allocator.open()
                streams = self._allocator.admit(epoch, planned, groups, like=job.streams)
            part = job.part_of(epoch)
            if not job.rc_ranks:
                await self._installer.install(part, self.entries(job, streams))
        except BaseException:
            self._allocator.release(epoch)
            raise
        if job.state == "finished":  # it ended meanwhile
            await self.clean(part, epoch)
            return
        here.leftovers.append((job.part, job.slots_epoch))
        job.stay_reason = ""
        job.slots_epoch, job.trees, job.streams, job.sessions = epoch, planned, streams, sessions

    async def connect(self, job: Job, streams: Sequence[slots.Stream], leftovers: Sequence[tuple[str, int]]) -> None:
        """Write the entries of a job whose RC ranks have connected, after the leftovers have gone whose place they
        take.  Raises SwitchError."""
        job.sessions = self.sessions(job.trees)
        for leftover in leftovers:
            await self.clean(*leftover)
        await self._installer.install(job.part, self.entries(job, streams))
        if job.state == "finished":  # it ended meanwhile
            await self._installer.uninstall(job.part)
        else:
            job.streams = list(streams)


def _linked(graph: nx.MultiGraph[str], here: str, port: int, there: str) -> bool:
    return graph.has_edge(here, there) and any(edge["ports"][here] == port for edge in graph.adj[here][there].values())

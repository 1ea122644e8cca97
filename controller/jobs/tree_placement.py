# SPDX-License-Identifier: Apache-2.0
"""Where a job folds: its trees over what is up, their slots, and their entries on the switches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.controller.jobs.background import PlanningThread
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.installer import Installer
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.folding.slots import Allocator
from netfold.fabric.graph import End, Fabric
from netfold.fabric.placement.machines import fold_groups, machines

if TYPE_CHECKING:
    import networkx as nx

    from netfold.controller.jobs.job import Job
    from netfold.controller.jobs.rounds import Round

LEAST_GAIN: Final = 0.01
"""Share of a job's bytes by which the load of its busiest link must fall for the job to move by choice."""


class TreePlacement:
    """Plans trees of one fabric's jobs, and brings them onto the switches."""

    def __init__(
        self, fabric: Fabric, allocator: Allocator, installer: Installer, liveness: Liveness, drains: Drains,
        thread: PlanningThread,
    ) -> None:
        self._fabric = fabric
        self._allocator = allocator
        self._installer = installer
        self._liveness = liveness
        self._drains = drains
        self._thread = thread
        self._links = frozenset(end for link in fabric.links for end in link.ends)
        self._without: tuple[nx.MultiGraph[str], list[str], nx.MultiGraph[str]] | None = None
        """The last result of `_steady`, with its inputs: the graph with drained parts, and the drained parts."""

    def sessions(self, planned: Sequence[trees.Tree]) -> dict[str, int]:
        """Session number of every switch of the trees; to be read before anything is written there."""
        return {fold.switch: self._installer.session(fold.switch) for tree in planned for fold in tree.folds}

    def entries(self, job: Job, streams: Sequence[slots.Stream]) -> dict[str, tables.BySwitch]:
        """The entries of a job's streams: for each part those of its switches."""
        hosts = [self._fabric.host(name) for name in job.hosts]
        return {part: tables.merge(fold_tables.fold_entries(self._fabric, hosts, stream) for stream in streams
                                   if stream.epoch == epoch)
                for part, epoch in job.parts_of(streams).items()}

    async def clean(self, parts: Mapping[str, int]) -> None:
        """Remove the entries of parts, then free the slots of their epochs."""
        if parts:
            await self._installer.uninstall(parts)
            self._allocator.release(*parts.values())

    async def leave(self, job: Job) -> None:
        """Remove a job's entries, then free its slots."""
        await self.clean(job.parts)

    # ---- whether a job is where it should be -----------------------------------------------------------------------

    def down(self) -> tuple[frozenset[str], set[End]]:
        """The switches that are down, and the ends of the links that are."""
        return self._liveness.switches_down(), self._liveness.ends_down()

    def broken_part(self, job: Job, down: tuple[frozenset[str], set[End]] | None = None) -> str:
        """Describes the part of the job's trees that is broken; empty if nothing is.

        down  as of `down`; default: as it is now
        """
        switches, ends = self.down() if down is None else down
        uses = job.footprint
        away = {switch for switch in uses.switches if self._installer.session(switch) != job.sessions[switch]}
        dead = (ends & uses.links) | (uses.links - self._links)  # what is adopted may be older than the fabric's file
        if not (away or dead or uses.switches & switches):
            return ""
        if why := self._broken_part(job, job.trees, switches, ends):
            return why
        raise AssertionError(f"{job}: its trees use none of {away}, {dead}")

    def _broken_part(
        self, job: Job, planned: Sequence[trees.Tree], switches: Collection[str], ends: Collection[End]
    ) -> str:
        """Describes what is broken of some of a job's trees while these switches and links are down; empty: nothing."""
        for fold in (fold for tree in planned for fold in tree.folds):
            if fold.switch in switches:
                return f"{fold.switch} is down"
            if self._installer.session(fold.switch) != job.sessions[fold.switch]:
                return f"{fold.switch} was away"
            end = End(fold.switch, fold.parent_port)
            if not fold.is_root and (end in ends or end not in self._links):
                return f"the link {fold.switch}:{fold.parent_port} - {fold.parent} is down"
        return ""

    def may_move(self, job: Job) -> bool:
        """True if a part of the job's trees is drained, or if other trees could put less load on its busiest link."""
        uses = job.footprint
        return uses.crowding > uses.least + LEAST_GAIN or bool(self._drains.under(job.trees))

    async def reason_to_move(self, job: Job) -> str:
        """Why the job should move: a part of its trees is drained, or other trees would put less load on its busiest
        link.  Empty if it should not or cannot move, or if its trees change meanwhile."""
        uses, graph = job.footprint, await self._steady()
        if not self.may_move(job) or job.footprint.trees is not uses.trees or job.best_over is graph:
            return ""
        try:
            planned = await self._thread.run(_replacements, job, graph)
        except trees.NoTree:
            planned = None
        if job.footprint.trees is not uses.trees:
            return ""
        drained = self._drains.under(job.trees)
        if planned is not None and drained:
            return f"{', '.join(drained)} is drained"
        if planned is None or trees.crowding(planned) > uses.crowding - LEAST_GAIN:
            job.best_over = graph
            return ""
        roots = {tree.root for tree in planned} - {tree.root for tree in job.trees}
        return f"{', '.join(sorted(roots)) or 'a link'} is back"

    def hosts_reach_each_other(self, job: Job) -> bool:
        """True if links that are up connect all of the job's hosts."""
        import networkx as nx

        graph = self._liveness.graph()
        return job.hosts[0] in graph and set(job.hosts) <= nx.node_connected_component(graph, job.hosts[0])

    async def _steady(self) -> nx.MultiGraph[str]:
        """The live part of the fabric, without parts that flap damping suppresses or that are drained.  All jobs share
        this graph while nothing changes."""
        whole, drained = await self._liveness.prepared(steady=True, writable=True), self._drains.names
        if self._without is None or self._without[:2] != (whole, drained):
            self._without = whole, drained, self._drains.without(whole)
        return self._without[2]

    # ---- another place ---------------------------------------------------------------------------------------------

    async def move(self, job: Job, here: Round, *, by_choice: bool = False) -> None:
        """Plan trees, allocate slots for those that change, and write their entries; those of a job with RC ranks are
        written once they have connected.

        A tree of which nothing is broken, and which would be planned again as it is, keeps its slots, epoch and
        entries (docs/protocol.md, "Trees that stay"), unless an earlier controller has made the ranks' plans, which may
        differ.  Trees use what
        flap damping suppresses only where there are no others.  With ``by_choice``, they must fit beside the old ones.
        Raises NoTree, Exhausted and SwitchError."""
        groups = fold_groups(machines(job.hosts), job.hosts)
        try:
            planned = await self._thread.run(_replacements, job, await self._steady())
        except trees.NoTree:
            left = self._drains.left(await self._liveness.prepared(writable=True))
            planned = await self._thread.run(_replacements, job, left)
        switches, ends = self.down()
        kept = {place for place, (old, new) in enumerate(zip(job.trees, planned, strict=True))
                if old == new and not (job.rc_ranks or job.is_adopted)
                and self._allocator.holds(job.streams[2 * place].epoch)
                and not self._broken_part(job, [old], switches, ends)}
        anew = [tree for place, tree in enumerate(planned) if place not in kept]
        stay = [stream for place, stream in zip(_places(job), job.streams, strict=True) if place in kept]
        go = [stream for place, stream in zip(_places(job), job.streams, strict=True) if place not in kept]
        sessions = self.sessions(planned) | {fold.switch: job.sessions[fold.switch]
                                             for place in kept for fold in planned[place].folds}
        leaving = job.parts_of(go)
        try:
            fresh = self._allocator.admit(anew, groups, like=go) if anew else []
        except Exhausted as refusal:  # they do not fit beside the old ones: free those once all ranks stopped
            if by_choice or len(here.resumes) < job.world:
                raise Exhausted(f"{refusal}, before all ranks have stopped") from None
            await self.clean(here.leftovers | leaving)
            here.leftovers.clear()
            fresh = self._allocator.admit(anew, groups, like=go)
        parts = job.parts_of(fresh)
        try:
            if not job.rc_ranks and fresh:
                await self._installer.install(await self._thread.run(self.entries, job, fresh))
        except BaseException:
            self._allocator.release(*parts.values())
            raise
        if job.is_over or job.round is not here:  # it ended meanwhile, or ranks have gone and another round has begun
            await self.clean(parts)
            return
        here.leftovers |= leaving
        job.stay_reason = ""
        kept_on, moved = iter(stay), iter(fresh)
        job.streams = [next(kept_on if place in kept else moved) for place in _places(job)]
        job.trees, job.sessions = planned, sessions

    async def connect(self, job: Job, streams: Sequence[slots.Stream], leftovers: Mapping[str, int]) -> None:
        """Write the entries of a job whose RC ranks have connected, after the leftovers have gone whose place they
        take.  Raises SwitchError."""
        job.sessions = self.sessions(job.trees)
        await self.clean(leftovers)
        await self._installer.install(await self._thread.run(self.entries, job, streams))
        if job.state == "finished":  # it ended meanwhile
            await self._installer.uninstall(job.parts_of(streams))
        else:
            job.streams = list(streams)


def _places(job: Job) -> Iterator[int]:
    """The place among the job's trees of each of its streams: two for each tree, group after group."""
    return (number // 2 % len(job.trees) for number in range(len(job.streams)))


def _replacements(job: Job, graph: nx.MultiGraph[str]) -> list[trees.Tree]:
    """The trees that a job would have over a graph in the places of its first ones.  Raises NoTree."""
    groups = fold_groups(machines(job.hosts), job.hosts)
    planned = trees.plan(graph, [job.hosts[rank] for rank in groups[0]], most=len(job.first_trees),
                         roots={tree.root for tree in job.first_trees})
    return trees.moved(job.first_trees, planned)

# SPDX-License-Identifier: Apache-2.0
"""The folds of the groups of a communicator that has one rail: a group opens one of its own (``group_folds``)."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from netfold.host.api.group_folds import FINAL, GroupFold, GroupFolds, GroupTerms, Word
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan
from netfold.host.collectives.open_on_all import Unfit
from netfold.host.errors import JobEnded, JoinRefused, NetFoldError, PlanError
from netfold.host.operation.rail import FoldingRail, RailStats
from netfold.host.selection.peers import Peers
from netfold.host.selection.prospect import OpenedFold
from netfold.wire.jobs import Plan


class JoinedGroup(NamedTuple):
    """A group that this rank has joined at the controller."""

    plan: Plan
    client: JobClient
    """The connection to the controller for this group."""
    receiver: socket.socket | None
    """The socket at which results arrive, if the rail has one."""

    def leave(self) -> None:
        """Leaves the group, before anything was opened."""
        try:
            self.client.leave(RailStats().report(self.plan))
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connection and the socket."""
        self.client.close()
        if self.receiver is not None:
            self.receiver.close()


@dataclass(frozen=True, kw_only=True)
class GroupMeans(GroupTerms):
    """The functions by which a communicator of one rail opens the folds of its groups.

    join      joins a group of these ranks with this number and timeout
    open      opens the rail of a group's plan, over the group's ranks, with the socket at which results arrive, which
              it takes over; raises Unfit on all of them if one cannot
    """

    join: Callable[[Sequence[int], int, float], JoinedGroup]
    open: Callable[[Membership, Peers, socket.socket | None], FoldingRail]


class OneRail(GroupFold):
    """The fold of a group of a communicator that has one rail."""

    def __init__(self, folds: GroupFolds, means: GroupMeans, members: tuple[int, ...]) -> None:
        super().__init__(folds, means, members)
        self._means = means

    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> OpenedFold | None:
        asked = self._ask(hosts)
        if asked is None:
            return None
        number, _ = asked
        with ExitStack() as undo:
            joined, mine = self._join(number)
            if joined is not None:
                undo.callback(joined.leave)
            if self._agree(hosts, "having plans", mine) is None or joined is None:
                return None
            undo.pop_all()
            membership = Membership(joined.plan, joined.client)
            undo.callback(_leave, membership, RailStats())
            try:
                rail = self._means.open(membership, hosts, joined.receiver)
            except Unfit as unfit:
                self._fail(unfit.lacking, never=False)
                return None
            undo.callback(rail.close)
            membership.steer(rail)
            membership.on_tell(progress)
            undo.pop_all()
        trees = joined.plan.trees
        names = ", ".join(tree.name for tree in trees)
        self._hold(_Fold(membership, rail),
                   f"the controller planned {len(trees)} tree(s) for this group, {joined.plan.job!r}: {names}")
        return OpenedFold(hosts, switches=rail)

    def _join(self, number: int) -> tuple[JoinedGroup | None, Word]:
        """Joins the group at the controller.  Returns the joined group, and this rank's report."""
        try:
            joined = self._means.join(self._members, number, self._means.within)
        except JoinRefused as refused:
            return None, Word(False, refused.code in FINAL, 0, refused.said or str(refused))
        except (NetFoldError, OSError, ValueError) as error:
            return None, Word(False, False, 0, str(error))
        try:
            check_plan(joined.plan)
            if joined.plan.world != len(self._members) or not joined.plan.folds:
                raise PlanError(f"{joined.plan.job!r}: a plan for {joined.plan.world} ranks with "
                                f"{len(joined.plan.trees)} trees: expected {len(self._members)}, and some")
        except PlanError as error:
            return joined, Word(False, False, 0, str(error))
        return joined, Word()


class _Fold(NamedTuple):
    """One rail and its membership, ``HeldFold`` by a group."""

    membership: Membership
    rail: FoldingRail

    @property
    def fallback(self) -> str:
        return self.rail.fallback

    def let_go(self, reason: str = "", *, ended: bool = False) -> None:
        try:
            _leave(self.membership, self.rail.stats(), reason, ended=ended)
        finally:
            self.rail.close()

    def interrupt(self, error: NetFoldError) -> None:
        self.rail.interrupt(error)


def of_one_rail(means: GroupMeans) -> GroupFolds:
    """The folds of the groups of a communicator that has one rail."""
    return GroupFolds(lambda folds, members: OneRail(folds, means, members))


def _leave(membership: Membership, stats: RailStats, reason: str = "", *, ended: bool = False) -> None:
    """Leaves a group's job, unless the job has already ended."""
    try:
        if not ended and not isinstance(membership.job_error(), JobEnded):
            membership.leave(stats, reason)
    finally:
        membership.close()

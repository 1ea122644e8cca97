# SPDX-License-Identifier: Apache-2.0
"""The folds of the groups of a communicator that has one rail: a group opens one of its own (``group_folds``).

A rank with an RDMA NIC connects its queue pairs before it says that it has a plan: windowed ranks get theirs once all
NICs are known.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from netfold.host.api.group_folds import FINAL, GroupFold, GroupFolds, GroupTerms, Word
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan
from netfold.host.collectives.open_on_all import Unfit
from netfold.host.errors import JobEnded, JoinRefused, NetFoldError, PlanError
from netfold.host.innet.fold import FoldRail
from netfold.host.operation.rail import FoldingRail, RailStats
from netfold.host.selection.peers import Peers
from netfold.host.selection.prospect import OpenedFold
from netfold.wire.plan import Plan


class JoinedGroup(NamedTuple):
    """A group that this rank has joined at the controller."""

    membership: Membership
    receiver: socket.socket | None
    """The socket at which results arrive, if the rail has one."""

    def leave(self, reason: str = "") -> None:
        """Leaves the group, before it folds."""
        try:
            _leave(self.membership, RailStats(), reason)
        finally:
            if self.receiver is not None:
                self.receiver.close()


@dataclass(frozen=True, kw_only=True)
class GroupMeans(GroupTerms):
    """The functions by which a communicator of one rail opens the folds of its groups.

    join      joins a group of these ranks with this number and timeout
    connect   opens the rail of an RC rank, whose queue pairs it connects with those of all other ones; None where this
              rank has none
    open      opens the rail of a group's plan, over the group's ranks, with the socket at which results arrive and the
              rail that is connected, both of which it takes over; raises Unfit on all of them if one cannot
    """

    join: Callable[[Sequence[int], int, float], JoinedGroup]
    connect: Callable[[Membership], FoldRail | None] = lambda membership: None
    open: Callable[[Membership, Peers, socket.socket | None, FoldRail | None], FoldingRail]


class OneRail(GroupFold):
    """The fold of a group of a communicator that has one rail."""

    def __init__(self, folds: GroupFolds, means: GroupMeans, members: tuple[int, ...]) -> None:
        super().__init__(folds, means, members)
        self.means = means

    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> OpenedFold | None:
        asked = self._ask(hosts)
        if asked is None:
            return None
        mine, joined, connected = Word(), None, None
        try:
            joined, connected = self._join(asked[0])
        except JoinRefused as refused:
            mine = Word(False, refused.code in FINAL, 0, refused.said or str(refused))
        except (NetFoldError, OSError, MemoryError, ValueError) as error:
            mine = Word(False, False, 0, str(error))
        with ExitStack() as undo:
            if joined is not None:
                undo.callback(joined.leave)
            if connected is not None:
                undo.callback(connected.close)
            if self._agree(hosts, "having plans", mine) is None or joined is None:
                return None
            membership = joined.membership
            try:
                rail = self.means.open(membership, hosts, joined.receiver, connected)
            except Unfit as unfit:
                self._fail(unfit.lacking, never=False)
                return None
            undo.callback(rail.close)
            membership.steer(rail)
            membership.on_tell(progress)
            undo.pop_all()
        plan = membership.plan
        names = ", ".join(tree.name for tree in plan.trees)
        self._hold(_Fold(membership, rail),
                   f"the controller planned {len(plan.trees)} tree(s) for this group, {plan.job!r}: {names}")
        return OpenedFold(hosts, switches=rail)

    def _join(self, number: int) -> tuple[JoinedGroup, FoldRail | None]:
        """Joins the group at the controller, and connects queue pairs if this rank has any.  Returns the joined group,
        and the rail that is connected.  If that fails, this rank has left, so that no other one waits for it."""
        joined = self.means.join(self._members, number, self.means.within)
        try:
            self._check(joined.membership.plan)
            return joined, self.means.connect(joined.membership)
        except BaseException as error:
            joined.leave(str(error))
            raise

    def _check(self, plan: Plan) -> None:
        """Raises PlanError for a plan by which this group cannot fold."""
        check_plan(plan)
        if plan.world != len(self._members) or not plan.folds:
            raise PlanError(f"{plan.job!r}: a plan for {plan.world} ranks with {len(plan.trees)} trees: expected "
                            f"{len(self._members)}, and some")


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

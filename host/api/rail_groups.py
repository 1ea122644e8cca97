# SPDX-License-Identifier: Apache-2.0
"""The folds of the groups of a communicator that has several rails: trees on each plane that has any for a group.

A group opens them as one of a single rail does (``group_folds``), with one more agreement, on the planes that all of
its ranks have joined.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

from netfold.host.api.group_folds import FINAL, GroupFold, GroupFolds, GroupTerms, Word, common
from netfold.host.errors import JoinRefused, NetFoldError
from netfold.host.operation.rail import RailStats
from netfold.host.rails.group_rails import GroupRails, JoinedPlanes
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rail_peers import RailPeers
from netfold.host.selection.peers import Peers
from netfold.host.selection.prospect import OpenedFold


def of_several_rails(rails: GroupRails, *, me: str, always: bool) -> GroupFolds:
    """The folds of the groups of a communicator that has several rails; the parameters are those of ``GroupTerms``.

    rails  what opens the groups' rails
    """
    terms = GroupTerms("", rails.options.timeout, me, always)
    return GroupFolds(lambda folds, members: SeveralRails(folds, terms, members, rails))


class SeveralRails(GroupFold):
    """The fold of one group over several rails."""

    def __init__(self, folds: GroupFolds, terms: GroupTerms, members: tuple[int, ...], rails: GroupRails) -> None:
        super().__init__(folds, terms, members)
        self._rails = rails

    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> OpenedFold | None:
        asked = self._ask(hosts, sum(1 << index for index in self._rails.planes()))
        if asked is None:
            return None
        number, planes = asked
        with ExitStack() as undo:
            joined = self._rails.join(_indices(planes), self._members, number, self._terms.within)
            undo.callback(joined.keep, ())
            words = self._agree(hosts, "having plans", _report(joined))
            if words is None:
                return None
            joined.keep(_indices(common(words)))
            if not joined.rails:
                self._fail({0: "no plane has trees for all of its ranks"}, never=False)
                return None
            undo.pop_all()
            names = ", ".join(f"{len(rail.plan.trees)} tree(s) of {rail.plan.job!r} on {rail}"
                              for rail in joined.rails.values())
            mine, team = Word(), None
            try:
                team = self._rails.use(joined, self._members, number, hosts)
                undo.callback(team.close)
            except NetFoldError as error:
                mine = Word(False, False, 0, str(error))
            if self._agree(hosts, "folding over several rails", mine) is None or team is None:
                return None
            undo.pop_all()
        self._hold(_Team(team), f"the controllers planned for this group: {names}")
        return OpenedFold(RailPeers(hosts, team), rails=team)


class _Team(NamedTuple):
    """Several rails, ``HeldFold`` by a group."""

    rails: MultiRail

    @property
    def fallback(self) -> str:
        return ""

    def let_go(self, reason: str = "", *, ended: bool = False) -> None:
        if ended:
            self.rails.end("the ranks of its job have changed")
            return
        self.rails.leave(reason)
        self.rails.close()

    def interrupt(self, error: NetFoldError) -> None:
        self.rails.interrupt(error)


def _report(joined: JoinedPlanes) -> Word:
    """This rank's report on the planes that it has joined."""
    why = "; ".join(dict.fromkeys(
        (error.said or str(error)) if isinstance(error, JoinRefused) else str(error)
        for error in joined.refusals.values()
    ))
    never = all(isinstance(error, JoinRefused) and error.code in FINAL for error in joined.refusals.values())
    return Word(bool(joined.rails), never and not joined.rails, 0, why, sum(1 << index for index in joined.rails))


def _indices(planes: int) -> list[int]:
    """The planes of these bits."""
    return [index for index in range(planes.bit_length()) if planes >> index & 1]

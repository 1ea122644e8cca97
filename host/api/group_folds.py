# SPDX-License-Identifier: Apache-2.0
"""The folds of a communicator's groups: each group that folds is a job of its own at the controller.

    first reduction worth it    ranks agree over the group's mesh to try, and on a number
                                each joins the group at the controller, which plans trees for it, or refuses
                                ranks agree that all have plans
                                all open their rails, or none (``folding``): from then on the group may fold
    any of them could not       all close their part, continue between the hosts, and try again later

So either all ranks of a group may fold, or none.  The time of an attempt depends on counts of operations and bytes
alone, which are the same on all ranks.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from netfold.host import shared_log
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.client.plans import check_plan
from netfold.host.collectives import ring
from netfold.host.collectives.flow import run
from netfold.host.collectives.open_on_all import Unfit
from netfold.host.errors import JobEnded, JoinRefused, NetFoldError, PlanError
from netfold.host.mesh.connection import printable
from netfold.host.mesh.mesh import Call
from netfold.host.operation.rail import FoldingRail, RailStats
from netfold.host.selection.peers import Peers
from netfold.wire.jobs import Plan

LEAST_BYTES: Final = 64 << 10
"""Bytes of reductions after which a group tries to fold; fewer are not worth a plan."""
RETRY: Final = 64
"""Reductions between the first attempt and the second; each further attempt multiplies it by GROWTH, up to MOST."""
GROWTH: Final = 4
MOST: Final = 1 << 16
JOIN_SHARE: Final = 0.5
"""Part of the communicator's timeout for which a rank waits for the group's other ranks at the controller.  Ranks that
the controller has refused wait for it meanwhile."""
JOIN_SECONDS: Final = 30.0
"""Most seconds of that wait: all of the ranks have just announced that they join."""
SAID = struct.Struct("!??q240s")
"""A rank's report on its part: success, permanent refusal, a number, and the reason."""
FINAL: Final = ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "PERMISSION_DENIED", "UNIMPLEMENTED")
"""gRPC codes of refusals that would be repeated."""

log = logging.getLogger("netfold")


class _Word(NamedTuple):
    """A rank's report on its part of opening a fold."""

    able: bool = True
    never: bool = False
    number: int = 0
    why: str = ""


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


@dataclass(frozen=True)
class GroupMeans:
    """The functions by which a communicator opens the folds of its groups.

    refusal   why this rank opens none; empty: it does
    join      joins a group of these ranks with this number and timeout
    open      opens the rail of a group's plan, over the group's ranks, with the socket at which results arrive, which
              it takes over; raises Unfit on all of them if one cannot
    always    groups fold everything that they can, at any cost
    """

    refusal: str
    join: Callable[[Sequence[int], int, float], JoinedGroup]
    open: Callable[[Membership, Peers, socket.socket | None], FoldingRail]
    timeout: float
    me: str
    always: bool = False


class GroupFolds:
    """The folds of all groups of one communicator."""

    def __init__(self, means: GroupMeans) -> None:
        self._means = means
        self._lock = threading.Lock()
        self._numbers: dict[tuple[int, ...], int] = {}
        """Ranks of a group -> its next number."""
        self._open: set[GroupFold] = set()
        self._closed = False

    def of(self, members: Sequence[int]) -> GroupFold:
        """The fold of the group of these ranks of the job, in this order."""
        return GroupFold(self, self._means, tuple(members))

    def number(self, members: tuple[int, ...]) -> int:
        """A number that no group of these ranks has had, as far as this rank knows; -1 if the communicator is
        closed."""
        with self._lock:
            return -1 if self._closed else self._numbers.get(members, 1)

    def count(self, members: tuple[int, ...], number: int) -> None:
        """Marks the number as used."""
        with self._lock:
            self._numbers[members] = number + 1

    def keep(self, fold: GroupFold) -> None:
        """Remembers an open fold, so that ``close`` closes it."""
        with self._lock:
            self._open.add(fold)
            late = self._closed
        if late:
            fold.close()

    def forget(self, fold: GroupFold) -> None:
        """Forgets a fold that is closed."""
        with self._lock:
            self._open.discard(fold)

    def interrupt(self, error: NetFoldError) -> None:
        """Ends folding operations soon, with this error; called by another thread."""
        with self._lock:
            those = list(self._open)
        for fold in those:
            fold.interrupt(error)

    def close(self, reason: str = "", *, ended: bool = False) -> None:
        """Closes all folds, and opens none from then on.

        reason  why the communicator has failed, if it has
        ended   the controller has ended the groups, since their job goes on with other ranks
        """
        with self._lock:
            self._closed, those = True, list(self._open)
        for fold in those:
            fold.close(reason, ended=ended)


class GroupFold:
    """The fold of one group (``selection.prospect.Prospect``)."""

    def __init__(self, folds: GroupFolds, means: GroupMeans, members: tuple[int, ...]) -> None:
        self._folds = folds
        self._means = means
        self._members = members
        self._lock = threading.Lock()
        self._held: tuple[Membership, FoldingRail] | None = None
        self._closed = False
        self._shared = shared_log.level(0)
        self._never = False
        self._attempts = self._reductions = self._bytes = 0
        self._next = 1
        """Number of the reduction before which the group tries to fold."""
        self.why = (f"this group of some ranks has yet to fold: it asks for trees before the reduction with which it "
                    f"comes to {LEAST_BYTES >> 10} KiB")

    def due(self, nbytes: int) -> bool:
        if self._never or self._closed:
            return False
        self._reductions += 1
        self._bytes += nbytes
        if self._reductions < self._next or not (self._means.always or self._bytes >= LEAST_BYTES):
            return False
        self._next = self._reductions + min(RETRY * GROWTH**self._attempts, MOST)
        self._attempts += 1
        return True

    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> FoldingRail | None:
        self._shared = shared_log.level(hosts.mesh.rank)
        number = self._folds.number(self._members)
        mine = _Word(number=number)
        if self._means.refusal or number < 0:
            mine = _Word(False, True, 0, self._means.refusal or "its communicator is closed there")
        words = self._agree(hosts, "asking for trees", mine)
        if words is None:
            return None
        number = max(word.number for word in words)
        self._folds.count(self._members, number)
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
        with self._lock:
            self._held = membership, rail
        self._folds.keep(self)
        trees = joined.plan.trees
        names = ", ".join(tree.name for tree in trees)
        self.why = f"the controller planned {len(trees)} tree(s) for this group, {joined.plan.job!r}: {names}"
        log.info("%s: %s", self._means.me, self.why)
        return rail

    def lost(self) -> None:
        held = self._release()
        if held is not None:
            self.why = f"this group folds no longer: {held[1].fallback}; it asks again by and by"
            log.log(self._shared, "%s: %s", self._means.me, self.why)
            threading.Thread(target=self._let_go, args=(held,), name="netfold-group", daemon=True).start()

    def close(self, reason: str = "", *, ended: bool = False) -> None:
        """Leaves the group's job, and closes the rail.

        reason, ended  as in ``GroupFolds.close``
        """
        self._closed = True
        held = self._release()
        if held is not None:
            self.why = "this group is closed"
            self._let_go(held, reason, ended=ended)

    def interrupt(self, error: NetFoldError) -> None:
        """Ends its folding operation soon, with this error; called by another thread."""
        with self._lock:
            held = self._held
        if held is not None:
            held[1].interrupt(error)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _join(self, number: int) -> tuple[JoinedGroup | None, _Word]:
        """Joins the group at the controller.  Returns the joined group, and this rank's report."""
        try:
            joined = self._means.join(
                self._members, number, min(JOIN_SHARE * self._means.timeout, JOIN_SECONDS))
        except JoinRefused as refused:
            return None, _Word(False, refused.code in FINAL, 0, refused.said or str(refused))
        except (NetFoldError, OSError, ValueError) as error:
            return None, _Word(False, False, 0, str(error))
        try:
            check_plan(joined.plan)
            if joined.plan.world != len(self._members) or not joined.plan.folds:
                raise PlanError(f"{joined.plan.job!r}: a plan for {joined.plan.world} ranks with "
                                f"{len(joined.plan.trees)} trees: expected {len(self._members)}, and some")
        except PlanError as error:
            return joined, _Word(False, False, 0, str(error))
        return joined, _Word()

    def _agree(self, hosts: Peers, what: str, mine: _Word) -> list[_Word] | None:
        """Tells all ranks of the group how this rank's part went.  Returns all reports if all succeeded; else None, and
        ``why`` is the first failed rank's reason."""
        mesh = hosts.mesh
        data = np.zeros(mesh.size * SAID.size, np.uint8)
        pieces = [slice(rank * SAID.size, (rank + 1) * SAID.size) for rank in range(mesh.size)]
        said = SAID.pack(mine.able, mine.never, mine.number, mine.why.encode()[:240])
        data[pieces[mesh.rank]] = np.frombuffer(said, np.uint8)
        with mesh.operation(Call(hosts.number, f"{hosts.label}{what}")):
            mesh.expect("ring")
            run(mesh, ring.all_gather(mesh, data, pieces))
        words = []
        for piece in pieces:
            able, never, number, why = SAID.unpack(data[piece].tobytes())
            words.append(_Word(able, never, number, printable(why.rstrip(b"\0").decode(errors="replace"))))
        unable = {rank: word.why for rank, word in enumerate(words) if not word.able}
        if unable:
            self._fail(unable, never=any(word.never for word in words))
            return None
        return words

    def _fail(self, lacking: Mapping[int, str], *, never: bool) -> None:
        """Records that the group does not fold, since these of its ranks cannot; ``never``: it will not ask again."""
        self._never = never
        again = "" if never else f"; it asks again after {self._next - self._reductions} more reductions"
        reasons: dict[str, int] = {}
        for rank, why in lacking.items():
            reasons.setdefault(why, rank)  # each once, by the first rank that has it
        said = "; ".join(f"rank {self._members[rank]}: {why}" for why, rank in reasons.items())
        self.why = f"this group does not fold: {said}{again}"
        log.log(self._shared, "%s: %s", self._means.me, self.why)

    def _release(self) -> tuple[Membership, FoldingRail] | None:
        with self._lock:
            held, self._held = self._held, None
        self._folds.forget(self)
        return held

    @staticmethod
    def _let_go(held: tuple[Membership, FoldingRail], reason: str = "", *, ended: bool = False) -> None:
        membership, rail = held
        try:
            _leave(membership, rail.stats(), reason, ended=ended)
        finally:
            rail.close()


def _leave(membership: Membership, stats: RailStats, reason: str = "", *, ended: bool = False) -> None:
    """Leaves a group's job, unless the job has already ended."""
    try:
        if not ended and not isinstance(membership.job_error(), JobEnded):
            membership.leave(stats, reason)
    finally:
        membership.close()

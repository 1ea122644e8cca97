# SPDX-License-Identifier: Apache-2.0
"""The rails of one rank: which are up, who watches them, how they fail and are reopened.

A rail that fails on any rank is dead on all (``rank_state``).  It is reopened in the background (``ReopenRail``); once
it is open on all ranks, all of them restore it in the same operation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from netfold.host import shared_log
from netfold.host.errors import NetFoldError, PeerLost, RailDown, RankMismatch, TransportError
from netfold.host.mesh.mesh import WAIT_SECONDS, ranks
from netfold.host.operation.coding import Coding
from netfold.host.operation.rail import Rail, RailStats
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.rails.missing_ranks import ANSWER_SECONDS, MissingRankDetector
from netfold.host.rails.rank_state import AgreementOutcome, Answer, Question, QuestionKind, RankState, first_line
from netfold.host.selection.peers import Peers

STALL_SECONDS = 0.08
"""Seconds without progress on any rank, while all ranks are alive, after which a rail counts as dead."""
PEER_STALL_FRACTION = 0.6
"""Fraction of the stall time that must have passed on the other ranks, which checked a little earlier or received data
a little later."""
ALL_STALLED_FACTOR = 5
"""Factor by which the stall time is longer while no other rail moves either, since the machine may be busy with other
things."""

log = logging.getLogger("netfold")


class WatchedRail(Rail, Protocol):
    """A rail that can be watched and stopped.

    between_name  what carries its operations between the hosts, for people
    carries_rows  whether its switches carry a ``RowsRequest``
    """

    @property
    def between_name(self) -> str: ...

    @property
    def carries_rows(self) -> bool: ...

    def way(self, coding: Coding, algorithm: str | None) -> Callable[[AllreduceRequest], int]:
        """A function that carries such allreduces as ``allreduce`` does, without repeating its checks; valid until the
        rail is closed."""

    def collect(self, request: RowsRequest) -> None:
        """Carries a collective of rows through its switches."""

    def between_hosts(self, number: int, operation: Callable[[Peers], None]) -> None:
        """Makes an operation between the hosts of the rail's plane.

        number  of the operation, the same on all ranks
        """

    def leave(self, why: str, *, at_once: bool = False) -> None:
        """This rank leaves after this: the controller of the rail's plane tells the others once the rail is closed.

        at_once  no other rank needs this one any more, and ``why`` ends the rail's job
        """

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """From now on ``watch`` is called on the rail's own thread, at least every 10 ms while an allreduce waits, with
        the monotonic seconds of its last progress; what it raises ends the allreduce at once, and the rail for good.
        If it returns True, it reports by itself for whom the allreduce waits.  None removes the watcher."""

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        """From now on the rail reports what ``counts`` returns, instead of its own operations, of which several may be
        parts of one.  It is called on any thread."""


class JobCounts(NamedTuple):
    """The work of all rails together for this rank."""

    operations: int = 0
    by_rail: Mapping[str, int] = {}
    """Payload bytes that each rail has carried, by name."""


class RailReopening(Protocol):
    """A dead rail that is being reopened.  ``epoch``: that of the rail's new plan once it is open, which all ranks have
    in common; 0 before."""

    @property
    def epoch(self) -> int: ...

    def take(self) -> WatchedRail:
        """The reopened rail, which belongs to the caller from now on."""

    def cancel(self) -> None:
        """Stops reopening, and closes the rail if it is open; returns at once."""


ReopenRail = Callable[[int, int], RailReopening]
"""Starts reopening a rail, given its index and how many times it has failed.  Returns at once."""


@dataclass(frozen=True)
class RankLabel:
    """This rank's label in messages: its job's name, job and rank in words, and the ranks' hosts."""

    rank: int
    job: str
    me: str
    hosts: Sequence[str] = ()


class Fenced(RailDown):
    """Another rank has fenced this agreement, so that it must not be completed here."""


class RailSet:
    """The rails of one rank.  Parameters as of ``MultiRail`` and ``policy``; ``spare``: the last rail is one."""

    def __init__(
        self,
        rails: Sequence[WatchedRail],
        names: Sequence[str],
        state: RankState,
        detector: MissingRankDetector,
        reopen: ReopenRail | None,
        *,
        place: RankLabel,
        stall: float,
        spare: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rails: list[WatchedRail | None] = list(rails)
        """By index; None where it is down."""
        self._spare = len(rails) - 1 if spare else None
        self.live = self._usable()
        """Indices of the rails in use, as all ranks agree; a new list whenever that changes."""
        self.names = list(names)
        self._state, self.detector, self._reopen = state, detector, reopen
        self._stall, self._clock, self._place = stall, clock, place
        self.position = 0
        """Number of the last operation of the rails, agreements included: the same on all ranks."""
        self.number = 0
        """Number of the caller's operation under way, for messages."""
        self._told_of, self._telling = 0, threading.Lock()
        self.stopped: BaseException | None = None
        """The error that has ended everything for good: ranks are missing or call different operations, or Ctrl-C."""
        self.broken: dict[int, NetFoldError] = {}
        """Rails that failed on this rank, with the error, while the ranks have not agreed yet that they are dead."""
        self.deaths = [0] * len(rails)
        self.causes: list[NetFoldError | None] = [None] * len(rails)
        """By rail: the error of its last failure."""
        self._reopenings: dict[int, RailReopening] = {}
        self._past: list[tuple[str, RailStats]] = []
        self._changed: Callable[[], None] = lambda: None
        self._asked = [0.0] * len(rails)
        self._counts: Callable[[], JobCounts] = JobCounts
        state.set_live(self.live)
        for index in range(len(rails)):
            self._attach(index)

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        """From now on each rail reports what ``counts`` returns."""
        self._counts = counts

    def __len__(self) -> int:
        return len(self.rails)

    def __getitem__(self, index: int) -> WatchedRail:
        rail = self.rails[index]
        assert rail is not None, f"rail {self.names[index]} is down"
        return rail

    def begin(self, number: int) -> None:
        """The caller's operation of this number begins."""
        self.number = number

    def stats(self) -> list[tuple[str, RailStats]]:
        """Names and statistics of all rails, those of their earlier lives first."""
        now = ((name, rail.stats()) for name, rail in zip(self.names, self.rails, strict=True) if rail is not None)
        return [*self._past, *now]

    def describe_states(self) -> str:
        """Each rail's state in words, for errors."""
        said = []
        for index, name in enumerate(self.names):
            if self.rails[index] is not None and index not in self.live:
                continue  # a spare one
            quiet = self._state.quiet_seconds(index)
            cause = first_line(self.causes[index] or "")
            idle = f"quiet for {quiet:.1f} s" if quiet >= self._stall else "carries nothing now"
            said.append(f"{name} {f'up, {idle}' if index in self.live else f'down ({cause})'}")
        return ", ".join(said)

    def with_states(self, error: NetFoldError, where: str) -> NetFoldError:
        """The same kind of error, with where it came up and each rail's state."""
        text = f"{where}: {error}; rails: {self.describe_states()}"
        return type(error)(error.errno, text) if isinstance(error, TransportError) else type(error)(text)

    def on_change(self, call: Callable[[], None]) -> None:
        """Calls it whenever a rail has failed or is back, on all ranks in the same operation."""
        self._changed = call

    def advance(self, number: int = 0) -> int:
        """Begins an operation on the rails.  Returns its position.

        number  of the caller's operation that begins with it; 0: it is part of the one under way
        """
        self.position += 1
        if number:
            self.number = number
        return self.position

    def stop(self, error: BaseException) -> None:
        """Ends whatever the rails are doing, for good."""
        self.stopped = error

    def stop_mismatched(self, error: RankMismatch) -> None:
        """The same where this rank has seen that another one calls something else.  The other ranks may have seen
        nothing of it, and learn it when they ask why nothing moves."""
        self.detector.give_up(error, first_line(error))
        self.stop(error)

    # ---- failure and reopening ---------------------------------------------------------------------------------------
    def mark_down(self, dead: Mapping[int, NetFoldError]) -> None:
        """Takes rails out of use that all ranks agree are dead, with a cause for each where this rank knows no better
        one, and starts reopening them.  Raises RailDown or PeerLost where none is left."""
        for index, failure in dead.items():
            rail = self[index]
            error = self.broken.pop(index, failure)
            self.causes[index] = error
            self.deaths[index] += 1
            self._past.append((self.names[index], rail.stats()))
            rail.watched_by(None)
            self._put(index, None)
            log.log(shared_log.level(self._place.rank), "%s: rail %s is down: %s", self._place.me, self.names[index],
                    error)
            # on a thread, since closing a rail takes longer than the call that waits for this may
            threading.Thread(target=rail.close, name="netfold-rail-close", daemon=True).start()
            if self._reopen is not None and index != self._spare:
                self._reopenings[index] = self._reopen(index, self.deaths[index])
        if not self.live:
            kind = PeerLost if any(isinstance(cause, PeerLost) for cause in self.causes) else RailDown
            causes = "; ".join(f"{name}: {cause}" for name, cause in zip(self.names, self.causes, strict=True))
            raise kind(f"no rail is left: {causes}. Look at `netfold status`, then join anew")

    def epoch(self, index: int) -> int:
        """The epoch of a dead rail that is open again on this rank, else 0."""
        return self._reopenings[index].epoch if index in self._reopenings else 0

    def restore(self, index: int) -> None:
        """Takes a rail into use again that is open on all ranks with the same epoch."""
        self._put(index, self._reopenings.pop(index).take())
        self._attach(index)
        log.info("%s: rail %s is up again", self._place.me, self.names[index])

    def close(self) -> None:
        """Closes all rails; safe to call twice."""
        self._changed = lambda: None
        for reopening in self._reopenings.values():
            reopening.cancel()
        self._reopenings.clear()
        for index, rail in enumerate(self.rails):
            if rail is not None:
                self._past.append((self.names[index], rail.stats()))
                rail.close()
                self._put(index, None)

    def _put(self, index: int, rail: WatchedRail | None) -> None:
        self.rails[index] = rail
        self.live = self._usable()
        self._state.set_live(self.live)
        if self.live:
            self._changed()

    def _usable(self) -> list[int]:
        """Indices of the rails that are up; the spare one's only if no other is."""
        up = [index for index, rail in enumerate(self.rails) if rail is not None]
        return [index for index in up if index != self._spare] or up

    # ---- watching ----------------------------------------------------------------------------------------------------
    def _attach(self, index: int) -> None:
        self[index].watched_by(lambda moved: self._watch(index, moved))
        self[index].counted_by(lambda: self._counts())

    def _watch(self, index: int, moved: float) -> bool:
        """Called by a rail that waits.  Returns whether ranks for which it waits long are named here; raises what ends
        its allreduce."""
        why = self.stopped
        if why is not None:
            raise why if isinstance(why, NetFoldError) else NetFoldError(f"interrupted ({why!r})")
        if not self._state.carries(index):  # what is under way on its mesh is of some ranks alone, or between two
            self.detector.check_job(self._clock() - moved, left=False)
            return False
        if index in self.broken:
            raise self.broken[index]
        (position, _, _, call), name = self._state.place, self.names[index]
        if self._state.fenced(position):
            raise Fenced(f"{name}: another rank found it dead")
        quiet = self._state.record_progress(index, moved)
        late = quiet > self.detector.timeout
        now = self._clock()
        every = min(max(self._stall, quiet) / 8, ANSWER_SECONDS)  # a slow rank is not asked all the time
        if quiet < self._stall or not self.detector.others or (now < self._asked[index] + every and not late):
            return True
        self._asked[index] = now
        # The rail is quiet here: ask whether it is on all ranks, and whether all are present.
        try:
            answers = self.detector.ask(Question(QuestionKind.AGE, position, index, call), self.detector.others)
            quiet = self._state.record_progress(
                index, moved, ANSWER_SECONDS
            )  # this process is running, however long the others take
            if quiet >= WAIT_SECONDS:
                self._say_awaited(position, answers)
            self.detector.check(answers, self.detector.others, quiet)
        except NetFoldError as error:
            self.stop(error)
            raise
        for rank, answer in answers.items():
            if answer.outcome is AgreementOutcome.ABORTED:
                raise RailDown(f"{name}: rank {rank} lost it: {answer.result.decode(errors='replace')}")
        patience = self._patience(index)
        everybody = len(answers) == len(self.detector.others)
        if everybody and quiet >= patience and min(a.age for a in answers.values()) >= PEER_STALL_FRACTION * patience:
            if late or self._may_give_up(position, index):
                raise RailDown(f"{name}: nothing moved for {quiet * 1e3:.0f} ms, on any rank")
            return True
        if late and not any(answer.outcome is AgreementOutcome.BEHIND for answer in answers.values()):
            raise RailDown(f"{name}: nothing moved for {quiet:.1f} s here, though it did elsewhere")
        return True

    def _say_awaited(self, position: int, answers: Mapping[int, Answer]) -> None:
        """Names, once an operation, the ranks for which all others wait; the first of these others warns for all."""
        missing = self.detector.awaited(answers)
        with self._telling:  # several rails of the operation wait, each on a thread of its own
            if not missing or self._told_of == position:
                return
            self._told_of = position
        place = self._place
        there = min({place.rank, *self.detector.others} - set(missing))
        at = ", ".join(place.hosts[rank] for rank in missing if rank < len(place.hosts))
        log.log(logging.WARNING if place.rank == there else logging.INFO, "%s, operation %d: nothing has moved for %g "
                "s: waiting for %s%s; `netfold stall %s` shows where", place.me, self.number, WAIT_SECONDS,
                ranks(missing), f" ({at})" if at else "", place.job)

    def _may_give_up(self, position: int, index: int) -> bool:
        try:
            return self.detector.may_give_up(position, index)
        except NetFoldError as error:
            self.stop(error)
            raise

    def _patience(self, index: int) -> float:
        """Seconds of quiet after which the rail counts as dead."""
        spare = [other for other in self.live if other != index and other not in self.broken]
        if not spare:
            return self.detector.timeout  # the last rail is given up only when nothing else can be done
        quiet = min(self._state.quiet_seconds(other) for other in spare)
        # Another rail moves, so the machine is not just busy, which would stop all rails at nearly the same moment.
        return self._stall if quiet < self._stall / 4 else ALL_STALLED_FACTOR * self._stall

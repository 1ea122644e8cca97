# SPDX-License-Identifier: Apache-2.0
"""How the ranks agree on which rail failed, and where: each keeps a state, and answers the others' questions about it.

What ranks do together over several rails is a sequence of numbered positions, the same on every rank: stripes of a
tensor carried over all rails at once, or one short allreduce on a single rail, an *agreement*.  Stripes may end
differently from rank to rank; the agreement after them exchanges how.  An agreement itself ends alike for all:

    COMMITTED  some rank has its result, and every rank can get it: each keeps its last results
    ABORTED    no rank has it, and no rank will: the rail is dead

A rank whose rail fails in an agreement asks all others to *fence* it: once a rank has answered, it does not take the
result any more if it had not got it.  No rank changes an answer, so all who ask get the same.

A rail that is merely quiet has failed where every rank is present and nothing moves on it for any of them (``AGE``); a
rank that has not come yet is no failure of the rail.  Only time in which somebody looked at the rail counts: a process
that got no time to run has seen nothing, and knows nothing.  Before a rank gives such a rail up, it asks the *arbiter*,
rank 0, which grants all but the last one: else, while everything stands still, ranks that each blame another rail would
lose them all.

A rank that gives up because others are missing keeps its reason, the *verdict*, and answers every later question with
it, so that all ranks name the same missing ranks, whenever they came themselves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from netfold.host.operation.rail import Flat

REMEMBERED = 2
"""Number of agreements whose outcome is remembered.  No rank is more than one behind another, because an agreement ends
only with every rank's part of it or its answer."""
MAX_LOOK_GAP = 0.03
"""Longest interval between two checks, in seconds, that counts as quiet: rails are checked every 10 ms, so a longer gap
means that this process itself stood still."""
ARBITER = 0
"""The rank that decides which rails may be given up."""


class QuestionKind(IntEnum):
    """Questions from one rank to another: how long a rail has been quiet, to fence an agreement, or to give a rail
    up."""

    AGE = 1
    FENCE = 2
    GIVE_UP = 3
    """To the arbiter: may this rail, which is quiet on all ranks, be given up?"""


class AgreementOutcome(IntEnum):
    """The answer's verdict: of an agreement that a rank was asked to fence; of a rail, where ABORTED means that it was
    given up."""

    NOT_YET = 0
    ABORTED = 1
    COMMITTED = 2
    FORGOTTEN = 3
    ABSENT = 4
    """The asked rank has not reached this position, and waits for nothing."""
    BEHIND = 5
    """The asked rank has not reached this position, because it still waits for something before it."""
    GAVE_UP = 6
    """The asked rank has given up, and ``Answer.result`` holds its verdict."""
    OTHERWISE = 7
    """The asked rank is in another call at this position than the asking one: they call different operations."""


@dataclass(frozen=True)
class Question:
    """A question of one rank to another.  ``rail`` is the rail in question, so another plane carries the question.
    ``call``: the number of the call that the asking rank is in (``cut.call_number``)."""

    kind: QuestionKind
    position: int
    rail: int
    call: int = 0


@dataclass(frozen=True)
class Answer:
    """``age``: seconds without progress.  ``result``: the agreement's where it is COMMITTED, the reason why a rail
    failed where it is ABORTED, the verdict where it is GAVE_UP."""

    outcome: AgreementOutcome = AgreementOutcome.NOT_YET
    age: float = 0.0
    result: bytes = b""


class OutOfBandChannel(Protocol):
    """How a rank asks the others besides the rails."""

    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        """Answers by rank; ranks that did not answer within so many seconds are left out."""

    def refused(self) -> Collection[int]:
        """Ranks whose machine refuses connections to their port: they are gone for good."""

    def close(self) -> None:
        """Stops answering."""


Place = tuple[int, int, float, int]
"""A rank's position: its number, the rail that carries the agreement there, or STRIPES, the time at which the rank
reached it, and the number of the call (``cut.call_number``).  Replaced as a whole, which needs no lock."""
STRIPES = -1
"""Instead of a rail: at this position several rails carry stripes."""


@dataclass
class _Looks:
    """Observations of the rails at a position, for each rail that carries anything there."""

    position: int
    moved: dict[int, float]
    """Time of its last progress."""
    looked: dict[int, float] = field(default_factory=dict)
    """Time of the last check."""
    quiet: dict[int, float] = field(default_factory=dict)
    """Seconds without progress in which the rail was checked."""
    left: dict[int, float] = field(default_factory=dict)
    """Time at which it ended here."""


class RankState:
    """The state of one rank, written by the threads of its rails and read by the thread that answers questions.

    clock  monotonic seconds, the clock of the rails' progress
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock: Final = clock
        self._lock = threading.Lock()
        self.place: Place = (0, STRIPES, 0.0, 0)
        """This rank's position.  Only the calling thread sets it: at an agreement without a call or a lock, since a
        small allreduce takes only a third of a millisecond."""
        self._looks = _Looks(0, {})
        self.outcomes: list[tuple[int, Flat | None]] = [(0, None)] * REMEMBERED
        """The last agreements, in any order: position, and result, which must not be changed meanwhile; None: aborted.
        Only the calling thread sets it, see ``fenced_at``."""
        self.fenced_at = 0
        """Highest position of an agreement that some rank asked to fence; it never falls.

        The thread that makes the calls first stores an outcome and then reads this (``store_result``); who fences first
        stores this and then reads the outcomes.  So one of the two sees the other, with no lock beside a small
        allreduce.  Fences come in any order: one of the agreement before may be answered last, and one of the next
        agreement before this rank comes there.  So from this position on back, ``withheld`` decides."""
        self._withheld_at = 0
        """Position of the last agreement whose fence came before its result: ABORTED was the answer."""
        self._failed: dict[int, str] = {}
        """Rails that failed in the stripes of this position, or of the one before the agreement, with the reason."""
        self._live: frozenset[int] = frozenset()
        self._granted: set[int] = set()
        """Live rails that the arbiter allowed some rank to give up."""
        self._verdict: bytes | None = None
        self.last_outcome_at = -math.inf
        """Clock time at which the outcome of the last agreement was known."""

    def enter_stripes(self, position: int, rails: Collection[int], call: int = 0) -> None:
        """Records that this rank is at ``position``, where each of these rails carries a stripe of a call with this
        number (``cut.call_number``)."""
        now = self.clock()
        with self._lock:
            self.place = position, STRIPES, now, call
            self._looks, self._failed = _Looks(position, dict.fromkeys(rails, now)), {}

    def enter_agreement(self, position: int, rail: int, call: int = 0) -> float:
        """Records that this rank is at ``position``, in an agreement over this rail, as a part of a call with this
        number.  Returns when, by the clock.  It takes no lock: what is seen of the rail there is looked up by the
        position."""
        now = self.clock()
        self.place = position, rail, now, call
        return now

    def _here(self) -> tuple[int, bool, float, _Looks]:
        """This rank's position, whether that is an agreement, when it came there, and what has been seen of the rails
        there.  The lock is held."""
        at, carrier, came, _ = self.place
        if self._looks.position != at:  # an agreement of which nobody has seen anything yet
            self._looks = _Looks(at, {carrier: came})
        return at, carrier != STRIPES, came, self._looks

    def carries(self, rail: int) -> bool:
        """True if this rank waits for the rail in the operation of all ranks."""
        with self._lock:
            at, in_agreement, _, looks = self._here()
            if rail not in looks.moved or rail in looks.left:
                return False
            return not (in_agreement and self._ended(at))

    def record_progress(self, rail: int, when: float, most: float = MAX_LOOK_GAP) -> float:
        """Records a look at a rail whose last progress was at ``when``.  Returns for how many seconds it has been
        quiet.

        most  seconds that count since the last look
        """
        with self._lock:
            _, _, came, looks = self._here()
            if rail not in looks.moved:
                return 0.0
            now = self.clock()
            since = looks.looked.get(rail, came)
            quiet = looks.quiet.get(rail, 0.0)
            if when > looks.moved[rail]:
                looks.moved[rail], since, quiet = when, max(since, when), 0.0
            looks.looked[rail] = now
            looks.quiet[rail] = quiet + min(now - since, most)
            return looks.quiet[rail]

    def quiet_seconds(self, rail: int) -> float:
        """For how many seconds the rail has been quiet on this rank; 0 where it carries nothing now."""
        with self._lock:
            _, _, came, looks = self._here()
            if rail not in looks.moved or rail in looks.left:
                return 0.0
            return looks.quiet.get(rail, 0.0) + min(self.clock() - looks.looked.get(rail, came), MAX_LOOK_GAP)

    def set_live(self, rails: Collection[int], *, exchanged: bool = False) -> None:
        """Sets the rails that are up, as all ranks agree.

        exchanged  all ranks have just reported which rails they gave up, so that grants which were not used are void
        """
        with self._lock:
            self._live = frozenset(rails)
            self._granted = set() if exchanged else self._granted & self._live

    def leave_rail(self, rail: int, *, failure: object = None) -> None:
        """Records that the rail has ended here, well or not, so that this rank waits for nothing on it any more."""
        with self._lock:
            self._here()[3].left[rail] = self.clock()
            if failure is not None:
                self._failed[rail] = first_line(failure)

    def fenced(self, position: int) -> bool:
        """True if this rank's present agreement was fenced before its result arrived."""
        with self._lock:
            return self._withheld_at == position == self.place[0]

    def store_result(self, position: int, result: Flat, at: int) -> bool:
        """Stores the result that the rail delivered, in place ``at`` of ``outcomes``.  Returns whether it may be taken:
        not where some rank has been told that this one will not."""
        self.last_outcome_at = self.clock()
        self.outcomes[at] = position, result
        return self.fenced_at < position or not self.withheld(position, at)

    def withheld(self, position: int, at: int) -> bool:
        """True if an outcome at a fenced position, stored in place ``at`` of ``outcomes``, came too late and is
        withdrawn: some rank has been told that this one will not accept the result."""
        with self._lock:
            if self._withheld_at != position:
                return False
            self.outcomes[at] = 0, None
            return True

    def adopt_outcome(self, position: int, result: Flat | None, at: int) -> None:
        """Records the outcome that another rank has reported, in place ``at`` of ``outcomes``; None: aborted."""
        with self._lock:
            self.outcomes[at] = position, result
            self._withheld_at = 0
            self.last_outcome_at = self.clock()

    def give_up(self, why: bytes) -> None:
        """Records the verdict for which this rank gives up, and waits for nothing any more.  The first one stays."""
        with self._lock:
            if self._verdict is None:
                self._verdict = why

    @property
    def gave_up(self) -> bool:
        """True if this rank has given up."""
        return self._verdict is not None

    # ---- answers -----------------------------------------------------------------------------------------------------
    def answer(self, question: Question) -> Answer:
        """The answer to a question of another rank, or to one of this rank's own."""
        with self._lock:
            if question.kind is QuestionKind.AGE:
                if self._verdict is not None:
                    return Answer(AgreementOutcome.GAVE_UP, result=self._verdict)
                outcome = self._carrier_state(question)
                why = self._failed[question.rail] if outcome is AgreementOutcome.ABORTED else ""
                return Answer(outcome, self._age(question), why.encode())
            if question.kind is QuestionKind.GIVE_UP:
                return self._arbitrate(question.rail)
            return self._fence(question)

    def _carrier_state(self, question: Question) -> AgreementOutcome:
        at, in_agreement, _, _ = self._here()
        if question.position > at:
            return self._not_there(at)
        if self._calls_otherwise(question):
            return AgreementOutcome.OTHERWISE
        # a stripe that failed stays failed through the agreement after it
        last = at - 1 if in_agreement else at
        return (
            AgreementOutcome.ABORTED
            if question.position >= last and question.rail in self._failed
            else AgreementOutcome.NOT_YET
        )

    def _calls_otherwise(self, question: Question) -> bool:
        at, _, _, call = self.place
        return question.position == at and question.call != call

    def _not_there(self, at: int) -> AgreementOutcome:
        return AgreementOutcome.ABSENT if at == 0 or self._ended(at) else AgreementOutcome.BEHIND

    def _ended(self, at: int) -> bool:
        """True if this rank knows the outcome of this agreement."""
        return any(recorded == at for recorded, _ in self.outcomes)

    def _age(self, question: Question) -> float:
        at, in_agreement, came, looks = self._here()
        if question.position > at:
            return 0.0
        if question.position < at or question.rail not in looks.moved:
            # what the other ranks were sent when this one left may still be on its way
            return self.clock() - came
        if question.rail in looks.left:
            return self.clock() - looks.left[question.rail]
        if in_agreement and self._ended(question.position):
            return self.clock() - self.last_outcome_at
        # only up to the last look: a process that got no time to run does not know what came meanwhile
        return looks.quiet.get(question.rail, 0.0)

    def _arbitrate(self, rail: int) -> Answer:
        if not self._live - self._granted - self._failed.keys() - {rail}:
            return Answer(AgreementOutcome.NOT_YET)
        self._granted |= {rail} & self._live
        return Answer(AgreementOutcome.ABORTED)

    def _fence(self, question: Question) -> Answer:
        position = question.position
        if self._calls_otherwise(question):
            return Answer(AgreementOutcome.OTHERWISE)
        self.fenced_at = max(self.fenced_at, position)
        if self._withheld_at == position:
            return Answer(AgreementOutcome.ABORTED)
        for recorded, result in self.outcomes:
            if recorded == position:
                return (
                    Answer(AgreementOutcome.ABORTED)
                    if result is None
                    else Answer(AgreementOutcome.COMMITTED, result=_bytes(result))
                )
        if self._verdict is not None:
            return Answer(AgreementOutcome.GAVE_UP, result=self._verdict)
        at = self.place[0]
        if position > at:
            return Answer(self._not_there(at))
        if position < at:
            return Answer(AgreementOutcome.FORGOTTEN)
        self._withheld_at = position
        return Answer(AgreementOutcome.ABORTED)


def first_line(error: object) -> str:
    """The first line of an error's message."""
    return str(error).partition("\n")[0]


def _bytes(array: Flat) -> bytes:
    return array.view(np.uint8).tobytes()

# SPDX-License-Identifier: Apache-2.0
"""How the ranks agree on which rail failed, and where: each keeps a state, and answers questions about it.

What ranks do together over several rails is a sequence of numbered positions, the same on every rank: ranges of a
tensor carried over all rails at once, or one short allreduce on a single rail, a *agreement*.  Ranges may end
differently from rank to rank; the agreement after them exchanges how.  A agreement itself ends alike for all:

    COMMITTED  some rank has its result, and everybody can have it: each keeps its last results
    ABORTED  no rank has it, and no rank will: the rail is dead

A rank whose rail fails in a agreement asks all others to *fence* it: from the answer on, a rank that did not have the
result does not take it any more.  Nobody changes an answer, so all who ask hear the same.

A rail that is merely quiet has failed where every rank is there and nothing moves on it for any of them (``age``); a
rank that has not come yet is no failure.  Only time in which somebody looked counts: a machine that stood still has
heard nothing, and knows nothing.  Before it gives such a rail up, a rank asks the *arbiter*, rank 0, which grants all
but the last one: where everything stands still, ranks that each blame another rail would lose them all.

A rank that gives up because others are missing (``verdict``) says so to whoever asks it from then on: all hear who it
was, whenever they came themselves.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np

from netfold.host.operation.rail import Flat

REMEMBERED = 2
"""Settlements whose outcome is remembered.  No rank is more than one behind another: who is done with one has had
everybody's part of it, or everybody's word."""
MAX_LOOK_GAP = 0.03
"""Seconds since the last look that count as quiet, at most: rails are looked at every 10 ms, so who comes later than
this stood still himself."""
ARBITER = 0
"""The rank that says which rails may be given up."""


class QuestionKind(IntEnum):
    """Questions of one rank to another."""

    AGE = 1
    FENCE = 2
    GIVE_UP = 3
    """To the arbiter: may this rail, which is quiet everywhere, be given up?"""


class AgreementOutcome(IntEnum):
    """Of a agreement, as a rank that is asked to fence it answers; of a rail, ABORTED: given up."""

    NOT_YET = 0
    ABORTED = 1
    COMMITTED = 2
    FORGOTTEN = 3
    ABSENT = 4
    """The asked rank has not come to this position, and waits for nothing."""
    BEHIND = 5
    """The same, because it still waits for something before it."""
    GAVE_UP = 6
    """It has given up, and ``Answer.result`` says why."""


@dataclass(frozen=True)
class Question:
    """``rail`` is the one in question: the way to ask is another one."""

    ask: QuestionKind
    position: int
    rail: int


@dataclass(frozen=True)
class Answer:
    """``age`` in seconds.  ``result``: a agreement's where it is COMMITTED, why a rail failed where it is ABORTED, the
    verdict where all is GAVE_UP."""

    outcome: AgreementOutcome = AgreementOutcome.NOT_YET
    age: float = 0.0
    result: bytes = b""


class OutOfBandChannel(Protocol):
    """How a rank asks the others, besides the rails."""

    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        """Answers by rank; those that none came from within so many seconds are missing."""

    def refused(self) -> Collection[int]:
        """Ranks whose machine answers that nobody listens there: gone for good."""

    def close(self) -> None:
        """Answers nobody any more."""


class RankState:
    """One rank's state, written by the threads of its rails and read by whoever answers questions.

    clock  monotonic seconds, those of the rails' progress
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._at = 0
        self._in_agreement = False
        self._fenced = False
        self._moved: dict[int, float] = {}
        self._looked: dict[int, float] = {}
        self._quiet: dict[int, float] = {}
        """Seconds without progress in which the rail was looked at."""
        self._left: dict[int, float] = {}
        self._failed: dict[int, str] = {}
        """Rails that failed in the ranges of this position, or of the one before the agreement, and why."""
        self._live: frozenset[int] = frozenset()
        self._granted: set[int] = set()
        """Live rails that the arbiter let somebody give up."""
        self._came = 0.0
        self._outcomes: deque[tuple[int, Flat | None]] = deque(maxlen=REMEMBERED)
        self._verdict: bytes | None = None
        self.last_outcome_at = -math.inf
        """When the last agreement was done."""

    def enter_stripes(self, position: int, rails: Collection[int]) -> None:
        """This rank is at ``position``, where each of these rails carries a range."""
        now = self._clock()
        with self._lock:
            self._at, self._in_agreement, self._fenced, self._came = position, False, False, now
            self._moved, self._left, self._looked, self._quiet = dict.fromkeys(rails, now), {}, {}, {}
            self._failed = {}

    def enter_agreement(self, position: int, rail: int) -> float:
        """This rank is at a agreement, which this rail carries.  The time, once for all who want to know it."""
        # a short allreduce may take a third of a millisecond: what is done here is done for each of them
        now = self._clock()
        with self._lock:
            self._at, self._in_agreement, self._fenced, self._came, self._moved = (
                position,
                True,
                False,
                now,
                {rail: now},
            )
            if self._left or self._looked:
                self._left, self._looked, self._quiet = {}, {}, {}
        return now

    def record_progress(self, rail: int, when: float, most: float = MAX_LOOK_GAP) -> float:
        """A look at a rail, which made its last progress then; for how many seconds it has been quiet.

        most  seconds that count since the last look
        """
        with self._lock:
            if rail not in self._moved:
                return 0.0
            now = self._clock()
            since = self._looked.get(rail, self._came)
            quiet = self._quiet.get(rail, 0.0)
            if when > self._moved[rail]:
                self._moved[rail], since, quiet = when, max(since, when), 0.0
            self._looked[rail] = now
            self._quiet[rail] = quiet + min(now - since, most)
            return self._quiet[rail]

    def quiet_seconds(self, rail: int) -> float:
        """For how many seconds the rail has been quiet here; 0 where it carries nothing now."""
        with self._lock:
            if rail not in self._moved or rail in self._left:
                return 0.0
            return self._quiet.get(rail, 0.0) + min(self._clock() - self._looked.get(rail, self._came), MAX_LOOK_GAP)

    def set_live(self, rails: Collection[int], *, told: bool = False) -> None:
        """Rails that are up, as all ranks agree.

        told  every rank has just told which rails it gave up, so what was granted and not used is void
        """
        with self._lock:
            self._live = frozenset(rails)
            self._granted = set() if told else self._granted & self._live

    def leave_rail(self, rail: int, *, failure: object = None) -> None:
        """The rail has ended here, well or not: this rank waits for nothing on it any more."""
        with self._lock:
            self._left[rail] = self._clock()
            if failure is not None:
                self._failed[rail] = first_line(failure)

    def fenced(self, position: int) -> bool:
        """Whether somebody has fenced the agreement in which this rank is."""
        with self._lock:
            return self._fenced and self._at == position

    def commit(self, position: int, result: Flat) -> bool:
        """This rank has the agreement's result, which stays as it is until the next but one.  False: fenced before."""
        with self._lock:
            if self._fenced and self._at == position:
                return False
            self._outcomes.append((position, result))
            self.last_outcome_at = self._clock()
            return True

    def adopt_outcome(self, position: int, result: Flat | None) -> None:
        """The outcome as others told it; None: void."""
        with self._lock:
            self._outcomes.append((position, result))
            self.last_outcome_at = self._clock()

    def give_up(self, why: bytes) -> None:
        """The verdict: this rank waits no longer, for anything.  The first one stays."""
        with self._lock:
            if self._verdict is None:
                self._verdict = why

    @property
    def gave_up(self) -> bool:
        """Whether there is a verdict."""
        return self._verdict is not None

    # ---- answers -----------------------------------------------------------------------------------------------------
    def answer(self, question: Question) -> Answer:
        """Answers another rank, or this one's own question."""
        with self._lock:
            if question.ask is QuestionKind.AGE:
                if self._verdict is not None:
                    return Answer(AgreementOutcome.GAVE_UP, result=self._verdict)
                outcome = self._carrier_state(question)
                why = self._failed[question.rail] if outcome is AgreementOutcome.ABORTED else ""
                return Answer(outcome, self._age(question), why.encode())
            if question.ask is QuestionKind.GIVE_UP:
                return self._arbitrate(question.rail)
            return self._fence(question.position)

    def _carrier_state(self, question: Question) -> AgreementOutcome:
        if question.position > self._at:
            return self._not_there()
        # a range that failed stays failed through the agreement after it
        last = self._at - 1 if self._in_agreement else self._at
        return (
            AgreementOutcome.ABORTED
            if question.position >= last and question.rail in self._failed
            else AgreementOutcome.NOT_YET
        )

    def _not_there(self) -> AgreementOutcome:
        done = self._at == 0 or (bool(self._outcomes) and self._outcomes[-1][0] == self._at)
        return AgreementOutcome.ABSENT if done else AgreementOutcome.BEHIND

    def _age(self, question: Question) -> float:
        if question.position > self._at:
            return 0.0
        if question.position < self._at or question.rail not in self._moved:
            # what the others got when we left may still be on its way to them
            return self._clock() - self._came
        if question.rail in self._left:
            return self._clock() - self._left[question.rail]
        if self._in_agreement and self._outcomes and self._outcomes[-1][0] == question.position:
            return self._clock() - self.last_outcome_at
        # up to when the rail itself looked: a process that got no time to run knows of nothing that came meanwhile
        return self._quiet.get(question.rail, 0.0)

    def _arbitrate(self, rail: int) -> Answer:
        if not self._live - self._granted - self._failed.keys() - {rail}:
            return Answer(AgreementOutcome.NOT_YET)
        self._granted |= {rail} & self._live
        return Answer(AgreementOutcome.ABORTED)

    def _fence(self, position: int) -> Answer:
        for kept, result in self._outcomes:
            if kept == position:
                return (
                    Answer(AgreementOutcome.ABORTED)
                    if result is None
                    else Answer(AgreementOutcome.COMMITTED, result=_bytes(result))
                )
        if self._verdict is not None:
            return Answer(AgreementOutcome.GAVE_UP, result=self._verdict)
        if position > self._at:
            return Answer(self._not_there())
        if position == self._at and not self._in_agreement:
            return Answer(AgreementOutcome.NOT_YET)
        if position < self._at:
            return Answer(AgreementOutcome.FORGOTTEN)
        self._fenced = True
        return Answer(AgreementOutcome.ABORTED)


def first_line(error: object) -> str:
    """What an error says, in short."""
    return str(error).partition("\n")[0]


def _bytes(array: Flat) -> bytes:
    return array.view(np.uint8).tobytes()

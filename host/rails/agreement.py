# SPDX-License-Identifier: Apache-2.0
"""Agreements: short allreduces on a single rail that end alike on all ranks, whichever rail fails meanwhile
(``rank_state``).

The result is first written to memory of our own, where it stays for two agreements, for ranks that may lack it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.conversion import elements_at_ends
from netfold.host.operation.rail import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.cut import call_number, reduced
from netfold.host.rails.missing_ranks import MissingRankDetector
from netfold.host.rails.rail_set import Fenced, RailSet
from netfold.host.rails.rank_state import AgreementOutcome, Question, QuestionKind, RankState

PAUSE_SECONDS = 0.002
"""Seconds between two questions to ranks that answer and have not reached the agreement yet."""


@dataclass(frozen=True, slots=True)
class KnownAgreement:
    """A kind of agreement that one rail carries (``Agreements.remember``).

    rail     its index
    call     the number of such a call (``cut.call_number``)
    carry    what carries a request over it
    results  memory for the results by turn, of the size and type of the kind
    """

    rail: int
    call: int
    carry: Callable[[AllreduceRequest], int]
    results: tuple[Flat, Flat]


class Agreements:
    """Runs agreements on one rank.  Parameters as of ``MultiRail`` and ``policy``.

    quickest  returns the rail to use where the chosen one has failed
    """

    def __init__(
        self, rails: RailSet, state: RankState, detector: MissingRankDetector, quickest: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rails, self._state, self._detector, self._quickest, self._clock = rails, state, detector, quickest, clock
        self._buffers: list[Flat] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._results: list[Flat] = [np.empty(0, np.int32), np.empty(0, np.int32)]
        """Views of ``_buffers`` that hold the last two results."""
        self._turn = 0
        self.carrier = 0
        """Index of the rail that carried the last agreement."""
        self.seconds = 0.0
        """Duration of the last agreement."""
        self.failed = False
        """True if a rail failed during the last agreement."""
        self.saturated = 0
        """Elements of the last agreement, a saturating sum, that ended at a limit of the range."""

    def run(
        self, source: Flat, reduction: Reduction, rail: int, coding: Coding = PLAIN, algorithm: str | None = None
    ) -> Flat:
        """The reduction of every rank's ``source``, in memory that stays valid until the second agreement after this
        one.

        It runs over ``rail``, and where that fails over the quickest one left.  Either all ranks get the result or all
        raise.
        """
        rails, state = self._rails, self._state
        self.carrier, self.failed, begin = rail, False, 0.0
        call = call_number(reduced(source.size, reduction))
        while True:
            position = rails.advance()
            came = state.enter_agreement(position, rail, call)
            begin = begin or came
            self._turn = turn = self._turn ^ 1
            result = self._results[turn]
            if result.size != source.size or result.dtype is not source.dtype:
                result = self._results[turn] = self._memory(turn, source)
            try:
                if rails.broken and rail in rails.broken:
                    raise rails.broken[rail]
                self.saturated = rails[rail].allreduce(
                    AllreduceRequest(source, result, reduction, position, coding, algorithm)
                )
            except NetFoldError as error:
                failure = error
            else:
                if state.store_result(position, result, turn):
                    self.seconds = state.last_outcome_at - begin
                    return result
                failure = Fenced("another rank stopped it")
            if self._settle(failure, call, rail, result, turn, coding):
                self.seconds = state.last_outcome_at - begin
                return result
            self.carrier = rail = self._quickest()

    def remember(self, request: AllreduceRequest, rail: int) -> KnownAgreement:
        """The kind of agreement that has just succeeded over this rail, for ``repeat``."""
        like, call = request.source, call_number(reduced(request.source.size, request.reduction))
        results = self._memory(0, like), self._memory(1, like)
        return KnownAgreement(rail, call, self._rails[rail].way(request.coding, request.algorithm), results)

    def repeat(self, known: KnownAgreement, request: AllreduceRequest) -> int:
        """Runs an agreement of a kind that has been run before, into ``request.out``, as ``run`` does; no rail may have
        failed since.  Returns what ``Rail.allreduce`` does."""
        # kept short until a failure: a small allreduce takes only a third of a millisecond
        state, rail = self._state, known.rail
        self.carrier, self.failed = rail, False
        position = self._rails.advance(request.number)
        self._turn = turn = self._turn ^ 1
        result = known.results[turn]
        begin = state.enter_agreement(position, rail, known.call)
        try:
            saturated = known.carry(
                AllreduceRequest(request.source, result, request.reduction, position, request.coding, request.algorithm)
            )
        except NetFoldError as error:
            failure = error
        else:
            if state.store_result(position, result, turn):
                self.seconds = state.last_outcome_at - begin
                request.out[...] = result
                return saturated
            failure = Fenced("another rank stopped it")
        if not self._settle(failure, known.call, rail, result, turn, request.coding):
            result = self.run(
                request.source, request.reduction, self._quickest(), request.coding, request.algorithm
            )
            self.failed = True
        self.seconds = state.last_outcome_at - begin
        request.out[...] = result
        return self.saturated

    def _settle(
        self, failure: NetFoldError, call: int, rail: int, result: Flat, turn: int, coding: Coding
    ) -> bool:
        """Ends an agreement that has failed here alike on all ranks.  Returns whether some rank had its result, which
        is then in ``result``; else the rail is dead, and the agreement is to be run over another one.  Raises what ends
        everything."""
        rails, state, position = self._rails, self._state, self._rails.position
        if isinstance(failure, RankMismatch):
            rails.stop_mismatched(failure)
        if rails.stopped is not None:
            raise failure
        if not isinstance(failure, Fenced):
            rails.broken.setdefault(rail, failure)
        self.failed = True
        state.leave_rail(rail)
        committed = self._fence_everywhere(Question(QuestionKind.FENCE, position, rail, call))
        if committed is None:
            state.adopt_outcome(position, None, turn)
            rails.mark_down({rail: failure})
            return False
        # another rank had it before the rail failed; our absence at the next use makes the rail dead there
        result.view(np.uint8)[:] = np.frombuffer(committed, np.uint8)
        self.saturated = elements_at_ends(result) if coding.saturate else 0
        state.adopt_outcome(position, result, turn)
        rails.broken.setdefault(rail, failure)
        return True

    def _fence_everywhere(self, question: Question) -> bytes | None:
        """Fences an agreement on every rank.  Returns its result where any rank had it, or None where none has it and
        none will."""
        own = self._state.answer(question)
        if own.outcome is AgreementOutcome.COMMITTED:
            return own.result
        left = set(self._detector.others)
        heard = self._clock()
        result: bytes | None = None
        while left:
            asked = frozenset(left)
            answers = self._detector.ask(question, asked)
            for rank, answer in answers.items():
                if answer.outcome is AgreementOutcome.FORGOTTEN:
                    raise NetFoldError(f"rank {rank} knows nothing of step {question.position} any more; join anew")
                if answer.outcome is AgreementOutcome.COMMITTED:
                    result = answer.result
                if answer.outcome not in (AgreementOutcome.NOT_YET, AgreementOutcome.ABSENT, AgreementOutcome.BEHIND):
                    left.discard(rank)
            if len(left) < len(asked):
                heard = self._clock()
            self._detector.check(answers, asked, self._clock() - heard)
            if left and answers:
                time.sleep(PAUSE_SECONDS)
        return result

    def _memory(self, turn: int, like: Flat) -> Flat:
        """Memory for the results of this turn, of the size and type of ``like``."""
        if self._buffers[turn].nbytes < like.nbytes:
            self._buffers[turn] = np.empty(like.nbytes, np.uint8)
        return self._buffers[turn][: like.nbytes].view(like.dtype)

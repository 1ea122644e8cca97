# SPDX-License-Identifier: Apache-2.0
"""Agreements: short allreduces on a single rail that end alike on all ranks, whichever rail fails meanwhile
(``rank_state``).

The result is first written to memory of our own, where it stays for two agreements, for ranks that may lack it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.conversion import elements_at_ends
from netfold.host.operation.rail import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.missing_ranks import MissingRankDetector
from netfold.host.rails.rail_set import Fenced, RailSet
from netfold.host.rails.rank_state import AgreementOutcome, Question, QuestionKind, RankState

PAUSE_SECONDS = 0.002
"""Seconds between two questions to ranks that answer and have not come to the agreement yet."""


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
        """Whether a rail failed during the last agreement."""
        self.saturated = 0
        """Elements of the last agreement, a saturating sum, that stand at an end of the range."""

    def run(
        self, source: Flat, reduction: Reduction, rail: int, coding: Coding = PLAIN, algorithm: str | None = None
    ) -> Flat:
        """The reduction of every rank's ``source``, in memory that stays valid until the second agreement after this
        one.

        It runs over ``rail``, and where that fails over the quickest one left.  Either all ranks get the result or all
        raise.
        """
        # kept short until the first failure: a small allreduce takes only a third of a millisecond
        rails, state = self._rails, self._state
        self.carrier, self.failed, begin = rail, False, 0.0
        while True:
            position = rails.advance()
            came = state.enter_agreement(position, rail)
            begin = begin or came
            self._turn = turn = self._turn ^ 1
            result = self._results[turn]
            if result.size != source.size or result.dtype is not source.dtype:
                result = self._memory(source)
            try:
                if rails.broken and rail in rails.broken:
                    raise rails.broken[rail]
                carrier = rails.rails[rail]
                assert carrier is not None, rail
                self.saturated = carrier.allreduce(
                    AllreduceRequest(source, result, reduction, position, coding, algorithm)
                )
            except RankMismatch:
                raise
            except NetFoldError as error:
                if rails.stopped is not None:
                    raise
                failure = error
                if not isinstance(error, Fenced):
                    rails.broken.setdefault(rail, error)
            else:
                if state.store_result(position, result, turn):
                    self.seconds = state.last_outcome_at - begin
                    return result
                failure = Fenced("another rank stopped it")
            self.failed = True
            state.leave_rail(rail)
            committed = self._fence_everywhere(position, rail)
            if committed is not None:
                # another rank had it before the rail failed; our absence at the next use makes the rail dead there
                result.view(np.uint8)[:] = np.frombuffer(committed, np.uint8)
                self.saturated = elements_at_ends(result) if coding.saturate else 0
                state.adopt_outcome(position, result, turn)
                rails.broken.setdefault(rail, failure)
                self.seconds = state.last_outcome_at - begin
                return result
            state.adopt_outcome(position, None, turn)
            rails.mark_down({rail: failure})
            self.carrier = rail = self._quickest()

    def _fence_everywhere(self, position: int, rail: int) -> bytes | None:
        """Fences an agreement on every rank.  Returns its result where any rank had it, or None where none has it and
        none will."""
        question = Question(QuestionKind.FENCE, position, rail)
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
                    raise NetFoldError(f"rank {rank} knows nothing of step {position} any more; join anew")
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

    def _memory(self, like: Flat) -> Flat:
        """Memory for the result of this turn, of the size and type of ``like``."""
        if self._buffers[self._turn].nbytes < like.nbytes:
            self._buffers[self._turn] = np.empty(like.nbytes, np.uint8)
        result = self._results[self._turn] = self._buffers[self._turn][: like.nbytes].view(like.dtype)
        return result

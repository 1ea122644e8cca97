# SPDX-License-Identifier: Apache-2.0
"""Detects which ranks are missing while nothing moves, so that every rank's error names them.

    gone      its machine answers that nobody listens at its port any more
    silent    it does not answer: it has stopped, or is cut off
    absent    it answers, and has not come to this operation

A rank that is behind, since it still waits for something itself, is not to blame: it will name another one.

A rank that detects missing ranks gives up, and answers every later question with its verdict (``RankState.give_up``):
ranks that came later, or looked a moment later, then name the same ranks instead of the one that gave up first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RankMismatch
from netfold.host.mesh.mesh import ranks
from netfold.host.mesh.operations import SAME_ORDER_HINT
from netfold.host.rails.rank_state import (
    ARBITER,
    AgreementOutcome,
    Answer,
    OutOfBandChannel,
    Question,
    QuestionKind,
    RankState,
)

GONE_SECONDS = 0.5
"""Seconds without progress after which a rank is lost if its machine refuses connections to it."""
VERDICTS = (PeerLost, RankMismatch, CollectiveTimeout)
"""Kinds of errors with which a rank gives up."""
ANSWER_SECONDS = 0.25
"""Seconds to wait for the other ranks' answers."""


class MissingRankDetector:
    """Asks the other ranks over the out-of-band channel.

    others     their numbers
    timeout    seconds without progress after which ranks that are silent or absent count as missing
    job_error  returns what has ended the job on all planes, or None; given whether ranks that have left in order end it
    """

    def __init__(
        self, state: RankState, channel: OutOfBandChannel, others: Sequence[int], *, timeout: float,
        job_error: Callable[[bool], NetFoldError | None] = lambda left: None,
    ) -> None:
        self._state, self._channel, self._job_error = state, channel, job_error
        self.others = others
        self.timeout = timeout

    def ask(self, question: Question, of: Collection[int]) -> dict[int, Answer]:
        """Answers by rank.  Raises the verdict of a rank that has given up, and RankMismatch where one calls something
        else."""
        answers = self._channel.ask(question, of, ANSWER_SECONDS)
        for rank, answer in answers.items():
            if answer.outcome is AgreementOutcome.GAVE_UP:
                name, _, why = answer.result.decode(errors="replace").partition(" ")
                kind = next((kind for kind in VERDICTS if kind.__name__ == name), CollectiveTimeout)
                raise self.give_up(kind(f"{why} (so rank {rank} found)"), why)
            if answer.outcome is AgreementOutcome.OTHERWISE:
                why = f"{ranks([rank])} calls something else than another rank; {SAME_ORDER_HINT}"
                raise self.give_up(RankMismatch(why), why)
        return answers

    def awaited(self, answers: Mapping[int, Answer]) -> list[int]:
        """The ranks that have not come, or do not answer, where all were asked."""
        return [rank for rank in self.others
                if rank not in answers or answers[rank].outcome is AgreementOutcome.ABSENT]

    def may_give_up(self, position: int, rail: int) -> bool:
        """True if the arbiter permits this rank to give up a quiet rail; it never permits this for the last one.
        Raises as ``ask``."""
        question = Question(QuestionKind.GIVE_UP, position, rail)
        if ARBITER not in self.others:
            return self._state.answer(question).outcome is AgreementOutcome.ABORTED
        answer = self.ask(question, [ARBITER]).get(ARBITER)
        return answer is not None and answer.outcome is AgreementOutcome.ABORTED

    def check(self, answers: dict[int, Answer], asked: Collection[int], quiet: float) -> None:
        """Raises PeerLost or CollectiveTimeout where ranks are missing.

        quiet  seconds since anything moved, or any rank came
        """
        if quiet <= GONE_SECONDS:
            return
        silent = sorted(set(asked) - set(answers))
        gone = [rank for rank in self._channel.refused() if rank in silent]
        self.check_job(quiet)
        if gone:
            raise self.give_up(PeerLost(why := f"{_are(gone)} gone: nobody listens there any more"), why)
        if quiet <= self.timeout:
            return
        absent = [rank for rank, answer in sorted(answers.items()) if answer.outcome is AgreementOutcome.ABSENT]
        behind = [rank for rank, answer in sorted(answers.items()) if answer.outcome is AgreementOutcome.BEHIND]
        missing = [f"{ranks([rank])} does not answer (stopped, or cut off)" for rank in silent]
        missing += [f"{ranks([rank])} answers, and has not called this operation" for rank in absent]
        if behind and quiet > 2 * self.timeout:
            missing += [f"{_are(behind)} behind, and waits for others without telling for whom"]
        if missing:
            why = f"nothing moved for {self.timeout:g} s: {'; '.join(missing)}"
            raise self.give_up(CollectiveTimeout(why), why)

    def check_job(self, quiet: float, *, left: bool = True) -> None:
        """Raises what has ended the job on all planes, where nothing has moved for ``quiet`` seconds, which are many
        enough.

        left  whether a rank that has left in order ends it: it may be none of a group's
        """
        if quiet > GONE_SECONDS and (error := self._job_error(left)) is not None:
            raise self.give_up(type(error)(str(error)), str(error))

    def give_up(self, error: NetFoldError, why: str) -> NetFoldError:
        """Answers every later question of the other ranks with this error.  Returns it.

        why  its text for them
        """
        self._state.give_up(f"{type(error).__name__} {why}".encode())
        return error


def _are(numbers: Sequence[int]) -> str:
    return f"{ranks(numbers)} {'is' if len(numbers) == 1 else 'are'}"

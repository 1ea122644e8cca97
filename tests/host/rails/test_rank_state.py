# SPDX-License-Identifier: Apache-2.0
"""A rank's answer about an agreement, whichever comes first: its own result, or another rank's fence."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.rails.rank_state import STRIPES, AgreementOutcome, Question, QuestionKind, RankState

RESULT = np.arange(3, dtype=np.int32)


def fence(position: int) -> Question:
    return Question(QuestionKind.FENCE, position, 0)


def at(position: int) -> RankState:
    """A rank in this agreement, on a clock that stands still."""
    state = RankState(lambda: 0.0)
    state.set_live([0, 1])
    state.place = position, 0, 0.0, 0
    return state


def store(state: RankState, position: int, place: int = 0) -> bool:
    """Stores the result as a call does; returns whether it may be taken."""
    return state.store_result(position, RESULT, place)


def test_a_result_before_the_fence_is_committed() -> None:
    """A rank that asks afterwards gets the result, every time."""
    state = at(5)
    assert store(state, 5)
    for _ in range(2):
        answer = state.answer(fence(5))
        assert (answer.outcome, answer.result) == (AgreementOutcome.COMMITTED, RESULT.tobytes())


def test_a_result_after_the_fence_is_not_taken() -> None:
    """The answer does not change, though the result came all the same."""
    state = at(5)
    assert state.answer(fence(5)).outcome is AgreementOutcome.ABORTED
    assert state.fenced(5)
    assert not store(state, 5)
    assert state.answer(fence(5)).outcome is AgreementOutcome.ABORTED
    assert state.answer(Question(QuestionKind.AGE, 6, 0)).outcome is AgreementOutcome.BEHIND


def test_a_fence_that_comes_between_storing_and_looking_finds_the_result() -> None:
    """The caller sees the fence then, and may take the result, since the answer was COMMITTED."""
    state = at(5)
    state.outcomes[0] = 5, RESULT
    assert state.answer(fence(5)).outcome is AgreementOutcome.COMMITTED
    assert state.fenced_at == 5
    assert not state.withheld(5, 0)
    assert state.answer(fence(5)).outcome is AgreementOutcome.COMMITTED


@pytest.mark.parametrize("stripes", [False, True])
def test_a_rank_that_is_in_another_call_there_says_so(stripes: bool) -> None:
    """In stripes or in an agreement, whatever is asked: not so before it comes there, or afterwards, and it may take
    its result all the same."""
    state = at(5)
    if stripes:
        state.enter_stripes(5, [0, 1], 7)
    else:
        state.enter_agreement(5, 0, 7)
    for kind in (QuestionKind.AGE, QuestionKind.FENCE):
        ask = [state.answer(Question(kind, position, 0, 8)).outcome for position in (4, 5, 6)]
        assert [outcome is AgreementOutcome.OTHERWISE for outcome in ask] == [False, True, False]
    assert state.answer(Question(QuestionKind.AGE, 5, 0, 7)).outcome is AgreementOutcome.NOT_YET
    assert stripes or store(state, 5)


def test_a_fence_before_the_rank_comes_withholds_nothing() -> None:
    """A rank that is not there yet has answered so, and takes its result when it comes."""
    state = at(4)
    assert state.answer(fence(5)).outcome is AgreementOutcome.BEHIND
    state.place = 5, 0, 0.0, 0
    assert store(state, 5)


@pytest.mark.parametrize("other", [5, 7])
def test_a_fence_of_another_agreement_hides_none_that_withholds_a_result(other: int) -> None:
    """A late fence of the agreement before, or an early one of the next, comes after this one was answered ABORTED: the
    result is not taken all the same, and the answer stays."""
    state = at(5)
    assert store(state, 5)
    state.place = 6, 0, 0.0, 0
    assert state.answer(fence(6)).outcome is AgreementOutcome.ABORTED
    expected = {5: AgreementOutcome.COMMITTED, 7: AgreementOutcome.BEHIND}
    assert state.answer(fence(other)).outcome is expected[other]
    assert not store(state, 6, 1)
    assert state.answer(fence(6)).outcome is AgreementOutcome.ABORTED


def test_a_fence_far_ahead_withholds_nothing() -> None:
    """A rank that asks about a position which nobody reaches makes no other one lose a result."""
    state = at(5)
    assert state.answer(fence(1 << 40)).outcome is AgreementOutcome.BEHIND
    for position in range(5, 9):
        state.place = position, 0, 0.0, 0
        assert store(state, position, position & 1)
    assert state.answer(fence(8)).outcome is AgreementOutcome.COMMITTED


def test_what_another_rank_had_is_kept_for_the_next_one_who_asks() -> None:
    """After an answer of ABORTED the rank has learned the result from another one."""
    state = at(5)
    state.answer(fence(5))
    state.adopt_outcome(5, RESULT, 0)
    assert state.answer(fence(5)).result == RESULT.tobytes()
    state.place = 6, STRIPES, 0.0, 0
    state.place = 7, 0, 0.0, 0
    assert store(state, 7, 1)
    assert state.answer(fence(5)).outcome is AgreementOutcome.COMMITTED


def test_looks_at_a_rail_are_of_the_present_position_alone() -> None:
    """Silence in one agreement says nothing of the next one."""
    now = [0.0]
    state = RankState(lambda: now[0])
    state.set_live([0])
    state.place = 1, 0, 0.0, 0
    now[0] = 0.02
    assert state.record_progress(0, 0.0) == 0.02
    state.outcomes[0] = 1, RESULT
    assert not state.carries(0)
    state.place = 2, 0, 0.02, 0
    assert state.carries(0)
    assert state.record_progress(0, 0.0) == 0.0
    now[0] = 0.04
    assert state.quiet_seconds(0) == 0.02

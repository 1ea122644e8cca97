# SPDX-License-Identifier: Apache-2.0
"""How long what has come back must stay up before running jobs use it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.health.steadiness import FORGET, MOST, Steadiness


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 30.0)), max_size=30), st.floats(0.1, 10.0))
def test_what_is_steady_has_been_up_for_its_hold(history: list[tuple[bool, float]], hold: float) -> None:
    """Never less than the first hold, never more than MOST; `next` is when it changes."""
    now, up_since, down = 0.0, None, False
    steadiness = Steadiness(hold, lambda: now)
    for goes_down, seconds in history:
        if down and not goes_down:
            up_since = now
        down = goes_down
        steadiness.note({"s"} if down else set())
        now += seconds
        unsteady = "s" in steadiness.unsteady()
        assert not (unsteady and down)
        if not down and up_since is not None:
            up = now - up_since
            assert unsteady or up >= hold * 0.999
            assert not unsteady or up < max(MOST, hold)
        wait = steadiness.next()
        assert (wait is not None) == unsteady


def test_a_flapping_link_waits_ever_longer_and_is_forgiven() -> None:
    """Twice as long after each return that comes soon; from the start again once it has behaved."""
    now = 0.0
    steadiness = Steadiness(2.0, lambda: now)
    for held in (2.0, 4.0, 8.0):
        steadiness.note({1})
        steadiness.note(set())
        assert steadiness.next() == pytest.approx(held)
        now += held - 0.1
        assert steadiness.unsteady() == {1}
        now += 0.2
        assert steadiness.unsteady() == set()
    now += FORGET * 8.0
    steadiness.note({1})
    steadiness.note(set())
    assert steadiness.next() == pytest.approx(2.0)
    steadiness.note({1})
    assert steadiness.unsteady() == set(), "it is down, not unsteady"
    assert steadiness.next() is None

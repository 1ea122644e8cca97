# SPDX-License-Identifier: Apache-2.0
"""How long what has come back must stay up before running jobs use it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.health.damping import MAX_HOLD, RESET_AFTER, FlapDamping


@given(st.lists(st.tuples(st.booleans(), st.floats(0.01, 30.0)), max_size=30), st.floats(0.1, 10.0))
def test_what_is_steady_has_been_up_for_its_hold(history: list[tuple[bool, float]], hold: float) -> None:
    """Never less than the first hold, never more than MAX_HOLD; `next_release` is when it changes."""
    now, up_since, down = 0.0, None, False
    damping = FlapDamping(hold, lambda: now)
    for goes_down, seconds in history:
        if down and not goes_down:
            up_since = now
        down = goes_down
        damping.update({"s"} if down else set())
        now += seconds
        suppressed = "s" in damping.suppressed()
        assert not (suppressed and down)
        assert damping.unsteady() == ({"s"} if suppressed or down else set())
        if not down and up_since is not None:
            up = now - up_since
            assert suppressed or up >= hold * 0.999
            assert not suppressed or up < max(MAX_HOLD, hold)
        wait = damping.next_release()
        assert (wait is not None) == suppressed


def test_a_flapping_link_waits_ever_longer_and_is_forgiven() -> None:
    """Twice as long after each return that comes soon; from the start again once it has behaved."""
    now = 0.0
    damping = FlapDamping(2.0, lambda: now)
    for held in (2.0, 4.0, 8.0):
        damping.update({1})
        damping.update(set())
        assert damping.next_release() == pytest.approx(held)
        now += held - 0.1
        assert damping.suppressed() == {1}
        now += 0.2
        assert damping.suppressed() == set()
    now += RESET_AFTER * 8.0
    damping.update({1})
    damping.update(set())
    assert damping.next_release() == pytest.approx(2.0)
    damping.update({1})
    assert damping.suppressed() == set(), "it is down, not suppressed"
    assert damping.next_release() is None

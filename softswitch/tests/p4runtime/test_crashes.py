# SPDX-License-Identifier: Apache-2.0
"""How long a program that crashes waits for its next start: with a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch.engine.errors import Unavailable
from softswitch.p4runtime.crashes import QUICK, WAITS, Crashes

ONE, OTHER = Path("one"), Path("other")


def test_each_quick_death_makes_the_next_start_wait_longer() -> None:
    """The waits are those of the table, the last one repeats, and the error names the deaths and the time left."""
    now = 100.0
    crashes = Crashes(clock=lambda: now)
    crashes.check(ONE)
    for number in range(len(WAITS) + 2):
        crashes.died(ONE, 0.1, "signal 11, SIGSEGV")
        wait = WAITS[min(number, len(WAITS) - 1)]
        assert crashes.wait(ONE) == pytest.approx(wait)
        if wait:
            with pytest.raises(Unavailable, match=rf"died {number + 1} times.*in {wait:.1f} s.*SIGSEGV"):
                crashes.check(ONE)
        now += wait
        crashes.check(ONE)


def test_a_long_life_and_another_program_start_afresh() -> None:
    """A process that lived long counts as the first to die; another program does not wait for the one that died."""
    crashes = Crashes(clock=lambda: 0.0)
    for _ in range(3):
        crashes.died(ONE, 0.1, "why")
    crashes.check(OTHER)
    crashes.died(ONE, QUICK, "why")
    crashes.check(ONE)
    for _ in range(3):
        crashes.died(ONE, 0.1, "why")
    crashes.died(OTHER, 0.1, "why")
    crashes.check(OTHER)

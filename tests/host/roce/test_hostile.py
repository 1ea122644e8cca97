# SPDX-License-Identifier: Apache-2.0
"""The queue pairs' engine under sanitizers, fed with packets that no peer would send."""

from __future__ import annotations

import pytest

from support.hostile.sanitized import host_engine
from switch_support import fuzz


@pytest.mark.fuzz
def test_hostile_packets_touch_nothing_they_should_not(fuzzing: fuzz.Fuzz) -> None:
    """Writes outside of registered memory, acknowledgements of what was never sent, packets cut and spoiled."""
    said = host_engine("rc", fuzzing, inputs=2000)

    assert " 0 pairs of endpoints" not in said

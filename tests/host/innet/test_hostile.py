# SPDX-License-Identifier: Apache-2.0
"""The fold engine under sanitizers, fed with results that no switch would send."""

from __future__ import annotations

import pytest

from support.hostile.sanitized import host_engine
from switch_support import fuzz


@pytest.mark.fuzz
def test_hostile_results_touch_nothing_they_should_not(fuzzing: fuzz.Fuzz) -> None:
    """Cut, spoiled, repeated, of other streams and operations: each is taken or dropped, and operations go on."""
    said = host_engine("fold", fuzzing, inputs=300)

    assert " 0 operations finished" not in said

# SPDX-License-Identifier: Apache-2.0
"""How the end of a process is told."""

from __future__ import annotations

import pytest

from netfold.topo.processes.lifecycle import how_ended, shell_status


@pytest.mark.parametrize(("code", "words", "status"), [
    (3, "ended with status 3", 3), (-9, "was killed by SIGKILL", 137), (-35, "was killed by signal 35", 163)])
def test_an_end_has_words_and_a_status(code: int, words: str, status: int) -> None:
    """Also that by a real-time signal, which has no name."""
    assert (how_ended(code), shell_status(code)) == (words, status)

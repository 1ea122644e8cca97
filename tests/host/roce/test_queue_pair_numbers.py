# SPDX-License-Identifier: Apache-2.0
"""The numbers of a rank's queue pairs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from netfold.host.roce.queue_pairs import CONNECTION_BIT, QueuePairs


@pytest.mark.parametrize("factor", [0, 6, 1 << 20, 0xFFFFFFFE, 0xFFFFFFFF])
def test_no_two_queue_pairs_of_a_rank_have_one_number(factor: int) -> None:
    """Whatever the job's secret gives, each peer and lane has a number of 24 bits that none of the others has."""
    drawn: Any = SimpleNamespace(_factor=factor, _offset=0x89ABCDEF)
    numbers = {QueuePairs.number_of(drawn, peer, lane) for peer in range(300) for lane in range(32)}
    assert len(numbers) == 300 * 32
    assert all(CONNECTION_BIT <= number < 2 * CONNECTION_BIT for number in numbers)

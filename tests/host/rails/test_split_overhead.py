# SPDX-License-Identifier: Apache-2.0
"""The overhead of using several rails is learned from split calls, by size, and fades where nothing is split."""

from __future__ import annotations

import numpy as np
import pytest

from netfold.host.rails.shares import Figure, RailShares
from netfold.host.rails.split_overhead import FADE, STEP, SplitOverhead

KB, MB = 1 << 10, 1 << 20
LATENCY, RATE, JOIN = 0.0004, 25e6, 0.0003
LIVE = [0, 1]


def twins() -> RailShares:
    made = RailShares(["a", "b"], join=JOIN)
    made.learn([Figure(LATENCY, RATE)] * 2, LIVE)
    return made


def call(shares: RailShares, nbytes: int, took: float | None) -> bool:
    """Runs one call and the exchange after it, which reports its duration if it was split.  Returns whether it was."""
    split = shares.split(nbytes, LIVE)
    if not split.whole:
        shares.record_cut_call(split, LIVE)
    shares.adopt_cut_seconds(None if split.whole else took)
    return not split.whole


def longest(nbytes: int) -> float:
    """Predicted seconds of the longest of two equal stripes."""
    return LATENCY + nbytes / 2 / RATE


def test_the_overhead_begins_as_a_fixed_cost() -> None:
    """Rails are used together from the size where the saving is worth c and an exchange: Nezha's threshold."""
    shares = twins()
    assert shares.preview(32 * KB, LIVE).whole
    split = shares.preview(64 * KB, LIVE)
    assert split.seconds == pytest.approx(longest(64 * KB) + JOIN + LATENCY)
    assert not split.whole


def test_a_size_for_which_splitting_does_not_pay_is_left_whole() -> None:
    """Split calls of 64 KB take longer than one rail alone: soon none is split, and other sizes are as before."""
    shares = twins()
    slow = 1.3 * (LATENCY + 64 * KB / RATE)
    cut = [call(shares, 64 * KB, slow) for _ in range(20)]
    assert 2 <= sum(cut) <= 8, cut
    assert not any(cut[sum(cut):]), "not once more"
    assert not shares.preview(256 * KB, LIVE).whole


def test_one_late_call_changes_nothing() -> None:
    """A call that waited half a second for the CPU counts only once, and only as long as the best rail alone would
    take."""
    shares = twins()
    usual = longest(64 * KB) + JOIN + LATENCY
    assert all(call(shares, 64 * KB, 0.5 if n == 10 else usual) for n in range(40))


def test_what_was_learned_fades_where_nothing_is_split() -> None:
    """After a while the size is split again, since the machine may have become idle; where it has, it stays split."""
    shares = twins()
    for _ in range(20):
        call(shares, 64 * KB, 1.0)
    whole = 0
    while not call(shares, 64 * KB, longest(64 * KB) + JOIN):
        whole += 1
        assert whole < 5 / FADE, "it never came back"
    assert whole > 10, "it would flap"
    assert all(call(shares, 64 * KB, longest(64 * KB) + JOIN) for _ in range(100))


def test_a_small_overhead_lets_smaller_tensors_be_split() -> None:
    """Where 40 KB over both rails take hardly longer than their stripes, 36 KB are split too."""
    shares = twins()
    size, smaller = 60 * KB, 40 * KB
    assert shares.preview(smaller, LIVE).whole
    assert not shares.preview(size, LIVE).whole
    for _ in range(60):
        assert call(shares, size, longest(size) + 0.0001)
    assert not shares.preview(smaller, LIVE).whole


def test_long_tensors_do_not_learn() -> None:
    """At 16 MB the overhead is negligible, and differences are due to the rates."""
    costs = SplitOverhead(2 * MB)
    costs.record_call(16 * MB, 0.3, 0.0007, 0.6)
    assert not costs.update(0.5)
    assert costs.extra_seconds(16 * MB) == 0.0


def test_small_changes_leave_shares_alone() -> None:
    """An overhead that varies by less than STEP is not adopted."""
    costs, rng = SplitOverhead(2 * MB), np.random.default_rng(1)
    for _ in range(200):
        costs.record_call(64 * KB, 0.0017, 0.0007, 0.003)
        assert not costs.update(0.0017 + 0.0007 + float(rng.uniform(-STEP, STEP)))

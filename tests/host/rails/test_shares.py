# SPDX-License-Identifier: Apache-2.0
"""Shares of rails: costs from measured calls, equal finish times, hysteresis, trials."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.rails.shares import BLOCK, GAIN_FRACTION, LONG_BYTES, TRIAL_BYTES, Estimate, Figure, RailShares
from netfold.host.selection.cost import RailCost

MB = 1 << 20
costs = st.builds(RailCost, st.floats(0, 0.05), st.floats(1e5, 1e10))


def shares(*rails: tuple[float, float | None]) -> RailShares:
    made = RailShares([f"rail{i}" for i in range(len(rails))], join=0.0)
    made.learn([Figure(*rail) for rail in rails], range(len(rails)))
    return made


@settings(deadline=None)
@given(st.lists(costs, min_size=2, max_size=3), st.integers(1, 64 * MB).map(lambda n: n * 4))
def test_shares_are_whole_blocks_add_up_and_beat_every_rail(rails: list[RailCost], nbytes: int) -> None:
    """Shares are whole blocks; all rails used finish together within a block, and no rail alone would be sooner."""
    made = shares(*((c.latency, c.bandwidth) for c in rails))
    split = made.preview(nbytes, range(len(rails)))
    assert sum(split.nbytes) == nbytes
    assert min(split.nbytes) >= 0
    assert all(n % BLOCK == 0 for n in split.nbytes[: split.used[-1]])
    alone = min(cost.seconds(nbytes) for cost in rails)
    assert split.single[1] == pytest.approx(alone)
    if len(split.used) > 1:
        finishes = [rails[i].seconds(split.nbytes[i]) for i in split.used]
        assert max(finishes) <= alone * GAIN_FRACTION + BLOCK * max(1 / c.bandwidth for c in rails)
        assert max(finishes) - min(finishes) <= BLOCK * sum(1 / rails[i].bandwidth for i in split.used)


def test_a_short_tensor_takes_the_quickest_rail_and_a_long_one_both() -> None:
    """At 1 KB latency decides, at 16 MB bandwidth; a rail three times as fast gets three quarters."""
    made = shares((0.0005, 1e7), (0.005, 3e7))
    assert made.preview(1024, [0, 1]).used == [0]
    split = made.preview(16 * MB, [0, 1])
    assert split.nbytes[1] / 16 / MB == pytest.approx(0.75, abs=0.01)


def test_what_the_second_rail_gains_must_be_worth_the_overhead() -> None:
    """A rail with a hundredth of the bandwidth is not used."""
    assert shares((0.001, 1e9), (0.001, 1e7)).preview(64 * MB, [0, 1]).used == [0]


def test_feedback_converges_from_wrong_figures_to_equal_finish() -> None:
    """Both rails are assumed to be equal and one is four times slower: after three calls they finish together."""
    truth = [RailCost(0.001, 4e7), RailCost(0.002, 1e7)]
    made, estimates = shares((0.001, 2e7), (0.002, 2e7)), [Estimate(), Estimate()]
    for estimate, cost in zip(estimates, truth, strict=True):
        estimate.add(1024, cost.seconds(1024))
    for _ in range(3):
        split = made.split(32 * MB, [0, 1])
        for rail, nbytes in enumerate(split.nbytes):
            estimates[rail].add(nbytes, truth[rail].seconds(nbytes))
        made.learn([Figure(min(e.latencies(None)), e.bandwidth()) for e in estimates], [0, 1])
    finishes = [truth[rail].seconds(nbytes) for rail, nbytes in enumerate(made.split(32 * MB, [0, 1]).nbytes)]
    assert max(finishes) / min(finishes) < 1.02


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.992, 1.008), min_size=5, max_size=10))
def test_noise_moves_no_shares(noise: list[float]) -> None:
    """Figures that vary by 0.8 % leave the shares as they are, since their cost is below MAX_REGRET."""
    made = shares((0.001, 1e8), (0.002, 3e7))
    before = made.preview(16 * MB, [0, 1]).nbytes
    for factor in noise:
        adopted = made.learn([Figure(0.001, 1e8 * factor), Figure(0.002, 3e7 / factor)], [0, 1])
        assert not adopted
    assert made.preview(16 * MB, [0, 1]).nbytes == before


def test_a_real_change_moves_them_at_once() -> None:
    """A rail that falls to half of its rate gets half as much from the next exchange on."""
    made = shares((0.001, 1e8), (0.001, 1e8))
    assert made.learn([Figure(0.001, 1e8), Figure(0.001, 5e7)], [0, 1])
    first, second = made.preview(16 * MB, [0, 1]).nbytes
    assert first / second == pytest.approx(2, rel=0.01)


def test_one_late_call_in_five_changes_no_rate() -> None:
    """A long call that waited a second for a late rank is an outlier, and so are short ones."""
    estimate, cost = Estimate(), RailCost(0.001, 1e7)
    rng = np.random.default_rng(1)
    for i in range(20):
        late = 1.0 if i % 5 == 2 else 0.0
        for nbytes in (2048, LONG_BYTES * int(rng.integers(1, 100))):
            estimate.add(nbytes, cost.seconds(nbytes) + late)
    assert estimate.bandwidth() == pytest.approx(1e7, rel=0.05)


def test_short_calls_of_any_size_tell_the_same_latency() -> None:
    """The time of a short call's bytes is no part of the latency: a rail that carries calls of 8 KB looks no slower
    than its like that carries none; calls in which the rail failed say nothing."""
    estimate, cost = Estimate(), RailCost(0.001, 1e7)
    for nbytes in (8192, 4, 1024, 4096):
        estimate.add(nbytes, cost.seconds(nbytes))
    estimate.add(4096, 0.0)
    estimate.add(4 * LONG_BYTES, cost.seconds(4 * LONG_BYTES))
    rate = estimate.bandwidth()
    assert rate == pytest.approx(1e7)
    assert estimate.latencies(rate) == [0.0, *[pytest.approx(0.001)] * 4]


def test_a_rail_of_unknown_rate_gets_a_trial_and_a_slow_one_sometimes() -> None:
    """A cold rail carries a trial of every long call; one too slow to be used, of every 32nd."""
    cold = shares((0.001, 1e8), (0.0, None))
    assert cold.split(16 * MB, [0, 1]).nbytes[1] == TRIAL_BYTES
    assert cold.split(TRIAL_BYTES, [0, 1]).used == [0]
    slow = shares((0.001, 1e9), (0.001, 1e6))
    tried = [slow.split(16 * MB, [0, 1]).nbytes[1] for _ in range(64)]
    assert sum(n > 0 for n in tried) == 2


def test_cold_rails_begin_with_the_lowest_latency() -> None:
    """Where no rate is known, the quickest rail carries everything but the trials."""
    cold = shares((0.002, None), (0.001, None), (0.003, None))
    split = cold.split(16 * MB, [0, 1, 2])
    assert split.nbytes == (TRIAL_BYTES, 16 * MB - 2 * TRIAL_BYTES, TRIAL_BYTES)
    assert split.seconds is None


def test_new_figures_count_for_sizes_that_have_been_split_before() -> None:
    """Splits of short tensors are remembered only as long as the figures that they follow from."""
    made, live = shares((0.001, 1e8), (0.001, 1e7)), [0, 1]
    before = made.split(MB, live)
    assert made.learn([Figure(0.001, 1e7), Figure(0.001, 1e8)], live)
    assert (before.used, made.split(MB, live).used) == ([0], [1])


def test_a_long_call_in_which_the_rail_failed_tells_no_rate() -> None:
    """It took no time that says anything, so the rate is that of the others, and unknown where there are none."""
    estimate, cost = Estimate(), RailCost(0.001, 1e7)
    for _ in range(3):
        estimate.add(LONG_BYTES, 0.0)
    assert estimate.bandwidth() is None
    for nbytes in (1024, LONG_BYTES):
        estimate.add(nbytes, cost.seconds(nbytes))
    estimate.add(64 * LONG_BYTES, 0.0)
    assert estimate.bandwidth() == pytest.approx(1e7)

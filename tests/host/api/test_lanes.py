# SPDX-License-Identifier: Apache-2.0
"""The arguments and reports of Communicator.allreduce about lanes on every rail: widths, feedback, saturation,
maxima."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.errors import RankMismatch
from netfold.host.innet import quantise
from netfold.host.operation.half_precision import narrow, widen
from netfold.testing import loopback_job, on_every_rank
from support.hosts.collectives import same

RAILS: list[RailName] = ["innet", "tcp"]


@pytest.mark.parametrize("bits", [16, 8])
def test_narrow_lanes_halve_and_quarter_the_packets(bits: Any) -> None:
    """There are as many packets as for bits / 32 of the elements, and the error is at most one level a rank."""
    x = np.sin(np.arange(256 * 64, dtype=np.float32))
    with loopback_job(3) as comms:
        out = same(on_every_rank(comms, lambda comm: comm.allreduce(x * (comm.rank + 1), lane_bits=bits)))
        packets = [comm.stats().packets_sent - comm.stats().retransmissions for comm in comms]
        assert packets == [64 * bits // 32 + 1 + 1] * 3
        assert np.abs(out - 6 * x).max() <= 3 * 3.0 / quantise.levels(3, bits) + 1e-5
        assert f"lanes of {bits} bits" not in comms[0].explain(x.nbytes), "only where it is the default"


def test_a_communicators_own_width_is_for_float_sums_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """$NETFOLD_LANE_BITS narrows sums and averages of float32; a call may ask for 32, and integers and maxima are not
    narrowed."""
    monkeypatch.setenv("NETFOLD_LANE_BITS", "8")
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    with loopback_job(2) as comms:
        assert "in lanes of 8 bits, 1 packets" in comms[0].explain(1024 * 4)
        assert "in lanes of" not in comms[0].explain(1024 * 4, dtype="int32")
        rough = same(on_every_rank(comms, lambda comm: comm.allreduce(x)))
        assert 1e-4 < np.abs(rough - 2 * x).max() < 2 * np.abs(x).max() / 63
        assert np.abs(same(on_every_rank(comms, lambda comm: comm.allreduce(x, lane_bits=32))) - 2 * x).max() < 1e-6
        ints = np.arange(1000, dtype=np.int32)
        assert (same(on_every_rank(comms, lambda comm: comm.allreduce(ints))) == 2 * ints).all()
        assert (same(on_every_rank(comms, lambda comm: comm.allreduce(x * comm.rank, op="max"))) == x.clip(0)).all()
    monkeypatch.setenv("NETFOLD_LANE_BITS", "12")
    with pytest.raises(ValueError, match="NETFOLD_LANE_BITS='12': expected 32, 16 or 8"), loopback_job(2):
        pass


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("bits", [32, 16, 8])
def test_with_feedback_the_sum_over_time_is_the_sum_of_all(rail: RailName, bits: Any) -> None:
    """Ten sums and the residual are ten times the exact sum on every rail; lanes of 32 bits leave no residual."""
    x = np.random.default_rng(2).standard_normal(700).astype(np.float32)

    def train(comm: Communicator) -> NDArray[Any]:
        residual, total = np.zeros_like(x), np.zeros_like(x)
        for _ in range(10):
            total += comm.allreduce(x * np.float32(comm.rank + 1), lane_bits=bits, feedback=residual)
        if rail == "tcp" or bits == 32:
            assert not residual.any()
        # what the others owe is not here to see: bounded by one step a rank
        assert np.abs(total - 30 * x).max() <= 2 * np.abs(x).max() * 2 / (2 * quantise.levels(2, 8) - 1)
        return total

    with loopback_job(2, rail=rail) as comms:
        same(on_every_rank(comms, train))


@pytest.mark.parametrize("rail", RAILS)
def test_saturation_is_counted_and_warned_of(rail: RailName) -> None:
    """Sums beyond int32 stop at its ends on any rail; every rank warns how many there are, and counts them."""
    big, small = 2**31 - 1, -(2**31)
    rows = [np.array([big, small, 5, big, 7], np.int32), np.array([1, -1, 6, -2, -7], np.int32)]
    expected = [big, small, 11, big if rail == "innet" else big - 2, 0]

    def call(comm: Communicator) -> NDArray[Any]:
        return comm.allreduce(rows[comm.rank], saturate=True)

    with loopback_job(2, rail=rail) as comms:
        ends = 3 if rail == "innet" else 2  # one that was at an end stays there, in the switch
        with pytest.warns(RuntimeWarning, match=f"{ends} of 5 elements of a saturating sum"):
            out = same(on_every_rank(comms, call))
        assert out.tolist() == expected
        assert [comm.stats().saturated for comm in comms] == [ends, ends]
        assert same(on_every_rank(comms, lambda comm: comm.allreduce(rows[comm.rank]))).tolist()[0] == small


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("op", ["max", "min"])
def test_maxima_are_the_same_on_every_rail(rail: RailName, op: Any) -> None:
    """For int32 at its ends, and floats with NaN and infinities, results equal numpy's, folded or not."""
    ints = [np.array([2**31 - 1, -(2**31), 0, -1], np.int32), np.array([-(2**31), -(2**31), -1, -2], np.int32)]
    floats = [
        np.array([1, -np.inf, np.nan, -1.5, 0], np.float32), np.array([np.inf, -2, 1, -1.25, -1e-45], np.float32)
    ]
    fold = np.maximum if op == "max" else np.minimum
    with loopback_job(2, rail=rail) as comms:
        assert (same(on_every_rank(comms, lambda comm: comm.allreduce(ints[comm.rank], op=op))) == fold(*ints)).all()
        got = same(on_every_rank(comms, lambda comm: comm.allreduce(floats[comm.rank], op=op)))
        np.testing.assert_array_equal(got, fold(*floats))
        assert (comms[0].stats().packets_sent > 0) == (rail == "innet")


def test_ranks_that_ask_for_other_widths_learn_it() -> None:
    """The error names both widths on both ranks."""
    with loopback_job(2) as comms:
        ask: list[Any] = [16, 8]
        errors = on_every_rank(comms, lambda comm: comm.allreduce(np.ones(9, np.float32), lane_bits=ask[comm.rank]))
        assert all(isinstance(error, RankMismatch) for error in errors)
        assert all("lane bits 8 .. 16" in str(error) for error in errors)


def test_what_is_not_folded_goes_whole_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Over TCP nothing is narrowed: that is one line in the log, and no error."""
    x = np.linspace(0, 1, 999, dtype=np.float32)
    with caplog.at_level(logging.WARNING, "netfold"), loopback_job(2, rail="tcp") as comms:
        for _ in range(2):
            assert (same(on_every_rank(comms, lambda comm: comm.allreduce(x, lane_bits=8))) == 2 * x).all()
    assert sum("lanes of 8 bits are for what the switches fold" in line for line in caplog.messages) == 1, "rank 0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lane_bits": 7}, "lane_bits=7: expected 32, 16 or 8"),
        ({"rounding": "up"}, "rounding='up': expected nearest or stochastic"),
        ({"saturate": True}, "saturate=True: expected a sum of int32, got sum of float32"),
        ({"lane_bits": 8, "op": "max"}, "max of float32: expected a sum or average of float32, float16, bfloat16"),
        ({"feedback": np.zeros(4, np.float32)}, r"feedback is float32\[4\]: expected a plain, writeable float32\[5\]"),
        ({"feedback": np.zeros(5, np.float64)}, "feedback is float64"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    """The error says what was expected and what came, and the communicator stays usable."""
    x = np.ones(5, np.float32)
    with loopback_job(2) as comms:
        with pytest.raises(ValueError, match=words):
            comms[0].allreduce(x, **options)
        with pytest.raises(ValueError, match="shares memory"):
            comms[0].allreduce(x, lane_bits=16, feedback=x)
        assert comms[0].stats().packets_sent == 0
        assert (same(on_every_rank(comms, lambda comm: comm.allreduce(x))) == 2).all()


HALVES = ["float16", "bfloat16"]


def as_half(values: NDArray[np.float32], element: str) -> NDArray[Any]:
    out = np.empty(values.shape, np.float16 if element == "float16" else np.uint16)
    narrow(values, element, out)
    return out


@pytest.mark.parametrize("element", HALVES)
def test_halves_fold_as_float32_and_are_rounded_once(element: str) -> None:
    """A sum of float16 or bfloat16 in the network is the exact one, rounded once; maxima are exact; in place, strided
    and empty."""
    rng = np.random.default_rng(3)
    mine = [as_half(rng.standard_normal((5, 301)).astype(np.float32), element) for _ in range(3)]
    wide = [widen(x, element).astype(np.float64) for x in mine]
    with loopback_job(3) as comms:
        out = same(on_every_rank(comms, lambda comm: comm.allreduce(mine[comm.rank], dtype=element)))
        exact = sum(wide)
        assert out.tobytes() == as_half(np.asarray(exact, np.float32), element).tobytes()
        for op, numpy in (("max", np.maximum), ("min", np.minimum)):
            got = same(on_every_rank(comms, lambda comm: comm.allreduce(mine[comm.rank], op=op, dtype=element)))  # noqa: B023
            assert (widen(got, element) == numpy.reduce(wide)).all()
        packets = [comm.stats().packets_sent for comm in comms]
        assert min(packets) > 3 * 1505 * 4 // 1024, "not folded"

        def in_place(comm: Communicator) -> NDArray[Any]:
            array = mine[comm.rank].copy()
            every_other = array[:, ::2]
            comm.allreduce(every_other, out=every_other, dtype=element)
            assert (array[:, 1::2] == mine[comm.rank][:, 1::2]).all()
            return every_other

        assert same(on_every_rank(comms, in_place)).tobytes() == np.ascontiguousarray(out[:, ::2]).tobytes()
        assert same(on_every_rank(comms, lambda comm: comm.allreduce(mine[0][:0], dtype=element))).shape == (0, 301)
        assert f"{element} goes as float32: 4096 bytes" in comms[0].explain(2048, dtype=element)
        assert comms[0].path("sum", element) == "innet"
        assert comms[0].path("product", element) == comms[0].path("sum", "float64") == "tcp"


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("element", HALVES)
def test_feedback_of_halves_keeps_what_they_cannot_hold(rail: RailName, element: str) -> None:
    """Ten sums of halves are ten times the exact sum but for the results' own rounding, on 16 bits in the network and
    without narrowing over TCP; Inf leaves no residual."""
    x = as_half(np.random.default_rng(4).standard_normal(700).astype(np.float32), element)
    exact = 20 * widen(x, element).astype(np.float64)

    def train(comm: Communicator) -> NDArray[Any]:
        residual, total = np.zeros(x.shape, np.float32), np.zeros(x.shape)
        for _ in range(10):
            total += widen(comm.allreduce(x, dtype=element, lane_bits=16, feedback=residual), element)
        step = 2**-11 if element == "float16" else 2**-8
        assert np.abs(total - exact).max() <= 10 * step * np.abs(exact / 10).max() + np.abs(residual).max() * 2
        infinite = as_half(np.full(700, np.inf, np.float32), element)
        assert np.isinf(widen(comm.allreduce(infinite, dtype=element, lane_bits=32, feedback=residual), element)).all()
        assert np.isfinite(residual).all()
        return total

    with loopback_job(2, rail=rail) as comms:
        same(on_every_rank(comms, train))


@pytest.mark.parametrize("element", HALVES)
def test_every_half_widens_and_narrows_to_itself(element: str) -> None:
    """All 65,536 patterns survive, NaNs as NaNs; rounding is to nearest even, and values beyond the range become Inf.
    """
    bits = np.arange(1 << 16, dtype=np.uint16)
    halves = bits.view(np.float16) if element == "float16" else bits
    wide = widen(halves, element)
    back = np.empty_like(halves)
    narrow(wide, element, back)
    nan = np.isnan(wide)
    assert (back.view(np.uint16)[~nan] == bits[~nan]).all()
    assert np.isnan(widen(back, element)[nan]).all()
    step = 2**-10 if element == "float16" else 2**-7
    ties = np.array([1 + step / 2, 1 + 3 * step / 2, 3.4e38], np.float32)
    rounded = widen(as_half(ties, element), element)
    assert rounded.tolist() == [1, 1 + 2 * step, np.inf]

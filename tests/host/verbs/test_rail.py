# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs" over a libibverbs in which switches fold whole messages (support/hosts/verbs.py)."""

from __future__ import annotations

import errno
import os
import threading

import numpy as np
import pytest

from netfold.host.errors import CollectiveTimeout, RankMismatch, TransportError
from netfold.host.innet import quantise
from netfold.host.innet.core import Core
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import Reduction
from netfold.host.verbs import native
from netfold.host.verbs import rail as verbs_rail
from support.hosts.verbs import MTU_1024, fake, request, verbs_job, wait_until

pytestmark = [pytest.mark.needs("verbs"), pytest.mark.timeout(120)]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 4095, 4096, 50_001])
@pytest.mark.parametrize("trees", [1, 2])
def test_integers_are_summed_exactly_whatever_the_size(size: int, trees: int) -> None:
    """The last packet is padded, rings of memory wrap around, and PSNs wrap with them."""
    with verbs_job(3, trees=trees) as job:
        rng = np.random.default_rng(size)
        for number in (1, 2, 3):
            sources = [rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32) for _ in range(3)]
            want = sum(source.astype(np.int64) for source in sources).astype(np.int32) if size else sources[0]
            for got in job.allreduce(sources, number=number):
                np.testing.assert_array_equal(got, want)


def test_floats_are_the_same_bits_on_every_rank_and_near_the_exact_sum() -> None:
    """Scales are agreed on before the lanes are made, in place as well."""
    with verbs_job(4, slots=256) as job:
        rng = np.random.default_rng(7)
        sources = [(rng.standard_normal(100_000) * 10.0 ** rng.integers(-6, 6)).astype(np.float32) for _ in range(4)]
        exact = np.sum([source.astype(np.float64) for source in sources], axis=0)
        results = job.allreduce(sources, in_place=True)
        for got in results:
            assert got.tobytes() == results[0].tobytes()
        np.testing.assert_allclose(results[0], exact, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("bits", [16, 8])
def test_narrow_lanes_fold_in_jobs_of_that_width_alone(bits: int) -> None:
    """The operation of a queue pair is fixed: other widths, and saturating sums, are for the hosts."""
    with verbs_job(2, lane_bits=bits) as job:
        rail, total = job.rails[0], Reduction("sum", "float32")
        assert rail.takes(total, Coding(bits))  # type: ignore[arg-type]
        assert not rail.takes(total, Coding(32))
        assert not rail.takes(Reduction("sum", "int32"), Coding(32))
        assert not rail.takes(Reduction("sum", "int32"), Coding(32, saturate=True))
        assert rail.takes(Reduction("max", "int32"), Coding(32))
        x = np.random.default_rng(bits).standard_normal(20_000).astype(np.float32)
        results = job.allreduce([x, x], coding=Coding(bits))  # type: ignore[arg-type]
        assert results[0].tobytes() == results[1].tobytes()
        assert 1e-4 < np.abs(results[0] - 2 * x).max() <= 2 * np.abs(x).max() / quantise.levels(2, bits)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_maxima_and_minima_travel_with_the_agreement(dtype: type) -> None:
    """The switches make maxima of the agreement's queue pairs alone; the data's carry nothing."""
    with verbs_job(3, trees=2) as job:
        sources = [np.random.default_rng(rank).integers(-1000, 1000, 20_000).astype(dtype) for rank in range(3)]
        for number, (op, function) in enumerate((("max", np.maximum), ("min", np.minimum)), 1):
            for got in job.allreduce(sources, op, number=number):
                np.testing.assert_array_equal(got, function.reduce(sources))
        assert [tree.packets_sent > 20 for tree in job.rails[0].stats().by_tree.values()] == [True, True]


def test_ranks_that_call_different_things_learn_it() -> None:
    """The signature is a message by itself, so it folds whatever else the ranks send."""
    with verbs_job(3) as job:
        odd = [np.zeros(1000 if rank else 999, np.float32) for rank in range(3)]

        def call(rank: int) -> str:
            with pytest.raises(RankMismatch) as caught:
                job.rails[rank].allreduce(request(odd[rank]))
            return str(caught.value)

        for said in job.on_all(call):
            assert "elements 999 .. 1000" in said


def test_no_third_message_is_posted_before_the_first_is_acknowledged() -> None:
    """Two messages are outstanding at most, whether results or acknowledgements are missing."""
    with verbs_job(2, patience=30) as job:
        sources = [np.arange(40_000, dtype=np.int32) for _ in range(2)]
        out = job.pairs(0)[0].out_qp
        job.lib.fake_hold(0, 1)
        done = threading.Thread(target=lambda: job.allreduce(sources))
        done.start()
        wait_until(lambda: job.lib.fake_posted(out) == 2)
        assert job.lib.fake_messages() <= 6  # two of data, the signature: nothing beyond the credits has been folded
        job.lib.fake_hold(0, 0)
        while done.is_alive():
            job.lib.fake_hold(0, 0)  # folds what is waiting
            done.join(0.01)


@pytest.mark.parametrize("after", [1, 2, 5, 9])
@pytest.mark.parametrize("out", [True, False])
def test_a_queue_pair_in_error_is_made_anew_and_the_operation_goes_on(out: bool, after: int) -> None:
    """All ranks halt, begin again where the one that lacks the most does, in place too, and the sum is exact."""
    with verbs_job(3, patience=30) as job:
        rng = np.random.default_rng(3)
        sources = [rng.integers(-1000, 1000, 60_000).astype(np.int32) for _ in range(3)]
        want = np.sum(sources, axis=0)
        first = job.pairs(1)[0]
        job.lib.fake_break(first.out_qp if out else first.in_qp, int(out), after)
        results = job.allreduce(sources, in_place=True)
        assert job.connections == 2
        assert any("is in error" in why for why in job.broken)
        assert job.pairs(1)[0].out_qp != first.out_qp
        for got in results:
            np.testing.assert_array_equal(got, want)
        again = [np.full(5000, rank, np.int32) for rank in range(3)]
        for got in job.allreduce(again, number=2):
            np.testing.assert_array_equal(got, np.full(5000, 3, np.int32))


def test_errors_of_queue_pairs_are_counted_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation has as many errors as any other, however many those before it had; beyond them the rank ends by
    name."""
    monkeypatch.setattr(verbs_rail, "MAX_BREAKS", 1)
    with verbs_job(2, patience=5) as job:
        sources = [np.full(10_000, rank, np.int32) for rank in range(2)]
        for number in (1, 2):
            job.lib.fake_break(job.pairs(0)[0].out_qp, 1, 1)
            for got in job.allreduce(sources, number=number):
                np.testing.assert_array_equal(got, np.full(10_000, 1, np.int32))
        assert job.connections == 3
        monkeypatch.setattr(verbs_rail, "MAX_BREAKS", 0)
        job.lib.fake_break(job.pairs(0)[0].out_qp, 1, 0)
        with pytest.raises(TransportError, match="1 times in this operation"):
            job.rails[0].allreduce(request(sources[0], 3))


def test_an_error_that_nobody_repairs_ends_the_operation_by_name() -> None:
    """Without a `Halt` within the timeout the rank ends with the NIC's own words; so does the one that waits for it."""
    with verbs_job(2, patience=2, halts=False) as job:
        job.lib.fake_break(job.pairs(0)[0].out_qp, 1, 0)
        sources = [np.arange(10_000, dtype=np.int32) for _ in range(2)]

        def call(rank: int) -> str:
            with pytest.raises((TransportError, CollectiveTimeout)) as caught:
                job.rails[rank].allreduce(request(sources[rank]))
            return str(caught.value)

        first, second = job.on_all(call)
        assert "did not let the ranks begin anew within 2 s" in first
        assert "Work Request Flushed" in first or "an error" in first
        assert "no result from the network for 2 s" in second


def test_a_completion_queue_that_gives_no_events_is_named_with_its_error() -> None:
    """The error is what the call returns; errno has that of some other call."""
    with verbs_job(2, patience=1, halts=False) as job:
        job.lib.fake_refuse_events(errno.EIO)
        with pytest.raises(TransportError, match=f"gives no events: {os.strerror(errno.EIO)}"):
            job.rails[0].allreduce(request(np.arange(10_000, dtype=np.int32)))


EVENTS = {"CQ_ERR": 0, "QP_FATAL": 1, "QP_REQ_ERR": 2, "QP_ACCESS_ERR": 3, "COMM_EST": 4, "DEVICE_FATAL": 8}
"""Numbers of enum ibv_event_type."""


@pytest.mark.parametrize("event", [name for name in EVENTS if name != "COMM_EST"])
def test_a_failure_that_the_device_reports_is_told_in_its_words(event: str) -> None:
    """No completion would tell of a failure of a queue pair, a completion queue or the whole device."""
    with verbs_job(2, patience=0.1, halts=False) as job:
        job.lib.fake_report(EVENTS[event])
        with pytest.raises(TransportError, match="the device reports: an event"):
            job.rails[1].allreduce(request(np.arange(10_000, dtype=np.int32)))


def test_other_reports_of_the_device_end_nothing() -> None:
    """The event of a connected queue pair is one: the rank goes on, and waits for the rank that is not there."""
    with verbs_job(2, patience=0.1, halts=False) as job:
        job.lib.fake_report(EVENTS["COMM_EST"])
        with pytest.raises(CollectiveTimeout, match="no result"):
            job.rails[1].allreduce(request(np.arange(10_000, dtype=np.int32)))


def test_a_silent_rank_ends_the_operation_within_the_timeout() -> None:
    """A NIC repeats for ever (rdma_rxe): the rail's own patience ends what stands still."""
    with verbs_job(2, patience=1) as job, pytest.raises(CollectiveTimeout, match=r"waiting for PSN|no result"):
        job.rails[0].allreduce(request(np.arange(10_000, dtype=np.int32)))


def test_a_port_of_too_small_an_mtu_is_named() -> None:
    """Packets of the fabric's path MTU must fit."""
    with verbs_job(1) as job:
        job.lib.fake_reset(MTU_1024)
        _, libs = fake()
        core = Core("10.0.0.1", 1, job.plans[0].trees, path_mtu=4096, message=16, kept=2, lib=native.library(libs))
        with pytest.raises(TransportError, match="active MTU of 1024 bytes, the fabric's packets have 4096"):
            native.VerbsIo(core, job.port(0), 1, 2, libs=libs)
        core.close()


def test_explain_says_what_the_nic_sends() -> None:
    """In messages, with the device's name."""
    with verbs_job(2) as job:
        said = job.rails[0].describe(1 << 20)
        assert "sent by fake0 in messages of up to 16 packets, two of them outstanding" in said
        assert job.rails[0].name == "verbs"

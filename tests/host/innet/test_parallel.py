# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one address: shared memory inside, folding across, on loopback with the reference switch."""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from netfold.host.api.communicator import Communicator
from netfold.host.collectives import shared_memory
from netfold.host.collectives.shared_memory import SharedRows
from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, PlanError, RankMismatch, TransportError
from netfold.host.innet import parallel
from netfold.host.selection import chooser
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.measure import Measured
from netfold.testing import loopback, loopback_job, on_every_rank, subnet
from support.hosts.host import impatient, interrupted_by
from support.hosts.insides import parts_of


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes rows so short that a tensor takes many windows."""
    monkeypatch.setattr(parallel, "SharedRows", functools.partial(SharedRows, row=4096))


def arrays(world: int, size: int, dtype: str) -> list[NDArray[Any]]:
    """Reproducible arrays, different for each rank."""
    rngs = [np.random.default_rng([3, rank, size]) for rank in range(world)]
    if dtype == "int32":
        return [rng.integers(-(2**31), 2**31, size, np.int32) for rng in rngs]
    return [rng.standard_normal(size, np.float32) for rng in rngs]


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(("world", "members"), [(4, 2), (6, 3), (6, 2), (8, 4)])
def test_sums_are_exact_over_machines_of_several_ranks(world: int, members: int) -> None:
    """int32 exactly, float32 closely, the same bits on all ranks, in place or not, whatever is lost."""
    with loopback_job(world, members=members, loss=0.02, seed=world) as comms:
        for size in (0, 1, 3, 255, 1025, 20_011):
            ints = arrays(world, size, "int32")
            expected = np.sum(np.array(ints, np.int64), axis=0).astype(np.int32)
            for out in on_every_rank(comms, lambda c, x=ints: c.allreduce(x[c.rank])):
                assert np.array_equal(out, expected), size
            floats = arrays(world, size, "float32")
            own = [x.copy() for x in floats]
            outs = on_every_rank(comms, lambda c, x=own: c.allreduce(x[c.rank], out=x[c.rank], op="average"))
            for out, into in zip(outs, own, strict=True):
                assert out is into
                assert np.allclose(out, np.mean(np.array(floats, np.float64), axis=0), atol=1e-6)
                assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()
        assert {comm.rail for comm in comms} == {"innet"}
        assert sum(comm.stats().retransmissions for comm in comms) > 0


def test_a_machine_sends_the_tensor_once() -> None:
    """Its ranks fold disjoint parts: together as many bytes as the tensor has, and as many packets."""
    with loopback_job(6, members=3) as comms:
        sources = arrays(6, 100_000, "int32")
        on_every_rank(comms, lambda c: c.allreduce(sources[c.rank]))
        for machine in (comms[:3], comms[3:]):
            stats = [comm.stats() for comm in machine]
            assert sum(one.by_tree["loop"].bytes_reduced for one in stats) == 400_000
            sent = sum(one.packets_sent - one.retransmissions for one in stats)
            assert 391 <= sent <= 391 + 2 * 3  # and each rank's signature, and its last packet that is not full
            assert {(one.operations, one.bytes_reduced) for one in stats} == {(1, 400_000)}
        assert "3 ranks of each machine" in comms[0].explain(400_000)
        assert "133334 bytes fold in the network" in comms[0].explain(400_000)


@settings(max_examples=10, deadline=None)
@given(st.integers(2, 3), st.integers(2, 3), st.integers(0, 5000), st.integers(1, 4))
def test_any_size_on_any_machines(machines: int, members: int, size: int, rows: int) -> None:
    """Windows and pieces have different sizes, empty ones too."""
    world = machines * members
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "SharedRows", functools.partial(SharedRows, row=rows * 1000))
        with loopback_job(world, members=members) as comms:
            ints = arrays(world, size, "int32")
            expected = np.sum(np.array(ints, np.int64), axis=0).astype(np.int32)
            for out in on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])):
                assert np.array_equal(out, expected)


def test_not_finite_elements_reach_every_rank() -> None:
    """So do those that only the sum inside a machine makes infinite or NaN."""
    with loopback_job(4, members=2) as comms:
        sources = [np.ones(600, np.float32) for _ in range(4)]
        sources[0][5], sources[1][5] = np.inf, -np.inf
        sources[3][300] = np.inf
        with np.errstate(invalid="ignore"):
            outs = on_every_rank(comms, lambda c: c.allreduce(sources[c.rank]))
        for out in outs:
            assert np.isnan(out[5])
            assert np.isinf(out[300]) or np.isnan(out[300])
            assert out[599] == 4


@pytest.mark.parametrize("absent", [[1], [2, 3]])
def test_ranks_that_never_call_time_the_others_out(absent: list[int]) -> None:
    """One rank of a machine, or a whole machine, never calls: all others raise within the timeout, with a name or the
    streams' state."""
    with loopback_job(4, members=2) as comms:
        impatient(comms, 0.3)
        begin = time.monotonic()
        present = [comm for comm in comms if comm.rank not in absent]
        got = on_every_rank(present, lambda c: c.allreduce(np.ones(1000, np.int32)))
        assert time.monotonic() - begin < 20
        assert all(isinstance(error, CollectiveTimeout | PeerLost) for error in got), got
        assert any("rank 1 gone" in str(error) or "no result" in str(error) for error in got), got
        again = on_every_rank(present, lambda c: c.allreduce(np.ones(1000, np.int32)))
        assert [str(error) for error in again] == [str(error) for error in got]


@pytest.mark.usefixtures("small_windows")
def test_a_rank_that_gives_up_in_the_middle_is_named_on_its_machine() -> None:
    """Its death ends the operation on its machine; the folds of other machines end in bounded time as well."""
    with loopback_job(4, members=2) as comms:

        def call(comm: Communicator) -> Any:
            for _ in range(3):
                comm.allreduce(np.ones(20_000, np.int32))
            if comm.rank < 2:  # rank 2 hears of it
                impatient([comm], 0.5)
            if comm.rank == 3:
                comm.close()
                return None
            return comm.allreduce(np.ones(20_000, np.int32))

        got = on_every_rank(comms, call)
        assert isinstance(got[2], PeerLost)
        assert "rank 3" in str(got[2])
        assert all(isinstance(error, CollectiveTimeout | PeerLost) for error in got[:2]), got


def test_ranks_of_a_machine_that_disagree_are_told() -> None:
    """The first message between them shows it, before anything is folded; those of the other machine wait in vain."""
    with loopback_job(4, members=2) as comms:
        told = threading.Barrier(2, lambda: impatient(comms[2:], 0.3))  # once both ranks of the machine are told

        def call(comm: Communicator) -> Any:
            try:
                return comm.allreduce(np.ones(1000 + (comm.rank == 1), np.int32))
            finally:
                if comm.rank < 2:
                    told.wait(60)

        got = on_every_rank(comms, call)
        assert isinstance(got[0], RankMismatch) or isinstance(got[1], RankMismatch), got
        assert all(isinstance(error, NetFoldError) for error in got)


def test_machines_that_disagree_are_told_by_the_fold() -> None:
    """Their signatures meet in the switch, so that every rank learns of it."""
    with loopback_job(4, members=2) as comms:
        got = on_every_rank(comms, lambda c: c.allreduce(np.ones(1000 + 1000 * (c.rank > 1), np.int32)))
        assert any(isinstance(error, RankMismatch) and "500 .. 1000" in str(error) for error in got), got
        assert all(isinstance(error, NetFoldError) for error in got)


@pytest.mark.usefixtures("small_windows")
def test_an_interrupted_rank_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a signal in the middle the call raises soon, no thread works on its array any more, and the error stays."""

    class Interrupted(BaseException):
        """The exception that the signal handler raises."""

    with loopback_job(4, members=2, timeout=60) as comms:
        with interrupted_by(Interrupted, comms[0]), pytest.raises(Interrupted):
            comms[0].allreduce(np.ones(5000, np.int32))  # nobody else calls
        with pytest.raises(NetFoldError, match="interrupted"):
            comms[0].allreduce(np.ones(1, np.int32))


def test_queue_pairs_between_hosts_need_an_address_a_rank() -> None:
    """rail="roce" on a shared address is refused with the ranks' numbers, on every rank."""
    with pytest.raises(PlanError, match=r"rail='roce'.*ranks 0, 1 have one, 127"), loopback_job(
        4, members=2, rail="roce"
    ):
        pass


def test_the_hierarchical_algorithm_goes_by_the_plans_machines() -> None:
    """Asked for by name over TCP, its sums are right, and every machine shares a row for each of its ranks."""
    with loopback_job(4, members=2, rail="tcp") as comms:
        ints = arrays(4, 5000, "int32")
        outs = on_every_rank(comms, lambda c: c.allreduce(ints[c.rank], algorithm="hierarchical"))
        assert all((out == sum(ints)).all() for out in outs)
        assert {parts_of(comm).dispatch.hosts.machines.groups[1][0] for comm in comms} == {2}


def test_a_process_that_does_not_see_the_memory_of_its_machine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers that share an address and not /dev/shm get an error that names it, on all ranks of the machine."""

    def blind(path: str, size: int) -> Any:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    monkeypatch.setattr(shared_memory, "open_file", blind)
    with pytest.raises(NetFoldError, match=r"does not see the first rank's /dev/shm|gave up"), loopback_job(
        4, members=2
    ):
        pass


@pytest.mark.parametrize("what", ["measure_inside", "SharedRows"])
def test_a_machine_whose_ranks_did_not_come_about_may_try_again_at_once(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Where opening fails after the sockets were bound, they are closed by the time that the error is told, whoever
    keeps it: the next communicators get the same UDP port of the same addresses."""

    def lost(*_: Any, **__: Any) -> Any:
        raise TransportError(errno.EIO, "one rank fails")

    net = subnet()
    monkeypatch.setattr(loopback, "subnet", lambda: net)
    with monkeypatch.context() as broken:
        broken.setattr(parallel, what, lost)
        with pytest.raises(NetFoldError) as kept, loopback_job(4, members=2, timeout=2):
            pass
    with loopback_job(4, members=2) as comms:
        sums = on_every_rank(comms, lambda comm: comm.allreduce(np.ones(3, np.float32)).tolist())
    assert sums == [[4.0] * 3] * 4, str(kept.value)


@pytest.mark.parametrize("machines", [[[0, 1], [2, 3]], [[0, 1], [2], [3]]])
@pytest.mark.parametrize(("inside", "rate", "folds"), [(1e9, 1e8, True), (1e8, 1e9, False), (1e8, 0.0, False)])
def test_folding_gives_way_where_shared_memory_is_slower_than_the_link(
    monkeypatch: pytest.MonkeyPatch, inside: float, rate: float, folds: bool, machines: list[list[int]]
) -> None:
    """Where NetReduce's condition holds nothing is measured; where not, the cheapest algorithm by measurement is
    taken, on all ranks, those that only look on too; with unlike machines the largest counts."""
    monkeypatch.setattr(parallel, "measure_inside", lambda *_, **__: LinkCost(1e-6, 1 / inside))
    monkeypatch.setattr(chooser, "measure_inside", lambda *_, **__: LinkCost(1e-6, 1 / inside))
    monkeypatch.setattr(chooser, "measure", lambda mesh: Measured(LinkCost(1e-6, 1e-9), 1.0))
    with loopback_job(4, members=machines, rail="auto", rate=rate) as comms:
        ints = arrays(4, 100_000, "int32")
        for out in on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])):
            assert (out == sum(ints)).all()
        told = comms[0].explain(400_000)
        assert {parts_of(comm).dispatch.hosts.chooser.measured is None for comm in comms} == {folds}
        assert (comms[0].stats().packets_sent > 0) == folds
        assert ("10 times its link's 0.1, more than 2 suffices" in told) == folds, told
        assert ("innet" in told.split(";")[1]) == (not folds), told


def test_folding_that_was_asked_for_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """rail="innet" folds however slow shared memory is."""
    monkeypatch.setattr(parallel, "measure_inside", lambda *_, **__: LinkCost(1e-3, 1e-6))
    with loopback_job(4, members=2, rate=1e9) as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(1000, np.int32)))
        assert comms[0].stats().packets_sent > 0
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured is None


def test_without_trees_machines_reduce_inside_first() -> None:
    """Over TCP the chooser measures shared memory, and considers algorithms that use it."""
    with loopback_job(4, members=2, rail="tcp") as comms:
        on_every_rank(comms, lambda c: c.allreduce(np.ones(1 << 20, np.int32)))
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured is not None
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured.inside is not None
        assert "hierarchical" in comms[0].explain(4 << 20)


@pytest.mark.usefixtures("small_windows")
def test_maxima_and_minima_fold_over_machines() -> None:
    """Shared memory uses the same reduction: results are exact for both dtypes."""
    with loopback_job(6, members=3) as comms:
        for dtype in ("int32", "float32"):
            own = arrays(6, 5000, dtype)
            highest = on_every_rank(comms, lambda c, x=own: c.allreduce(x[c.rank], op="max"))
            lowest = on_every_rank(comms, lambda c, x=own: c.allreduce(x[c.rank], op="min"))
            assert all(np.array_equal(out, np.max(own, axis=0)) for out in highest)
            assert all(np.array_equal(out, np.min(own, axis=0)) for out in lowest)
        assert sum(comm.stats().packets_sent for comm in comms) > 0


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("lane_bits", [16, 8])
def test_narrow_lanes_over_machines_are_made_good_by_feedback(lane_bits: Any) -> None:
    """Each rank keeps the residual of its own part of a machine's sum: over many rounds the mean error vanishes."""
    rounds = 40
    with loopback_job(4, members=2) as comms:
        own = arrays(4, 3000, "float32")
        exact = np.sum(own, axis=0, dtype=np.float64)
        residual = [np.zeros(3000, np.float32) for _ in range(4)]
        total, worst = np.zeros(3000), 0.0
        for _ in range(rounds):
            outs = on_every_rank(
                comms, lambda c: c.allreduce(own[c.rank], lane_bits=lane_bits, feedback=residual[c.rank])
            )
            assert all((out == outs[0]).all() for out in outs)
            total += outs[0]
            worst = max(worst, float(np.max(np.abs(outs[0] - exact))))
        assert worst > 0
        assert np.max(np.abs(total / rounds - exact)) < 2.5 * worst / rounds

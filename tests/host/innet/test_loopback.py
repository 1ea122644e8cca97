# SPDX-License-Identifier: Apache-2.0
"""Both rails over real sockets on loopback: results, statistics, and errors that come in time and say what is wrong."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cbuild import cc
from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.errors import CollectiveTimeout, NetFoldError, PeerLost, RankMismatch, TransportError
from netfold.host.innet import fold, long_wait, opening
from netfold.host.innet.fold import FoldRail
from netfold.host.job_secret import draw
from netfold.host.mesh import operations
from netfold.host.mesh.sockets import listen
from netfold.host.native import sockets
from netfold.host.native.sockets import bind_port
from netfold.host.operation.rail import Op
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.testing import loopback_job, on_every_rank, subnet
from netfold.wire.jobs import MissingContributions
from netfold.wire.plan import Peer, Plan, RankStream, RankTree
from support.hosts.host import impatient, interrupted_by
from support.hosts.insides import parts_of
from switch_support.ports import wait_for

RAILS: list[RailName] = ["innet", "tcp"]


def arrays(world: int, shape: Any, dtype: str) -> list[NDArray[Any]]:
    """Reproducible arrays, different for each rank."""
    rngs = [np.random.default_rng([9, rank]) for rank in range(world)]
    if dtype == "int32":
        return [rng.integers(-(2**31), 2**31, shape).astype(np.int32) for rng in rngs]
    return [np.asarray(rng.standard_normal(shape), np.float32) for rng in rngs]


def _reduce(own: list[NDArray[Any]], comm: Communicator, *, op: Op = "sum") -> NDArray[Any]:
    return comm.allreduce(own[comm.rank], op=op)


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_sums_over_real_sockets(rail: RailName, world: int) -> None:
    """Sums of int32 are exact, of float32 close and the same on all ranks, for shapes from nothing to a matrix."""
    with loopback_job(world, rail=rail) as comms:
        for shape in [(), (0,), (1,), (255,), (257,), (300, 70), (2, 0, 3)]:
            ints = arrays(world, shape, "int32")
            expected = np.sum(np.array(ints, np.int64), axis=0).astype(np.int32)
            for out in on_every_rank(comms, partial(_reduce, ints)):
                assert out.shape == shape
                assert out.dtype == np.int32
                assert (out == expected).all()
            floats = arrays(world, shape, "float32")
            outs = on_every_rank(comms, partial(_reduce, floats, op="average"))
            for out in outs:
                assert np.allclose(out, np.mean(np.array(floats, np.float64), axis=0), atol=1e-6)
                assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()


def test_loss_on_real_sockets_is_repaired_and_counted() -> None:
    """With 5 % loss in both directions sums are exact, and the statistics count retransmissions."""
    with loopback_job(3, loss=0.05, seed=4) as comms:
        ints = arrays(3, 50_000, "int32")
        expected = np.sum(np.array(ints, np.int64), axis=0).astype(np.int32)
        for _ in range(3):
            for out in on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])):
                assert (out == expected).all()
        stats = comms[0].stats()
        assert stats.operations == 3
        assert stats.bytes_reduced == 3 * 200_000
        assert stats.retransmissions > 0
        assert stats.packets_sent == stats.by_tree["loop"].packets_sent >= 3 * 197
        assert stats.by_tree["loop"].bytes_reduced == 600_000


def test_in_place_and_out_of_place_agree() -> None:
    """The same array as source and result gives what separate ones give."""
    with loopback_job(2, loss=0.02, seed=8) as comms:
        floats = arrays(2, 30_000, "float32")
        apart = on_every_rank(comms, lambda c: c.allreduce(floats[c.rank]))
        own = [x.copy() for x in floats]
        on_every_rank(comms, lambda c: c.allreduce(own[c.rank], out=own[c.rank]))
        for x in own:
            assert (x.view(np.uint32) == apart[0].view(np.uint32)).all()


def test_tensors_beyond_one_operation_go_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that RETH's offset cannot address is split, and the pieces' sums and statistics add up."""
    monkeypatch.setattr(fold, "MAX_ELEMENTS", 4096)
    with loopback_job(2, loss=0.02, seed=3) as comms:
        ints = arrays(2, 3 * 4096 + 100, "int32")
        for out in on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])):
            assert (out == ints[0] + ints[1]).all()
        assert comms[0].stats().operations == 1
        assert comms[0].stats().bytes_reduced == ints[0].nbytes


def test_a_small_receive_buffer_narrows_the_window_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the system limits the buffer, the window is smaller so that bursts do not overflow it; a warning says so,
    and sums are the same."""
    monkeypatch.setattr(sockets, "_grow", lambda sock, force, option, wanted: 64 * opening.SKB_BYTES[1024])
    with caplog.at_level("WARNING", "netfold"), loopback_job(2, slots=1024) as comms:
        assert "windows are at most 32 packets instead of 512" in caplog.text
        assert "window 32 packets" in comms[0].explain(1)
        ints = arrays(2, 50_000, "int32")
        for out in on_every_rank(comms, lambda c: c.allreduce(ints[c.rank])):
            assert (out == ints[0] + ints[1]).all()


@pytest.mark.parametrize("rail", RAILS)
def test_a_rank_that_never_calls_times_the_others_out(rail: RailName) -> None:
    """The error comes within the timeout, says where, and names the neighbour or the stream; later calls raise it
    again."""
    with loopback_job(3, rail=rail) as comms:
        impatient(comms, 0.3)
        begin = time.monotonic()
        got = on_every_rank(comms[:2], lambda c: c.allreduce(np.ones(1000, np.float32)))
        took = time.monotonic() - begin
        assert took < 20
        for rank, error in enumerate(got):
            assert isinstance(error, CollectiveTimeout | PeerLost), error
            assert f"rank {rank} of 3" in str(error)
            assert "1000 x float32" in str(error)
        with pytest.raises(NetFoldError, match="operation 1"):
            comms[0].allreduce(np.ones(3, np.float32))


def test_a_timeout_in_the_network_tells_where_the_streams_stand() -> None:
    """The error names the tree, the missing packets, and the PSN waited for."""
    with loopback_job(2, timeout=0.3) as comms:
        with pytest.raises(CollectiveTimeout) as caught:
            comms[0].allreduce(np.ones(1000, np.float32))
        text = str(caught.value)
        assert "tree loop, exponents: 0 of 2 results in, 2 sent, waiting for PSN 7" in text
        assert "tree loop, sums: 0 of 4 results in, 0 sent" in text
        assert "no result from the network for 0.3 s" in text


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize(
    ("odd", "expected"),
    [(np.zeros(999, np.float32), ("1000", "999")), (np.zeros(1000, np.int32), ("float32", "int32"))],
)
def test_ranks_that_call_different_things_learn_it(
    rail: RailName, odd: NDArray[Any], expected: tuple[str, str]
) -> None:
    """With another size or dtype on one rank there is an error on every rank at once, with both values."""
    with loopback_job(3, rail=rail, timeout=20) as comms:
        got = on_every_rank(comms, lambda c: c.allreduce(odd if c.rank == 1 else np.zeros(1000, np.float32)))
        assert all(isinstance(error, RankMismatch | PeerLost) for error in got), got
        told = [str(error) for error in got if isinstance(error, RankMismatch)]
        assert any(all(value in text for value in expected) for text in told), told


def test_a_rank_that_dies_in_the_ring_is_named() -> None:
    """The neighbour's closed connection ends the operation, and the error names the rank."""
    with loopback_job(2, rail="tcp") as comms:
        on_every_rank(comms, lambda c: c.barrier())
        parts_of(comms[1]).dispatch.close()  # without a word
        with pytest.raises(PeerLost, match="rank 1 is lost"):
            comms[0].allreduce(np.ones(10, np.float32))


def test_connections_of_strangers_are_refused() -> None:
    """A connection without the expected handshake is closed, and the ranks connect all the same."""
    with loopback_job(2, rail="tcp") as comms:
        where = comms[0].plan.peers[0].tcp.rpartition(":")
        strangers = [socket.create_connection((where[0], int(where[2])), timeout=20) for _ in range(2)]
        strangers[0].sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(64))
        strangers[1].close()
        assert on_every_rank(comms, lambda c: float(c.allreduce(np.ones(1, np.float32))[0])) == [2.0, 2.0]
        strangers[0].close()


@pytest.mark.parametrize("rail", RAILS)
def test_a_signal_interrupts_a_waiting_operation(rail: RailName) -> None:
    """Ctrl-C while waiting for other ranks is handled at once; the communicator then says that it was interrupted."""

    class Interrupted(Exception):
        pass

    with loopback_job(2, rail=rail, timeout=60) as comms:
        with interrupted_by(Interrupted, comms[0]), pytest.raises(Interrupted):
            comms[0].allreduce(np.ones(100, np.float32))
        with pytest.raises(NetFoldError, match=r"operation 1 was interrupted \(Interrupted\)"):
            comms[0].allreduce(np.ones(100, np.float32))


def test_a_port_in_use_is_an_error_that_says_so() -> None:
    """The second of two ranks on one address gets an error, and its other sockets are closed."""
    with loopback_job(2) as comms:
        plan = comms[0].plan
        address = plan.peers[0].address
        with pytest.raises(TransportError, match=f"{address}:4791.*end what has it"):
            FoldRail(plan, address, timeout=1)


def test_an_address_of_another_host_is_an_error() -> None:
    """An address that this machine does not have is refused by name."""
    with pytest.raises(TransportError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1")


def test_an_unreachable_peer_is_a_bounded_timeout_with_the_errno() -> None:
    """In a network without a route packets count as lost, the operation times out, and the error has the kernel's
    reason."""
    net = subnet()
    listener = listen(f"{net}.1")

    def stream(qp: int) -> RankStream:
        return RankStream(peer="240.0.0.1", peer_qp=qp, qp=qp, source_port=50001, psn=0, slots=64,
                          predecessor="240.0.0.1", predecessor_port=50001)

    peers = [Peer(rank, f"{net}.{rank + 1}", f"{net}.{rank + 1}:1") for rank in range(2)]
    tree = RankTree(name="void", weight=1.0, data=stream(8), agreement=stream(16))
    plan = Plan(job="void", epoch=1, rank=0, world=2, peers=peers, trees=[tree], secret=draw())
    rail = FoldRail(plan, f"{net}.1", receiver=bind_port(f"{net}.1"), timeout=0.3)
    with contextlib.closing(rail), contextlib.closing(listener):
        begin, ones = time.monotonic(), np.ones(3, np.float32)
        with pytest.raises(NetFoldError) as caught:
            rail.allreduce(AllreduceRequest(ones, ones.copy(), Reduction("sum", "float32"), 1))
        assert time.monotonic() - begin < 20
        assert "void" in str(caught.value)


@pytest.mark.needs("x86_64")
def test_a_thread_that_flushes_subnormals_gets_the_same_bits() -> None:
    """Training frameworks switch subnormals off in their threads, and the sum does not depend on it."""
    path = cc.build(
        ["#include <immintrin.h>\nunsigned swap(unsigned v) { unsigned u = _mm_getcsr(); _mm_setcsr(v); return u; }"],
        kind="shared",
        name="mxcsr",
    )
    swap = ctypes.CDLL(str(path)).swap
    swap.argtypes, swap.restype = [ctypes.c_uint], ctypes.c_uint
    tiny = np.arange(1, 257, dtype=np.uint32).view(np.float32)

    def call(comm: Communicator) -> NDArray[Any]:
        if comm.rank == 0:
            return comm.allreduce(tiny)
        old = swap(0x1F80 | 0x8040)
        try:
            return comm.allreduce(tiny)
        finally:
            assert swap(old) & 0x8040 == 0x8040, "the thread's own mode is put back"

    with loopback_job(2) as comms:
        for out in on_every_rank(comms, call):
            assert (out.view(np.uint32) == np.arange(1, 257) * 2).all()


@settings(max_examples=6)
@example(6, 5, "int32")
@example(6, 5, "float32")
@example(3, 0, "float32")
@given(st.integers(2, 6), st.integers(0, 3000), st.sampled_from(["int32", "float32"]))
@pytest.mark.slow
def test_ring_sums_any_size_over_any_number_of_ranks(world: int, size: int, dtype: str) -> None:
    """With chunks of different sizes, empty ones too, every rank has the same bits, and int32 is exact."""
    with loopback_job(world, rail="tcp") as comms:
        sources = arrays(world, size, dtype)
        outs = on_every_rank(comms, lambda c: c.allreduce(sources[c.rank]))
        for out in outs:
            assert (out.view(np.uint32) == outs[0].view(np.uint32)).all()
        exact = np.sum(np.array(sources, np.int64 if dtype == "int32" else np.float64), axis=0)
        if dtype == "int32":
            assert (outs[0] == exact.astype(np.int32)).all()
        else:
            assert np.allclose(outs[0], exact, atol=1e-5)


@pytest.mark.parametrize("rail", RAILS)
def test_a_rank_that_waits_for_long_says_for_whom(
    rail: RailName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Long before the timeout, once a wait; with the operation and what is known of the others."""
    monkeypatch.setattr(long_wait, "WAIT_NS", 10_000_000)
    monkeypatch.setattr(operations, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(operations, "HEAR_SECONDS", 0.01)
    with loopback_job(2, rail=rail, timeout=30) as comms, caplog.at_level("WARNING", "netfold"):
        work = comms[0].iallreduce(np.ones(1000, np.float32))
        wait_for(lambda: any("waiting for" in line and "operation 1" in line for line in caplog.messages))
        comms[1].allreduce(np.ones(1000, np.float32))
        work.wait()
    said = [line for line in caplog.messages if "waiting for" in line and "operation 1" in line]  # not of the start
    assert "rank 0 of 2" in said[0]
    assert ("netfold stall loop" in said[0]) if rail == "innet" else ("waiting for rank 1 (127." in said[0])


def test_the_first_rank_that_is_there_says_for_whom_all_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The others log the same at level INFO; a controller that lies about ranks breaks nothing."""
    caplog.set_level("INFO", "netfold")
    peers = [Peer(rank=rank, address=f"10.0.1.{rank + 1}", tcp="", host="h1" if rank == 0 else "") for rank in range(3)]
    for rank, missing in ((1, [0]), (2, [0]), (0, [1, 7]), (2, [])):
        plan = Plan(job="j", epoch=1, rank=rank, world=3, peers=peers, trees=[], secret=draw())
        asked = MissingContributions(missing, [] if missing else ["no controller"])
        long_wait.tell(f"rank {rank}", plan, lambda asked=asked: asked).join()
    assert [(record.levelname, record.getMessage().partition("; `")[0]) for record in caplog.records] == [
        ("WARNING", "rank 1: no result for 10 s: waiting for rank 0 (h1)"),
        ("INFO", "rank 2: no result for 10 s: waiting for rank 0 (h1)"),
        ("WARNING", "rank 0: no result for 10 s: waiting for ranks 1, 7 (10.0.1.2)"),
        ("INFO", "rank 2: no result for 10 s: waiting for others, and nobody knows for whom: no controller"),
    ]

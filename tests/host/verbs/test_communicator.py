# SPDX-License-Identifier: Apache-2.0
"""Everything that a Communicator does, over rail="verbs" alone and a libibverbs that is not the system's: each call
gives what numpy does, and is carried by queue pairs or by what ``explain`` names; the few that it does not do are
refused by name.  Nothing hangs."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.errors import Aborted, NetFoldError, RankMismatch
from netfold.rpc.rpc import Code, Refusal
from netfold.testing import on_every_rank, subnet
from netfold.wire.jobs import Connect, Connected
from support import needs
from support.docs import combinations
from support.hosts.torch import loopback_jobs
from support.hosts.verbs_jobs import VerbsJobs, fake_devices, impatient_once_broken

pytestmark = [pytest.mark.needs("verbs"), pytest.mark.timeout(120)]
WORLD = 3
SIZE = 6000


@pytest.fixture(scope="module")
def job() -> Iterator[VerbsJobs]:
    """The service of a job whose ranks are at once at the tests' disposal."""
    net = subnet()
    with tempfile.TemporaryDirectory() as folder, fake_devices():
        where = f"unix:{folder}/jobs"
        addresses = [f"{net}.{rank + 1}" for rank in range(WORLD)]
        with loopback_jobs(f"{net}.200", addresses, where, VerbsJobs) as jobs:
            assert isinstance(jobs, VerbsJobs)
            jobs.where, jobs.addresses = where, addresses  # type: ignore[attr-defined]
            yield jobs


def joined(jobs: Any, name: str, **settings: Any) -> list[Communicator]:
    """All ranks of a job of this name."""
    settings = {"timeout": 20.0} | settings

    def join(rank: Any) -> Communicator:
        return Communicator.join(name, rank, WORLD, address=jobs.addresses[rank], controller=jobs.where, rail="verbs",
                                 **settings)

    made: list[Any] = on_every_rank(list(range(WORLD)), join)  # type: ignore[arg-type]
    for one in made:
        if isinstance(one, Exception):
            raise one
    return made


@pytest.fixture(scope="module")
def comms(job: VerbsJobs) -> Iterator[list[Communicator]]:
    """Communicators of all ranks, used by one test after another."""
    made = joined(job, "all")
    on_every_rank(made, lambda comm: comm.allreduce(np.ones(9, np.int64)))  # ways are measured at the first one by TCP
    yield made
    on_every_rank(made, lambda comm: comm.close())


def rows(rank: int, dtype: Any = np.float32) -> Any:
    """A rank's array: as many rows as there are ranks, and more."""
    return np.random.default_rng(rank).integers(-1000, 1000, (WORLD, SIZE // WORLD)).astype(dtype)


ALL = [rows(rank) for rank in range(WORLD)]
TOTAL = np.sum(ALL, axis=0)


def asynchronous(comm: Communicator) -> Any:
    """Two sums under way at once, the second of another dtype; the first is the answer."""
    works = [comm.iallreduce(rows(comm.rank)), comm.iallreduce(rows(comm.rank, np.int32))]
    assert (works[1].wait() == TOTAL).all()
    return works[0].wait()


def both_at_once(comm: Communicator) -> Any:
    """A reduce-scatter and an all-gather in one operation."""
    mine, everybody = np.empty((1, SIZE // WORLD), np.float32), np.empty((WORLD, SIZE // WORLD), np.float32)
    with comm.together() as both:
        both.reduce_scatter(rows(comm.rank), mine)
        both.all_gather(rows(comm.rank)[:1], everybody)
    assert (everybody == np.concatenate([own[:1] for own in ALL])).all()
    return mine


def from_left(comm: Communicator) -> Any:
    """The message of the rank before, in a ring of messages."""
    right, left = (comm.rank + 1) % WORLD, (comm.rank - 1) % WORLD
    out = np.empty_like(rows(0))
    sending = comm.later(lambda: comm.send(rows(comm.rank), right), "sending") if comm.rank else None
    if sending is None:
        comm.send(rows(comm.rank), right)
    else:
        sending.wait()
    return comm.receive(out, left)


CALLS: dict[str, tuple[Callable[[Communicator], Any], Callable[[int], Any], str]] = {
    "sum": (lambda c: c.allreduce(rows(c.rank)), lambda r: TOTAL, "verbs"),
    "sum of int32": (lambda c: c.allreduce(rows(c.rank, np.int32)), lambda r: TOTAL, "verbs"),
    "sum of float16": (lambda c: c.allreduce(np.ones(SIZE, np.float16)), lambda r: np.full(SIZE, 3), "verbs"),
    "average": (lambda c: c.allreduce(3 * rows(c.rank), op="average"), lambda r: TOTAL, "verbs"),
    "max": (lambda c: c.allreduce(rows(c.rank), op="max"), lambda r: np.max(ALL, axis=0), "verbs"),
    "min": (lambda c: c.allreduce(rows(c.rank), op="min"), lambda r: np.min(ALL, axis=0), "verbs"),
    "product": (lambda c: c.allreduce(np.full(SIZE, 2, np.int64), op="product"), lambda r: np.full(SIZE, 8), "tcp"),
    "sum of float64": (lambda c: c.allreduce(rows(c.rank, np.float64)), lambda r: TOTAL, "tcp"),
    "saturating": (lambda c: c.allreduce(rows(c.rank, np.int32), saturate=True), lambda r: TOTAL, "tcp"),
    "in 16 bits": (lambda c: np.rint(c.allreduce(np.ones(SIZE, np.float32), lane_bits=16)),
                   lambda r: np.full(SIZE, 3), "tcp"),
    "reproducible": (lambda c: c.allreduce(rows(c.rank), reproducible=True), lambda r: TOTAL, "verbs"),
    "in place": (lambda c: (lambda x: c.allreduce(x, out=x))(rows(c.rank)), lambda r: TOTAL, "verbs"),
    "empty": (lambda c: c.allreduce(np.zeros(0, np.float32)), lambda r: np.zeros(0), ""),
    "asynchronous": (asynchronous, lambda r: TOTAL, "verbs"),
    "by a ring": (lambda c: c.allreduce(rows(c.rank), algorithm="ring"), lambda r: TOTAL, "tcp"),
    "by name": (lambda c: c.allreduce(rows(c.rank), algorithm="innet"), lambda r: TOTAL, "verbs"),
    "reduce": (lambda c: c.reduce(rows(c.rank), root=1), lambda r: TOTAL if r == 1 else None, "verbs"),
    "reduce of float16": (lambda c: c.reduce(np.ones(SIZE, np.float16), root=2),
                          lambda r: np.full(SIZE, 3) if r == 2 else None, "verbs"),
    "reduce by name": (lambda c: c.reduce(rows(c.rank), op="min", algorithm="innet"),
                       lambda r: np.min(ALL, axis=0) if r == 0 else None, "verbs"),
    "reduce of float64": (lambda c: c.reduce(rows(c.rank, np.float64)), lambda r: TOTAL if r == 0 else None, "tcp"),
    "reduce_scatter": (lambda c: c.reduce_scatter(rows(c.rank)), lambda r: TOTAL[r : r + 1], "verbs"),
    "reduce_scatter by name": (lambda c: c.reduce_scatter(rows(c.rank), algorithm="innet"),
                               lambda r: TOTAL[r : r + 1], "verbs"),
    "together": (both_at_once, lambda r: TOTAL[r : r + 1], "verbs"),
    "broadcast": (lambda c: c.broadcast(rows(c.rank), root=2), lambda r: ALL[2], "verbs"),
    "broadcast by a chain": (lambda c: c.broadcast(rows(c.rank), root=2, algorithm="chain"), lambda r: ALL[2], "tcp"),
    "all_gather": (lambda c: c.all_gather(rows(c.rank)), lambda r: np.concatenate(ALL), "verbs"),
    "all_gather by name": (lambda c: c.all_gather(rows(c.rank), algorithm="innet"), lambda r: np.concatenate(ALL),
                           "verbs"),
    "gather": (lambda c: c.gather(rows(c.rank), root=1), lambda r: np.concatenate(ALL) if r == 1 else None, "tcp"),
    "scatter": (lambda c: c.scatter(rows(0) if c.rank == 0 else None, np.empty((1, SIZE // WORLD), np.float32)),
                lambda r: ALL[0][r : r + 1], "tcp"),
    "all_to_all": (lambda c: c.all_to_all(rows(c.rank)), lambda r: np.stack([own[r] for own in ALL]), "tcp"),
    "barrier": (lambda c: c.barrier(), lambda r: None, "verbs"),
    "messages": (from_left, lambda r: ALL[r - 1], "tcp"),
    "a group": (lambda c: c.group([0, 2]).allreduce(rows(c.rank)) if c.rank != 1 else None,
                lambda r: ALL[0] + ALL[2] if r != 1 else None, "verbs"),
}
"""By what is called: the call, what a rank gets, and who carries it, where that does not hang on what is cheapest."""


@pytest.mark.parametrize("what", CALLS)
def test_every_call_gives_what_numpy_does(job: VerbsJobs, comms: list[Communicator], what: str) -> None:
    """And its messages pass the NIC's queue pairs where they should, and nowhere else."""
    call, expected, carrier = CALLS[what]
    before = job.lib.fake_messages()
    got = on_every_rank(comms, call)
    for rank, result in enumerate(got):
        if isinstance(result, Exception):
            raise result
        if expected(rank) is None:
            assert result is None
        else:
            np.testing.assert_array_equal(result, expected(rank))
    if carrier:
        assert (job.lib.fake_messages() > before) == (carrier == "verbs")


def test_explain_names_what_carries_each_collective(comms: list[Communicator]) -> None:
    """The NIC, or TCP and why."""
    comm = comms[0]
    assert "sent by fake0" in comm.explain(1 << 20)
    for collective in ("reduce_scatter", "reduce", "all_gather", "broadcast", "barrier"):
        assert "goes over the switches" in comm.explain(1 << 20, collective=collective)
    assert "goes over TCP; sum of float64 does not fold" in comm.explain(8, dtype="float64", collective="reduce")
    assert "tcp" in comm.explain(1 << 20, dtype="float64").lower()
    assert (comm.path(), comm.path("product"), comm.rail) == ("verbs", "tcp", "verbs")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.reduce(rows(c.rank, np.float64), algorithm="innet"), "float64 does not fold"),
        (lambda c: c.allreduce(rows(c.rank), algorithm="innet", lane_bits=16), "lanes of 16 bits does not fold"),
        (lambda c: c.allreduce(rows(c.rank, np.int32), algorithm="innet", saturate=True), "saturating, does not fold"),
        (lambda c: c.allreduce(rows(c.rank, np.float64), algorithm="innet"), "float64 does not fold"),
    ],
)
def test_what_it_cannot_fold_is_refused_where_it_is_asked_for(comms: list[Communicator], call: Any, words: str) -> None:
    """By name, on every rank, and the communicator goes on."""
    for got in on_every_rank(comms, call):
        assert isinstance(got, ValueError | NetFoldError), got
        assert words in str(got)
    assert all((got == TOTAL).all() for got in on_every_rank(comms, lambda comm: comm.allreduce(rows(comm.rank))))


def some_bits(dtype: str) -> Any:
    """Elements of any bits: both zeros, infinities and NaN with a payload are among those of float32."""
    bits = np.random.default_rng(5).integers(0, 256, 16 * 2048, dtype=np.uint8)
    special = [0x80000000, 0, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFA12345, 1, 0x80000001]
    bits[:32] = np.array(special, "<u4").view(np.uint8)
    return (bits & 1).view(dtype) if dtype == "bool" else bits.view(dtype)


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_what_is_moved_arrives_bit_for_bit(job: VerbsJobs, bits: Any) -> None:
    """Data of any dtype, from any root, of any size, odd bytes too, whatever the width of the job's lanes: every
    broadcast and all_gather, by the NIC."""
    comms = joined(job, f"bits {bits}", lane_bits=bits)

    def moved(comm: Communicator) -> None:
        for dtype in ("float32", "float16", "float64", "complex128", "int8", "uint16", "int64", "bool"):
            for root, size in enumerate((1, 257, 2048)):
                right = some_bits(dtype)[:size]
                own = right.copy() if comm.rank == root else np.zeros_like(right)
                assert comm.broadcast(own, root=root).tobytes() == right.tobytes(), (dtype, root, size)
                counts = [size, 0, 3]
                part = right[: counts[comm.rank]] if comm.rank < 2 else right[:1].repeat(3)
                gathered = right.tobytes() + right[:1].repeat(3).tobytes()
                assert comm.all_gather(part, counts=counts).tobytes() == gathered, (dtype, size)
        own = np.full(SIZE, 1.0, np.float32)
        reduced = comm.reduce(own, algorithm="innet")  # in lanes of the job's width, as all its sums
        assert reduced is None if comm.rank else np.abs(reduced - WORLD).max() < 0.1
        assert {record.path for record in comm.flight()} == {"verbs"}

    try:
        for error in on_every_rank(comms, moved):
            assert error is None, error
    finally:
        on_every_rank(comms, lambda comm: comm.close())


UNLIKE: dict[str, Callable[[Communicator], Any]] = {
    "sizes": lambda c: c.allreduce(np.ones(100 + c.rank, np.float32)),
    "broadcast beside allreduce": lambda c: c.broadcast(rows(0)) if c.rank else c.allreduce(rows(0)),
    "roots": lambda c: c.broadcast(rows(0), root=c.rank),
    "dtypes": lambda c: c.broadcast(rows(0, np.int32 if c.rank == 1 else np.float32)),
    "reduce beside allreduce": lambda c: c.reduce(rows(0)) if c.rank == 2 else c.allreduce(rows(0)),
    "barrier beside all_gather": lambda c: c.barrier() if c.rank else c.all_gather(rows(0)),
    "counts": lambda c: c.all_gather(rows(0)[0, : 2 + (c.rank == 0)], counts=[3, 2, 2] if c.rank else [3, 3, 1]),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_ranks_that_call_different_things_learn_it(job: VerbsJobs, what: str) -> None:
    """Sums of other sizes, other collectives, roots, dtypes or rows end by name on all ranks, without a result."""
    comms = joined(job, f"apart in {what}", timeout=20.0)
    try:
        got = on_every_rank(comms, UNLIKE[what])
        assert all(isinstance(error, RankMismatch) for error in got), got
    finally:
        on_every_rank(comms, lambda comm: comm.close())


@pytest.mark.parametrize("after", [0, 2])
def test_a_queue_pair_in_error_that_nobody_repairs_ends_the_call_and_what_follows(
    job: VerbsJobs, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """In the middle of a sum: the rank whose NIC broke names the device and its words, the others end by name too, and
    so does every later call that folds; nothing hangs."""
    comms = joined(job, f"broken {after}")
    impatient_once_broken(monkeypatch, comms, 0.5)
    try:
        job.lib.fake_break(job.pairs[1][0].out_qp, 1, after)
        got = on_every_rank(comms, lambda comm: comm.allreduce(rows(comm.rank)))
        assert all(isinstance(error, NetFoldError) for error in got), got
        assert "fake0" in str(got[1])
        for error in on_every_rank(comms, lambda comm: comm.allreduce(rows(comm.rank))):
            assert isinstance(error, NetFoldError), error
        for error in on_every_rank(comms, lambda comm: comm.barrier()):
            assert isinstance(error, NetFoldError), error
    finally:
        on_every_rank(comms, lambda comm: comm.close())


Answer = Callable[[Connected], Connected]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda told: Connected([], reason="switches say no"), "switches say no"),
        (lambda told: Connected(told.pairs[:1]), "neighbours of 1 streams: expected 2"),
    ],
    ids=["nothing folds", "too few pairs"],
)
def test_a_join_whose_second_step_ends_badly_ends_by_name(
    job: VerbsJobs, monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str
) -> None:
    """On every rank, with the reason, and without a queue pair left."""
    honest = job.connect

    async def connect(request: Connect) -> Connected:
        return answer(await honest(request))

    monkeypatch.setattr(job, "answer", connect)
    with pytest.raises(NetFoldError, match=words):
        joined(job, words)


@pytest.mark.parametrize("how", ["silent", "gone"])
def test_a_controller_that_dies_in_the_second_step_ends_the_join(
    job: VerbsJobs, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It never answers, or its connection breaks: all ranks end by name within their patience, and may join again."""
    async def connect(request: Connect) -> Connected:
        if how == "silent":
            await asyncio.Event().wait()
        raise Refusal(Code.UNAVAILABLE, "the controller is being started anew")

    monkeypatch.setattr(job, "answer", connect)
    monkeypatch.setattr("netfold.host.client.fold_client.CONNECT_TIMEOUT", 1.0)
    started = time.monotonic()
    with pytest.raises(NetFoldError, match=r"connect|UNAVAILABLE|DEADLINE"):
        joined(job, f"controller {how}", timeout=1.0)
    assert time.monotonic() - started < 30
    monkeypatch.undo()
    comms = joined(job, f"controller {how} again")
    assert all((got == TOTAL).all() for got in on_every_rank(comms, lambda comm: comm.allreduce(rows(comm.rank))))
    on_every_rank(comms, lambda comm: comm.close())


def test_abort_ends_what_waits_for_a_silent_rank(job: VerbsJobs) -> None:
    """From another thread, by name, long before the timeout."""
    comms = joined(job, "aborted")
    try:
        works = [comm.iallreduce(rows(comm.rank)) for comm in comms[:2]]
        for comm in comms:
            comm.abort("the test")
        for work in works:
            with pytest.raises(Aborted, match="the test"):
                work.wait(10)
    finally:
        on_every_rank(comms, lambda comm: comm.close())


def test_shrink_and_grow_are_answered_by_name(job: VerbsJobs) -> None:
    """A service that cannot plan a job anew says so; nobody waits for it."""
    comms = joined(job, "other ranks", timeout=5.0)
    try:
        for change in (Communicator.shrink, Communicator.grow):
            for got in on_every_rank(comms, partial(change, timeout=2)):
                assert isinstance(got, NetFoldError), got
                assert "UNIMPLEMENTED" in str(got)
    finally:
        on_every_rank(comms, lambda comm: comm.close())


def test_ranks_go_on_without_one_that_has_left_and_with_one_that_comes(
    job: VerbsJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time by queue pairs that they make anew; tests/controller/jobs/test_connecting_reforms.py has the
    controller's part."""
    monkeypatch.setattr(job, "reforms", True)
    comms = joined(job, "changing")
    ones, where = np.ones(SIZE, np.int32), {"address": job.addresses[1], "controller": job.where}  # type: ignore[attr-defined]

    def goes_on(comm: Communicator) -> list[tuple[int, str]]:
        done = []
        for change in (comm.shrink, comm.grow):
            while not change():
                pass
            assert (comm.allreduce(ones) == comm.size).all()
            done.append((comm.size, comm.flight()[-1].path))
        return done

    def comes(comm: Communicator) -> list[tuple[int, str]]:
        comm.close()
        with Communicator.join_running("changing", rail="verbs", timeout=20.0, **where) as new:
            assert (new.allreduce(ones) == new.size).all()
            return [(new.size, new.flight()[-1].path)]

    try:
        on_every_rank(comms, lambda comm: comm.allreduce(ones))
        got = on_every_rank(comms, lambda comm: comes(comm) if comm.rank == 1 else goes_on(comm))
        assert got == [[(2, "verbs"), (3, "verbs")], [(3, "verbs")], [(2, "verbs"), (3, "verbs")]], got
    finally:
        on_every_rank(comms, lambda comm: comm.close())
    cells = combinations.OTHERS["verbs"]
    assert cells[combinations.GOES] == cells[combinations.COMES] == combinations.FOLDS


def test_torch_reduces_by_queue_pairs(job: VerbsJobs, caplog: pytest.LogCaptureFixture) -> None:
    """torch's group over communicators of this rail: sums and averages of its tensors, of several at once too, are
    right and said to be carried by it, and so is a broadcast."""
    torch = pytest.importorskip("torch", reason=needs.reason("torch"))
    from netfold.host.torch.process_group import NetfoldGroup

    comms, store = joined(job, "torch"), torch.distributed.HashStore()

    def train(comm: Communicator) -> Any:
        group = NetfoldGroup(store, comm, timedelta(seconds=20))
        total, average, coalesced = (torch.from_numpy(rows(comm.rank)) for _ in range(3))
        averages = torch.distributed.AllreduceOptions()
        averages.reduceOp = torch.distributed.ReduceOp.AVG
        group.allreduce([total]).wait()
        group.allreduce([average], averages).wait()
        group.allreduce_coalesced([coalesced]).wait()
        state = torch.full((SIZE,), float(comm.rank))
        group.broadcast([state], 1).wait()
        return [tensor.numpy() for tensor in (total, average, coalesced, state)]

    try:
        with caplog.at_level(logging.INFO, "netfold"):
            results = on_every_rank(comms, train)
        for got in results:
            assert not isinstance(got, Exception), got
            total, average, coalesced, state = got
            assert (total == TOTAL).all()
            np.testing.assert_allclose(average, TOTAL / WORLD, rtol=1e-6)
            assert (coalesced == TOTAL).all()
            assert (state == 1).all()
        said = {record.getMessage().partition(": ")[2] for record in caplog.records}
        assert said >= {"allreduce, sum of float32 goes over verbs", "allreduce, average of float32 goes over verbs",
                        "allreduce_coalesced, sum of float32 goes over verbs", "broadcast goes over verbs"}
    finally:
        on_every_rank(comms, lambda comm: comm.close())

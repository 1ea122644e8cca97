# SPDX-License-Identifier: Apache-2.0
"""The collectives as a communicator offers them: arrays of any kind, asynchronous, in groups, refused at the border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from helpers_collectives import as_bfloat16, values
from helpers_host import everyone, loopback_job
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.collectives import choice, chooser
from netfold.host.collectives.calibration import share
from netfold.host.collectives.cost import Link
from netfold.host.collectives.elements import Reduction
from netfold.host.collectives.flow import run
from netfold.host.collectives.machines import find as machines
from netfold.host.collectives.measure import Measured, measure, time_algorithms
from netfold.host.communicator import Communicator
from netfold.host.errors import Closed, CollectiveTimeout, NetFoldError, PeerLost, PlanError
from netfold.host.group import Group
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Call, Flat, Mesh
from netfold.host.peers import KNOWN, Peers
from netfold.host.plans import check_plan, ring_order
from netfold.host.work import Turns
from netfold.wire.jobs import Peer, Plan

SLOW = Measured(Link(1e-4, 1e-8), 1.0)


def on_ranks(ranks: int, work: Callable[[Group], Any], *, seed: int = 0, algorithm: str = "ring") -> list[Any]:
    """Results of ``work`` on each rank's group, over the in-memory mesh."""

    def one(mesh: Mesh) -> Any:
        return work(Group(Peers(mesh, algorithm=algorithm, measured=SLOW), Turns(f"rank {mesh.rank}")))

    return values(MemoryFabric(ranks, seed=seed).run(one))


def rows(rank: int, count: int) -> np.ndarray[Any, Any]:
    """Rows of two that say where they come from."""
    return np.stack([np.full(count, rank), np.arange(count)], axis=1)


# ---- arrays ---------------------------------------------------------------------------------------------------------
@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), root=st.integers(0, 5), seed=st.integers(0, 2**32)
)
def test_rows_of_unlike_number_go_where_they_belong(counts: list[int], root: int, seed: int) -> None:
    """all_gather, gather, scatter and reduce_scatter with counts, against numpy."""
    ranks, root = len(counts), root % len(counts)
    whole = np.concatenate([rows(rank, count) for rank, count in enumerate(counts)])

    def work(group: Group) -> None:
        mine = rows(group.rank, counts[group.rank])
        np.testing.assert_array_equal(group.all_gather(mine, counts=counts), whole)
        gathered = group.gather(mine, root=root, counts=counts)
        assert (gathered is None) == (group.rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, whole)
        out = np.full_like(mine, -1)
        group.scatter(whole if group.rank == root else None, out, root=root, counts=counts)
        np.testing.assert_array_equal(out, mine)
        np.testing.assert_array_equal(group.reduce_scatter(whole, counts=counts), mine * ranks)

    on_ranks(ranks, work, seed=seed)


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_all_to_all_moves_rows(ranks: int, seed: int) -> None:
    """With counts both ways, and with as many rows for all."""
    counts = np.random.default_rng(seed).integers(0, 4, (ranks, ranks)).tolist()

    def work(group: Group) -> None:
        r = group.rank
        given_ = np.concatenate([rows(10 * r + to, counts[r][to]) for to in range(ranks)])
        from_all = [counts[by][r] for by in range(ranks)]
        got = group.all_to_all(given_, counts=counts[r], out_counts=from_all)
        np.testing.assert_array_equal(got, np.concatenate([rows(10 * by + r, from_all[by]) for by in range(ranks)]))
        even = group.all_to_all(np.repeat(np.arange(ranks), 2))
        assert even.tolist() == [r] * 2 * ranks

    on_ranks(ranks, work, seed=seed)


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_and_reduce_take_any_layout(root: int) -> None:
    """Strided, transposed, big-endian, 0-d, empty; bools too where nothing is added."""

    def work(group: Group) -> None:
        base = np.arange(24.0).reshape(4, 6) * (group.rank == root)
        for array in (base.T, base[::2, ::3], base.astype(">f8"), base[0, 5:6].reshape(()), base[:0], base > 3):
            wanted = np.array(np.arange(24.0).reshape(4, 6))
            group.broadcast(array, root=root)
        np.testing.assert_array_equal(base, wanted * (group.rank == root) if group.rank == root else base)
        flags = np.full((3, 2), group.rank == root)
        group.broadcast(flags[:, 1], root=root)
        assert flags[:, 1].all()
        total = group.reduce(np.full((2, 3), group.rank, ">i4"), root=root, op="max")
        assert (total is None) == (group.rank != root)
        if total is not None:
            assert total.tolist() == [[2] * 3] * 2

    on_ranks(3, work)


def test_bfloat16_goes_by_name() -> None:
    """uint16 arrays with dtype="bfloat16" are added as what they hold."""
    ones = as_bfloat16(np.array([1.0, 2.0, -0.5], np.float32))

    def work(group: Group) -> None:
        assert group.allreduce(ones, dtype="bfloat16").tolist() == as_bfloat16(np.array([4, 8, -2.0])).tolist()
        assert group.allreduce(ones, op="average", dtype="bfloat16").tolist() == ones.tolist()

    on_ranks(4, work)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda g: g.broadcast(np.zeros(1), root=2), ValueError, "root=2: expected a rank of 0"),
        (lambda g: g.broadcast([1.0]), TypeError, "array is a list"),
        (lambda g: g.send(np.zeros(1), g.rank), ValueError, "this rank itself"),
        (lambda g: g.receive(np.zeros(1), 5), ValueError, "peer=5"),
        (lambda g: g.reduce_scatter(np.zeros(3)), ValueError, "3 rows: expected a multiple of 2, or"),
        (lambda g: g.reduce_scatter(np.zeros(3), counts=[1, 1]), ValueError, "are 2 rows, array has 3"),
        (lambda g: g.reduce_scatter(np.zeros(3), counts=[3]), ValueError, "expected 2 numbers of rows"),
        (lambda g: g.reduce_scatter(np.zeros(())), ValueError, "no axis to cut"),
        (lambda g: g.all_gather(np.zeros(())), ValueError, "single number"),
        (lambda g: g.all_gather(np.zeros(1), counts=[2, 2]), ValueError, "has 1 rows"),
        (lambda g: g.all_gather(np.zeros(1), out=np.zeros(3)), ValueError, r"float64\[3\]: expected float64\[2\]"),
        (lambda g: g.scatter(None, np.zeros(1), root=g.rank), ValueError, "expected an array, got None"),
        (lambda g: g.scatter(np.zeros(3), np.zeros(1), root=g.rank), ValueError, r"expected float64\[2\]"),
        (lambda g: g.all_to_all(np.zeros(3), counts=[1, 2]), ValueError, "need out_counts"),
        (lambda g: g.all_to_all(np.zeros(2), counts=[1, 1], out_counts=[2, 0]), ValueError, "what it gives itself"),
        (lambda g: g.allreduce(np.zeros(1), algorithm="magic"), ValueError, "expected one of auto, byteps"),
        (lambda g: g.group([1 - g.rank]), ValueError, "not in its own subset"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(
    call: Callable[[Group], Any], error: type[Exception], message: str
) -> None:
    """Each names what was expected; the group works on."""

    def work(group: Group) -> float:
        with pytest.raises(error, match=message):
            call(group)
        return float(group.allreduce(np.ones(1))[0])

    assert on_ranks(2, work) == [2.0, 2.0]


# ---- over sockets ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rail", ["innet", "tcp"])
def test_a_communicator_offers_all_collectives(rail: Any) -> None:
    """Folding or not: what the switches cannot do goes over TCP, and explain() says so."""

    def work(comm: Communicator) -> None:
        x = np.full(1000, comm.rank + 1.0)
        assert comm.allreduce(x)[0] == 6
        assert comm.allreduce(x.astype(np.float32), op="max")[0] == 3
        assert comm.allreduce(x.astype(np.float32))[0] == 6
        assert comm.allreduce(x.astype(np.uint8), op="product", algorithm="halving_doubling")[0] == 6
        assert comm.broadcast(x, root=1)[0] == 2
        assert comm.all_gather(np.array([comm.rank])).tolist() == [0, 1, 2]
        comm.barrier()
        if comm.rank:
            pair = comm.group([2, 1])
            assert (pair.rank, pair.size) == (2 - comm.rank, 2)
            assert pair.allreduce(np.array([comm.rank]))[0] == 3
        if comm.rank == 0:
            comm.send(np.arange(5), 2, tag=9)
        if comm.rank == 2:
            assert comm.receive(np.zeros(5, np.int64), 0, tag=9).tolist() == [0, 1, 2, 3, 4]
        comm.barrier()

    with loopback_job(3, rail=rail) as comms:
        for result in everyone(comms, work):
            if result is not None:
                raise AssertionError("a rank failed") from result
        folds = "does not fold" in comms[0].explain(4000, op="product")
        assert folds == (rail == "innet")
        assert "predicted" in comms[0].explain(4000, op="product")


def test_asynchronous_operations_keep_their_order() -> None:
    """Several in flight at once, waited for in any order; a synchronous one after them comes after them."""

    def work(comm: Communicator) -> list[float]:
        works = [comm.iallreduce(np.full(3000, i + comm.rank, np.float64)) for i in range(8)]
        ranks = comm.later(lambda: comm.all_gather(np.array([comm.rank])).tolist(), "who is there")
        last = comm.allreduce(np.ones(1))[0]
        assert all(one.done() for one in works)
        assert ranks.wait(0) == [0, 1]
        return [*[float(one.wait(60)[0]) for one in reversed(works)][::-1], float(last)]

    with loopback_job(2, rail="tcp") as comms:
        assert everyone(comms, work) == [[2.0 * i + 1 for i in range(8)] + [2.0]] * 2


def test_callbacks_come_once_the_work_is_done() -> None:
    """In the order in which they were added, also where it is done already or failed; one that raises harms nobody."""
    with loopback_job(2, rail="tcp", timeout=60) as comms:
        called: list[object] = []
        work = comms[0].iallreduce(np.ones(3))
        work.add_done_callback(lambda done: called.append(done.wait(0).tolist()))
        work.add_done_callback(lambda done: 1 // 0)
        work.add_done_callback(lambda done: called.append(done.done()))
        comms[1].allreduce(np.ones(3))
        work.wait(20)
        late: list[bool] = []
        work.add_done_callback(lambda done: late.append(done.done()))
        assert late == [True]
        failed = comms[0].iallreduce(np.ones(3))
        failed.add_done_callback(called.append)
        comms[1].close()
        with pytest.raises(PeerLost):
            failed.wait(20)
        comms[0].close()  # the thread that calls them has ended
        assert called == [[2.0] * 3, True, failed]


def test_waiting_is_bounded_and_errors_come_out_of_wait() -> None:
    """wait(timeout) gives up alone; the operation's own timeout ends it, named; later calls repeat that error."""
    with loopback_job(2, rail="tcp", timeout=60) as comms:
        work = comms[0].iallreduce(np.ones(10))
        with pytest.raises(CollectiveTimeout, match=r"sum of 10 x float64: not done within the 0.01 s of wait"):
            work.wait(0.01)
        comms[1].allreduce(np.ones(10))
        assert work.wait(20).tolist() == [2.0] * 10
    with loopback_job(2, rail="tcp", timeout=0.5) as comms:
        work = comms[0].iallreduce(np.ones(10))
        with pytest.raises(CollectiveTimeout, match=r"rank 1 gone, stopped, or never called"):
            work.wait(20)
        assert work.done()
        with pytest.raises(NetFoldError, match="never called"):
            comms[0].barrier()
        comms[0].close()
        with pytest.raises(Closed):
            comms[0].iallreduce(np.ones(10))


# ---- choosing -------------------------------------------------------------------------------------------------------
def test_all_ranks_measure_the_same_and_choose_alike() -> None:
    """Clocks differ from rank to rank, figures do not: the worst of all."""

    def work(mesh: Mesh) -> Measured:
        ticks = iter(range(10**6))
        with mesh.operation(Call(1, "measure")):
            return measure(mesh, clock=lambda: next(ticks) * 1e-3 * (mesh.rank + 1))

    got = values(MemoryFabric(5).run(work))
    assert got == [got[0]] * 5
    assert got[0].link.alpha == pytest.approx(5e-3)
    assert got[0].contention >= 1
    assert got[0].link.beta > 0


def test_figures_are_kept_for_the_next_run_on_the_same_fabric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NETFOLD_COST: written once, read by the next run, by ranks and fabric; measured again where it is spoilt."""
    file = tmp_path / "cost.json"
    monkeypatch.setenv("NETFOLD_COST", str(file))
    calls: list[int] = []

    def figures(mesh: Mesh) -> Measured:
        calls.append(mesh.rank)
        return Measured(Link(mesh.size / 1024, 1e-8), 1.0)

    monkeypatch.setattr(chooser, "measure", figures)
    timed = {"ring": {4096: 0.5}}
    monkeypatch.setattr(chooser, "time_algorithms", lambda *_: timed)

    def measured(ranks: int, fabric: str = "a") -> Measured:
        got = values(MemoryFabric(ranks).run(lambda mesh: Peers(mesh, fabric=fabric).choice(64).seconds))
        assert got == [got[0]] * ranks
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, Measured])
        return known[f"{ranks} ranks, TCP, fabric {fabric}"]

    first = measured(3)
    assert sorted(calls) == [0, 1, 2]
    assert measured(3) == first == Measured(Link(3 / 1024, 1e-8), 1.0, timed=timed)
    assert len(calls) == 3, "read, not measured"
    assert measured(4).link.alpha == 4 / 1024
    assert len(calls) == 7
    assert measured(3) == first
    assert len(calls) == 7, "figures of other sizes stay"
    measured(3, "b")
    assert len(calls) == 10, "another fabric's links are others"
    file.write_text("{")
    measured(3)
    assert len(calls) == 13
    assert str(file) in caplog.text


@pytest.mark.parametrize("known", [[], [0], [1, 2], [0, 1, 2]])
def test_figures_that_one_rank_has_are_everybodys(known: list[int]) -> None:
    """Ranks that chose differently would end the job: all use what the first rank that has figures has, or none."""

    def work(mesh: Mesh) -> Measured | None:
        alpha = (mesh.rank + 1) / 1024
        ours = Measured(Link(alpha, 1e-8), 1.0, timed={"ring": {4096: 1e-3}}) if mesh.rank in known else None
        with mesh.operation(Call(1, "sharing")):
            return share(mesh, ours)

    first = Measured(Link((known[0] + 1) / 1024, 1e-8), 1.0, timed={"ring": {4096: 1e-3}}) if known else None
    assert values(MemoryFabric(3).run(work)) == [first] * 3


def test_the_environment_and_arguments_override_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument of the call, then of the communicator, then NETFOLD_ALGO, then by cost; explain() says which."""
    mesh = MemoryFabric(4).meshes[0]
    assert Peers(mesh, measured=SLOW).pick(64) == "recursive_doubling"
    assert "4 ranks: " in Peers(mesh, measured=SLOW).explain(1 << 20)
    assert "once the first operation has measured" in Peers(mesh).explain(64)
    monkeypatch.setenv("NETFOLD_ALGO", "mesh2d")
    assert Peers(mesh).pick(64) == "mesh2d"
    assert "mesh2d, as asked for" in Peers(mesh).explain(64)
    assert Peers(mesh, algorithm="ring").pick(64) == "ring"
    assert Peers(mesh, algorithm="ring").pick(64, "byteps") == "byteps"
    monkeypatch.setenv("NETFOLD_ALGO", "magic")
    with pytest.raises(ValueError, match=r"NETFOLD_ALGO.*expected one of auto"):
        Peers(mesh)


@pytest.mark.parametrize("name", KNOWN)
def test_every_algorithm_is_selectable(name: str) -> None:
    """By the argument of allreduce, on a communicator over TCP; hierarchical finds that all ranks share a machine."""
    with loopback_job(3, rail="tcp") as comms:
        got = everyone(comms, lambda comm: float(comm.allreduce(np.full(77, 1.5), algorithm=name)[76]))
    assert got == [4.5] * 3


@pytest.mark.parametrize("name", ["auto", "byteps", "parameter_server"])
def test_helpers_add_for_the_others(name: str) -> None:
    """Two of five ranks have no data: sums and averages are the other three's; other algorithms are refused."""

    def one(mesh: Mesh) -> Any:
        group = Group(Peers(mesh, algorithm=name, helpers=[1, 4]), Turns(f"rank {mesh.rank}"))
        total = group.allreduce(np.full(1000, mesh.rank, np.float32))
        mean = group.allreduce(np.full(7, mesh.rank, np.float64), op="average")
        with pytest.raises(ValueError, match=r"'ring' with helpers \[1, 4\]: expected one of auto, byteps, param"):
            group.allreduce(np.zeros(1), algorithm="ring")
        return None if mesh.rank in (1, 4) else (total.tolist(), mean.tolist())

    got = values(MemoryFabric(5).run(one))
    assert [got[rank] for rank in (0, 2, 3)] == [([5.0] * 1000, [5 / 3] * 7)] * 3
    with pytest.raises(ValueError, match="not all, each once"):
        Peers(MemoryFabric(2).meshes[0], helpers=[0, 1])


def test_the_ring_goes_by_address() -> None:
    """Ranks under one leaf have neighbouring addresses, and follow each other in the ring."""
    addresses = ["10.0.2.10", "10.0.1.1", "10.0.2.9", "10.0.1.2"]
    plan = Plan("j", 1, 0, 4, [Peer(rank, address, "") for rank, address in enumerate(addresses)], [])
    assert ring_order(plan) == [1, 3, 2, 0]
    assert ring_order(msgspec.structs.replace(plan, ring=[0, 2, 1, 3])) == [0, 2, 1, 3]
    with pytest.raises(PlanError, match=r"the ring visits \[0, 2, 1\]: expected each of 0\.\.3 once"):
        check_plan(msgspec.structs.replace(plan, ring=[0, 2, 1]))


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0]])
def test_everything_that_goes_round_follows_the_order(ranks: list[int]) -> None:
    """Allreduce, reduce_scatter and all_gather by ring, of all ranks and of a group: neighbours in the order alone
    talk to each other, and the results are as they should be."""
    order = [0, 4, 2, 5, 1, 3]

    def one(mesh: Mesh) -> None:
        everyone_ = Group(Peers(mesh, algorithm="ring", order=order), Turns(f"rank {mesh.rank}"))
        if mesh.rank not in ranks:
            return
        group = everyone_.group(ranks) if len(ranks) < mesh.size else everyone_
        n = group.size
        assert group.allreduce(np.ones(100)).tolist() == [n] * 100
        part = group.reduce_scatter(np.repeat(np.arange(float(n)), 2))
        assert part.tolist() == [group.rank * n] * 2
        assert group.all_gather(part).tolist() == np.repeat(np.arange(float(n)) * n, 2).tolist()

    fabric = MemoryFabric(6)
    values(fabric.run(one))
    ring = [rank for rank in order if rank in ranks]
    assert set(fabric.bytes) == set(zip(ring, ring[1:] + ring[:1], strict=True))


def test_machines_with_equally_many_ranks_share_memory(monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> None:
    """Two machines of two: "hierarchical" maps rows on each, keeps them for the next operation, and gives them back."""
    seen: list[tuple[int, bool]] = []

    def one(mesh: Mesh) -> float:
        peers = Peers(mesh, algorithm="hierarchical")
        group = Group(peers, Turns(f"rank {mesh.rank}"))
        group.allreduce(np.ones(10))
        rows = peers.machines.rows()
        total = float(group.allreduce(np.full(100_000, mesh.rank, np.float32))[99_999])
        seen.append((len(peers.machines.groups), rows is not None and rows is peers.machines.rows()))
        peers.close()
        return total

    fabric = MemoryFabric(4)
    names = {id(mesh): bytes([mesh.rank // 2]) * 16 for mesh in fabric.meshes}
    monkeypatch.setattr("netfold.host.collectives.machines.find", lambda mesh: machines(mesh, names[id(mesh)]))
    assert values(fabric.run(one)) == [6.0] * 4
    assert seen == [(2, True)] * 4
    assert list(shared_folder.iterdir()) == []


def way(peers: Peers, name: str) -> Callable[[Flat], None]:
    """Sums in place by an algorithm, in an operation that is under way."""
    return lambda data: run(peers.mesh, peers._allreduce(name, data, Reduction("sum", "float32")))


def test_a_group_times_its_algorithms_and_all_ranks_read_the_same() -> None:
    """Each rank has a clock of its own; what they choose from is the slowest rank's, at sizes that are worth it."""

    def work(mesh: Mesh) -> Measured:
        ticks = count()
        peers = Peers(mesh)
        links = Measured(Link(1e-4, 1e-9), 1.0)
        ways = {name: way(peers, name) for name in ("ring", "recursive_doubling", "parameter_server")}
        with mesh.operation(Call(1, "timing")):
            timed = time_algorithms(
                mesh, ways, lambda nbytes: {"ring": nbytes * 1e-9, "recursive_doubling": nbytes * 2e-9},
                clock=lambda: next(ticks) * 1e-3 * (mesh.rank + 1),
            )  # fmt: skip
        return replace(links, timed=timed)

    got = values(MemoryFabric(4).run(work))
    assert got == [got[0]] * 4
    assert got[0].timed["ring"] == pytest.approx(dict(zip(choice.TIMED, (1e-3, 1e-3, 1e-3, 1e-3, 4e-3), strict=True)))
    assert set(got[0].timed) == {"ring", "recursive_doubling"}

    def patient(mesh: Mesh) -> dict[str, dict[int, float]]:
        ticks = count()
        with mesh.operation(Call(1, "timing")):  # at 0.8 Mb/s 16 KB take 160 ms
            return time_algorithms(
                mesh, {"ring": way(Peers(mesh), "ring")}, lambda nbytes: {"ring": nbytes * 1e-5},
                clock=lambda: next(ticks) * 0.04,
            )  # fmt: skip

    assert [set(timed["ring"]) for timed in values(MemoryFabric(2).run(patient))] == [{4096}] * 2

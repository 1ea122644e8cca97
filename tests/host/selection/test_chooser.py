# SPDX-License-Identifier: Apache-2.0
"""Which algorithm a group of ranks takes: as asked for, or by figures that are the same on all; and the order of ranks
in those that follow the fabric.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from netfold.host.api.group import Group
from netfold.host.api.work import OperationSequencer
from netfold.host.client.plans import check_plan, ring_order
from netfold.host.collectives.flow import run
from netfold.host.collectives.machines import find as machines
from netfold.host.errors import PlanError
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection import choice, chooser
from netfold.host.selection.calibration import share
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.measure import Measured, measure, time_algorithms
from netfold.host.selection.peers import KNOWN, Peers
from netfold.testing import MemoryFabric, loopback_job, on_every_rank
from netfold.wire.plan import Peer, Plan
from support.hosts.collectives import values

SLOW = Measured(LinkCost(1e-4, 1e-8), 1.0)


def test_all_ranks_measure_the_same_and_choose_alike() -> None:
    """Clocks differ from rank to rank, but figures do not: they are the worst of all ranks."""

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
    """The file of NETFOLD_COST is written once and read by the next run, by ranks and fabric; figures are measured
    again where it is damaged."""
    file = tmp_path / "cost.json"
    monkeypatch.setenv("NETFOLD_COST", str(file))
    calls: list[int] = []

    def figures(mesh: Mesh) -> Measured:
        calls.append(mesh.rank)
        return Measured(LinkCost(mesh.size / 1024, 1e-8), 1.0)

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
    assert measured(3) == first == Measured(LinkCost(3 / 1024, 1e-8), 1.0, timed=timed)
    assert len(calls) == 3, "read, not measured"
    assert measured(4).link.alpha == 4 / 1024
    assert len(calls) == 7
    assert measured(3) == first
    assert len(calls) == 7, "figures of other sizes stay"
    measured(3, "b")
    assert len(calls) == 10, "another fabric's links are others"
    for place, damaged in enumerate(("{", '{"a":' + "[" * 100_000)):
        file.write_text(damaged)
        measured(3)
        assert len(calls) == 13 + 3 * place
    assert str(file) in caplog.text


@pytest.mark.parametrize("known", [[], [0], [1, 2], [0, 1, 2]])
def test_figures_of_one_rank_are_shared_with_all(known: list[int]) -> None:
    """Ranks that chose differently would end the job, so all use the figures of the first rank that has any, or none.
    """

    def work(mesh: Mesh) -> Measured | None:
        alpha = (mesh.rank + 1) / 1024
        ours = Measured(LinkCost(alpha, 1e-8), 1.0, timed={"ring": {4096: 1e-3}}) if mesh.rank in known else None
        with mesh.operation(Call(1, "sharing")):
            return share(mesh, ours)

    first = Measured(LinkCost((known[0] + 1) / 1024, 1e-8), 1.0, timed={"ring": {4096: 1e-3}}) if known else None
    assert values(MemoryFabric(3).run(work)) == [first] * 3


def test_the_environment_and_arguments_override_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's argument comes first, then the communicator's, then NETFOLD_ALGO, then cost; explain() says which."""
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
    """Each can be named as an argument of allreduce over TCP; hierarchical finds out that all ranks share a machine."""
    with loopback_job(3, rail="tcp") as comms:
        got = on_every_rank(comms, lambda comm: float(comm.allreduce(np.full(77, 1.5), algorithm=name)[76]))
    assert got == [4.5] * 3


def test_ranks_on_a_mesh_have_its_algorithm_and_others_are_told_why_not() -> None:
    """By name, and by cost, as each neighbour has a link of its own there; some of the ranks choose among the rest."""

    def work(mesh: Mesh) -> float:
        peers = Peers(mesh, measured=SLOW, algorithm="tidalmesh", places=[[2, 0], [3, 1], [5, 4]])
        with pytest.raises(ValueError, match="no group of some ranks; use mesh2d elsewhere"):
            peers.group([mesh.rank, (mesh.rank + 1) % 6]).pick(64, "tidalmesh")
        assert peers.group([mesh.rank, (mesh.rank + 1) % 6]).algorithm == "auto"
        data = np.full(1000, mesh.rank, np.float64)
        peers.allreduce(AllreduceRequest(data, data, Reduction("sum", "float64")))
        return float(data[999])

    assert values(MemoryFabric(6).run(work)) == [15.0] * 6
    mesh = MemoryFabric(16).meshes[0]
    links = Measured(LinkCost(1e-6, 1e-8), 1.0)
    places = [list(range(row, row + 4)) for row in range(0, 16, 4)]
    assert Peers(mesh, measured=links, places=places).pick(64 << 20) == "tidalmesh"
    assert "tidalmesh" not in Peers(mesh, measured=links).explain(64 << 20)
    with pytest.raises(ValueError, match="expected one rank at each place of a mesh of linked switches"):
        Peers(mesh, algorithm="tidalmesh")


@pytest.mark.parametrize("name", ["auto", "byteps", "parameter_server"])
def test_helpers_add_for_the_others(name: str) -> None:
    """Two of five ranks have no data: sums and averages are those of the other three, and other algorithms are refused.
    """

    def one(mesh: Mesh) -> Any:
        group = Group(Dispatch(Peers(mesh, algorithm=name, helpers=[1, 4])), OperationSequencer(f"rank {mesh.rank}"))
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
    """Ranks under one leaf have neighbouring addresses, and are neighbours in the ring."""
    addresses = ["10.0.2.10", "10.0.1.1", "10.0.2.9", "10.0.1.2"]
    plan = Plan("j", 1, 0, 4, [Peer(rank, address, f"{address}:1") for rank, address in enumerate(addresses)], [])
    assert ring_order(plan) == [1, 3, 2, 0]
    assert ring_order(msgspec.structs.replace(plan, ring=[0, 2, 1, 3])) == [0, 2, 1, 3]
    with pytest.raises(PlanError, match=r"the ring visits \[0, 2, 1\]: expected each of 0\.\.3 once"):
        check_plan(msgspec.structs.replace(plan, ring=[0, 2, 1]))


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0]])
def test_every_ring_follows_the_order(ranks: list[int]) -> None:
    """In allreduce, reduce_scatter and all_gather by ring, of all ranks and of a group, only neighbours in the order
    talk to each other, and the results are right."""
    order = [0, 4, 2, 5, 1, 3]

    def one(mesh: Mesh) -> None:
        everyone_ = Group(Dispatch(Peers(mesh, algorithm="ring", order=order)), OperationSequencer(f"rank {mesh.rank}"))
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
    """On two machines of two ranks "hierarchical" maps rows on each, keeps them for the next operation, and releases
    them."""
    seen: list[tuple[int, bool]] = []

    def one(mesh: Mesh) -> float:
        peers = Peers(mesh, algorithm="hierarchical")
        group = Group(Dispatch(peers), OperationSequencer(f"rank {mesh.rank}"))
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
    """An algorithm that sums in place, within an operation that is under way."""
    return lambda data: run(peers.mesh, peers._allreduce(name, data, Reduction("sum", "float32")))


def test_a_group_times_its_algorithms_and_all_ranks_read_the_same() -> None:
    """Each rank has a clock of its own; all choose by the slowest rank's times, at sizes that do not take too long."""

    def work(mesh: Mesh) -> Measured:
        ticks = count()
        peers = Peers(mesh)
        links = Measured(LinkCost(1e-4, 1e-9), 1.0)
        algorithms = {name: way(peers, name) for name in ("ring", "recursive_doubling", "parameter_server")}
        with mesh.operation(Call(1, "timing")):
            timed = time_algorithms(
                mesh, algorithms, lambda nbytes: {"ring": nbytes * 1e-9, "recursive_doubling": nbytes * 2e-9},
                clock=lambda: next(ticks) * 1e-3 * (mesh.rank + 1),
            )
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
            )

    assert [set(timed["ring"]) for timed in values(MemoryFabric(2).run(patient))] == [{4096}] * 2

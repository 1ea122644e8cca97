# SPDX-License-Identifier: Apache-2.0
"""A communicator whose trees are lost goes on over TCP in the same call, on all ranks alike, and says so."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from netfold.host.api.communicator import Communicator
from netfold.host.api.joinable import Next
from netfold.host.client.fold_control import FoldControl
from netfold.host.client.membership import Membership
from netfold.host.errors import NetFoldError, TreesLost
from netfold.host.operation.rail import FoldingRail
from netfold.host.selection.peers import Peers
from netfold.testing import LoopbackSwitch, loopback, loopback_job, on_every_rank
from netfold.wire import roce
from netfold.wire.plan import Plan, RankTree
from support.hosts.host import impatient

pytestmark = pytest.mark.slow

SECONDS = 30.0
"""Seconds within which all ranks must have stopped."""
WHY = "spine1 is down, and no trees in its place"


class Controller:
    """The messages of a controller that has no trees any more to the ranks of a job."""

    def __init__(self) -> None:
        self.switches: list[LoopbackSwitch] = []
        self.plans: dict[int, Plan] = {}
        self.rails: dict[int, FoldingRail] = {}
        self.begun: dict[int, int] = {}
        self._lacking: dict[int, dict[int, int]] = {}
        self._at: dict[int, str] = {}
        self._stopped: threading.Barrier | None = None

    def control(self, plan: Plan) -> FoldControl:
        """The requests of a rank's fold."""
        self.plans[plan.rank] = plan
        return FoldControl(resume=lambda missing, begun, at: self._resume(plan.rank, missing, begun, at))

    def lose_trees(self) -> None:
        """Nothing folds from now on, and all ranks are told."""
        self._stopped = threading.Barrier(len(self.plans))
        for switch in self.switches:
            switch.close()
        for rail in self.rails.values():
            rail.halt(1)

    def _resume(self, rank: int, missing: dict[int, int], begun: int, at: str) -> Plan:
        self._lacking[rank], self.begun[rank], self._at[rank] = missing, begun, at
        assert self._stopped is not None
        self._stopped.wait(SECONDS)
        plan = self.plans[rank]
        place = next(machine.index(rank) for machine in plan.machines if rank in machine)
        group = [ranks[0 if plan.inside else place] for ranks in plan.machines]
        if not all(self._at.values()):
            raise TreesLost(f"rank {rank}: {WHY}")
        trees = [self._rewound(tree, number, group) for number, tree in enumerate(plan.trees)]
        return structs.replace(plan, trees=trees, round=1, reason=WHY, stand_in=self._at[group[0]],
                               folds_until=max(self.begun.values()))

    def _rewound(self, tree: RankTree, number: int, group: list[int]) -> RankTree:
        def first(kind: str) -> int:
            lacking = [self._lacking[rank][2 * number + (kind == "agreement")] for rank in group]
            return min(lacking, key=lambda psn: roce.psn_age(psn, lacking[0]))

        return structs.replace(tree, data=structs.replace(tree.data, psn=first("data")),
                               agreement=structs.replace(tree.agreement, psn=first("agreement")))


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    """The controller of all communicators that the test makes."""
    found = Controller()

    class Switch(LoopbackSwitch):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._closed = False
            found.switches.append(self)

        def close(self) -> None:
            if not self._closed:
                self._closed = True
                super().close()

    def steer(membership: Membership, rail: FoldingRail) -> None:
        found.rails[membership.plan.rank] = rail

    monkeypatch.setattr(loopback, "LoopbackSwitch", Switch)
    monkeypatch.setattr(Membership, "fold_control", lambda membership, timeout: found.control(membership.plan))
    monkeypatch.setattr(Membership, "steer", steer)
    return found


def sums(comm: Communicator, number: int, elements: int = 200_000, *, algorithm: str | None = "innet") -> bool:
    """One sum of integers in place; whether it is right."""
    data = np.arange(elements, dtype=np.int32) * (comm.rank + 1) + number
    comm.allreduce(data, out=data, algorithm=algorithm)
    world = comm.size
    return bool((data == np.arange(elements, dtype=np.int32) * (world * (world + 1) // 2) + number * world).all())


@pytest.mark.parametrize("machines", [[[0], [1], [2]], [[0, 1], [2, 3]], [[0, 1], [2], [3, 4]]])
def test_the_operation_under_way_ends_over_tcp_and_all_later_ones_go_there(
    controller: Controller, machines: list[list[int]]
) -> None:
    """Some ranks are in the operation, one has yet to call it; all sums are right, and the communicator says that it
    goes over TCP, since when and why."""
    world = sum(map(len, machines))
    with loopback_job(world, members=machines, rail="auto", slots=64) as comms:
        assert on_every_rank(comms, lambda comm: sums(comm, 1)) == [True] * world
        assert all("fold in the network" in comm.explain(800_000, algorithm="innet") for comm in comms)
        under_way = threading.Event()

        def work(comm: Communicator) -> list[bool]:
            if comm.rank == world - 1:
                under_way.wait(SECONDS)  # the others wait for it in the fold
            return [sums(comm, number) for number in range(2, 6)]

        def lose() -> None:
            rails = [controller.rails[rank] for rank in range(machines[-1][0])]
            while not all(rail.begun >= 2 for rail in rails):
                threading.Event().wait(0.01)  # between looks
            controller.lose_trees()
            under_way.set()

        losing = threading.Thread(target=lose)
        losing.start()
        assert on_every_rank(comms, work) == [[True] * 4] * world
        losing.join()
        until = max(controller.begun.values())
        for comm in comms:
            said = comm.explain(800_000)
            assert f"operations after {until} go over TCP between the hosts" in said
            assert WHY in said
            assert comm.path("sum", "float32") == "tcp"
            assert comm.stats().fallback in said
            paths = [record.path for record in comm.flight()]
            assert sum("then TCP" in path for path in paths) <= 1
            assert paths[-1].startswith("TCP")


def test_ranks_that_had_all_results_hand_over_what_others_lack(controller: Controller) -> None:
    """Trees are lost between operations of ranks that have returned: they serve the others from behind, and nobody
    calls anything for it."""
    with loopback_job(2, rail="auto", slots=64) as comms:
        assert on_every_rank(comms, lambda comm: sums(comm, 1)) == [True, True]
        controller.lose_trees()
        assert on_every_rank(comms, lambda comm: sums(comm, 2)) == [True, True]
        assert all(comm.stats().fallback for comm in comms)


@pytest.mark.parametrize("joins_at", [3, 5])
def test_an_all_gather_in_parts_ends_over_tcp_and_nothing_joins_it_there(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, joins_at: int
) -> None:
    """Trees are lost before the third part, in which all ranks have called the reduce_scatter, or have not yet: the
    part and the rest arrive, and the reduce_scatter is made after them."""
    monkeypatch.setattr(Peers, "choice", lambda *args, **options: SimpleNamespace(algorithm="innet"))
    world, size, rows, lost = 3, 700_000, 1000, 3

    def call(comm: Communicator) -> bool:
        asked = 0
        data, out = np.arange(world * rows, dtype=np.int32) * (comm.rank + 1), np.zeros(rows, np.int32)
        scatter, whole = comm.scatter_to_join(data, out), np.zeros(world * size, np.uint8)

        def following() -> Next:
            nonlocal asked
            asked += 1
            if asked == lost and comm.rank == 0:
                controller.lose_trees()
            return scatter if asked >= joins_at else "open"

        joined = comm.all_gather_to_join(np.full(size, comm.rank + 1, np.uint8), whole, following)
        assert (whole.reshape(world, -1) == np.arange(1, world + 1)[:, None]).all()
        if not joined:
            comm.reduce_scatter(data, out)
        assert (out == 6 * np.arange(world * rows)[rows * comm.rank : rows * (comm.rank + 1)]).all()
        return joined

    with loopback_job(world, rail="auto", slots=64) as comms:
        joined = on_every_rank(comms, call)
        assert joined == [False] * world
        made = [[(one.number, one.name, one.nbytes) for one in comm.flight()] for comm in comms]
        assert made[0] == made[1] == made[2]
        assert all(comm.stats().fallback for comm in comms)


def test_a_communicator_that_was_asked_to_fold_says_that_it_cannot(controller: Controller) -> None:
    """rail="innet": the error names what was lost, on every rank."""
    with loopback_job(2, rail="innet", slots=64) as comms:
        assert on_every_rank(comms, lambda comm: sums(comm, 1, algorithm=None)) == [True, True]
        controller.lose_trees()
        for error in on_every_rank(comms, lambda comm: sums(comm, 2, algorithm=None)):
            assert isinstance(error, TreesLost)
            assert WHY in str(error)


def test_floats_are_the_same_on_all_ranks_across_the_loss(controller: Controller) -> None:
    """Whatever path an operation takes, all ranks get the same bits."""
    rng = np.random.default_rng(3)
    sources = [rng.standard_normal(50_000).astype(np.float32) for _ in range(3)]
    with loopback_job(3, rail="auto", slots=64) as comms:

        def work(comm: Communicator) -> list[bytes]:
            found = []
            for number in range(6):
                if number == 3 and comm.rank == 0:
                    controller.lose_trees()
                out = np.empty_like(sources[0])
                comm.allreduce(sources[comm.rank], out=out, algorithm="innet")
                np.testing.assert_allclose(out, sum(sources), atol=1e-5)
                found.append(out.tobytes())
            return found

        first, *others = on_every_rank(comms, work)
        assert not isinstance(first, Exception), first
        assert others == [first, first]


def test_where_tcp_does_not_get_through_either_it_is_said(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank hangs: the error names the rank that was to stand in."""
    with loopback_job(2, rail="auto", slots=64) as comms:
        assert on_every_rank(comms, lambda comm: sums(comm, 1)) == [True, True]
        impatient(comms, 2.0)

        def unreachable(*_: Any) -> None:
            raise ConnectionRefusedError("nobody answers there")

        monkeypatch.setattr("netfold.host.innet.fallback.connect", unreachable)
        controller.lose_trees()
        errors = on_every_rank(comms, lambda comm: sums(comm, 2))
        assert isinstance(errors[1], TreesLost)
        assert "rank 0, which stands in for the switches over TCP" in str(errors[1])
        assert isinstance(errors[0], NetFoldError)

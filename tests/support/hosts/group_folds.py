# SPDX-License-Identifier: Apache-2.0
"""Groups over the mesh in memory, with a controller and switches that are objects, and that fail as they are told."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from netfold.host.api.group import Group
from netfold.host.api.group_folds import GroupFolds
from netfold.host.api.one_rail_groups import GroupMeans, JoinedGroup, of_one_rail
from netfold.host.api.work import OperationSequencer
from netfold.host.client.membership import Membership
from netfold.host.collectives.open_on_all import Unfit, agreed_over, open_on_all
from netfold.host.errors import JoinRefused, NetFoldError, TransportError
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.rail import RailStats, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import Peers
from netfold.testing import MemoryFabric
from netfold.wire.plan import Peer, Plan, RankStream, RankTree
from support.hosts.collectives import values

SLOW = Measured(LinkCost(1e-4, 1e-8), 1.0)
TIMEOUT = 20.0
Outcome = Callable[[tuple[int, ...], int, int], str]
"""The outcome of an attempt, by members, number and rank in the group: "ok", "refused", "never", or "port"."""


class Switches:
    """The switches of all groups of one job, and the controller's part of their lives."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.folded: Counter[tuple[int, ...]] = Counter()
        """Contributions to sums that switches made, by the group's members."""
        self.open: Counter[str] = Counter()
        """Ranks that are in a group, by its name."""
        self.ends: dict[str, int] = {}
        """The last operation that folds, of groups that lose their slots."""
        self.numbers: list[tuple[tuple[int, ...], int]] = []
        """Members and number of each group that was joined."""
        self._lock = threading.Condition()
        self._sums: dict[tuple[str, int], list[Any]] = {}

    def join(self, parent: int, members: tuple[int, ...], number: int) -> Plan:
        """A rank joins: its plan."""
        place = members.index(parent)
        outcome = self.outcome(members, number, place)
        if outcome in ("refused", "never"):
            raise JoinRefused(outcome, {"refused": "RESOURCE_EXHAUSTED", "never": "FAILED_PRECONDITION"}[outcome])
        name = f"j#{'-'.join(map(str, members))}.{number}"
        with self._lock:
            self.numbers.append((members, number))
            self.open[name] += 1
        stream = RankStream("10.0.0.9", 8, 8, 50000, 7, 64, "10.0.0.9", 4791)
        other = RankStream("10.0.0.9", 16, 16, 50000, 7, 64, "10.0.0.9", 4791)
        peers = [Peer(rank, f"10.0.0.{rank + 1}", f"10.0.0.{rank + 1}:1") for rank in range(len(members))]
        return Plan(name, 1, place, len(members), peers, [RankTree("spine1", 1.0, stream, other)])

    def leave(self, name: str) -> None:
        """A rank leaves."""
        with self._lock:
            self.open[name] -= 1

    def sum(self, members: tuple[int, ...], name: str, number: int, array: Any) -> Any:
        """The sum of all members' arrays of this operation, once all have come; nobody else's.  Fails where one does
        not come, as it would stall."""
        with self._lock:
            self.folded[members] += 1
            mine = self._sums.setdefault((name, number), [])
            mine.append(array.copy())
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: len(mine) >= len(members), TIMEOUT), f"{name}: somebody does not fold"
            assert len(mine) == len(members)
            return np.sum(mine, axis=0, dtype=array.dtype)


class _Client:
    """The connection of a rank that is in a group."""

    def __init__(self, switches: Switches, name: str) -> None:
        self._switches, self._name = switches, name

    def watch(self, plan: Callable[[], Plan]) -> Any:
        return _Watcher()

    def leave(self, report: Any, reason: str = "", last: str = "", folded: int = 0) -> None:
        self._switches.leave(self._name)

    def unary(self, *args: Any) -> None:
        """Calls of folding ranks, which none of these makes."""

    def close(self) -> None:
        pass


class _Watcher:
    def job_error(self, left: bool = True) -> NetFoldError | None:
        return None

    def on_halt(self, call: Any) -> None:
        pass

    on_settle = on_tell = on_halt

    def leaving(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryFold:
    """A rail whose sums ``Switches`` makes."""

    name = "innet"
    narrows = True
    retransmissions = 0
    joins_nothing = "a test"
    shared_memory_rate = 0.0
    devices = ""
    suffices = False
    begun = 0

    def __init__(self, switches: Switches, members: tuple[int, ...], name: str) -> None:
        self._switches, self._ranks, self._name = switches, members, name
        self.members = len(members)
        self.fallback = ""

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        return folds(reduction.op, reduction.element)

    def begin(self, number: int) -> bool:
        if number > self._switches.ends.get(self._name, number):
            self.fallback = "its slots are another's"
            return False
        return True

    def allreduce(self, request: AllreduceRequest) -> int:
        request.out[...] = self._switches.sum(self._ranks, self._name, request.number, request.source)
        return 0

    def prepare(self, request: AllreduceRequest) -> None:
        return None

    def trial(self, data: Any, number: int) -> None:
        raise AssertionError("not timed here")

    def uncounted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def describe(self, nbytes: int, lane_bits: int = 32) -> str:
        return f"{nbytes} bytes fold"

    def stats(self) -> RailStats:
        return RailStats(fallback=self.fallback)

    progress = stats

    def halt(self, number: int) -> None:
        pass

    settle = interrupt = halt

    def close(self) -> None:
        pass


def on_ranks(
    ranks: int, switches: Switches, work: Callable[[Group, GroupFolds], Any], *, seed: int = 0, always: bool = True,
    coding: Coding = PLAIN, refusal: Callable[[int], str] = lambda rank: "",
) -> list[Any]:
    """Results of ``work`` on each rank's communicator, whose folds are closed at the end."""

    def one(mesh: Mesh) -> Any:
        def open_rail(group: Membership, peers: Peers, receiver: None, connected: Any) -> Any:
            members, number = _parsed(group.plan.job)

            def open_() -> MemoryFold:
                if switches.outcome(members, number, group.plan.rank) == "port":
                    raise TransportError(98, "cannot use UDP")
                return MemoryFold(switches, members, group.plan.job)

            with peers.mesh.operation(Call(0, "open")):
                opened = open_on_all(agreed_over(peers.mesh), open_, MemoryFold.close)
            if isinstance(opened, Unfit):
                raise opened
            return opened

        def join(members: Sequence[int], number: int, timeout: float) -> JoinedGroup:
            plan = switches.join(mesh.rank, tuple(members), number)
            return JoinedGroup(Membership(plan, _Client(switches, plan.job)), None)  # type: ignore[arg-type]

        groups = of_one_rail(GroupMeans(
            refusal(mesh.rank), 10.0, f"rank {mesh.rank}", always, join=join, open=open_rail))
        dispatch = Dispatch(Peers(mesh, measured=SLOW), always=always, groups=groups)
        try:
            return work(Group(dispatch, OperationSequencer(f"rank {mesh.rank}"), coding), groups)
        finally:
            groups.close()

    return values(MemoryFabric(ranks, seed=seed).run(one))


def _parsed(name: str) -> tuple[tuple[int, ...], int]:
    """Members and number of a group's name."""
    members, _, number = name.partition("#")[2].partition(".")
    return tuple(map(int, members.split("-"))), int(number)

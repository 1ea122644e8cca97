# SPDX-License-Identifier: Apache-2.0
"""Every algorithm of the survey as a user calls it: by name, on 1 to 9 ranks, with all dtypes and reductions, in place
and not, several under way at once, in groups, with the ranks in the fabric's order.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest

from netfold.host.api.group import Group
from netfold.host.api.work import OperationSequencer
from netfold.host.collectives import ALLREDUCE, BROADCAST, REDUCE
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import CARRIED, ReduceOp
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.dispatch import Dispatch
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import Peers
from netfold.testing import MemoryFabric
from support.hosts.collectives import expected, inputs, values

LINKS = Measured(LinkCost(1e-3, 1e-8), 1.0)
SIZES = (0, 1, 33, 257)
"""Numbers of elements: none, fewer than ranks, odd ones."""
CASES = [
    (element, op, SIZES[number % 4], number % 3 == 0)
    for number, (element, op) in enumerate(product(CARRIED, get_args(ReduceOp)))
    if op != "average" or "int" not in element
]
"""Cases as (dtype, reduction, elements, in place)."""


def reversed_(ranks: int) -> list[int]:
    """An order that is not the ranks' own."""
    return list(reversed(range(ranks)))


def two_machines(ranks: int) -> list[list[int]]:
    """Two machines, with equally many ranks where the number is even, so that they share memory."""
    return [part for part in (list(range(ranks // 2)), list(range(ranks // 2, ranks))) if part]


SYSTEMS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    **{name: (name, lambda ranks: {}) for name in ALLREDUCE},
    "ring by topology": ("ring", lambda ranks: {"order": reversed_(ranks)}),
    "mesh2d by topology": ("mesh2d", lambda ranks: {"order": reversed_(ranks)}),
    "hierarchical": ("hierarchical", lambda ranks: {"machines": two_machines(ranks)}),
    "parameter_server, not colocated": ("parameter_server", lambda ranks: {"helpers": range(0, ranks - 1, 3)}),
    "byteps with helpers": ("byteps", lambda ranks: {"helpers": range(0, ranks - 1, 2)}),
}


def workers_of(ranks: int, settings: dict[str, Any]) -> list[int]:
    """The ranks that have data."""
    return [rank for rank in range(ranks) if rank not in settings.get("helpers", ())]


def on_all(ranks: int, work: Callable[[Group], Any], **settings: Any) -> list[Any]:
    """Every rank's result of ``work`` with the group of all ranks."""

    def one(mesh: Mesh) -> Any:
        peers = Peers(mesh, measured=LINKS, **settings)
        sequencer = OperationSequencer(f"rank {mesh.rank}")
        try:
            return work(Group(Dispatch(peers), sequencer))
        finally:
            sequencer.close()
            peers.machines.close()

    return values(MemoryFabric(ranks, seed=ranks).run(one))


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_reduces_like_numpy(system: str, ranks: int) -> None:
    """Four operations are under way at a time, and every rank with data ends with numpy's result."""
    name, settings_of = SYSTEMS[system]
    settings = settings_of(ranks)
    workers = workers_of(ranks, settings)
    data = [inputs(ranks, size, element, number) for number, (element, _, size, _) in enumerate(CASES)]

    def work(group: Group) -> list[Flat]:
        results = []
        for first in range(0, len(CASES), 4):
            under_way = []
            for number, (element, op, _, in_place) in enumerate(CASES[first : first + 4], first):
                own = data[number][group.rank].copy()
                out = own if in_place else None
                under_way.append(group.iallreduce(own, out, op, dtype=element, algorithm=name))
            results += [one.wait(30) for one in under_way]
        return results

    results = on_all(ranks, work, **settings)
    for number, (element, op, size, _) in enumerate(CASES):
        wanted = expected([data[number][rank] for rank in workers], op, element)
        for rank in workers:
            np.testing.assert_array_equal(results[rank][number], wanted, f"{op} of {size} x {element}, rank {rank}")


@pytest.mark.parametrize("system", [name for name in SYSTEMS if "helpers" not in SYSTEMS[name][1](9)])
def test_every_system_serves_groups(system: str) -> None:
    """Ranks 5, 0, 3 and the others reduce at the same time, each group its own sum."""
    name, settings_of = SYSTEMS[system]
    groups = [[5, 0, 3], [1, 2, 4, 6]]

    def work(everyone: Group) -> tuple[float, float]:
        mine = next(ranks for ranks in groups if everyone.rank in ranks)
        small = everyone.group(mine).allreduce(np.full(50, float(everyone.rank)), algorithm=name)
        return float(small[49]), float(everyone.allreduce(np.full(9, 1.0), algorithm=name)[8])

    results = on_all(7, work, **settings_of(7))
    assert results == [(float(sum(ranks)), 7.0) for rank in range(7) for ranks in groups if rank in ranks]


@pytest.mark.parametrize(("ranks", "ordered"), [*((ranks, False) for ranks in range(1, 10)), (4, True), (7, True)])
def test_broadcasts_and_reduces_go_by_name(ranks: int, ordered: bool) -> None:
    """From and to each rank, by each algorithm and by the cheapest; an unknown name is refused with the known ones."""
    sizes = (0, 1, 5, 1000)
    settings = {"order": reversed_(ranks)} if ordered else {}

    def work(group: Group) -> None:
        for root, size, name in product(range(ranks), sizes, (*BROADCAST, None)):
            array = np.arange(size, dtype=np.int64) * (root + 1) * (group.rank == root)
            group.broadcast(array, root=root, algorithm=name)
            np.testing.assert_array_equal(array, np.arange(size) * (root + 1))
        for root, size, name in product(range(ranks), sizes, (*REDUCE, None)):
            total = group.reduce(np.full(size, group.rank, np.int64), root=root, algorithm=name)
            assert (total is None) == (group.rank != root)
            if total is not None:
                assert (total == sum(range(ranks))).all()
        with pytest.raises(ValueError, match="algorithm='tree': expected one of binomial, chain, scatter_all_gather"):
            group.broadcast(np.zeros(3), algorithm="tree")
        with pytest.raises(ValueError, match="algorithm='tree': expected one of binomial, reduce_scatter_gather"):
            group.reduce(np.zeros(3), algorithm="tree")

    on_all(ranks, work, **settings)

# SPDX-License-Identifier: Apache-2.0
"""`netfold bench loss`: what a row says of the switches' counters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from netfold.bench.commands import loss
from netfold.bench.options.faults import LossOptions
from netfold.bench.ranks.loss import LossResult
from netfold.fabric.folding import trees
from netfold.fabric.folding.slots import Allocator, sizes_of
from netfold.fabric.graph import Fabric, Link
from netfold.wire.operator import Outcomes

OPTIONS = LossOptions(topo="leafspine,2,2,4", nbytes="1000", iterations=1)


def sent(end: str, far: str) -> int:
    """Bytes of two tensors over a link: 1 of each from a host, 2 to a host, 3 up from a leaf, and 8 down to it."""
    if "h" in (end[0], far[0]):
        return 2000 if end[0] == "h" else 4000
    return 6000 if end[0] == "l" else 16000


def row(fabric: Fabric) -> loss.LossRow:
    """The row of one round without a loss."""
    links = [SimpleNamespace(a=link.a, b=link.b, a_to_b=SimpleNamespace(bytes=sent(link.a, link.b), lost=0),
                             b_to_a=SimpleNamespace(bytes=sent(link.b, link.a), lost=0))
             for link in fabric.links]
    switches = [SimpleNamespace(role=switch.role, folded=Outcomes(), gaps=0) for switch in fabric.switches]
    planned = trees.plan(fabric.graph(), [host.name for host in fabric.hosts])
    streams = allocator(fabric).admit(planned, [[0, 1, 2, 3]])
    job = SimpleNamespace(slots=streams[0].slots, trees=[
        SimpleNamespace(switches=[fold.switch for fold in tree.folds]) for tree in planned])
    status: Any = SimpleNamespace(links=links, switches=switches, jobs=[job])
    turn = loss.LossRound(1.0, [LossResult([1.0], 0, 0, 100, 0)], status, fabric)
    return loss.row_of(0.0, "", [turn], [turn], OPTIONS)


def allocator(fabric: Fabric) -> Allocator:
    """Empty slots of all switches."""
    return Allocator([switch.name for switch in fabric.switches], sizes_of(OPTIONS.engine, OPTIONS.path_mtu))


@pytest.mark.parametrize("turned", [False, True])
def test_bytes_are_told_by_what_stands_at_a_links_ends(turned: bool) -> None:
    """A fabric file may name the host or the spine first: from and to hosts, and from a leaf to all spines."""
    fabric = OPTIONS.fabric()
    if turned:
        fabric = msgspec.structs.replace(fabric, links=tuple(Link(link.b, link.a) for link in fabric.links))
    found = row(fabric)
    assert (found.host_up, found.host_down, found.leaf_up) == (1.0, 2.0, 6.0)


def test_slots_of_a_job_are_all_that_it_was_given() -> None:
    """The slots in which ranks agree on exponents count, as they do for the controller."""
    fabric = OPTIONS.fabric()
    slots = allocator(fabric)
    slots.admit(trees.plan(fabric.graph(), [host.name for host in fabric.hosts]), [[0, 1, 2, 3]])
    assert row(fabric).slot_bytes == max(slots.used().values()) * (OPTIONS.path_mtu + loss.STATE_BYTES)

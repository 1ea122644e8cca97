# SPDX-License-Identifier: Apache-2.0
"""Fabrics with some of their hosts, what a job of them is granted, and what planned paths put on links."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st

from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.slots import Allocator, Sizes
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.fabric.routing.clos import Hop
from netfold.fabric.routing.paths import PathPlan


@st.composite
def fabrics_and_ranks(draw: st.DrawFn) -> tuple[Fabric, list[str]]:
    """A leaf-spine fabric and some of its hosts in any order."""
    fabric = leafspine(draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 20)))
    names = draw(st.permutations([host.name for host in fabric.hosts]))
    return fabric, names[: draw(st.integers(1, len(names)))]


def admitted(fabric: Fabric, ranks: list[str], allocator: Allocator) -> list[slots.Stream]:
    """The streams of one more job."""
    return allocator.admit(trees.plan(fabric.graph(), ranks), [range(len(ranks))])


def allocator_of(fabric: Fabric, sizes: Sizes | None = None, seed: int = 1) -> Allocator:
    """A fresh allocator."""
    return Allocator([s.name for s in fabric.switches], sizes or Sizes(64, 8), random.Random(seed))


def hop_loads(plan: PathPlan) -> dict[Hop, int]:
    """Bytes on each hop between switches."""
    total: Counter[Hop] = Counter()
    for piece in plan.pieces:
        for hop in piece.path:
            total[hop] += piece.size
    return dict(total)

# SPDX-License-Identifier: Apache-2.0
"""Fabrics with some of their hosts, and what a job of them is granted."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from netfold.fabric import slots, trees
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric
from netfold.fabric.slots import Ledger, Sizes


@st.composite
def fabrics_and_ranks(draw: st.DrawFn) -> tuple[Fabric, list[str]]:
    """A leaf-spine fabric and some of its hosts in any order."""
    fabric = leafspine(draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 20)))
    names = draw(st.permutations([host.name for host in fabric.hosts]))
    return fabric, names[: draw(st.integers(1, len(names)))]


def admitted(fabric: Fabric, ranks: list[str], ledger: Ledger) -> list[slots.Stream]:
    """The streams of one more job."""
    return ledger.admit(ledger.open(), trees.plan(fabric.graph(), ranks), [range(len(ranks))])


def ledger_of(fabric: Fabric, sizes: Sizes | None = None, seed: int = 1) -> Ledger:
    """A fresh ledger."""
    return Ledger([s.name for s in fabric.switches], sizes or Sizes(64, 8), random.Random(seed))

# SPDX-License-Identifier: Apache-2.0
"""Faults of shares of packets: the seed of a link's draw."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from netfold.fabric.generate import leafspine
from netfold.topo.faults import link_plans
from netfold.topo.faults.board import FaultBoard, FaultRefused
from netfold.wire.faults import Inject
from netfold.wire.operator import LinkFaults


class Plans(link_plans.LinkFaultPlans):
    """Plans of shares alone."""

    def _none(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError

    set_carrier = slow = restore = needs_netem = process = _none


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[LinkFaults]:
    """What the controller was told last."""
    told: list[LinkFaults] = []

    def tell(network: object, wanted: list[LinkFaults]) -> None:
        told[:] = wanted

    monkeypatch.setattr(link_plans, "set_faults", tell)
    return told


def board(seed: int) -> FaultBoard:
    """The faults of a fabric with this seed."""
    network: Any = SimpleNamespace(fabric=leafspine(1, 0, 2, seed=seed))
    return FaultBoard(Plans([network]).plan, lambda: 0.0)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_fault_without_a_seed_draws_with_the_fabrics(seed: int, told: list[LinkFaults]) -> None:
    """So that another one on the link may name that seed, and no other."""
    faults = board(seed)
    _, text = faults.inject(Inject("loss", "h1", None, 0.01))
    assert text.endswith(f"are lost, each way, seed {seed}")
    with pytest.raises(FaultRefused, match=f"another fault there draws with seed {seed}, and a link has one draw"):
        faults.inject(Inject("reorder", "h1", None, 0.01, seed + 1))
    faults.inject(Inject("duplicate", "h1", None, 0.02, seed))
    assert [(link.loss, link.duplicate, link.seed) for link in told] == [(0.01, 0.02, seed)]


def test_a_fault_without_a_seed_draws_with_that_of_the_links_others(told: list[LinkFaults]) -> None:
    """A link has one draw."""
    faults = board(0)
    faults.inject(Inject("loss", "h1", None, 0.01, 5))
    assert faults.inject(Inject("duplicate", "h1", None, 0.01))[1].endswith("seed 5")
    assert faults.inject(Inject("duplicate", "h2", None, 0.01))[1].endswith("seed 0")
    assert {link.seed for link in told} == {0, 5}

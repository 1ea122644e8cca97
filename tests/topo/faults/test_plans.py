# SPDX-License-Identifier: Apache-2.0
"""Faults of processes: who is excused from being up, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from netfold.fabric.generate import leafspine
from netfold.topo.faults import plans
from netfold.wire.faults import Inject


class Injector:
    """Notes for each step whether the switch is excused then."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def kill(self, name: str) -> None:
        self.network.steps.append(("kill", name in self.network.excused))

    def start(self, name: str) -> None:
        self.network.steps.append(("start", name in self.network.excused))


@pytest.mark.parametrize("kind", ["kill", "restart"])
def test_a_switch_is_excused_as_long_as_a_fault_keeps_it_down(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """Whoever looks at the fabric's processes meanwhile takes no fault for a failure, and every later end for one."""
    monkeypatch.setattr(plans, "FaultInjector", Injector)
    network: Any = SimpleNamespace(fabric=leafspine(1, 0, 2), excused=set(), steps=[])
    plan = plans.FaultPlans([network]).process(Inject(kind, "leaf1"))
    plan.begin()
    if plan.end is not None:
        assert network.excused == {"leaf1"}
        plan.end()
    assert network.steps == [("kill", True), ("start", True)]
    assert network.excused == set()

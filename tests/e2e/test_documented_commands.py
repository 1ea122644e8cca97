# SPDX-License-Identifier: Apache-2.0
"""The documentation's command lines for a fabric that runs work, one after the other, on one fabric."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from netfold.fabric import file as fabric_file
from netfold.topo.network import sandbox
from support import needs
from support.docs.commands import FABRIC
from support.docs.pages import invoked
from support.fabrics.fabrics import leafspine
from support.sandboxes.steady import Steady
from support.sandboxes.topo import in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.fault_service import FaultService
from netfold.topo.network.net import Network


@pytest.mark.timeout(150)
@in_sandbox(timeout=140)
def test_command_lines_of_the_pages_work_on_a_running_fabric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with its status and says what it should, while four ranks sum."""
    fabric = leafspine(2, 2, 4, rate="50mbit", rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, faults=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETFOLD_CONTROLLER", fabric.jobs)
    network = Network(fabric, logs=tmp_path / "logs")
    with FaultService([network], sandbox.rundir()), network, Steady(network, seed=5):
        fabric_file.save(network.fabric, Path("lab.toml"))
        failed = []
        for line, run in FABRIC.items():
            status, said = invoked(run.instead or line)
            if status != run.status or run.says not in said:
                failed.append(f"{run.instead or line}: expected status {run.status} and {run.says!r}, got {status}:\n"
                              f"{said}")
        assert not failed, "\n".join(failed)

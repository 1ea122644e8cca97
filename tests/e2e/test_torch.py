# SPDX-License-Identifier: Apache-2.0
"""torch on the hosts of a real fabric: namespaces, links, P4 switches, controller."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine
from netfold.topo import sandbox
from support import needs
from support.steady import PATIENCE
from support.topo import ENGINES, in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.net import Network

pytestmark = [pytest.mark.timeout(200), pytest.mark.needs("torch")]  # the ranks import it, and nobody else
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_cnn.py"
STEPS = {"softswitch": 20, "bmv2": 8}
RATES = {"softswitch": "200mbit", "bmv2": "20mbit"}


@pytest.mark.parametrize(
    ("engine", "members"), [("softswitch", 1), ("softswitch", 2), pytest.param("bmv2", 1, marks=ENGINES[1].marks)]
)
@in_sandbox(timeout=160)
def test_a_training_script_folds_with_one_line_more(engine: Engine, members: int, tmp_path: Path) -> None:
    """The example learns on four ranks, its gradients fold in both spines, and gloo finds its way by itself.

    Two ranks on a host share its link: each folds half.
    """
    fabric = leafspine(2, 2, 4 // members, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    fabric = msgspec.structs.replace(fabric, misses=PATIENCE)
    hosts = [host for host in fabric.hosts for _ in range(members)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        # torch's store asks DNS for the name of its peer's address, and a fabric's host reaches no DNS
        resolver = {"RES_OPTIONS": "timeout:1 attempts:1"}
        threads = {"OMP_NUM_THREADS": "1"}  # as torchrun says: they do not spin for each other
        master = {"MASTER_ADDR": fabric.hosts[0].address, "MASTER_PORT": "29500", "NETFOLD_ALGO": "innet"}
        command = [sys.executable, str(EXAMPLE), "--steps", str(STEPS[engine])]
        ranks = network.launch(command, job="cnn", env=master | resolver | threads, hosts=hosts)
        first, last = ranks.wait(within=120)[0][-1].split("loss ")[1].split(" at first, ")
        (job,) = network.status().jobs
    assert float(last.split()[0]) < float(first) - 0.05  # the same numbers every time: seeds are fixed, sums exact
    assert (job.name, job.left) == ("cnn", [0, 1, 2, 3])
    for report in job.reports:
        assert report.operations > STEPS[engine]
        assert set(report.by_tree) == {"spine1", "spine2"}
        assert min(report.by_tree.values()) > 0.4 * report.bytes_reduced / members
        assert sum(report.by_tree.values()) == pytest.approx(report.bytes_reduced / members, rel=0.01)

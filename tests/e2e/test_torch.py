# SPDX-License-Identifier: Apache-2.0
"""torch on the hosts of a real fabric: namespaces, links, P4 switches, controller."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

# the ranks import torch, and nobody else
pytestmark = [pytest.mark.timeout(200), pytest.mark.needs("torch"), pytest.mark.usefixtures("torch_in_forks")]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch_cnn.py"
STEPS = 8
RATES = {"softswitch": "200mbit", "bmv2": "20mbit"}
FOLDED = {"hsdp": "replicate", "tensor_and_data_parallel": "replicate", "zero": "world"}
"""Trainings of rank_torch_mesh.py, and the dimension of each that spans leaves."""
GRADIENTS = {"hsdp": 3 * 20_752, "tensor_and_data_parallel": 3 * 20_752, "zero": 3 * 41_000}
"""Bytes of gradients that a rank folds at least: 20,752 parameters of float32, of which a rank has a quarter in three
steps, or, of all, one of the two ranks of a machine half."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("engine", "members"), [("softswitch", 2), pytest.param("softswitch", 1, marks=pytest.mark.long),
                            pytest.param("bmv2", 1, marks=ENGINES_LONG[1].marks)]
)
@in_sandbox(timeout=260)
def test_a_training_script_folds_with_one_line_more(engine: Engine, members: int, tmp_path: Path) -> None:
    """The example learns on four ranks, its gradients fold in both spines, and gloo finds its way by itself.

    Two ranks on a host share its link: each folds half.  On the same fabric their host's group, gloo's in place of
    NCCL's, then reduces their tensors, and the death of one of them is named everywhere.
    """
    fabric = leafspine(2, 2, 4 // members, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    hosts = [host for host in fabric.hosts for _ in range(members)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        # torch's store asks DNS for the name of its peer's address, and a fabric's host reaches no DNS
        resolver = {"RES_OPTIONS": "timeout:1 attempts:1"}
        threads = {"OMP_NUM_THREADS": "1"}  # as torchrun says: they do not spin for each other
        master = {"MASTER_ADDR": fabric.hosts[0].address, "MASTER_PORT": "29500", "NETFOLD_ALGO": "innet"}
        command = [sys.executable, str(EXAMPLE), "--steps", str(STEPS)]
        ranks = network.launch(command, job="cnn", env=master | resolver | threads, hosts=hosts)
        first, last = ranks.wait(within=120)[0][-1].split("loss ")[1].split(" at first, ")
        (job,) = network.status().jobs
        if members == 2:
            env = master | resolver | threads | {"MASTER_PORT": "29502", "NETFOLD_INSIDE": "group"}
            inside = network.launch([*program("rank_torch_inside.py"), "3"], job="inside", env=env, hosts=hosts)
            reduced_inside(inside.wait(within=60))
    assert float(last.split()[0]) < float(first) - 0.05  # the same numbers every time: seeds are fixed, sums exact
    assert (job.name, job.left) == ("cnn", [0, 1, 2, 3])
    for report in job.reports:
        assert report.operations > STEPS
        assert set(report.by_tree) == {"spine1", "spine2"}
        assert min(report.by_tree.values()) > 0.4 * report.bytes_reduced / members
        assert sum(report.by_tree.values()) == pytest.approx(report.bytes_reduced / members, rel=0.01)


def reduced_inside(output: list[list[str]]) -> None:
    """Checks what the ranks of rank_torch_inside.py have printed, of which rank 3 died."""
    for lines in output:
        result = json.loads(lines[0])
        assert result["paths"] == ["innet, gloo inside"]
        assert "tensors on devices are reduced there, as asked for: " in result["explain"]
        assert result["folded"] == pytest.approx(result["nbytes"] / 2, rel=0.01)
    assert all("PeerLost" in lines[1] and "rank 3" in lines[1] for lines in output[:3]), output


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=280)
def test_the_dimensions_of_a_device_mesh_fold(engine: Engine, tmp_path: Path) -> None:
    """Eight ranks on four hosts below two leaves, as two replicas of four shards: what is replicated between the leaves
    folds in the spines, so do two ranks of two machines each; two hosts below one leaf say that they gain nothing.

    The losses of HSDP, of tensor and data parallel training and of ZeRO are gloo's; the gradients of what spans leaves
    fold, as its ranks and the spines count."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    hosts = [host for host in fabric.hosts for _ in range(2)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        env = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1", "NETFOLD_ALGO": "innet",
               "MASTER_ADDR": fabric.hosts[0].address, "MASTER_PORT": "29501"}
        ranks = network.launch([*program("rank_torch_mesh.py"), "2", "4"], job="hsdp", env=env, hosts=hosts)
        results = [json.loads(lines[-1]) for lines in ranks.wait(within=240)]
        status = network.status()
    assert {job.name for job in status.jobs} == {"hsdp"}
    for result in results:
        assert "tree(s) for this group" in result["replicate"]
        assert "as they send each other" in result["shard"]
        assert "tree(s) for this group" in result.get("four", result["replicate"])
        for training in FOLDED:
            assert result[training]["ours"] == pytest.approx(result[training]["gloo"], rel=1e-4), training
    packets = 0
    for training, dimension in FOLDED.items():
        moved = [result["folded"][training][dimension] for result in results]
        assert min(moved) >= GRADIENTS[training], (training, moved)
        packets += sum(moved) // fabric.path_mtu
    spines = sum(switch.folded.first for switch in status.switches if switch.name.startswith("spine"))
    assert spines >= packets // 2, "two ranks of a leaf are one contribution"

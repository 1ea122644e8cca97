# SPDX-License-Identifier: Apache-2.0
"""NCCL's plug-in on a real fabric: programs call it as NCCL does, beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from netfold.host.capi import library
from netfold.topo.network import sandbox
from netfold.topo.processes.ranks import Ranks
from support import needs
from support.fabrics.fabrics import leafspine
from support.hosts.c_programs import nccl_driver
from support.sandboxes.topo import in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

HOSTS = 4
FEW = 3
"""Ranks of a job that fails."""
BYTES = 4 * 3 * sum(range(2500, 6001, 500))
"""What a rank of the driver gives in its requests of allreduces alone: 8 on each of 3 communicators."""


@pytest.mark.needs("libpython")
@pytest.mark.timeout(200)
@in_sandbox(timeout=180)
def test_jobs_of_nccl_fold_beside_each_other_and_tell_of_ranks_that_are_not_there(tmp_path: Path) -> None:
    """Two programs of four ranks, of C and of Python, have exact sums at the same time, and the switches have folded
    them.  In a third one a rank's process ends, in a fourth one a rank closes too early, and in a fifth one a rank
    never comes: the others' requests and connections fail, with the reason in NCCL's log."""
    fabric = leafspine(2, 2, HOSTS, rate="200mbit", rundir=sandbox.rundir())
    plugin = library.build_plugin()
    in_c, in_python = [str(nccl_driver("exe"))], [*program("rank_nccl.py"), str(nccl_driver("shared"))]
    with Network(fabric, logs=tmp_path / "logs") as network:
        def start(job: str, what: str, ranks: int = HOSTS, by: Sequence[str] = in_python, **env: str) -> Ranks:
            (tmp_path / job).mkdir()
            command = [*by, str(plugin), str(tmp_path / job), what]
            return network.launch(command, job=job, hosts=fabric.hosts[:ranks], env=env)

        def ends(job: str, ranks: Ranks, failing: int = -1) -> str:
            log = tmp_path / job / "log"
            output = ranks.wait(within=150)
            for rank, lines in enumerate(output):
                assert lines == ["as it must be"] * (rank != failing), (job, rank, log.read_text())
            return log.read_text()

        absent = start("absent", "absent", ranks=1)
        beside = {"red": start("red", "everything", by=in_c), "blue": start("blue", "everything")}
        for job, ranks in beside.items():
            ends(job, ranks)
        folded = {switch.name: switch.folded.first for switch in network.status().switches}
        failing = {"lost": start("lost", "lost", FEW), "closed": start("closed", "closed", FEW, NETFOLD_TIMEOUT="5")}
        lost = ends("lost", failing["lost"], failing=FEW - 1)
        closed = ends("closed", failing["closed"])
        missing = ends("absent", absent)
        status = network.status()
    packets = len(beside) * BYTES // fabric.path_mtu
    assert sum(folded[leaf] for leaf in ("leaf1", "leaf2")) >= HOSTS * packets, folded
    assert sum(count for name, count in folded.items() if name.startswith("spine")) >= 2 * packets, folded
    assert lost.count("NETFOLD_LOST: ") == FEW - 1, lost
    assert f"rank {FEW - 1}" in lost
    assert "NCCL closed the communicator before its collective was done" in closed
    assert closed.count("timeout of 5 s") == FEW - 1, closed
    assert "rank 0 of 2 does not join job absent." in missing
    assert all(switch.slots_used == 0 for switch in status.switches), status.jobs

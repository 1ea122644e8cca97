# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs" on Linux's rdma_rxe: virtual machines with Debian's kernel as ranks, folded by softswitch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from netfold.fabric.generate import leafspine
from netfold.host.native.library import PROCESSOR_VARIABLE
from netfold.topo import sandbox
from support import needs
from support.topo import in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.net import Network
from netfold.topo.rxe.hosts import Guests

pytestmark = [pytest.mark.timeout(400), pytest.mark.needs("rxe", "verbs")]
PROCESSOR = "x86-64-v2"
"""What QEMU's processors and this machine's both are: guests find here what this machine has compiled."""
LEASE = 100.0
"""Seconds that an emulated machine, on a busy one, may take between its plan and its queue pairs."""
RANK = """
import sys
import numpy as np
from netfold import Communicator
from netfold.host.verbs.devices import port_of
rank, world, address, controller = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
with Communicator.join("vm", rank, world, address=address, controller=controller, rail="verbs", timeout=60,
                       join_timeout=120) as comm:
    for size in (1, 1000, 100_001):
        lanes = np.arange(size, dtype=np.int32) * (rank + 1)
        assert (comm.allreduce(lanes) == np.arange(size) * sum(range(1, world + 1))).all(), size
        floats = np.full(size, 0.5 + rank, np.float32)
        assert (comm.allreduce(floats) == np.float32(sum(0.5 + r for r in range(world)))).all(), size
        assert (comm.allreduce(lanes, op="max") == np.arange(size) * world).all(), size
    print("folded", comm.rail, comm.stats().packets_sent, port_of(address).counters()["sent_pkts"])
"""


@in_sandbox(timeout=300)
def test_the_kernels_rdma_stack_folds_with_loss(tmp_path: Path) -> None:
    """Each link loses 0.5 % of its packets: sums are exact, and the NICs have sent at least what the rail posted."""
    environment = os.environ | {PROCESSOR_VARIABLE: PROCESSOR}
    subprocess.run([sys.executable, "-m", "netfold.host.verbs", "library"], env=environment, check=True, timeout=200)
    fabric = leafspine(1, 1, 2, engine="softswitch", rundir=sandbox.rundir(), path_mtu=1024, rdma=True, loss=0.005)
    fabric = structs.replace(fabric, lease=LEASE)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=tmp_path / "logs", guests=guests):
        ranks = [
            subprocess.Popen(
                [*guests.enter(host.name), sys.executable, "-c", RANK, str(rank), "2", host.address, fabric.jobs],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank, host in enumerate(fabric.hosts)
        ]
        try:
            outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, said in zip(ranks, outputs, strict=True):
            assert rank.returncode == 0, said
            found = re.search(r"folded verbs (\d+) (\d+)", said)
            assert found, said
            assert 0 < int(found[1]) <= int(found[2])

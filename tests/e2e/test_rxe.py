# SPDX-License-Identifier: Apache-2.0
"""Hosts with an ordinary RDMA stack: virtual machines with Debian's kernel and its rdma_rxe, on leaf-spine fabrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.topo import sandbox
from netfold.topo.faults import FaultInjector
from support import needs
from support.steady import PATIENCE
from support.topo import in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.net import Network
from netfold.topo.rxe.counts import RDMA_DEVICE
from netfold.topo.rxe.hosts import Guests
from netfold.topo.rxe.machine import Machine

pytestmark = [pytest.mark.timeout(400), pytest.mark.needs("rxe")]
TOOL_SECONDS = 60.0


def pair(guests: Guests, fabric: Fabric, server: str, client: str) -> tuple[str, str]:
    """Run a tool of verbs between the first and the last host, and return what server and client print.

    server, client  shell commands; the client's gets the server's address
    """
    first, last = fabric.hosts[0], fabric.hosts[-1]
    machines = guests.machines[first.name], guests.machines[last.name]
    waiting = start(machines[0], server)
    try:
        # the tool listens on a TCP port once it is ready
        machines[0].execute("until ss -Hltn | grep -q :18515; do sleep 0.1; done", "waiting for the tool's server")
        asking = start(machines[1], f"{client} {first.address}")
        try:
            asked = finish(asking)
        finally:
            asking.kill()
        return finish(waiting), asked
    finally:
        waiting.kill()


def start(machine: Machine, script: str) -> subprocess.Popen[str]:
    """Start a shell command in a guest."""
    return subprocess.Popen(machine.attach(["sh", "-c", script]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What a program has printed once it has ended with status 0."""
    output, _ = process.communicate(timeout=TOOL_SECONDS)
    assert process.returncode == 0, output
    return output


def gid_index(machine: Machine, address: str) -> int:
    """The index of the GID that the NIC has for an IPv4 address."""
    script = f"grep -n . /sys/class/infiniband/{RDMA_DEVICE}/ports/1/gids/*"
    words = [int(byte) for byte in address.split(".")]
    wanted = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*words)
    found = re.search(rf"gids/(\d+):\d+:{wanted}", machine.execute(script, "reading GIDs"))
    assert found, f"{machine.name} has no GID for {address}"
    return int(found[1])


@in_sandbox(timeout=240)
def test_the_tools_of_verbs_work_between_virtual_machines_of_a_fabric(tmp_path: Path) -> None:
    """ibv_rc_pingpong checks its data and ib_write_bw moves some, unfolded, between two leaves; a guest runs this
    Python, imports NetFold and reaches the controller."""
    fabric = leafspine(2, 1, 2, engine="softswitch", rundir=sandbox.rundir(), path_mtu=4096, rdma=True)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=tmp_path / "logs", guests=guests):
        for host in fabric.hosts:
            assert gid_index(guests.machines[host.name], fabric.fold_address(host)) > 0
        index = {gid_index(guests.machines[host.name], host.address) for host in fabric.hosts}
        assert len(index) == 1
        options = f"-d {RDMA_DEVICE} -g {index.pop()} -m 4096 -n 200 -c"
        for said in pair(guests, fabric, f"ibv_rc_pingpong {options}", f"ibv_rc_pingpong {options}"):
            assert "200 iters" in said
            assert "invalid data" not in said
        options = f"-d {RDMA_DEVICE} -m 4096 -n 200 -s 65536"
        for said in pair(guests, fabric, f"ib_write_bw {options}", f"ib_write_bw {options}"):
            assert re.search(r"^ 65536 +200 ", said, re.MULTILINE), said
        print(said, guests.boot_seconds)
        status = guests.machines[fabric.hosts[0].name].execute(
            f"{sys.executable} -m netfold.cli status --controller {fabric.jobs}", "asking the controller"
        )
        assert all(switch.name in status for switch in fabric.switches)


def folded(tmp_path: Path, engine: Engine, hosts: int, loss: float, lengths: list[int], **options: Any) -> list[Any]:
    """What ranks in virtual machines under two leaves say of their sums, which switches have folded; the sums are exact
    and each RDMA device completed all it was asked for.

    loss  probability on each link, also of repetition, reordering and corruption
    """
    fabric = leafspine(2, 1, hosts, engine=engine, loss=loss, duplicate=loss, reorder=loss, corrupt=loss, seed=5,
                       rundir=sandbox.rundir(), rdma=True, **options)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=tmp_path / f"logs{loss}", guests=guests) as network:
        command = [*program("rank_verbs.py"), "11", "2", *map(str, lengths)]
        output = network.launch(command, job="sums").wait(within=150)
        status, nics = network.status(), guests.nic_counts()
        results = [json.loads(lines[-1]) for lines in output]
        print(loss, guests.boot_seconds, results, nics, [(s.name, s.folded) for s in status.switches])
    lost = sum(link.a_to_b.lost + link.b_to_a.lost for link in status.links)
    assert (lost > 0) == (loss > 0)
    assert {result["rail"] for result in results} == {"verbs"}
    assert len({result["digest"] for result in results}) == 1
    leaves = [switch for switch in status.switches if switch.role == "leaf"]
    # a contribution of each rank and, where no fault has it taken another way, a result from the spine for each packet
    needed = results[0]["packets_sent"]
    for leaf in leaves:
        assert leaf.folded.first >= needed * (hosts // 2 + (not loss))
    for result, nic in zip(results, nics.values(), strict=True):
        assert nic.errors == 0
        assert nic.data_sent >= result["packets_sent"]
        assert nic.data_received >= needed
    return results


@in_sandbox(timeout=280)
def test_allreduces_of_ordinary_rdma_stacks_fold_with_and_without_faults(tmp_path: Path) -> None:
    """Two machines under two leaves and a spine: sums of one element to 100 KB are exact with and without loss,
    repetition, reordering and corruption, the same in both, and the switches have folded each packet."""
    digests = {
        folded(tmp_path, "softswitch", 2, loss, [1, 1025, 25_000], path_mtu=4096)[0]["digest"] for loss in (0.0, 0.01)
    }
    assert len(digests) == 1


@in_sandbox(timeout=280)
def test_sums_of_ordinary_rdma_stacks_stay_exact_when_a_leaf_restarts(tmp_path: Path) -> None:
    """A leaf is killed in the middle and started anew, without entries: no rank takes anything wrong for a sum (each
    checks all), the queue pairs are made anew, and the ranks go on folding."""
    fabric = leafspine(2, 1, 2, engine="softswitch", rundir=sandbox.rundir(), path_mtu=4096, rdma=True)
    fabric = msgspec.structs.replace(fabric, misses=PATIENCE)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=tmp_path / "logs", guests=guests) as network:
        ranks = network.launch([*program("rank_verbs.py"), "11", "40", "60000"], job="sums")
        until = time.monotonic() + 150
        while network.status().switches[0].folded.first < 600:  # some operations are over, and many are to come
            network.check()
            assert time.monotonic() < until, "nothing is folded"
            time.sleep(0.1)
        FaultInjector(network).restart("leaf1")
        results = [json.loads(lines[-1]) for lines in ranks.wait(within=150)]
    assert [(result["rail"], result["rounds"]) for result in results] == [("verbs", 1)] * 2
    assert len({result["digest"] for result in results}) == 1

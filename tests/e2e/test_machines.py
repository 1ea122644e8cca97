# SPDX-License-Identifier: Apache-2.0
"""Several ranks on each host of a real fabric: exact sums, the bytes on each link, and the death of one of them,
without which the others go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine, Host
from netfold.topo.network import sandbox
from support import needs
from support.docs import combinations
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
ELEMENTS = 100_000
HEADERS = 76
"""Bytes of a packet on a link beside its payload."""
OVERHEAD = 1.2
"""Headers, exponents, short tensors, and NAKs for results that a loaded machine has late; not what was sent again
because of that."""


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_machine_of_two_ranks_sends_each_tensor_once(engine: Engine, tmp_path: Path) -> None:
    """4 machines of 2 ranks: exact everywhere, and every host link carries M each way, not 2 M."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    hosts = [host for host in fabric.hosts for _ in range(2)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        command = [*program("rank_machines.py"), "7", str(ELEMENTS)]
        output = network.launch(command, job="sums", hosts=hosts).wait(within=150)
        links = network.status().links
    results = [json.loads(lines[-1]) for lines in output]
    assert {result["rail"] for result in results} == {"innet"}
    assert len({result["digest"] for result in results}) == 1
    assert all("2 ranks of each machine" in result["explain"] for result in results)
    moved = 2 * 4 * ELEMENTS  # int32 and float32
    for machine, host in enumerate(fabric.hosts):
        (link,) = (link for link in links if f"{host.name}:0" in (link.a, link.b))
        up, down = (link.a_to_b, link.b_to_a) if link.a == f"{host.name}:0" else (link.b_to_a, link.a_to_b)
        ranks = results[2 * machine : 2 * machine + 2]
        again = (fabric.path_mtu + HEADERS) * sum(result["again"] for result in ranks)
        twice = (fabric.path_mtu + HEADERS) * sum(result["twice"] for result in ranks)
        assert moved <= up.bytes <= OVERHEAD * moved + again, f"{link}: expected about {moved} bytes up"
        assert moved <= down.bytes <= OVERHEAD * moved + again + twice, f"{link}: expected about {moved} bytes down"


@in_sandbox(timeout=150)
def test_the_death_of_one_rank_of_a_machine_is_named_everywhere(tmp_path: Path) -> None:
    """The ranks of its machine see its connection break; the others hear of it from the controller."""
    fabric = leafspine(2, 2, 2, rundir=sandbox.rundir())
    hosts = [host for host in fabric.hosts for _ in range(2)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        command = [*program("rank_machines.py"), "7", "100000", "3"]
        output = network.launch(command, job="sums", hosts=hosts).wait(within=100)
    assert output[3] == []
    for rank in range(3):
        assert re.search(r"PeerLost.*rank 3", output[rank][-1]), output


@in_sandbox(timeout=250)
def test_machines_of_any_numbers_of_ranks_fold_rows_and_go_on_without_and_with_a_rank(tmp_path: Path) -> None:
    """On one fabric, with machines of one rank, of two and of unlike numbers: two jobs at once fold rows; then in a job
    a rank goes and another one comes, and those that are there fold, as the switches count."""
    fabric = leafspine(2, 2, 4, rate=RATES["softswitch"], rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        for name, life in combinations.LIVES.items():
            two_jobs_fold_rows(network, name, life)
            ranks_go_and_come(network, name, life)


def hosts_of(network: Network, life: combinations.Life) -> list[Host]:
    """The host of each rank."""
    return [host for host, count in zip(network.fabric.hosts, life.machines, strict=False) for _ in range(count)]


def two_jobs_fold_rows(network: Network, name: str, life: combinations.Life) -> None:
    """Fails where the ranks of one of two jobs on the same hosts do not fold all that they call."""
    hosts = hosts_of(network, life)
    command = [*program("rank_rows.py"), "7", "0.2"]
    jobs = [network.launch(command, job=f"{job}{len(hosts)}", hosts=hosts) for job in "ab"]
    for job in jobs:
        paths = [json.loads(lines[-1])["paths"] for lines in job.wait(within=100)]
        assert paths == [["innet"]] * len(hosts), name
    assert life.cells[combinations.BESIDE] == combinations.FOLDS


def ranks_go_and_come(network: Network, name: str, life: combinations.Life) -> None:
    """Fails where a cell of the page (support/docs/combinations.py) is another one."""
    counts, victim, elements = life.machines, life.victim, ELEMENTS
    fabric, world, before = network.fabric, sum(life.machines), news(network)
    hosts = hosts_of(network, life)
    seen, job = [*program("rank_life.py"), "7", str(elements)], f"life{world}"
    old = network.launch([*seen, str(victim)], job=job, hosts=hosts)
    new = network.launch([*seen, "-1"], job=job, hosts=[hosts[victim]])
    output = [lines for lines in old.wait(within=100) if lines] + new.wait(within=100)
    packets = len(counts) * 4 * elements // fabric.path_mtu
    assert news(network) - before >= 2 * packets, name
    for row, size, lines in ((combinations.GOES, world - 1, 0), (combinations.COMES, world, -1)):
        left = [json.loads(one[lines]) for one in output if len(one) > 1 or size == world]
        assert [one["size"] for one in left] == [size] * size, name
        assert {(one["rail"], *one["paths"]) for one in left} == {("innet", "innet")}, name
        assert life.cells[row] == combinations.FOLDS
        senders = sum(one["folded"] >= 4 * elements // max(counts) for one in left)
        there = [count - (size < world and place == life.at) for place, count in enumerate(counts)]
        there = [count for count in there if count]
        assert senders == min(there) * len(there), (name, left)


def news(network: Network) -> int:
    """Contributions and results that the switches' slots have lacked so far."""
    return sum(switch.folded.first for switch in network.status().switches)

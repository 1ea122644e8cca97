# SPDX-License-Identifier: Apache-2.0
"""Several ranks on each host of a real fabric: exact sums, the bytes on each link, and the death of one of them,
without which the others go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine
from netfold.topo import sandbox
from support import needs
from support.topo import ENGINES, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
ELEMENTS = {"softswitch": 500_000, "bmv2": 50_000}
HEADERS = 76
"""Bytes of a packet on a link beside its payload."""
OVERHEAD = 1.2
"""Headers, exponents, short tensors, and NAKs for results that a loaded machine has late; not what was sent again
because of that."""


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_a_machine_of_two_ranks_sends_each_tensor_once(engine: Engine, tmp_path: Path) -> None:
    """4 machines of 2 ranks: exact everywhere, and every host link carries M each way, not 2 M."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    hosts = [host for host in fabric.hosts for _ in range(2)]
    with Network(fabric, logs=tmp_path / "logs") as network:
        command = [*program("rank_machines.py"), "7", str(ELEMENTS[engine])]
        output = network.launch(command, job="sums", hosts=hosts).wait(within=150)
        links = network.status().links
    results = [json.loads(lines[-1]) for lines in output]
    assert {result["rail"] for result in results} == {"innet"}
    assert len({result["digest"] for result in results}) == 1
    assert all("2 ranks of each machine" in result["explain"] for result in results)
    moved = 2 * 4 * ELEMENTS[engine]  # int32 and float32
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
def test_machines_of_unlike_numbers_of_ranks_fold_all_that_one_rank_a_machine_does(tmp_path: Path) -> None:
    """On one fabric: rows with two ranks on each of four hosts, and with 2, 2, 1 and 2; then of eight ranks one goes,
    and the seven fold: the switches count the contributions of four hosts for all that they sum."""
    fabric = leafspine(2, 2, 4, rate=RATES["softswitch"], rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        for counts in ((2, 2, 2, 2), (2, 2, 1, 2)):
            hosts = [host for host, count in zip(fabric.hosts, counts, strict=True) for _ in range(count)]
            output = network.launch([*program("rank_rows.py"), "7"], job="rows", hosts=hosts).wait(within=100)
            results = [json.loads(lines[-1]) for lines in output]
            assert [result["paths"] for result in results] == [["innet"]] * len(hosts)
        before = news(network)
        hosts = [host for host in fabric.hosts for _ in range(2)]
        command = [*program("rank_shrinks.py"), "7", str(ELEMENTS["softswitch"]), "5"]
        output = network.launch(command, job="shrinks", hosts=hosts).wait(within=100)
        packets = 4 * ELEMENTS["softswitch"] // fabric.path_mtu
        assert news(network) - before >= 4 * packets
    assert output[5] == []
    left = [json.loads(lines[-1]) for rank, lines in enumerate(output) if rank != 5]
    assert {(one["size"], one["rail"], *one["paths"]) for one in left} == {(7, "innet", "innet")}, left
    assert all("1 to 2 ranks of each machine" in one["explain"] for one in left)
    sent = [one["folded"] >= 4 * ELEMENTS["softswitch"] for one in left]
    assert sent == [True, False, True, False, True, True, False], left


def news(network: Network) -> int:
    """Contributions and results that the switches' slots have lacked so far."""
    return sum(switch.folded.first for switch in network.status().switches)

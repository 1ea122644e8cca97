# SPDX-License-Identifier: Apache-2.0
"""A fabric of path MTU 4096, on both engines: exact sums, every operation, packets that others dissect.

Softswitches have two threads here that receive and send while the program handles packets.
"""

from __future__ import annotations

import ipaddress
import json
import os
import struct
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from netfold.controller.switch.tables import ROUTERS
from netfold.fabric import generate
from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from softswitch.cli.run import THREADS
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.capture import Capture
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES, in_sandbox, program
from support.sandboxes.tshark import dissect

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network
from netfold.topo.processes.failures import RankFailed
from netfold.wire import roce

pytestmark = pytest.mark.timeout(240)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
LOSSES = {"softswitch": (0.0, 0.02), "bmv2": (0.02,)}
MTU = 4096


def summed(engine: Engine, loss: float, tmp_path: Path) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Each rank's report on its sums, and the frames of its data, each once.

    loss  probability on each link, also of repetition, reordering and corruption
    """
    fabric = leafspine(2, 1, 4, rate=RATES[engine], loss=loss, duplicate=loss, reorder=loss, corrupt=loss, seed=1,
                       engine=engine, rundir=sandbox.rundir(), path_mtu=MTU)
    offload = None if loss else False  # a capture shall show packets as they are on a wire
    with (patch.dict(os.environ, {THREADS: "3"}),
          Network(fabric, logs=tmp_path / f"logs{loss}", offload=offload) as network, Capture() as capture):
        output = network.launch([*program("rank_operations.py"), "7"], job="sums").wait(within=150)
    frames = {frame for interface, frame in capture.frames if interface != "lo"}
    links = ipaddress.IPv4Address(ROUTERS).packed  # the controller's probes of links are RoCE, too
    data = [frame for frame in frames if frame[36:38] == struct.pack("!H", roce.UDP_PORT) and frame[30:34] != links]
    assert len(data) > 100
    return [json.loads(lines[-1]) for lines in output], data


@pytest.mark.without("tshark")
@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_a_fabric_of_4096_bytes_a_packet_folds(engine: Engine, tmp_path: Path) -> None:
    """int32 is exact, float32 within the bound, maxima, narrow lanes and saturation right, the same bits on all ranks
    with and without loss, repetition, reordering and corruption; a quarter of the packets, whose ICRCs hold, and of
    which tshark, where it is there, reads the opcode and the length.  On BMv2 with all that alone."""
    digests = set()
    for loss in LOSSES[engine]:
        results, data = summed(engine, loss, tmp_path)
        assert {result["path_mtu"] for result in results} == {MTU}
        digests |= {result["digest"] for result in results}
        if loss:
            assert sum(result["retransmissions"] for result in results) > 0
            continue
        for frame in data:
            if frame[42] != roce.Opcode.ACKNOWLEDGE:
                assert len(frame) == 14 + roce.ip_packet_bytes(roce.Opcode(frame[42]), MTU)
            assert frame[-4:] == roce.icrc(frame[14:-4])
        if needs.missing("tshark") is None:
            some = data[:500]
            assert dissect(some, ["infiniband.bth.opcode", "ip.len"], tmp_path) == [
                [str(frame[42]), str(len(frame) - 14)] for frame in some]
    assert len(digests) == 1


@in_sandbox(timeout=200)
def test_links_with_too_small_an_mtu_are_named(tmp_path: Path) -> None:
    """One between switches counts as down, for its MTU, and sums go over the others; a rank behind one does not
    join."""
    fabric = generate.leafspine(2, 2, 2, rundir=sandbox.rundir())
    number, uplink = next((n, link) for n, link in enumerate(fabric.links) if link.ends[1].node == "spine1")

    def set_mtu(node: str, port: int) -> None:
        network.mininet.get(node).cmd(f"ip link set dev {node}-eth{port} mtu 1500")

    with Network(fabric, logs=tmp_path / "logs") as network:
        with Steady(network, seed=1) as steady:
            steady.go_on()
            set_mtu(*uplink.ends[0])
            steady.until("the uplink is down, for its MTU", lambda status: not status.links[number].up
                         and "path_mtu = 4096 needs an MTU of 4156" in status.links[number].problem)
            steady.go_on()
            steady.end()
        set_mtu("h1", 0)
        with pytest.raises(RankFailed, match=r"MTU of 4156 or more on every link.* from 10\.0\.1\.1 .* has 1500"):
            network.launch([*program("rank_operations.py"), "7"], job="late").wait(within=60)

# SPDX-License-Identifier: Apache-2.0
"""Queue pairs in real namespaces: kernels, links that lose packets, P4 switches that only route."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from netfold.fabric.graph import Engine
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.capture import Capture
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network
from netfold.wire import roce

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
ELEMENTS = {"softswitch": 100_003, "bmv2": 25_003}
"""Of the longest sum: BMv2, which only routes here, takes several times as much of a processor for a packet."""


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_a_ring_over_queue_pairs_needs_no_tree(engine: Engine, tmp_path: Path) -> None:
    """Exact on every rank at 2 % loss on all links, TCP's set-up included, with no folding entry anywhere."""
    fabric = leafspine(2, 2, 4, rate=RATES[engine], loss=0.02, seed=3, engine=engine, rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs") as network:
        output = network.launch([*program("roce_sums.py"), "7", str(ELEMENTS[engine])], job="ring").wait(within=90)
        assert sum(link.a_to_b.lost + link.b_to_a.lost for link in network.status().links) > 0
    results = [json.loads(lines[-1]) for lines in output]
    assert {result["trees"] for result in results} == {0}
    assert sum(result["retransmissions"] for result in results) > 0
    assert len({result["digest"] for result in results}) == 1


@in_sandbox(timeout=150)
def test_kernels_send_what_the_icrc_covers(tmp_path: Path) -> None:
    """On every interface, super-packets cut by the kernel: IPv4 IDs, ports and lengths are those that were hashed."""
    fabric = leafspine(2, 1, 2, rate="1gbit", engine="softswitch", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path / "logs", offload=False) as network, Capture() as capture:
        network.launch([*program("roce_sums.py"), "7", str(ELEMENTS["softswitch"])], job="ring").wait(within=90)
    opcodes: dict[int, int] = {}
    for interface, frame in capture.frames:
        if interface == "lo" or frame[12:14] != b"\x08\x00" or frame[23] != 17 or frame[36:38] != b"\x12\xb7":
            continue
        end = 14 + struct.unpack_from("!H", frame, 16)[0]
        assert frame[end - 4 : end] == roce.icrc(frame[14 : end - 4]), f"{interface}: {frame[:80].hex()}"
        opcodes[frame[42]] = opcodes.get(frame[42], 0) + 1
    assert set(opcodes) == {0x06, 0x07, 0x08, 0x0A, 0x11}
    assert opcodes[0x07] > 100

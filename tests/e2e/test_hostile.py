# SPDX-License-Identifier: Apache-2.0
"""Strangers beside a job in real namespaces: another host of the fabric, and another user of a rank's own host."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path

import grpc
import pytest

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from netfold.wire import roce
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.capture import Capture
from support.sandboxes.steady import Steady
from support.sandboxes.topo import ENGINES, in_sandbox, program
from switch_support.client import Client

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
SECONDS = 1.5
"""How long the strangers send."""


def fabric_of(engine: Engine) -> Fabric:
    return leafspine(2, 1, 4, rate=RATES[engine], seed=1, engine=engine, rundir=sandbox.rundir())


def result_of(frames: list[tuple[str, bytes]], victim: str) -> dict[str, object]:
    """Where the latest result to a host came from, with its queue pair and PSN."""
    address = bytes(map(int, victim.split(".")))
    for _, frame in reversed(frames):
        if frame[12:14] == b"\x08\x00" and frame[23] == 17 and frame[30:34] == address and frame[22] == roce.RESULT_TTL:
            port, to = struct.unpack_from("!HH", frame, 34)
            if to == roce.UDP_PORT:
                qp, psn = struct.unpack_from("!II", frame, 46)
                return {"predecessor": ".".join(map(str, frame[26:30])), "port": port, "qp": qp & 0xFFFFFF,
                        "psn": psn & roce.PSN_MASK}
    raise AssertionError(f"no result for {victim} among {len(frames)} frames")


def refusal_of_a_role(network: Network) -> str:
    """A leaf's answer to a client that wants to write to it beside the controller, in a role of its own."""
    leaf = network.fabric.switch("leaf1")
    with Client(leaf.grpc, device=leaf.device_id) as guest:
        stream = guest.stream()
        stream.arbitrate(1, device=leaf.device_id, role="guest")
        with pytest.raises(grpc.RpcError) as caught:
            stream.next()
        return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_strangers_change_no_sum_and_are_counted(engine: Engine, tmp_path: Path) -> None:
    """Three hosts sum; the fourth sends rank 0 results from its own address with any TTL and from others', and a user
    of rank 0's host sends them with TTL 255: every sum is right, no trees are planned anew, the leaf counts what was
    spoofed, and the rank's log says where the rest came from.  The user gets neither a rank's port nor its address, and
    no P4Runtime client writes beside the controller in a role of its own."""
    with Network(fabric_of(engine), logs=tmp_path / "logs") as network, Steady(network, seed=5, hosts=3) as steady:
        victim, attacker = network.fabric.hosts[0], network.fabric.hosts[3]
        with Capture() as capture:
            steady.go_on()
        known = {**result_of(capture.frames, victim.address), "victim": victim.address, "seconds": SECONDS,
                 "span": 200_000, "path_mtu": network.fabric.path_mtu}
        running = [
            network.launch([*program("hostile.py"), json.dumps({**known, "role": role, "own": host.address})],
                           job=f"hostile-{role}", hosts=[host])
            for role, host in (("host", attacker), ("user", victim))
        ]
        begun = time.monotonic()
        (host,), (user,) = ([json.loads(lines[-1]) for lines in one.wait(within=60)] for one in running)
        assert time.monotonic() - begun >= SECONDS
        if engine == "softswitch":
            assert "--default-role-only" in refusal_of_a_role(network)
        steady.go_on()
        status = network.status()
        ends = steady.end()
        log = (network.logs / "steady-rank0.log").read_text()
    assert min(host["sent"], user["sent"]) > 1000
    assert user["refused"] == ["raw", "receiver", "predecessor"]
    assert {end["rail"] for end in ends} == {"innet"}
    assert {end["rounds"] for end in ends} == {0}
    spoofed = {link.b: link.a_to_b.spoofed + link.b_to_a.spoofed for link in status.links}
    assert spoofed[f"{attacker.name}:0"] > 500
    assert sum(spoofed.values()) == spoofed[f"{attacker.name}:0"], "nobody else is refused"
    assert "packets so far to this rank's queue pairs were dropped" in log

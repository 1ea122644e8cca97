# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, stops or never calls is named on every other rank in bounded time, on every rail, for real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers_topo import ENGINES, in_sandbox, program

from netfold.controller.plan.fabric import Engine, leafspine
from netfold.topo import sandbox

pytest.importorskip("mininet.net", reason="Mininet is not installed: apt install mininet")

from netfold.topo.net import Network

pytestmark = pytest.mark.timeout(200)
TIMEOUT = 1.0
BOUND = TIMEOUT + 4.0
"""Seconds until an error: the timeout, the question to the controller (at most 3), and a busy machine."""
CASES = [("innet", "stop"), ("innet", "stay"), ("innet", "kill"), ("tcp", "stop"), ("roce", "stop")]


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=160)
def test_every_other_rank_names_the_lost_one(engine: Engine, tmp_path: Path) -> None:
    """Operation, size and rank stand in each error, in time; the flight recorder has the operation as failed."""
    rate = "200mbit" if engine == "softswitch" else "20mbit"
    with Network(leafspine(2, 1, 4, rate=rate, engine=engine, rundir=sandbox.rundir()), logs=tmp_path) as network:
        for rail, way in CASES if engine == "softswitch" else CASES[:1]:
            job = f"{rail}-{way}"
            folder = tmp_path / job
            folder.mkdir()
            ranks = network.launch([*program("rank_lost.py"), rail, way, str(TIMEOUT), str(folder)], job=job)
            said = []
            for process in ranks.processes[:3]:
                output, _ = process.communicate(timeout=60)
                said.append(json.loads(output))
            for process in ranks.processes:
                process.kill()
            for rank, told in enumerate(said):
                where = f"{job}, rank {rank}: {told}"
                assert told["kind"] in ("CollectiveTimeout", "PeerLost"), where
                assert "rank 3" in told["text"], where
                assert not any(f"rank {other} gone" in told["text"] for other in range(3)), where
                assert "100000 x float32" in told["text"], where
                assert f"operation {told['number']}" in told["text"], where
                assert told["state"] == "failed", where
                assert told["seconds"] < BOUND, where
                if rail == "innet" and way != "kill":
                    assert "rank 3 gone, stopped, or never called" in told["text"], where
                    assert "leaf2" in told["text"], where
        network.check()

# SPDX-License-Identifier: Apache-2.0
"""`netfold fault` and `netfold pcap` on a running fabric, from another process, while its job's sums stay exact."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import needs
from support.topo import program

pytestmark = [pytest.mark.netns, pytest.mark.needs("namespaces", "mininet"), pytest.mark.timeout(150)]
NETFOLD = [sys.executable, "-m", "netfold.cli"]
ROUNDS = 1_000_000
"""More than there is time for: the job ends when it is told to."""


def netfold(*words: str) -> str:
    """What a command prints; it has to succeed."""
    done = subprocess.run([*NETFOLD, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """`netfold run` with a job that sums until it is ended, each sum checked by every rank, for all tests of this file:
    each leaves it without faults.  Its links are slow, so that it waits for them rather than keep the machine busy."""
    command = [*NETFOLD, "run", "--topo", "leafspine,2,2,4", "--rate", "50mbit", "--faults", "--"]
    with (tmp_path_factory.mktemp("fabric") / "run.log").open("w") as errors:
        running = subprocess.Popen([*command, *program("rank_rounds.py"), "1", str(ROUNDS), "20000"], text=True,
                                   stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.communicate(timeout=40)  # reads on, so that no rank waits at a full pipe
            finally:
                running.kill()
                running.communicate()


def rounds(running: subprocess.Popen[str], more: int) -> int:
    """Wait until rank 0 has begun so many rounds more; returns the last one's number."""
    assert running.stdout is not None
    for line in running.stdout:
        if found := re.search(r'\{"round": (\d+)\}', line):
            more -= 1
            if more == 0:
                return int(found[1])
    raise AssertionError(f"the job ended with status {running.wait(40)}")


def test_faults_by_command_end_by_themselves_and_no_sum_is_wrong(fabric: subprocess.Popen[str]) -> None:
    """Packets are lost, a host's link is cut and a spine is killed, and the job goes on over all of it."""
    rounds(fabric, 3)
    assert "no faults" in netfold("fault", "list")
    assert "seed 4" in netfold("fault", "loss", "leaf1-spine1", "--rate", "0.02", "--seed", "4", "--for", "1s")
    rounds(fabric, 5)
    assert "spine2 is killed" in netfold("fault", "kill", "spine2", "--for", "1s")
    rounds(fabric, 5)
    command = [*NETFOLD, "fault", "kill", "spine9"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode != 0
    assert "spine9" in refused.stderr
    while "no faults" not in netfold("fault", "list"):
        rounds(fabric, 1)
    rounds(fabric, 5)
    assert fabric.poll() is None


@pytest.mark.needs("tshark")
def test_a_capture_names_what_each_packet_is(fabric: subprocess.Popen[str], tmp_path: Path) -> None:
    """tshark with the dissector finds contributions and results of the job in a capture of a host's link."""
    needs.require("tshark")
    rounds(fabric, 3)
    capture = tmp_path / "link.pcapng"
    netfold("pcap", "leaf1:1", "-w", str(capture), "--for", "2s", "--snap", "256")
    script = netfold("pcap", "--dissector").strip()
    fields = ["netfold.role", "netfold.job", "netfold.tree", "netfold.operation"]
    command = ["tshark", "-X", f"lua_script:{script}", "-r", str(capture), "-T", "json",
               *(word for field in fields for word in ("-e", field))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = [packet["_source"]["layers"] for packet in json.loads(done.stdout)]
    roles = {role for layers in found for role in layers.get("netfold.role", [])}
    assert {"contribution", "result"} <= roles
    named = [layers for layers in found if layers.get("netfold.job") == ["run"]]
    assert {tree for layers in named for tree in layers["netfold.tree"]} >= {"spine1", "spine2"}

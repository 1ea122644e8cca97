# SPDX-License-Identifier: Apache-2.0
"""`netfold fault` and `netfold pcap` on a running fabric, from another process, while its job's sums stay exact."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netfold.rpc import local
from netfold.wire import faults
from netfold.wire.faults import FAULTS_VARIABLE, SOCKET
from support import needs
from support.docs.pages import invoked
from support.sandboxes.topo import program

pytestmark = [pytest.mark.netns, pytest.mark.needs("namespaces", "mininet"), pytest.mark.timeout(240)]
NETFOLD = [sys.executable, "-m", "netfold.cli"]
ROUNDS = 1_000_000
"""More than there is time for: the job ends when it is told to."""
ASKED = 20
"""Recordings and captures of which one at least sees all that it looks for, however busy the machine."""


def netfold(*words: str) -> str:
    """The output of a command; it must succeed.  It runs in this process, which is not the fabric's."""
    status, said = invoked(shlex.join(["netfold", *words]))
    assert status == 0, said
    return said


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that gets the output of the fabric."""
    return tmp_path_factory.mktemp("fabric") / "run.log"


@pytest.fixture(scope="module")
def fabric(log: Path) -> Iterator[subprocess.Popen[str]]:
    """`netfold run` with a job that sums until it is ended, each sum checked by every rank.  Commands are for this
    fabric, whichever else run on the machine meanwhile.  The last test ends it."""
    command = [*NETFOLD, "run", "--topo", "leafspine,2,2,4", "--rate", "200mbit", "--faults", "--", "sh", "-c",
               'echo "folder ${NETFOLD_CONTROLLER%/*}"; exec "$@"', "rank"]
    with log.open("w") as errors, pytest.MonkeyPatch.context() as patch:
        running = subprocess.Popen([*command, *program("rank_rounds.py"), "1", str(ROUNDS), "20000"], text=True,
                                   stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        try:
            assert running.stdout is not None
            folder = next(found[1] for line in running.stdout if (found := re.search(r"folder unix:(.*)", line)))
            patch.setenv(FAULTS_VARIABLE, f"{folder}/{SOCKET}")
            yield running
        finally:
            running.terminate()
            try:
                running.communicate(timeout=100)  # reads on, so that no rank waits at a full pipe
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


@pytest.mark.needs("tshark")
def test_a_capture_names_what_each_packet_is(fabric: subprocess.Popen[str], tmp_path: Path) -> None:
    """tshark with the dissector finds contributions and results of the job in a capture of a host's link."""
    needs.require("tshark")
    for _ in range(ASKED):
        rounds(fabric, 3)
        roles, trees = dissected(tmp_path / "link.pcapng")
        if {"contribution", "result"} <= roles and {"spine1", "spine2"} <= trees:
            break
    else:
        raise AssertionError(f"none of {ASKED} captures has both roles and both trees; the last one: {roles}, {trees}")


def dissected(capture: Path) -> tuple[set[str], set[str]]:
    """The roles of packets and the trees of the job in a capture of a host's link."""
    netfold("pcap", "leaf1:1", "-w", str(capture), "--for", "1s", "--snap", "256")
    script = netfold("pcap", "--dissector").strip()
    fields = ["netfold.role", "netfold.job", "netfold.tree", "netfold.operation"]
    command = ["tshark", "-X", f"lua_script:{script}", "-r", str(capture), "-T", "json",
               *(word for field in fields for word in ("-e", field))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = [packet["_source"]["layers"] for packet in json.loads(done.stdout)]
    roles = {role for layers in found for role in layers.get("netfold.role", [])}
    named = [layers for layers in found if layers.get("netfold.job") == ["run"]]
    return roles, {tree for layers in named for tree in layers["netfold.tree"]}


def test_a_packet_is_recorded_on_its_whole_way(fabric: subprocess.Popen[str]) -> None:
    """As the page asks for it: a contribution of h3 to the tree over spine2, each link up and each result down, in the
    order of cause and effect.  What is no host of the job has no way."""
    path = Path(os.environ[FAULTS_VARIABLE])
    rounds(fabric, 5)

    def ask(host: str, tree: str) -> faults.Answer:
        answer: faults.Answer
        answer, files = local.call(path, faults.RecordPacket(host, "", tree), faults.Answer, 20.0)
        assert not files
        return answer

    for _ in range(ASKED):
        packet = ask("h3", "spine2")
        if not isinstance(packet, faults.RecordedPacket):  # none passed: a rank or a switch stood still
            rounds(fabric, 1)
            continue
        times = [step.microseconds for step in packet.steps if step.own]
        seen = [time for time in times if time is not None]
        if len(seen) == len(times) and seen == sorted(seen):
            break
        rounds(fabric, 1)
    else:
        raise AssertionError(f"none of {ASKED} recordings has a whole way: {packet}")
    assert (packet.host, packet.who, packet.job, packet.tree) == ("h3", "rank 2 (h3)", "run", "spine2")
    assert [(step.source, step.target) for step in packet.steps if step.own] == [
        ("h3", "leaf2"), ("leaf2", "spine2"), ("spine2", "leaf2"), ("leaf2", "h3")]
    assert {step.target for step in packet.steps if step.kind == "result"} == {"leaf1", "leaf2", "h1", "h2", "h3", "h4"}
    assert times[0] == 0
    for host, tree, why in (("h9", "spine2", "expected a host"), ("h3", "leaf1", "no job folds")):
        refused = ask(host, tree)
        assert isinstance(refused, faults.Refused)
        assert why in refused.why
    rounds(fabric, 3)


def test_faults_by_command_end_by_themselves_and_no_sum_is_wrong(fabric: subprocess.Popen[str], log: Path) -> None:
    """Packets are lost, a spine is killed and another restarted, a link flaps and the controller is away: the job goes
    on over all of it.  A rank that is killed ends it, and the others name it."""
    rounds(fabric, 3)
    assert "no faults" in netfold("fault", "list")
    assert "seed 4" in netfold("fault", "loss", "leaf1-spine1", "--share", "0.02", "--seed", "4", "--for", "1s")
    rounds(fabric, 5)
    assert "spine2 is killed" in netfold("fault", "kill", "spine2", "--for", "1s")
    rounds(fabric, 5)
    status, refused = invoked("netfold fault kill spine9")
    assert status != 0
    assert "spine9" in refused
    assert "in turn" in netfold("fault", "flap", "leaf2-spine1", "--period", "300ms", "--for", "900ms")
    rounds(fabric, 3)
    settled(fabric)
    assert "spine1" in netfold("fault", "restart", "spine1")
    rounds(fabric, 3)
    assert "controller" in netfold("fault", "kill", "controller", "--for", "500ms")
    rounds(fabric, 3)
    settled(fabric)
    assert fabric.poll() is None
    assert "rank 3" in netfold("fault", "kill", "rank3")
    assert fabric.stdout is not None
    fabric.stdout.read()  # the others end by themselves, soon
    assert fabric.wait(60) != 0
    assert re.search("lost rank 3 at|rank 3 .* is not there any more", log.read_text())


def settled(fabric: subprocess.Popen[str]) -> None:
    """Wait until all faults have ended by themselves, while sums go on, and a controller watches all ranks."""
    while "no faults" not in netfold("fault", "list"):
        rounds(fabric, 1)
    while not watched():
        rounds(fabric, 1)
    rounds(fabric, 3)


def watched() -> bool:
    """True if a controller answers, with whom all ranks of the job have registered, and has all switches and links."""
    status, said = invoked("netfold status --json")
    if status != 0:
        return False
    seen = json.loads(said)
    return [job["awaited"] for job in seen["jobs"]] == [[]] and all(
        part["up"] for part in (*seen["switches"], *seen["links"]))

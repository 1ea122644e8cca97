# SPDX-License-Identifier: Apache-2.0
"""Fabrics over machines: three network namespaces that share nothing but IP, one of which is cut off in the middle."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from netfold.rpc import local
from netfold.topo.processes.forks import ChildProcess
from netfold.wire import faults
from support.docs.pages import invoked
from support.sandboxes import processes
from support.sandboxes.machines import Machines
from support.sandboxes.slurm_machines import SlurmMachines
from support.sandboxes.ssh_machines import SshMachines
from support.sandboxes.topo import in_sandbox, program

pytestmark = pytest.mark.timeout(300)
NETFOLD = [sys.executable, "-m", "netfold.cli"]
TOPO = ["--topo", "leafspine,2,2,4", "--path-mtu", "1024"]
SECONDS = 90.0


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the test's folder, where ranks that fail leave recordings."""
    monkeypatch.chdir(tmp_path)


def over(machines: Machines) -> list[str]:
    """The options of a fabric on these machines: spine2 is alone on the second, hosts are on the others."""
    return [*TOPO, "--machines", str(machines.list), "--launcher", machines.launcher]


def ranked(folder: Path, text: str) -> list[str]:
    """The command that runs a program as a rank: a file, which can run in a fork."""
    file = folder / "program.py"
    file.write_text(text)
    return [sys.executable, str(file)]


def until(what: str, seen: Callable[[], object]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + SECONDS
    while not seen():
        assert time.monotonic() < end, f"not seen in {SECONDS:g} s: {what}"
        time.sleep(0.2)


@contextmanager
def fabric_up(
    machines: Machines, said: Path, options: list[str] | None = None
) -> Iterator[tuple[ChildProcess, Path]]:
    """`netfold up` on the machines, and the file of the fabric; what it says goes into a file."""
    with said.open("wb") as out:
        command = [*NETFOLD, "up", *(options or over(machines))]
        up = processes.forked(command, out, out)
    try:
        until("the fabric is up", lambda: up.poll() is not None or "Ctrl-C ends it" in said.read_text())
        assert up.poll() is None, said.read_text()
        yield up, Path(next(line.split()[-1] for line in said.read_text().splitlines() if "netfold status" in line))
    finally:
        up.kill()
        up.wait()


@in_sandbox(timeout=200)
def test_a_machine_with_ranks_that_is_lost_ends_the_run_by_name(tmp_path: Path) -> None:
    """Its agent dies: the launcher names ranks and cables, and the run ends.  A killed launcher leaves nothing."""
    with Machines(3, tmp_path) as machines:
        command = [*NETFOLD, "run", *over(machines), "--grace", "5", "--", *ranked(tmp_path, ENDLESS)]
        with (tmp_path / "run.log").open("wb") as log:
            run = processes.forked(command, log, log)
        said = tmp_path / "run.log"
        until("all ranks are in", lambda: run.poll() is not None or said.read_text().count("] in") == 4)
        (agent,) = machines.started(3)
        os.kill(agent, signal.SIGKILL)
        assert run.wait(SECONDS) not in (0, 124), said.read_text()
        text = said.read_text()
        assert "machine 10.99.0.3 (10.99.0.3) is cut off or has failed" in text, text
        assert "ranks     2 (h3), 3 (h4)" in text, text
        machines.wait_empty()
        small = ["--topo", "leafspine,1,0,1", *over(machines)[len(TOPO):]]
        machines.list.write_text("10.99.0.1\n")
        with fabric_up(machines, tmp_path / "up.log", small) as (up, _):
            assert len(machines.running()) > 4
            up.kill()
            up.wait()
            machines.wait_empty()


def netfold(*words: str, status: int = 0) -> str:
    """The output of a command, which ends with this status.  It runs in this process, which is not the fabric's."""
    ended, said = invoked(shlex.join(["netfold", *words]))
    assert ended == status, (words, said)
    return said


@pytest.mark.timeout(420)
@in_sandbox(timeout=400)
def test_faults_and_captures_reach_other_machines(tmp_path: Path) -> None:
    """A switch is killed and comes back, a cable between machines is cut and silenced at both ends, packets are lost
    and captured, the controller and a rank are killed: by the same commands, or by the page, each undone, while sums
    stay exact.  At last a machine with a spine is cut off and named, and the job goes on over the other spine; Ctrl-C
    leaves nothing."""
    said, enough, log = tmp_path / "up.log", tmp_path / "enough", tmp_path / "run.log"
    with Machines(3, tmp_path) as machines, fabric_up(
        machines, said, [*over(machines), "--metrics", "127.0.0.1:9464"]
    ) as (up, file):
        fault = lambda *words, **more: netfold("fault", *words, "--fabric", str(file.parent), **more)  # noqa: E731
        switches = lambda: {  # noqa: E731
            each["name"]: each["up"] for each in json.loads(netfold("status", str(file), "--json"))["switches"]}
        endless = ranked(tmp_path, ENDLESS)
        with log.open("wb") as out:
            run = processes.forked([*NETFOLD, "run", "--fabric", str(file), "--grace", "5", "--", *endless], out, out)
        try:
            until("all ranks are in", lambda: run.poll() is not None or log.read_text().count("] in") == 4)
            assert "rank3 was killed" in fault("kill", "rank3")
            assert run.wait(SECONDS) not in (0, 124)
            assert "rank 3 is lost" in log.read_text() or "lost rank 3" in log.read_text()
            assert "no ranks" in fault("kill", "rank3", status=2)
        finally:
            run.kill()
            run.wait()
        command = [*program("rank_steady.py"), "5", "20000", str(enough), "innet"]
        with log.open("wb") as out:
            run = processes.forked([*NETFOLD, "run", "--fabric", str(file), "--", *command], out, out)
        began = lambda: log.read_text().count("[0] {\"began\"")  # noqa: E731

        def goes_on() -> None:
            before = began()
            until("the ranks sum", lambda: run.poll() is not None or began() > before + 3)
            assert run.poll() is None, log.read_text()[-3000:]

        try:
            goes_on()
            assert "spine2 is killed" in fault("kill", "spine2")
            until("it is down", lambda: not switches()["spine2"])
            goes_on()
            assert "ended: spine2 is killed" in fault("end", "all")
            until("it is back", lambda: switches()["spine2"])
            cut = fault("cut", "leaf1-spine2")  # they are on two machines
            assert "leaf1:4 - spine2:1 is cut" in cut or "spine2:1 - leaf1:4 is cut" in cut
            assert is_down("leaf1-eth4")
            assert is_down("spine2-eth1")
            assert "already" in fault("flap", "spine2:1", status=1)
            assert "is cut" in fault("list")
            fault("end", "1" if "fault 1" in cut else "2")
            assert not is_down("leaf1-eth4")
            assert not is_down("spine2-eth1")
            status, text = page(said, "kill", "spine2")
            assert status == 200, text
            assert "spine2 is killed" in text
            until("it is down", lambda: not switches()["spine2"])
            assert "spine2 is killed" in fault("list")
            assert page(said, "end", "")[0] == 200
            until("it is back", lambda: switches()["spine2"])
            assert page(said, "kill", "spine2", key="guessed")[0] == 403
            assert "is swallowed" in fault("silence", "spine2:1", "--for", "500ms")
            assert "are lost" in fault("loss", "leaf1-spine2", "--share", "0.01", "--for", "500ms")
            goes_on()
            captured = tmp_path / "spine1.pcapng"
            until("sums are captured", lambda: bool(netfold(
                "pcap", "spine1", "-w", str(captured), "--for", "500ms", "--fabric", str(file.parent)
            )) and captured.stat().st_size > 20_000)
            content = captured.read_bytes()
            assert content[:4] == b"\x0a\x0d\x0d\x0a"
            assert b"spine1:1" in content
            netfold("pcap", "all", "-w", str(tmp_path / "all.pcapng"), "--for", "200ms", "--fabric", str(file.parent))
            assert len(list(tmp_path.glob("all-10.99.0.*.pcapng"))) == 3
            refused, _ = local.call(file.parent / faults.SOCKET, faults.RecordPacket("h1"), faults.Answer, SECONDS)
            assert isinstance(refused, faults.Refused)
            assert "several machines" in refused.why
            ring = ["--ring", "1MB", "--fabric", str(file.parent)]
            assert "expected no ring" in netfold("pcap", "leaf1", *ring, status=2)
            assert "expected kill or restart" in fault("stop", "controller", status=2)
            assert "was killed, and started again" in fault("restart", "controller")
            goes_on()
            machines.cut("10.99.0.2")
            until("the machine is named", lambda: "is cut off or has failed" in said.read_text())
            goes_on()
            assert switches() == {"leaf1": True, "leaf2": True, "spine1": True, "spine2": False}
            enough.touch()
            assert run.wait(SECONDS) == 0, log.read_text()[-3000:]
            ends = [json.loads(line[4:]) for line in log.read_text().splitlines() if '"rail"' in line]
            assert len(ends) == 4
            assert {end["rail"] for end in ends} == {"innet"}
            assert len({end["operations"] for end in ends}) == 1
        finally:
            run.kill()
            run.wait()
        named = said.read_text()
        assert "machine 10.99.0.2 (10.99.0.2) is cut off or has failed: nothing was heard" in named
        assert "switches  spine2" in named
        assert "spine2:1 - leaf1:4 (to 10.99.0.1)" in named
        machines.cut("10.99.0.2", up=True)  # its agent learns that nobody listens any more
        up.send_signal(signal.SIGINT)
        assert up.wait(SECONDS) == 130, named
        machines.wait_empty()
        assert not file.parent.exists()


def page(said: Path, kind: str, target: str, key: str | None = None) -> tuple[int, str]:
    """Inject a fault, or end all, by the page whose address `netfold up` has printed: a status, and what it answers.

    key  other than that in the address
    """
    address = next(line.split()[-1] for line in said.read_text().splitlines() if line.startswith("page and metrics at"))
    url, _, known = address.partition("#key=")
    body = {"undo": None} if kind == "end" else {"kind": kind, "target": target}
    request = urllib.request.Request(f"{url}fault", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {known if key is None else key}"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()


def is_down(interface: str) -> bool:
    """True if an interface of a switch, which is in the sandbox of an agent, has been taken down."""
    for namespace in {os.readlink(path): path for path in Path("/proc").glob("[0-9]*/ns/net")}.values():
        done = subprocess.run(["nsenter", f"--net={namespace}", "ip", "-json", "link", "show", "dev", interface],
                              capture_output=True, text=True, timeout=10, check=False)
        if done.returncode == 0:
            return "UP" not in json.loads(done.stdout)[0]["flags"]
    raise AssertionError(f"no interface {interface}")


ENDLESS = """
import netfold, numpy, time
with netfold.init(timeout=4) as comm:
    print("in", flush=True)
    while True:
        comm.allreduce(numpy.ones(1000, numpy.int32))
        time.sleep(0.03)  # the load's rate
"""
SUMS = """
import netfold, numpy
with netfold.init() as comm:
    total = comm.allreduce(numpy.full(3000, comm.rank + 1, numpy.int32))
    print(total.sum(), comm.rail)
"""


@pytest.mark.needs("sshd")
@in_sandbox(timeout=200)
def test_ssh_starts_a_fabric_over_machines_and_leaves_nothing(tmp_path: Path) -> None:
    """By OpenSSH's client and server: ranks on both machines sum through the switches, and their words come back."""
    with SshMachines(2, tmp_path) as machines:
        done = processes.netfold("run", *over(machines), "--", *ranked(tmp_path, SUMS))
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(line for line in done.stdout.splitlines() if line.startswith("[")) == [
            f"[{rank}] 30000 innet" for rank in range(4)], done.stdout + done.stderr
        machines.wait_empty()


@pytest.mark.needs("slurm")
@in_sandbox(timeout=200)
def test_srun_starts_a_fabric_over_machines_and_leaves_nothing(tmp_path: Path) -> None:
    """By Slurm's own daemons: ranks on both machines sum through the switches, and their words come back."""
    with SlurmMachines(2, tmp_path) as machines:
        done = processes.netfold("run", *over(machines), "--", *ranked(tmp_path, SUMS), env=machines.environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(line for line in done.stdout.splitlines() if line.startswith("[")) == [
            f"[{rank}] 30000 innet" for rank in range(4)], done.stdout + done.stderr
        machines.wait_empty()


@in_sandbox(timeout=100)
def test_machines_that_cannot_are_named_with_the_reason(tmp_path: Path) -> None:
    """Too small an MTU on the way, an address that is not there, a machine that does not answer; nothing is left."""
    with Machines(2, tmp_path) as machines:
        jumbo = ["up", "--topo", "leafspine,2,1,2", "--machines", str(machines.list), "--launcher", machines.launcher]
        plain = ["up", *over(machines)]
        done = processes.netfold(*jumbo)
        assert done.returncode == 1
        assert re.search(r"machine (10\.99\.0\.[12]): eth0 \(\1\) has MTU 1500: .* need 4250", done.stderr), done.stderr
        assert "--path-mtu 1024" in done.stderr
        machines.list.write_text("10.99.0.1\n10.99.0.2 address=10.99.0.7\n")
        done = processes.netfold(*plain)
        assert done.returncode == 1
        assert "machine 10.99.0.2 has no address 10.99.0.7" in done.stderr, done.stderr
        machines.list.write_text("10.99.0.1\n10.99.0.9\n")
        done = processes.netfold(*plain)
        assert done.returncode == 1
        assert "machine 10.99.0.9: did not start" in done.stderr, done.stderr
        machines.wait_empty()

# SPDX-License-Identifier: Apache-2.0
"""Hosts with an ordinary RDMA stack: virtual machines with Debian's kernel and its rdma_rxe, on leaf-spine fabrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from cbuild.cc import default_cache_dir
from netfold.demo.demo import summary
from netfold.demo.measure import machine_words, measure
from netfold.demo.report import DemoReport
from netfold.demo.train import TrainingSpec
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.topo import sandbox
from netfold.topo.faults import FaultInjector
from netfold.wire.operator import Status
from netfold.wire.roce import UDP_PORT, Opcode, icrc
from support import needs
from support.capture import Capture
from support.steady import LOOK, PATIENCE
from support.topo import in_sandbox, program
from support.tshark import dissect

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.net import Network
from netfold.topo.rxe.counts import RDMA_DEVICE, NicCounts
from netfold.topo.rxe.hosts import Guests
from netfold.topo.rxe.machine import Machine

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("rxe")]
TOOL_SECONDS = 120.0
BOUND = 500.0
"""Seconds after which what hangs is ended; on a quiet machine the whole file takes a minute."""


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


class Jobs:
    """Ranks in all guests of a network, one process each, that run one job after the other (rank_verbs.py)."""

    def __init__(self, network: Network, guests: Guests, jobs: list[str]) -> None:
        self._network, self._guests = network, guests
        command = [*program("rank_verbs.py"), "11", str(network.share), *jobs]
        self.lines = network.launch(command, job="sums").lines(within=BOUND)
        self._next = 0

    def reports(self) -> list[dict[str, Any]]:
        """The next line of each rank, in their order.  Raises RankFailed, WrongData."""
        said: dict[int, dict[str, Any]] = {}
        while len(said) < len(self._guests.machines):
            rank, line = next(self.lines)
            said[rank] = json.loads(line)
        return [said[rank] for rank in sorted(said)]

    def begin(self) -> None:
        """Let the next job begin."""
        (self._network.share / f"job-{self._next}").touch()
        self._next += 1

    def run(self) -> tuple[list[dict[str, Any]], list[NicCounts], dict[str, int]]:
        """What the ranks say of the next job; meanwhile packets of each NIC, and packets folded by each switch."""
        nics, folded = self._guests.nic_counts(), self.folded()
        self.begin()
        results = self.reports()
        assert {result["rail"] for result in results} == {"verbs"}
        assert len({result["digest"] for result in results}) == 1
        return (results, [now.since(nics[name]) for name, now in self._guests.nic_counts().items()],
                {name: now - folded[name] for name, now in self.folded().items()})

    def folded(self) -> dict[str, int]:
        """Contributions and results that each switch has taken for the first time."""
        return {switch.name: switch.folded.first for switch in self._network.status().switches}

    def run_everywhere(self, script: str) -> str:
        """What a shell script prints in all guests."""
        return "".join(machine.execute(script, script) for machine in self._guests.machines.values())

    def until(self, what: str, seen: Callable[[Status], bool]) -> None:
        """Wait until the controller's status fulfils a condition.  ``what``: the condition in words, for the error."""
        until = time.monotonic() + BOUND
        while not seen(status := self._network.status()):
            self._network.check()
            assert time.monotonic() < until, f"not seen in {BOUND:g} s: {what}; it is {status}"
            time.sleep(LOOK)


@pytest.mark.alone
@in_sandbox(timeout=580)
def test_virtual_machines_with_ordinary_rdma_stacks_fold(tmp_path: Path) -> None:
    """Two machines, which boot once, under two leaves and a spine: the tools of verbs work unfolded; then sums are
    exact without faults, with 1 % each of loss, repetition, reordering and corruption, and when a leaf restarts in the
    middle, and the switches have folded each packet."""
    began = time.monotonic()

    def over(step: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {step}", flush=True)

    fabric = leafspine(2, 1, 2, engine="softswitch", rundir=sandbox.rundir(), rdma=True)
    fabric = msgspec.structs.replace(fabric, misses=PATIENCE, lease=BOUND, faults=True)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=tmp_path / "logs", guests=guests) as network:
        over(f"booted {guests.boot_seconds}")
        # ranks import NetFold meanwhile
        spec = training(network)
        demonstration = json.dumps(machine_words(network, spec))
        jobs = Jobs(network, guests,
                    ["2:1,1025,10000", f"demo:{demonstration}", "3:1025,25000", "steady:10000"])
        tools(guests, fabric)
        over("tools of verbs")
        assert jobs.reports() == [{"ready": True}] * 2
        over("imported")
        without_faults(jobs)
        over("without faults")
        demonstrated(network, guests, jobs, spec, tmp_path)
        over("what the demo does")
        faulty(network)
        over("a controller that has some faults injected")
        with_faults(network, jobs)
        over("with faults")
        restarted(network, jobs)
        over("leaf restarted")
        assert next(jobs.lines, None) is None


def tools(guests: Guests, fabric: Fabric) -> None:
    """ibv_rc_pingpong checks its data and ib_write_bw moves some, unfolded, between the two leaves."""
    for host in fabric.hosts:
        assert gid_index(guests.machines[host.name], fabric.fold_address(host)) > 0
    index = {gid_index(guests.machines[host.name], host.address) for host in fabric.hosts}
    assert len(index) == 1
    options = f"-d {RDMA_DEVICE} -g {index.pop()} -m {fabric.path_mtu} -n 50 -c"
    for said in pair(guests, fabric, f"ibv_rc_pingpong {options}", f"ibv_rc_pingpong {options}"):
        assert "50 iters" in said
        assert "invalid data" not in said
    options = f"-d {RDMA_DEVICE} -m {fabric.path_mtu} -n 20 -s 65536"
    for said in pair(guests, fabric, f"ib_write_bw {options}", f"ib_write_bw {options}"):
        assert re.search(r"^ 65536 +20 ", said, re.MULTILINE), said


def without_faults(jobs: Jobs) -> None:
    """Each leaf folds a contribution of its rank and a result of the spine for each packet."""
    results, nics, folded = jobs.run()
    print(results, nics, folded)
    needed = results[0]["packets_sent"]
    assert min(folded["leaf1"], folded["leaf2"], folded["spine1"]) >= 2 * needed
    check(results, nics)
    assert not compiled_in(jobs), "guests have compiled engines that were to be there"


def compiled_in(jobs: Jobs) -> set[str]:
    """What guests have put into the cache of compiled programs, of which they see this machine's."""
    here = {file.name for file in default_cache_dir().iterdir()}
    return set(jobs.run_everywhere(f"ls {default_cache_dir()}").split()) - here


def training(network: Network) -> TrainingSpec:
    """A short training on images of noise, for which scikit-learn need not be there."""
    draw = np.random.default_rng(3)
    data, weights = network.share / "digits.npz", network.share / "weights.npy"
    np.savez(data, x=draw.random((200, 64), np.float32), y=draw.integers(0, 10, 200))
    return TrainingSpec(str(data), steps=3, hidden=(16,), batch=64, weights=str(weights), rail="verbs", timeout=BOUND)


def demonstrated(network: Network, guests: Guests, jobs: Jobs, spec: TrainingSpec, folder: Path) -> None:
    """What `netfold demo --hosts rxe` measures and reports: the training's gradients are folded by the kernels' RDMA
    devices, and its weights are those of a single process."""
    jobs.begin()
    found = measure(network, guests, spec, Console(), jobs.lines)
    assert jobs.reports() == [{"left": True}] * 2
    summary(network.fabric, "rxe", spec, found).save(folder / "report.json")
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=DemoReport)
    print(report)
    assert (report.hosts, report.rail, report.final_weights_equal) == ("rxe", "verbs", True)
    assert report.max_abs_diff_vs_single < 1e-5
    assert report.packets_folded >= 2 * sum(nic.needed for nic in report.nics)
    assert report.nic_retransmissions == sum(nic.data_sent - nic.needed for nic in report.nics) >= 0
    assert all(nic.needed > 0 and nic.acknowledgements_sent > 0 and nic.errors == 0 for nic in report.nics)
    assert [time.seconds is not None for time in report.times] == [True, True, False]
    assert report.ring_bytes_per_host_link


def check(results: list[dict[str, Any]], nics: list[NicCounts]) -> None:
    """Each NIC completed all that it was asked for, and what it sent and got is at least what the sums take."""
    for result, nic in zip(results, nics, strict=True):
        assert nic.errors == 0
        assert nic.data_sent >= result["packets_sent"]
        assert nic.data_received >= results[0]["packets_sent"]


def faulty(network: Network) -> None:
    """From now on each link loses, repeats and holds back 1 % of its packets, and one to a host corrupts as many: a new
    controller writes it."""
    hosts = {host.name for host in network.fabric.hosts}
    links = tuple(
        msgspec.structs.replace(link, loss=0.01, duplicate=0.01, reorder=0.01,
                                corrupt=0.01 if hosts & {end.node for end in link.ends} else 0.0)
        for link in network.fabric.links
    )
    network.end_controller(signal.SIGTERM)
    network.fabric = msgspec.structs.replace(network.fabric, links=links)
    network.start_controller()


def with_faults(network: Network, jobs: Jobs) -> None:
    """Packets are lost, repeated, held back and corrupted by the dozen, of data and of acknowledgements."""
    results, nics, folded = jobs.run()
    ways = [way for link in network.status().links for way in (link.a_to_b, link.b_to_a)]
    faults = {name: sum(getattr(way, name) for way in ways) for name in ("lost", "duplicated", "held", "corrupted")}
    print(results, nics, folded, faults)
    # about 40 of each are expected, and 20 corrupted
    assert faults.pop("corrupted") >= 3
    assert min(faults.values()) >= 10, faults
    assert min(folded["leaf1"], folded["leaf2"]) >= results[0]["packets_sent"]
    check(results, nics)


def restarted(network: Network, jobs: Jobs) -> None:
    """A leaf is killed in the middle and started anew, without entries: no rank takes anything wrong for a sum, the
    queue pairs are made anew, and the ranks go on folding."""
    before = jobs.folded()["leaf1"]
    jobs.begin()
    jobs.until("sums are folded", lambda status: status.switches[0].folded.first >= before + 100)
    FaultInjector(network).restart("leaf1")

    def over(status: Status) -> bool:
        last = status.jobs[0].round if status.jobs else None
        return last is not None and last.number >= 1 and last.took is not None

    jobs.until("the trees are planned anew", over)
    (network.share / "enough").touch()
    results = jobs.reports()
    print(results)
    assert all(result["rail"] == "verbs" and result["rounds"] >= 1 for result in results)
    assert len({result["digest"] for result in results}) == 1
    assert jobs.folded()["leaf1"] > 0


@pytest.mark.alone
@pytest.mark.needs("bmv2", "tshark", "scapy")
@in_sandbox(timeout=580)
def test_machines_fold_on_bmv2_and_every_packet_is_valid(tmp_path: Path) -> None:
    """Two machines under one leaf of BMv2, at a low rate: sums are exact and folded; tshark reads every packet as it
    is, and scapy agrees with every length, checksum and ICRC, in both directions."""
    frames = folded_frames("bmv2", tmp_path)
    check_with_scapy(frames)
    fields = ["infiniband.bth.opcode", "infiniband.bth.p_key", "infiniband.bth.destqp", "infiniband.bth.psn"]
    for frame, (opcode, key, qp, psn) in zip(frames, dissect(frames, fields, tmp_path), strict=True):
        assert (int(opcode), int(key, 0), int(qp, 0), int(psn)) == (
            frame[42], int.from_bytes(frame[44:46], "big"), int.from_bytes(frame[47:50], "big"),
            int.from_bytes(frame[51:54], "big"))


def folded_frames(engine: Engine, folder: Path) -> list[bytes]:
    """The RoCE packets on the links of two machines under one leaf that fold a few sums, each once."""
    fabric = leafspine(1, 0, 2, engine=engine, rate="10mbit", rundir=sandbox.rundir(), rdma=True)
    fabric = msgspec.structs.replace(fabric, misses=PATIENCE, lease=BOUND)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=folder / "logs", guests=guests) as network:
        jobs = Jobs(network, guests, ["2:1,1025,5000"])
        assert jobs.reports() == [{"ready": True}] * 2
        with Capture() as capture:
            results, nics, folded = jobs.run()
        print(results, nics, folded)
        check(results, nics)
        assert folded["leaf1"] >= 2 * results[0]["packets_sent"]
    interfaces = {name for name, _ in capture.frames if name != "lo"}
    assert {"leaf1-eth1", "leaf1-eth2"} <= interfaces, interfaces
    frames = sorted({frame for _, frame in capture.frames
                     if frame[23] == socket.IPPROTO_UDP and frame[36:38] == UDP_PORT.to_bytes(2, "big")})
    opcodes = {Opcode(frame[42]) for frame in frames}
    assert {Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE} <= opcodes
    return frames


def check_with_scapy(frames: list[bytes]) -> None:
    """What scapy makes of each packet's fields is the packet."""
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether

    for frame in frames:
        packet = Ether(frame)
        assert frame[-4:] == icrc(frame[14:-4]), f"wrong ICRC: {packet.summary()}"
        again = packet.copy()
        del again["IP"].chksum, again["IP"].len, again["UDP"].len
        if packet["UDP"].chksum:  # a NIC writes none
            del again["UDP"].chksum
        again[BTH].icrc = None
        assert bytes(again) == frame, f"scapy would send something else than {packet.summary()}"

# SPDX-License-Identifier: Apache-2.0
"""Hosts with an ordinary RDMA stack: virtual machines with Debian's kernel and its rdma_rxe, on leaf-spine fabrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
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
from netfold.fabric.graph import Engine, Fabric, Host
from netfold.topo.faults.injector import FaultInjector
from netfold.topo.network import sandbox
from netfold.wire.roce import UDP_PORT, Opcode, icrc
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.capture import Capture
from support.sandboxes.guests import BOUND, Forger, Jobs, gid_index, pair
from support.sandboxes.steady import LOOK
from support.sandboxes.topo import in_sandbox
from support.sandboxes.tshark import dissect

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network
from netfold.topo.rxe.counts import RDMA_DEVICE, NicCounts
from netfold.topo.rxe.hosts import Guests

pytestmark = [pytest.mark.timeout(BOUND + 40), pytest.mark.needs("rxe")]
SEEN = 5.0
"""Seconds after which a NAK that has not broken a queue pair is followed by another."""
WINDOWED = 1
"""Place in the fabric of the host that is a namespace; the hosts before and after it are machines."""


@in_sandbox(timeout=BOUND + 20)
def test_virtual_machines_with_ordinary_rdma_stacks_fold(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Machines under two leaves and a spine, which boot once: the tools of verbs work unfolded; then sums of the
    machines are exact and folded, and scapy agrees with every length, checksum and ICRC; so are those of the machines
    and a host in a namespace, with 1 % each of loss, repetition, reordering and corruption; a job goes on when a leaf
    restarts and when a queue pair breaks, and ends by name when a rank is gone.  With --long also groups of some
    ranks, which tests/host/verbs/test_groups.py has without machines."""
    began = time.monotonic()

    def over(step: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s: {step}", flush=True)

    machines: int = pytestconfig.getoption("--rxe-machines")
    long: bool = pytestconfig.getoption("--long")
    fabric = leafspine(2, 1, machines + 1, engine="softswitch", rundir=sandbox.rundir(), rdma=True)
    fabric = msgspec.structs.replace(fabric, lease=BOUND, faults=True)
    windowed = fabric.hosts[WINDOWED]
    guests = Guests([host.name for host in fabric.hosts if host != windowed])
    with Network(fabric, logs=tmp_path / "logs", guests=guests) as network:
        over(f"booted {guests.boot_seconds}")
        # ranks import NetFold meanwhile
        spec = training(network)
        demonstration = f"demo:{json.dumps(machine_words(network, spec, machines))}"
        jobs = Jobs(network, guests, [
            "sums:1:1,1025,10000", demonstration, "mixed:2:1025,25000", *["groups:1:10000"] * long,
            "steady:30000", "lost:30000",
        ], windowed)
        tools(guests, fabric)
        over("tools of verbs")
        assert jobs.reports(mixed=True) == [{"ready": True}] * (machines + 1)
        over("imported")
        frames = captured(lambda: without_faults(jobs), "leaf1-eth1", "leaf2-eth1")
        if needs.missing("scapy") is None:
            check_with_scapy(frames)
        over("without faults, and every packet valid")
        demonstrated(network, guests, jobs, spec, tmp_path)
        over("what the demo does")
        faulty(network)
        over("a controller that has some faults injected")
        with_faults(network, jobs)
        over("with a windowed rank and faults")
        if long:
            grouped(network, jobs)
            over("groups of some ranks, with faults")
        jobs.begin()
        jobs.goes_on("leaf1")
        restarted(network, jobs)
        over("leaf restarted")
        broken(fabric, jobs, fabric.hosts[0])
        over("a queue pair broken")
        ended(network, jobs)
        over("the job's end")
        rank_lost(jobs)
        over("a rank gone")
        assert jobs.ended()


def tools(guests: Guests, fabric: Fabric) -> None:
    """ibv_rc_pingpong checks its data and ib_write_bw moves some, unfolded, between the two leaves."""
    hosts = [host for host in fabric.hosts if host.name in guests.names]
    ends = hosts[0], hosts[-1]
    for host in hosts:
        assert gid_index(guests.machines[host.name], fabric.fold_address(host)) > 0
    index = {gid_index(guests.machines[host.name], host.address) for host in ends}
    assert len(index) == 1
    options = f"-d {RDMA_DEVICE} -g {index.pop()} -m {fabric.path_mtu} -n 50 -c"
    for said in pair(guests, *ends, f"ibv_rc_pingpong {options}", f"ibv_rc_pingpong {options}"):
        assert "50 iters" in said
        assert "invalid data" not in said
    # -F: it reports even where it cannot tell the processor's frequency, as on a busy machine
    options = f"-d {RDMA_DEVICE} -m {fabric.path_mtu} -n 20 -s 65536 -F"
    for said in pair(guests, *ends, f"ib_write_bw {options}", f"ib_write_bw {options}"):
        assert re.search(r"^ 65536 +20 ", said, re.MULTILINE), said


def without_faults(jobs: Jobs) -> None:
    """Each leaf folds a contribution of each of its ranks, and a result of the spine, for each packet."""
    results, nics, folded = jobs.run()
    print(results, nics, folded)
    needed = results[0]["packets_sent"]
    # each result once in two leaves, each contribution once, and once the sum of each leaf in the spine
    assert sum(folded.values()) >= (len(results) + 2 + 2) * needed
    assert min(folded.values()) >= 2 * needed
    check(results, nics)
    assert not compiled_in(jobs), "guests have compiled engines that were to be there"


def grouped(network: Network, jobs: Jobs) -> None:
    """Groups of machines, and of machines and the windowed rank, have sums of their own beside those of all ranks; a
    machine alone in a group is refused by name, and goes over TCP.  Nothing is left of them."""
    results, _, folded = jobs.run(mixed=True)
    print(results, folded)
    said = [(members, words) for result in results for members, words in result["groups"].items()]
    nics = [rank for rank in range(len(results)) if rank != WINDOWED]
    alone = f"{WINDOWED}-{nics[-1]}"
    assert len({members for members, _ in said}) >= 3, said
    for members, words in said:
        expected = "alone is of kind" if members == alone else f"tree(s) for this group, 'sums-3#{members}.1'"
        assert expected in words, (members, words)
    assert min(folded["leaf1"], folded["leaf2"]) > 0
    jobs.until("slots of the groups are free", lambda status: all(s.slots_used == 0 for s in status.switches))


def compiled_in(jobs: Jobs) -> set[str]:
    """Programs that guests have put into the cache of compiled programs, of which they see this machine's, and what
    others here are about to put there."""
    there = {name for name in jobs.run_everywhere(f"ls {default_cache_dir()}").split() if not name.startswith("build-")}
    return there - {file.name for file in default_cache_dir().iterdir()}


def training(network: Network) -> TrainingSpec:
    """A short training on images of noise, for which scikit-learn need not be there."""
    draw = np.random.default_rng(3)
    data, weights = network.share / "digits.npz", network.share / "weights.npy"
    np.savez(data, x=draw.random((200, 64), np.float32), y=draw.integers(0, 10, 200))
    return TrainingSpec(str(data), steps=3, hidden=(16,), batch=64, weights=str(weights), rail="verbs", timeout=BOUND)


def demonstrated(network: Network, guests: Guests, jobs: Jobs, spec: TrainingSpec, folder: Path) -> None:
    """What `netfold demo --hosts rxe` measures and reports: the training's gradients are folded by the kernels' RDMA
    devices, and its weights are those of a single process."""

    def lines() -> Iterator[tuple[int, str]]:
        jobs.begin()  # not before packets have been counted for the first time
        while True:
            yield next(jobs.lines)

    found = measure(network, guests, spec, Console(), lines())
    assert jobs.reports() == [{"left": True}] * len(guests.names)
    summary(network.fabric, "rxe", spec, found).save(folder / "report.json")
    report = msgspec.json.decode((folder / "report.json").read_bytes(), type=DemoReport)
    print(report)
    assert (report.hosts, report.rail, report.final_weights_equal) == ("rxe", "verbs", True)
    assert report.max_abs_diff_vs_single < 1e-5
    # each contribution in its rank's leaf, and each result in both leaves
    assert report.packets_folded >= (len(report.nics) + 2) * report.nics[0].needed
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
    """Packets are lost, repeated, held back and corrupted by the dozen, of data and of acknowledgements, of machines
    and of the host beside them.  The windowed rank's sums are those of the machines, and switches have folded what all
    of them sent."""
    (*results, windowed), nics, folded = jobs.run(mixed=True)
    ways = [way for link in network.status().links for way in (link.a_to_b, link.b_to_a)]
    faults = {name: sum(getattr(way, name) for way in ways) for name in ("lost", "duplicated", "held", "corrupted")}
    print(results, windowed, nics, folded, faults)
    assert windowed["packets_sent"] >= results[0]["packets_sent"]
    # about 25 of each are expected, and 10 corrupted
    assert faults.pop("corrupted") >= 1
    assert min(faults.values()) >= 5, faults
    # as without faults: what each rank sends, and the leaves' sums and results; a machine that stood still had one less
    assert sum(folded.values()) > 0.99 * (len(results) + 1 + 2 + 2) * results[0]["packets_sent"]
    assert min(folded["leaf1"], folded["leaf2"]) >= results[0]["packets_sent"]
    check(results, nics)


def restarted(network: Network, jobs: Jobs) -> None:
    """A leaf is killed in the middle and started anew, without entries: no rank takes anything wrong for a sum, the
    queue pairs are made anew, and the ranks go on folding."""
    rounds = jobs.rounds()
    FaultInjector(network).restart("leaf1")
    jobs.planned_anew(rounds)
    jobs.goes_on("leaf1")


def broken(fabric: Fabric, jobs: Jobs, host: Host) -> None:
    """A queue pair of a machine is taken into error in the middle of a sum, by a NAK that nobody knows of: all ranks
    make theirs anew, and go on."""
    rounds = jobs.rounds()
    forger = Forger(fabric, host)
    try:
        until = time.monotonic() + BOUND
        while jobs.rounds() == rounds:
            # what its queue pair has outstanding is a matter of moments; four breaks would end the operation
            forger.break_queue_pair()
            look = time.monotonic() + SEEN
            while jobs.rounds() == rounds and time.monotonic() < look:
                time.sleep(LOOK)
            assert time.monotonic() < until, "no queue pair broke"
    finally:
        forger.close()
    jobs.planned_anew(rounds)
    jobs.goes_on("leaf1")


def ended(network: Network, jobs: Jobs) -> None:
    """The sums that went on all the time have ended, all of them right."""
    (network.share / "enough").touch()
    results = jobs.reports()
    print(results)
    assert all(result["rail"] == "verbs" and result["rounds"] >= 2 for result in results)
    assert len({result["digest"] for result in results}) == 1


def rank_lost(jobs: Jobs) -> None:
    """A rank's process ends without a word, and with it its queue pairs: the others end by name."""
    jobs.begin()
    *others, last = jobs.reports()
    print(others)
    assert last == {"left": True}
    assert {other["error"] for other in others} == {"PeerLost"}
    assert all(f"rank {len(others)}" in other["message"] for other in others)


@pytest.mark.long
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
    fabric = msgspec.structs.replace(fabric, lease=BOUND)
    guests = Guests([host.name for host in fabric.hosts])
    with Network(fabric, logs=folder / "logs", guests=guests) as network:
        jobs = Jobs(network, guests, ["sums:2:1,1025,5000"])
        assert jobs.reports() == [{"ready": True}] * 2

        def fold() -> None:
            results, nics, folded = jobs.run()
            print(results, nics, folded)
            check(results, nics)
            assert folded["leaf1"] >= 2 * results[0]["packets_sent"]

        return captured(fold, "leaf1-eth1", "leaf1-eth2")


def captured(fold: Callable[[], None], *interfaces: str) -> list[bytes]:
    """The RoCE packets that pass these interfaces while machines fold, each once.  These are their taps, since switches
    send several packets as one on the links between them."""
    with Capture() as capture:
        fold()
    seen = {name for name, _ in capture.frames}
    assert seen.issuperset(interfaces), seen
    frames = sorted({frame for name, frame in capture.frames
                     if name in interfaces and frame[23] == socket.IPPROTO_UDP
                     and frame[36:38] == UDP_PORT.to_bytes(2, "big")})
    opcodes = {Opcode(frame[42]) for frame in frames}
    assert {Opcode.SEND_FIRST, Opcode.SEND_MIDDLE, Opcode.SEND_LAST, Opcode.SEND_ONLY, Opcode.ACKNOWLEDGE} <= opcodes
    return frames


def check_with_scapy(frames: list[bytes]) -> None:
    """scapy builds the same packet from each packet's fields."""
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

# SPDX-License-Identifier: Apache-2.0
"""The whole path in real namespaces: hosts, links, switches, controller."""

from __future__ import annotations

import json
import socket
import struct
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from netfold.controller.switch.tables import ROUTERS
from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.capture import Capture
from support.sandboxes.topo import ENGINES, in_sandbox, program
from support.sandboxes.tshark import dissect

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.demo import train
from netfold.topo.network.net import Network
from netfold.topo.network.switches import SwitchFailed
from netfold.topo.processes.failures import RankFailed
from netfold.wire import roce

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "20mbit"}
ARP = b"\x08\x06"
TRAINING = train.TrainingSpec(data="", steps=12, hidden=(48,), batch=256)


def fabric_of(engine: Engine, hosts: int = 4, *, loss: float = 0.0, seed: int = 1) -> Fabric:
    return leafspine(2, 2, hosts, rate=RATES[engine], loss=loss, seed=seed, engine=engine, rundir=sandbox.rundir())


def trained(network: Network, spec: train.TrainingSpec) -> list[train.TrainingResult]:
    command = [sys.executable, "-m", "netfold.demo.train", msgspec.json.encode(spec).decode()]
    lines = [lines[-1] for lines in network.launch(command, job="digits").wait(within=150)]
    return [msgspec.json.decode(line, type=train.TrainingResult) for line in lines]


@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_sums_and_training_are_exact_whatever_is_lost(engine: Engine, tmp_path: Path) -> None:
    """At 0 and 5 % on all links int32 is exact, float32 within the bound, and every rank has the same bits; and so it
    has after a training, which ends as near to a single process as quantisation allows.

    A sum's error is below ranks * 2^(1-31+log2 ranks) of its block's largest element; each of the `steps` updates adds
    rate/(1-momentum) times that of a mean gradient, itself below 10, and float32's own rounding of sums in another
    order, some 2^-20 relative.  1e-5 is an order of magnitude above that and five below what training changes.
    """
    data, weights = tmp_path / "digits.npz", tmp_path / "weights.npy"
    train.save_digits(data)
    spec = msgspec.structs.replace(TRAINING, data=str(data), weights=str(weights))
    sums, digests = set(), set()
    for loss in (0.0, 0.05):
        with Network(fabric_of(engine, loss=loss), logs=tmp_path / f"logs{loss}") as network:
            output = network.launch([*program("rank_sums.py"), "7"], job="sums").wait(within=150)
            results = trained(network, spec)
            lost = sum(link.a_to_b.lost + link.b_to_a.lost for link in network.status().links)
        found = [json.loads(lines[-1]) for lines in output]
        assert {result["rail"] for result in found} == {"innet"}
        assert len({result["digest"] for result in found}) == 1, f"ranks differ at loss {loss}"
        assert (lost > 0) == (loss > 0), f"{lost} packets lost at loss {loss}"
        if loss:
            assert sum(result["retransmissions"] for result in found) > 0
        sums.add(found[0]["digest"])
        assert [result.rank for result in results] == [0, 1, 2, 3]
        assert all(result.rail == "innet" for result in results)
        assert len({result.weights for result in results}) == 1, f"ranks differ at loss {loss}"
        digests.add(results[0].weights)
    assert len(sums) == 1, "losses changed the sums"
    assert len(digests) == 1, "losses changed the weights"
    single, single_loss, single_accuracy = train.train_single_process(spec)
    start = train.Mlp((64, *spec.hidden, 10), spec.seed).weights
    assert np.max(np.abs(np.load(weights) - single)) < 1e-5
    assert np.max(np.abs(start - single)) > 0.1, "the training trained nothing"
    assert results[0].loss == pytest.approx(single_loss, rel=1e-4)
    assert results[0].accuracy == pytest.approx(single_accuracy, abs=0.01)


def captured(engine: Engine, tmp_path: Path) -> list[tuple[str, bytes]]:
    """The interface and bytes of every frame but ARP on any link of a fabric where a training takes two steps, with
    gradients that are long enough for messages of several packets."""
    data = tmp_path / "digits.npz"
    train.save_digits(data)
    spec = msgspec.structs.replace(TRAINING, data=str(data), steps=2, hidden=(320,))
    with Network(fabric_of(engine), logs=tmp_path / "logs", offload=False) as network, Capture() as capture:
        trained(network, spec)
        interfaces = {name for switch in network.switches for _, name in switch.interfaces()}
    frames = [(interface, frame) for interface, frame in capture.frames if interface != "lo" and frame[12:14] != ARP]
    assert {interface for interface, _ in frames} == interfaces
    return frames


@pytest.mark.without("tshark")
@pytest.mark.parametrize("engine", ENGINES)
@in_sandbox(timeout=200)
def test_every_packet_on_every_link_is_valid_rocev2(engine: Engine, tmp_path: Path) -> None:
    """Nothing else is on any link but TCP, by which ranks agree as they join that all of them can fold, ARP, by which
    the controller asks hosts for a sign of life where ranks get no results, and ICMP, by which a host that is done
    refuses a late repeat; and scapy agrees with every length, checksum and ICRC, on every hop, both ways.  tshark,
    where it is there, reads the headers as we wrote them."""
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import ICMP, TCP
    from scapy.layers.l2 import Ether

    import support.models.scapy_roce  # noqa: F401 (lets scapy know RETH)

    seen: set[bytes] = set()
    opcodes: set[int] = set()
    agreed = 0
    frames = captured(engine, tmp_path)
    for interface, frame in frames:
        if frame in seen:
            continue
        seen.add(frame)
        packet = Ether(frame)
        if ICMP in packet:
            assert packet.sprintf("%ICMP.type% %ICMP.code%") == "dest-unreach port-unreachable", packet.summary()
            continue
        if TCP in packet:
            agreed += len(packet[TCP].payload)
            continue
        assert BTH in packet, f"{interface}: {packet.summary()}"
        ip_end = 14 + struct.unpack_from("!H", frame, 16)[0]
        assert ip_end == len(frame), f"{interface}: IPv4 length {ip_end - 14}, got {len(frame) - 14}"
        assert frame[-4:] == roce.icrc(frame[14:-4]), f"{interface}: wrong ICRC: {packet.summary()}"
        opcodes.add(packet[BTH].opcode)
        # scapy computes what we delete: IPv4 and UDP checksums and lengths, and the ICRC
        again = packet.copy()
        del again["IP"].chksum, again["IP"].len, again["UDP"].len
        # what has no payload may go without a UDP checksum, and so may probes of links and what BMv2 has folded
        bare = frame[42] == roce.Opcode.ACKNOWLEDGE or packet["IP"].dst == ROUTERS or engine == "bmv2"
        if not bare or packet["UDP"].chksum:
            del again["UDP"].chksum
        again[BTH].icrc = None
        sent = bytes(again)
        # one of 65,536 sums is 0, which v1model writes as it is, and which says that there is none; scapy writes 0xFFFF
        if packet["UDP"].chksum == 0 and sent[40:42] == b"\xff\xff":
            sent = sent[:40] + b"\0\0" + sent[42:-4] + frame[-4:]
        assert sent == frame, f"{interface}: scapy would send something else than {packet.summary()}"
    assert agreed < 64 << 10, "bytes over TCP: no gradient goes there"
    # without loss, too, a rank may have asked for a result that was on its way
    assert opcodes - {roce.Opcode.ACKNOWLEDGE} == {
        roce.Opcode.WRITE_FIRST, roce.Opcode.WRITE_MIDDLE, roce.Opcode.WRITE_LAST, roce.Opcode.WRITE_ONLY}
    if needs.missing("tshark") is None:
        tshark_reads(frames, tmp_path)


def tshark_reads(captured: list[tuple[str, bytes]], folder: Path) -> None:
    """Opcode, queue pair and PSN are the frame's, and there is an RETH where the opcode says so."""
    ours = sorted({frame for _, frame in captured if frame[23] == socket.IPPROTO_UDP})
    fields = ["infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.reth.dmalen"]
    assert len(ours) > 100
    for frame, (opcode, qp, psn, length) in zip(ours, dissect(ours, fields, folder), strict=True):
        assert (int(opcode), int(qp, 0), int(psn)) == (
            frame[42], int.from_bytes(frame[47:50], "big"), int.from_bytes(frame[51:54], "big"))
        assert bool(length) == roce.Opcode(frame[42]).has_reth


@in_sandbox(timeout=150)
def test_the_death_of_a_switch_ends_in_a_named_error(tmp_path: Path) -> None:
    """A leaf that does not come back: its ranks give up in bounded time, and the fabric tells which switch it was and
    how it ended."""
    data = tmp_path / "digits.npz"
    train.save_digits(data)
    spec = msgspec.structs.replace(TRAINING, data=str(data), steps=10**6)
    command = [sys.executable, "-m", "netfold.demo.train", msgspec.json.encode(spec).decode()]
    with Network(fabric_of("softswitch"), logs=tmp_path / "logs") as network:
        ranks = network.launch(command, job="digits")
        victim = network.switches[1]
        assert victim.child is not None
        # the first rank to give up says that no trees came in time, those after it that it is gone
        why = rf"job 'digits': rank \d on h\d ended with status 1(.|\n)*(no trees in|{victim.name} is down)"
        with pytest.raises(RankFailed, match=why):  # noqa: PT012
            for _ in ranks.lines(within=100):
                victim.child.kill()
        with pytest.raises(SwitchFailed, match=rf"switch {victim.name} \(softswitch\) was killed by SIGKILL"):
            network.check()

# SPDX-License-Identifier: Apache-2.0
"""Explains the time that BMv2 takes for a packet: instructions of small programs, and a linear model fitted to them.

    python bench/scripts/bmv2_cost.py [--packets 100 300] [--only small|fold|least]

Each program forwards frames of the same kind and does something more of one thing: bytes of headers, fields of
metadata, steps of an action, tables and so on.  simple_switch_grpc runs it under valgrind (callgrind), which counts
instructions: other load on the machine changes none of them.  A program runs twice, with fewer and with more frames,
and what one frame takes is the difference; so starting costs nothing.  Least squares over all programs give what each
thing costs; the whole fold is counted beside them, and the smallest program that still folds correctly
(least_fold.p4).  The second column is the same without the functions that make text
for BMv2's log: where the log is compiled in, it makes that text even if nothing logs.  Needs simple_switch_grpc,
p4c-bm2-ss and valgrind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import queue
import re
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import grpc
import msgspec
import numpy as np
from finsy.proto import p4r, p4r_grpc

from netfold.bench.harness.switch_process import BOUND
from netfold.controller.controller import Controller
from netfold.controller.switch import pipeline
from netfold.fabric.generate import leafspine
from netfold.topo.network.switches import Bmv2Switch, find_program, notifications
from netfold.wire import roce
from netfold.wire.jobs import Join
from netfold.wire.plan import RankStream

PORTS = (1, 2)
LOG_TEXT = ("bm::Packet::get_unique_id", "dump_entry_string_", "key_to_string_with_names")
"""Functions that make text for the log alone."""
IN_FLIGHT = 4
"""Frames in the switch at once: its queue holds few, and its reader hands a frame on when it has seen the next."""
PCAP_HEAD = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)


@dataclass(frozen=True)
class Shape:
    """The work of a program for one packet, beside the plain forwarding that all do."""

    words: int = 0
    """Headers of 256 bytes that are parsed and deparsed."""
    metadata: int = 0
    """Fields of metadata, of 32 bits."""
    steps: int = 0
    """Additions of 32 bits, each into a field of its own, in one action."""
    jumps: int = 0
    """Conditions in that action."""
    actions: int = 0
    """Actions that stand alone, with one addition each: to BMv2 each is a table without a key."""
    conditions: int = 0
    """Conditions outside of actions."""
    hits: int = 0
    """Tables that are hit, with a key of one field."""
    keys: int = 0
    """Further fields of the key, in each of these tables."""
    hashed: int = 0
    """Words of 256 bytes in a CRC."""
    registers: int = 0
    """Words of 256 bytes that are added to a register's, and written there."""

    @property
    def counts(self) -> list[float]:
        """The counts of the model, one for each of `NAMES`."""
        return [1, self.words, self.metadata, self.steps, self.jumps, self.actions, self.conditions, self.hits,
                self.hits * self.keys, self.hashed, self.registers]


NAMES = ("a packet", "a header of 256 bytes", "a field of metadata", "a step of an action", "a jump in an action",
         "a table without a key, with a step", "a condition", "a table that is hit, with a step",
         "a further field of its key", "256 bytes in a CRC-32", "256 bytes read from a register, added, written")
PROGRAMS = (
    Shape(), Shape(words=4), Shape(words=16), Shape(metadata=60), Shape(metadata=30, steps=30),
    Shape(metadata=30, steps=10, jumps=20), Shape(metadata=20, actions=20), Shape(metadata=10, conditions=20),
    Shape(metadata=6, hits=6), Shape(metadata=4, hits=4, keys=3), Shape(words=4, metadata=1, hashed=4),
    Shape(words=16, metadata=1, hashed=16), Shape(words=4, registers=4),
    Shape(words=4, metadata=40, steps=20, jumps=10, actions=8, conditions=10, hits=2, keys=2, hashed=4, registers=4),
)


def source(shape: Shape) -> str:
    """The text of a program."""
    used = iter(range(shape.metadata))
    steps = "".join(f"m.f{next(used)} = h.a.a + {n + 1}; " for n in range(shape.steps))
    jumps = "".join(f"if (h.a.b == {n + 1}) {{ m.f0 = {n + 1}; }} " for n in range(shape.jumps))
    alone = [f"act{n}" for n in range(shape.actions)]
    local = [f"action {name}() {{ m.f{next(used)} = h.a.a + {n + 1}; }}" for n, name in enumerate(alone)]
    key = " ".join(f"h.a.{name}: exact;" for name in "abcd"[: 1 + shape.keys])
    values = ", ".join(["0"] * (1 + shape.keys))
    for n in range(shape.hits):
        local.append(f"action hit{n}(bit<32> v) {{ m.f{next(used)} = v; }} table t{n} {{ key = {{ {key} }} actions = "
                     f"{{ hit{n}; }} const entries = {{ ({values}): hit{n}({n + 1}); }} }}")
    local += [f"register<bit<2048>>(2) r{n};" for n in range(shape.registers)]
    words = ", ".join(f"h.w[{n}].w" for n in range(shape.hashed))
    hashed = f"hash(m.f0, HashAlgorithm.crc32, 32w0, {{ {words} }}, 64w0x100000000);" if words else ""
    added = "".join(f"r{n}.read(w, 0); h.w[{n}].w = w + h.w[{n}].w; r{n}.write(0, h.w[{n}].w); "
                    for n in range(shape.registers))
    apply = "inside(); " + " ".join(f"{name}();" for name in alone)
    apply += " ".join(f"if (h.a.b == {n + 1}) {{ other(); }}" for n in range(shape.conditions))
    apply += " ".join(f"t{n}.apply();" for n in range(shape.hits))
    metadata = " ".join(f"bit<32> f{n};" for n in range(shape.metadata))
    stack = f"word_t[{shape.words}] w;" if shape.words else ""
    return f"""#include <core.p4>
#include <v1model.p4>
header any_t {{ bit<32> a; bit<32> b; bit<32> c; bit<32> d; }}
header word_t {{ bit<2048> w; }}
struct H {{ any_t a; {stack} }}
struct M {{ {metadata} }}
parser P(packet_in p, out H h, inout M m, inout standard_metadata_t s) {{
    state start {{ p.extract(h.a); {"".join(f"p.extract(h.w[{n}]); " for n in range(shape.words))} transition accept; }}
}}
control V(inout H h, inout M m) {{ apply {{ }} }}
control I(inout H h, inout M m, inout standard_metadata_t s) {{
    bit<2048> w;
    {" ".join(local)}
    action other() {{ h.a.d = 1; }}
    action inside() {{ s.egress_spec = 3 - s.ingress_port; {steps} {jumps} {hashed} {added} }}
    apply {{ {apply} }}
}}
control E(inout H h, inout M m, inout standard_metadata_t s) {{ apply {{ }} }}
control D(packet_out p, in H h) {{ apply {{ p.emit(h.a); {"p.emit(h.w);" if shape.words else ""} }} }}
V1Switch(P(), V(), I(), E(), V(), D()) main;
"""


class Counted:
    """A BMv2 under callgrind with ports 1 and 2, which are files; what it took is known when it has ended."""

    def __init__(self, folder: Path, program: Path | None) -> None:
        self.folder, self.profile = folder, folder / "profile"
        self.address = f"unix:{folder}/grpc"
        bmv2 = find_program("simple_switch_grpc", Bmv2Switch.missing)
        for port in PORTS:
            (folder / f"{port}_out.pcap").unlink(missing_ok=True)
            (folder / f"{port}_in.pcap").unlink(missing_ok=True)
            os.mkfifo(folder / f"{port}_in.pcap")
        self._inputs = {port: os.open(folder / f"{port}_in.pcap", os.O_RDWR) for port in PORTS}
        for port in PORTS:
            os.write(self._inputs[port], PCAP_HEAD)
        self._running = subprocess.Popen(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={self.profile}", bmv2,
             str(program) if program else "--no-p4", "-i", f"1@{folder}/1", "-i", f"2@{folder}/2", "--use-files",
             "0", "--log-level", "off", "--device-id", "1", *notifications(bmv2, "cost"), "--thrift-port",
             "0", "--", "--grpc-server-addr", self.address, "--cpu-port", "510"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running.poll() is None:  # something has failed
            self._running.kill()
            self._running.wait(BOUND)

    def send(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Hand frames in at their ports; as many leave, of the same size, by any port."""
        size = 0
        deadline = time.monotonic() + BOUND
        for sent, (port, frame) in enumerate(frames, 1):
            record = struct.pack("<IIII", sent // 1000, sent % 1000, len(frame), len(frame)) + frame
            os.write(self._inputs[port], record)
            while size < len(record) * (sent - IN_FLIGHT):
                if self._running.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"BMv2 did not forward {sent} frames within {BOUND:.0f} s, {size} bytes left")
                time.sleep(0.005)
                size = sum(path.stat().st_size - len(PCAP_HEAD) for path in self.folder.glob("*_out.pcap"))

    def end(self) -> tuple[int, int]:
        """End it; instructions in all, and those that make text for its log."""
        for descriptor in self._inputs.values():
            os.close(descriptor)
        self._running.terminate()
        self._running.wait(BOUND)
        total = re.search(r"^(?:summary|totals): (\d+)", self.profile.read_text(), re.MULTILINE)
        assert total is not None, self.profile
        listed = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", self.profile],
                                capture_output=True, text=True, check=True).stdout
        text = sum(int(line.split()[0].replace(",", "")) for line in listed.splitlines()
                   if any(name in line for name in LOG_TEXT) and "'2" not in line)
        return int(total[1]), text

    def expect_sums(self, frames: int, path_mtu: int) -> None:
        """Raises SystemExit where not all sums of so many contributions have left by both ports."""
        sums = struct.pack(f"!{path_mtu // 4}I", *range(0, path_mtu // 2, 2))
        for port in PORTS:
            left = (self.folder / f"{port}_out.pcap").read_bytes().count(sums)
            if not frames // 2 - IN_FLIGHT <= left <= frames // 2:
                raise SystemExit(f"port {port}: expected {frames // 2} sums, got {left}: the switch did not fold")


Each = tuple[float, float]
"""Instructions for one packet, with and without text for the log."""


def each(few: tuple[int, int], many: tuple[int, int], packets: Sequence[int]) -> Each:
    """The cost of one packet, from two runs of so many packets."""
    more = packets[1] - packets[0]
    return (many[0] - few[0]) / more, (many[0] - many[1] - few[0] + few[1]) / more


def small(shape: Shape, packets: Sequence[int]) -> Each:
    """The cost of one packet in a small program."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "program.p4").write_text(source(shape))
        program = folder / "program.json"
        subprocess.run(["p4c-bm2-ss", folder / "program.p4", "-o", program], check=True, timeout=BOUND,
                       stderr=subprocess.DEVNULL)
        found = []
        for number in packets:
            with Counted(folder, program) as switch:
                switch.send([(1 + n % 2, bytes(16 + 256 * shape.words)) for n in range(number)])
                found.append(switch.end())
    return each(found[0], found[1], packets)


LEAST = Path(__file__).with_name("least_fold.p4")
LEAST_STREAMS = {
    host: RankStream(peer, qp, 0, 0xC000, 1, 64, peer, 0xC000)
    for host, peer, qp in (("10.0.1.1", "10.0.1.2", 0x100), ("10.0.1.2", "10.0.1.1", 0x200))
}
"""The streams of its two ranks, by address."""
LEAST_GROUPS = {1: (1, 2), 2: (1,), 3: (2,)}
"""Its multicast groups, with the ports that also number the ranks: both, and either."""


def configure(address: str, compiled: pipeline.Pipeline) -> None:
    """Load a program without tables to be filled, and its multicast groups, over P4Runtime."""
    election = p4r.Uint128(low=1)
    with grpc.insecure_channel(address) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        asked = queue.SimpleQueue[p4r.StreamMessageRequest | None]()
        asked.put(p4r.StreamMessageRequest(
            arbitration=p4r.MasterArbitrationUpdate(device_id=1, election_id=election)))
        stream = stub.StreamChannel(iter(asked.get, None), wait_for_ready=True, timeout=BOUND)
        next(iter(stream))
        config = p4r.ForwardingPipelineConfig(p4info=compiled.p4info, p4_device_config=compiled.device_config)
        stub.SetForwardingPipelineConfig(p4r.SetForwardingPipelineConfigRequest(
            device_id=1, election_id=election, config=config,
            action=p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT))
        groups = [p4r.MulticastGroupEntry(multicast_group_id=group, replicas=[
            p4r.Replica(egress_port=port, instance=port) for port in ports]) for group, ports in LEAST_GROUPS.items()]
        stub.Write(p4r.WriteRequest(device_id=1, election_id=election, updates=[
            p4r.Update(type=p4r.Update.INSERT, entity=p4r.Entity(
                packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=group)))
            for group in groups]))
        asked.put(None)  # until then this is the primary controller


def least(packets: Sequence[int]) -> Each:
    """The cost of one packet in the smallest fold.  Raises SystemExit where its results are not the sums."""
    found, path_mtu, compiled = [], 1024, pipeline.build("bmv2", LEAST)
    for number in packets:
        with tempfile.TemporaryDirectory() as scratch, Counted(Path(scratch), None) as switch:
            configure(switch.address, compiled)
            switch.send([(port, contribution(stream, host, 1 + n, path_mtu)) for n in range(number // 2)
                         for port, (host, stream) in zip(PORTS, LEAST_STREAMS.items(), strict=True)])
            found.append(switch.end())
            switch.expect_sums(number, path_mtu)
    return each(found[0], found[1], packets)


def contribution(stream: RankStream, source: str, psn: int, path_mtu: int) -> bytes:
    """A rank's frame with a whole path MTU."""
    inner = roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY_WINDOWED, stream.peer_qp, psn)
    inner += roce.RETH.pack(1 << 32, 0, path_mtu) + struct.pack(f"!{path_mtu // 4}I", *range(path_mtu // 4))
    udp = struct.pack("!HHHH", stream.source_port, roce.UDP_PORT, 8 + len(inner) + roce.ICRC_BYTES, 0)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 20 + len(udp) + len(inner) + roce.ICRC_BYTES, 0, 0x4000, 64, 17, 0,
                     socket.inet_aton(source), socket.inet_aton(stream.peer))
    total = sum(struct.unpack("!10H", ip))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:]
    return bytes(12) + b"\x08\x00" + ip + udp + inner + roce.icrc(ip + udp + inner)


async def fold(path_mtu: int, packets: Sequence[int]) -> Each:
    """The cost of one packet in the whole fold: two ranks under one switch send every PSN, and get every result.
    Raises SystemExit where these are not the sums."""
    found = []
    for number in packets:
        with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
            folder = Path(scratch)
            fabric = leafspine(1, 0, 2, engine="bmv2", rundir=folder, path_mtu=path_mtu)
            switch = running.enter_context(Counted(folder, None))
            here = msgspec.structs.replace(fabric.switches[0], grpc=switch.address)
            fabric = msgspec.structs.replace(fabric, probe=0, lease=BOUND, switches=(here,))
            async with Controller(fabric, start_timeout=BOUND) as controller:
                plans = await asyncio.gather(*(
                    controller.jobs.join(Join("cost", 2, rank, host.address, "10.0.0.1:1", path_mtu))
                    for rank, host in enumerate(fabric.hosts)))
                streams = [plan.trees[0].data for plan in plans]
                frames = [(port, contribution(stream, host.address, (stream.psn + n) & roce.PSN_MASK, path_mtu))
                          for n in range(number // 2)
                          for port, stream, host in zip(PORTS, streams, fabric.hosts, strict=True)]
                await asyncio.to_thread(switch.send, frames)
            found.append(switch.end())
            switch.expect_sums(number, path_mtu)
    return each(found[0], found[1], packets)


def main() -> None:
    """Measure all programs, fit the model, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, nargs=2, default=(100, 300), metavar="N", help="frames of the two runs")
    parser.add_argument("--only", choices=("small", "fold", "least"))
    options = parser.parse_args()
    if options.only in (None, "least"):
        of = least(options.packets)
        print(f"{of[0] / 1e3:8.1f} {of[1] / 1e3:8.1f}  thousand  the smallest fold, path MTU 1024", flush=True)
    if options.only in (None, "fold"):
        for path_mtu in roce.PATH_MTUS:
            of = asyncio.run(fold(path_mtu, options.packets))
            print(f"{of[0] / 1e3:8.1f} {of[1] / 1e3:8.1f}  thousand  the whole fold, path MTU {path_mtu}", flush=True)
    if options.only not in (None, "small"):
        return
    found = []
    for shape in PROGRAMS:
        found.append(small(shape, options.packets))
        has = ", ".join(f"{field.name} {getattr(shape, field.name)}" for field in fields(shape)
                        if getattr(shape, field.name))
        print(f"{found[-1][0] / 1e3:8.1f} {found[-1][1] / 1e3:8.1f}  thousand  {has or 'plain forwarding'}", flush=True)
    counts, costs = np.array([shape.counts for shape in PROGRAMS]), np.array(found)
    model, *_ = np.linalg.lstsq(counts, costs, rcond=None)
    worst = np.abs(counts @ model / costs - 1).max(axis=0)
    print(f"\ninstructions; without text for the log (the model is off by at most {worst[0]:.0%}, {worst[1]:.0%})")
    for name, (all_, without) in zip(NAMES, model, strict=True):
        print(f"{all_:8.0f} {without:8.0f}  {name}")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""softswitch beside the real BMv2, where that is on PATH: packets a second, processor time, loss.

    python bench/switch.py [--rounds 5] [--seconds 1] [--json FILE] [--only l3|fold]

    h1 (own namespace) --veth-- s1 [ port 1  switch  port 2 ] s2 --veth-- (own namespace) h2

l3     h1 sends to h2 through bench/l3.p4: 1400-byte frames singly, 1098-byte ones as super-packets
fold   h1 and h2 are the two ranks of a job on p4src/netfold.p4: each sends every PSN (1098-byte RoCEv2 frames, ICRC
       right), each gets every result; what is counted is packets in, and as many leave

Single packets: the hosts' offloads off, 64 packets on their way.  Super-packets (softswitch only; BMv2 knows none):
UDP sockets with UDP_SEGMENT and UDP_GRO, 8 super-packets of each sender on their way.  The ratio is to BMv2's single
packets.  Each round starts each switch anew on the same interfaces, one after the other, so that a slow spell of the
machine hits all; figures are min / median / max over rounds.  Processor time is utime + stime of all processes of the
switch: on veth that holds the delivery of what it sends, up to the receiver's socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from netfold.controller.controller import Controller
from netfold.controller.plan.fabric import Engine, Fabric
from netfold.controller.plan.generate import leafspine
from netfold.topo import sandbox
from netfold.wire import roce
from netfold.wire.jobs import Join, Stream
from softswitch import cc

HERE = Path(__file__).resolve().parent
FOLD = HERE.parent / "p4src" / "netfold.p4"
WINDOW = 64
SUPERS = 8
"""Super-packets of each sender on their way."""
BOUND = 60.0
"""Seconds for a switch to start."""
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


# ---- hosts -------------------------------------------------------------------------------------------------------


def sh(command: str) -> None:
    """Run a shell command; raises with its complaint."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")


class Host:
    """A network namespace with one interface, eth0, whose other end is the switch's."""

    def __init__(self, number: int, address: str, mac: str) -> None:
        self.address, self.mac = address, mac
        made: list[int] = []

        def make() -> None:  # a thread can have a namespace of its own; an open file keeps that alive
            if _libc.unshare(_CLONE_NEWNET) == 0:
                made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise RuntimeError("cannot make a network namespace")
        self._namespace = made[0]
        self._path = f"/proc/{os.getpid()}/fd/{made[0]}"
        end = f"s{number}"
        sh(f"ip link add {end} type veth peer name h{number}; ip link set h{number} netns {self._path} name eth0")
        sh(f"sysctl -qw net.ipv6.conf.{end}.disable_ipv6=1; ip link set {end} up")
        self.run("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1; ip link set eth0 up;"
                 f" ip addr add {address}/24 dev eth0")

    def run(self, command: str) -> None:
        """Run a shell command in the namespace."""
        sh(f"nsenter --net={self._path} sh -ec '{command}'")

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        """A socket of this namespace."""
        made: list[socket.socket] = []

        def make() -> None:
            if _libc.setns(self._namespace, _CLONE_NEWNET) == 0:
                made.append(socket.socket(family, kind, protocol))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise RuntimeError("cannot open a socket in a host's namespace")
        made[0].setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        made[0].setsockopt(socket.SOL_SOCKET, 32, 16 << 20)  # SO_SNDBUFFORCE
        return made[0]


def offloads(hosts: Sequence[Host], on: bool, gateway: str) -> None:
    """Super-packets, or single ones.  For those the hosts' own stacks are kept out by MAC addresses not their own."""
    state = "on" if on else "off"
    for number, host in enumerate(hosts, 1):
        features = " ".join(f"{f} {state}" for f in ("tx", "rx", "sg", "tso", "gso", "gro", "tx-udp-segmentation"))
        sh(f"ethtool -K s{number} {features}")
        host.run(f"ethtool -K eth0 {features}; ip link set eth0 address {host.mac if on else '02:00:00:00:ff:01'}")
        for other in hosts:
            if other is not host:
                host.run(f"ip neigh replace {other.address} lladdr {gateway} dev eth0 nud permanent")


# ---- traffic -----------------------------------------------------------------------------------------------------


class CHost(ctypes.Structure):
    """`host` of traffic.c."""

    _fields_ = (
        ("fd", ctypes.c_int), ("sends", ctypes.c_uint32), ("packet", ctypes.c_char_p), ("bytes", ctypes.c_uint32),
        ("segments", ctypes.c_uint32), ("psn_at", ctypes.c_uint32), ("psn", ctypes.c_uint32),
        ("icrc", ctypes.c_uint32 * 64), ("psn_part", ctypes.c_uint32 * 256 * 3), ("to", ctypes.c_uint8 * 16),
    )  # fmt: skip


class Outcome(ctypes.Structure):
    """`outcome` of traffic.c."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("sent", "received", "lost", "nanoseconds"))


@dataclass
class Flow:
    """What one host sends: an IPv4/UDP packet and, where it is RoCE, its first PSN."""

    to: str
    source_port: int
    port: int
    payload: bytes
    psn: int | None = None

    def packet(self, source: str, identification: int = 0) -> bytes:
        """From the IPv4 header on."""
        udp = struct.pack("!HHHH", self.source_port, self.port, 8 + len(self.payload), 0)
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, roce.ECN_ECT0, 28 + len(self.payload), identification, 0x4000, 64, 17,
                         0, socket.inet_aton(source), socket.inet_aton(self.to))
        total = sum(struct.unpack("!10H", ip))
        total = (total & 0xFFFF) + (total >> 16)
        total = (total & 0xFFFF) + (total >> 16)
        return ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:] + udp + self.payload

    def icrc(self, source: str, psn: int, identification: int = 0) -> int:
        """Of the packet with this PSN and IPv4 ID, as its four bytes read little endian."""
        packet = bytearray(self.packet(source, identification))
        packet[37:40] = psn.to_bytes(3, "big")
        return int.from_bytes(roce.icrc(bytes(packet[:-4])), "little")


class Load:
    """Hosts' sockets, ready to send flows: packet sockets for single packets, else UDP with that many segments."""

    def __init__(self, hosts: Sequence[Host], flows: Sequence[Flow | None], segments: int, gateway: str) -> None:
        self._library = ctypes.CDLL(str(cc.build([HERE / "traffic.c"], kind="shared", name="traffic")))
        self._sockets = []
        self._hosts = (CHost * len(hosts))()
        size = next(len(flow.payload) for flow in flows if flow)
        senders = sum(flow is not None for flow in flows)
        self.window = WINDOW if segments == 1 else SUPERS * segments * senders
        for host, flow, c in zip(hosts, flows, self._hosts, strict=True):
            header = b""
            if segments == 1:
                sock = host.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
                sock.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
                sock.bind(("eth0", 0x0800))
                if flow:
                    macs = bytes.fromhex((gateway + host.mac).replace(":", ""))
                    header = macs + b"\x08\x00" + flow.packet(host.address)[:28]
            else:
                sock = host.socket(socket.AF_INET, socket.SOCK_DGRAM)
                # an unconnected socket that may not fragment: IPv4 IDs are 0, 1, 2... in every super-packet
                sock.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, roce.ECN_ECT0)
                sock.setsockopt(17, 103, size)  # UDP_SEGMENT
                sock.setsockopt(17, 104, 1)  # UDP_GRO
                # results come to the port that contributions go to
                sock.bind((host.address, roce.UDP_PORT))
                if flow:
                    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", flow.port)
                    c.to[:] = list(address + socket.inet_aton(flow.to) + bytes(8))
                    flow = Flow(flow.to, roce.UDP_PORT, flow.port, flow.payload, flow.psn)
            sock.setblocking(False)
            self._sockets.append(sock)
            c.fd, c.segments = sock.fileno(), segments
            c.bytes = size + (42 if segments == 1 else 0)
            if flow:
                c.sends, c.packet = 1, header + flow.payload
                if flow.psn is not None:
                    c.psn, c.psn_at = flow.psn, len(header) + 9
                    zero = flow.icrc(host.address, 0)
                    c.icrc[:] = [flow.icrc(host.address, 0, i) for i in range(64)]
                    for k in range(3):
                        c.psn_part[k][:] = [flow.icrc(host.address, v << 8 * k) ^ zero for v in range(256)]

    def run(self, seconds: float) -> Outcome:
        """Traffic for so long.  Raises where sending fails."""
        out = Outcome()
        code = self._library.traffic(self._hosts, len(self._hosts), self.window, ctypes.c_uint64(int(seconds * 1e9)),
                                     ctypes.byref(out))
        if code:
            raise RuntimeError(f"the traffic generator failed: {os.strerror(code)} (sent {out.sent}, received "
                               f"{out.received}, lost {out.lost})")
        return out

    def psns(self) -> list[int]:
        """Each host's next PSN."""
        return [c.psn for c in self._hosts]

    def close(self) -> None:
        """The sockets."""
        for sock in self._sockets:
            sock.close()


# ---- switches ----------------------------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def processor_seconds(pids: Sequence[int]) -> float:
    """utime + stime of these processes, all threads."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with (folder / "switch.log").open("wb") as log:
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(5)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait(5)


def command(engine: Engine, program: Path | None, address: str, ports: Sequence[str]) -> list[str]:
    """A switch's command line; without a program it waits for the controller."""
    interfaces = [word for port in ports for word in ("-i", port)]
    what = [str(program)] if program else ["--no-p4"]
    if engine == "bmv2":
        return ["simple_switch_grpc", *what, *interfaces, "--log-level", "off", "--device-id", "1", "--thrift-port",
                "9090", "--", "--grpc-server-addr", address, "--cpu-port", "510"]
    return [sys.executable, "-m", "softswitch", *what, *interfaces, "--device-id", "1", "--grpc-server-addr", address,
            "--cpu-port", "510"]


def until_through(load: Load) -> None:
    """Wait until packets come through a switch that starts."""
    deadline = time.monotonic() + BOUND
    while True:
        out = load.run(0.01)
        if out.received and not out.lost:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing comes through the switch within {BOUND:.0f} s")


# ---- one round ---------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """What all rounds share."""

    hosts: list[Host]
    folder: Path
    fabrics: dict[str, Fabric]
    seconds: float

    def measure(self, load: Load, pid: int) -> dict[str, float]:
        """One row's figures."""
        load.run(0.15)
        pids = family(pid)
        before = processor_seconds(pids)
        out = load.run(self.seconds)
        used = processor_seconds(pids) - before
        return {"pps": out.received / out.nanoseconds * 1e9, "cpu_ns": used * 1e9 / max(out.received, 1),
                "lost": float(out.lost)}

    def l3(self, engine: Engine, modes: Sequence[int]) -> dict[int, dict[str, float]]:
        """The router; modes are segments a super-packet, 1: single packets."""
        program = HERE / "l3.p4"
        gateway = self.fabrics[engine].switches[0].mac
        if engine == "bmv2":
            program = self.folder / "l3.json"
            if not program.exists():
                subprocess.run(["p4c-bm2-ss", HERE / "l3.p4", "-o", program], check=True, timeout=BOUND)
        results = {}
        address = "127.0.0.1:9559"
        with process(command(engine, program, address, ["1@s1", "2@s2"]), self.folder) as switch:
            for segments in modes:
                offloads(self.hosts, segments > 1, gateway)
                payload = bytes(1400 - 42 if segments == 1 else 1098 - 42)
                flow = Flow(self.hosts[1].address, roce.UDP_PORT, roce.UDP_PORT, payload)
                with contextlib.closing(Load(self.hosts, [flow, None], segments, gateway)) as load:
                    until_through(load)
                    results[segments] = self.measure(load, switch.pid)
        return results

    def fold(self, engine: Engine, modes: Sequence[int]) -> dict[int, dict[str, float]]:
        """The aggregation program, with its controller."""
        return asyncio.run(self._fold(engine, modes))

    async def _fold(self, engine: Engine, modes: Sequence[int]) -> dict[int, dict[str, float]]:
        fabric = self.fabrics[engine]
        gateway = fabric.switches[0].mac
        results = {}
        with process(command(engine, None, fabric.switches[0].grpc, ["1@s1", "2@s2"]), self.folder) as switch:
            async with Controller(fabric, start_timeout=BOUND) as controller:
                plans = await asyncio.gather(*(
                    controller.jobs.join(Join("bench", 2, rank, host.address, "10.0.0.1:1", roce.PATH_MTU))
                    for rank, host in enumerate(self.hosts)
                ))
                streams = [plan.trees[0].data for plan in plans]
                psns = [stream.psn for stream in streams]
                for segments in modes:
                    offloads(self.hosts, segments > 1, gateway)
                    flows = [self._contributions(s, psn) for s, psn in zip(streams, psns, strict=True)]
                    with contextlib.closing(Load(self.hosts, flows, segments, gateway)) as load:
                        await asyncio.to_thread(until_through, load)
                        results[segments] = await asyncio.to_thread(self.measure, load, switch.pid)
                        psns = load.psns()
        return results

    @staticmethod
    def _contributions(stream: Stream, psn: int) -> Flow:
        bth = roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY, stream.peer_qp, 0)
        lanes = struct.pack("!256I", *range(1, 257))
        payload = bth + roce.RETH.pack(1 << 32, 0, roce.PATH_MTU) + lanes + bytes(roce.ICRC_BYTES)
        return Flow(stream.peer, stream.source_port, roce.UDP_PORT, payload, psn)


# ---- start, compile, idle ----------------------------------------------------------------------------------------


def compile_times(folder: Path) -> dict[str, float]:
    """Seconds to compile the fold program with an empty cache (of switch and C compiler), and with a full one."""
    found = {}
    for row in ("compile, cold", "compile, cached"):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "softswitch", "compile", str(FOLD)], check=True, timeout=300,
                       env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, stdout=subprocess.DEVNULL)
        found[row] = time.perf_counter() - begin
    return found


def start_time(folder: Path) -> float:
    """Seconds from the command to the line that says `ready`, program in the cache."""
    begin = time.perf_counter()
    address = f"unix:{folder}/start.sock"
    started = [*command("softswitch", FOLD, address, ["1@s1", "2@s2"]), "--log-level", "info"]
    running = subprocess.Popen(started, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert running.stdout is not None
    timer = threading.Timer(BOUND, running.kill)
    timer.start()
    try:
        for line in running.stdout:
            if b"ready" in line:
                return time.perf_counter() - begin
        raise RuntimeError("softswitch ended before it was ready")
    finally:
        timer.cancel()
        running.terminate()
        running.wait(5)


def idle(folder: Path, switches: int = 12, seconds: float = 5.0) -> float:
    """Processor seconds a second that idle switches with the fold program take together."""
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(process(
                command("softswitch", FOLD, f"unix:{folder}/idle{i}.sock", ["1@s1", "2@s2"]), folder))
            for i in range(switches)
        ]
        deadline = time.monotonic() + BOUND
        while any(len(family(one.pid)) < 2 or not (folder / f"idle{i}.sock").exists() for i, one in enumerate(started)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{switches} switches did not start within {BOUND:.0f} s")
            time.sleep(0.1)
        time.sleep(1.0)
        pids = [pid for one in started for pid in family(one.pid)]
        before = processor_seconds(pids)
        time.sleep(seconds)
        return (processor_seconds(pids) - before) / seconds


# ---- table -------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """min / median / max."""
    return " / ".join(form(value) for value in (min(values), statistics.median(values), max(values)))


def main() -> None:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of traffic, each row and round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--only", choices=("l3", "fold"))
    parser.add_argument("--segments", type=int, nargs="+", default=(1, 16, 60), metavar="N",
                        help="packets a super-packet for softswitch; 1: single packets")
    parser.add_argument("--no-extras", action="store_true", help="no compile, start and idle figures")
    parser.add_argument("--no-bmv2", action="store_true")
    options = parser.parse_args()
    sandbox.enter()
    have_bmv2 = not options.no_bmv2 and all(shutil.which(tool) for tool in ("simple_switch_grpc", "p4c-bm2-ss"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        fabrics = {
            engine: msgspec.structs.replace(leafspine(1, 0, 2, engine=engine, rundir=folder), probe=0)
            for engine in ("softswitch", "bmv2")
        }
        hosts = [Host(n, h.address, h.mac) for n, h in enumerate(fabrics["softswitch"].hosts, 1)]
        bench = Bench(hosts, folder, fabrics, options.seconds)
        rows: dict[tuple[str, Engine, int], list[dict[str, float]]] = defaultdict(list)
        plans: dict[str, Callable[[Engine, Sequence[int]], dict[int, dict[str, float]]]] = {
            "l3": bench.l3, "fold": bench.fold}
        for _ in range(options.rounds):
            for name, one in plans.items():
                if options.only in (None, name):
                    for segments, figures in one("softswitch", options.segments).items():
                        rows[name, "softswitch", segments].append(figures)
                    if have_bmv2:
                        rows[name, "bmv2", 1].append(one("bmv2", (1,))[1])
        extras: dict[str, float] = {}
        if not options.no_extras:
            extras = compile_times(folder)
            extras["start to ready, cached"] = statistics.median(start_time(folder) for _ in range(5))
            extras["12 idle switches, cores"] = idle(folder)

    print(f"{'program':8}{'switch':12}{'segments':>9}  {'kpps: min / median / max':>26}  {'x BMv2':>7}  "
          f"{'CPU ns a packet':>24}  {'of BMv2':>8}  {'lost':>5}")
    report = []
    for (name, engine, segments), rounds in sorted(rows.items()):
        pps, cpu = ([one[key] for one in rounds] for key in ("pps", "cpu_ns"))
        lost = sum(one["lost"] for one in rounds)
        base = rows.get((name, "bmv2", 1))
        ratio = share = None
        if base:  # round by round: a round's two switches have seen the same machine
            ratio = statistics.median(a["pps"] / b["pps"] for a, b in zip(rounds, base, strict=True))
            share = statistics.median(a["cpu_ns"] / b["cpu_ns"] for a, b in zip(rounds, base, strict=True))
        print(f"{name:8}{engine:12}{segments:9}  {spread(pps, lambda v: f'{v / 1e3:.1f}'):>26}  "
              f"{f'{ratio:.2f}' if ratio else '':>7}  {spread(cpu, lambda v: f'{v:.0f}'):>24}  "
              f"{f'{share:.2f}' if share else '':>8}  {lost:5.0f}")
        report.append({"program": name, "switch": engine, "segments": segments, "pps": pps, "cpu_ns": cpu,
                       "lost": lost, "times_bmv2": ratio, "cpu_of_bmv2": share})
    for extra, value in extras.items():
        print(f"{extra:28}{value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps({"rows": report, "extras": extras}, indent=1) + "\n")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""softswitch beside BMv2, where that is on PATH: packets a second, processor time, loss.

    python bench/scripts/switch.py [--rounds 5] [--seconds 1] [--json FILE] [--only l3|fold] [--path-mtu 1024 4096]
    python bench/scripts/switch.py --other DIR --only fold # beside another checkout's own script

    h1 (own namespace) --veth-- s1 [ port 1  switch  port 2 ] s2 --veth-- (own namespace) h2

l3     h1 sends to h2 through bench/scripts/l3.p4: 1400-byte frames as single packets, 1098-byte ones as super-packets
fold   h1 and h2 are the two ranks of a job on p4src/netfold.p4: each sends every PSN (RoCEv2 frames with payloads of
       the path MTU and a valid ICRC), and gets every result; packets into the switch are counted, and as many leave it

Single packets: the hosts' offloads are off, and 64 packets are in flight.  Super-packets (softswitch only; BMv2 does
not support them): UDP sockets with UDP_SEGMENT and UDP_GRO, and 8 super-packets of each sender in flight.  Ratios are
to BMv2's single packets.  Each round starts each switch anew on the same interfaces, one after the other, so that other
load on the machine affects all of them.  Figures are min / median / max over rounds.  Processor time is that of all
processes of the switch; over veth it includes the delivery of packets up to the receiver's socket.

With --other, this script and that of another checkout of the project measure one round each in turns, so that each runs
its own program under its own controller; ratios are medians, least and greatest of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from netfold.bench.harness import checkouts
from netfold.bench.harness.limits import machine
from netfold.bench.harness.processors import cpu_seconds, family
from netfold.bench.harness.switch_process import BOUND, command, process, until_through
from netfold.bench.harness.traffic import TrafficFlow, TrafficLoad
from netfold.bench.harness.veth import VethHost, offloads
from netfold.controller.controller import Controller
from netfold.disk import files
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from netfold.wire import roce
from netfold.wire.jobs import Join
from netfold.wire.plan import RankStream

HERE = Path(__file__).resolve().parent
FOLD = HERE.parents[1] / "p4src" / "netfold.p4"
PLACES = ("bench/scripts/switch.py", "bench/switch.py")
"""Where a checkout has this script, the newest place first."""
SUPER_PACKET = 65507
"""Bytes of a UDP datagram at most."""
HEADERS = 32
"""Bytes of BTH, RETH and ICRC beside a packet's payload."""

Figures: TypeAlias = dict[tuple[str, int], dict[str, float]]
"""Packets a second, processor time of a packet, and packets lost, by program and packets in a super-packet."""

# ---- one round ---------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Common parts of all rounds."""

    hosts: list[VethHost]
    folder: Path
    fabrics: dict[str, Fabric]
    seconds: float
    path_mtus: Sequence[int]

    def measure(self, load: TrafficLoad, pid: int) -> dict[str, float]:
        """Measure packets a second, processor time of a packet, and packets lost."""
        load.run(0.15)
        before = cpu_seconds(pid)
        out = load.run(self.seconds)
        used = cpu_seconds(pid) - before
        return {"pps": out.received / out.nanoseconds * 1e9, "cpu_ns": used * 1e9 / max(out.received, 1),
                "lost": float(out.lost)}

    def l3(self, engine: Engine, modes: Sequence[int]) -> Figures:
        """Measure the router; modes are packets in a super-packet, with 1 for single packets."""
        program = HERE / "l3.p4"
        gateway = self.fabrics[engine].switches[0].mac
        if engine == "bmv2":
            program = self.folder / "l3.json"
            if not program.exists():
                subprocess.run(["p4c-bm2-ss", HERE / "l3.p4", "-o", program], check=True, timeout=BOUND)
        results: Figures = {}
        address = "127.0.0.1:9559"
        with process(command(engine, program, address, ["1@s1", "2@s2"]), self.folder) as switch:
            for segments in modes:
                offloads(self.hosts, segments > 1, gateway)
                payload = bytes(1400 - 42 if segments == 1 else 1098 - 42)
                flow = TrafficFlow(self.hosts[1].address, roce.UDP_PORT, roce.UDP_PORT, payload)
                with contextlib.closing(TrafficLoad(self.hosts, [flow, None], segments, gateway)) as load:
                    until_through(load)
                    results["l3", segments] = self.measure(load, switch.pid)
        return results

    def fold(self, engine: Engine, modes: Sequence[int]) -> Figures:
        """Measure the aggregation program with its controller for each path MTU; modes as for `l3`, as far as the
        packets fit into a super-packet."""
        results: Figures = {}
        for path_mtu in self.path_mtus:
            fitting = [segments for segments in modes if segments * (path_mtu + HEADERS) < SUPER_PACKET]
            results |= asyncio.run(self._fold(engine, fitting, path_mtu))
        return results

    async def _fold(self, engine: Engine, modes: Sequence[int], path_mtu: int) -> Figures:
        fabric = msgspec.structs.replace(self.fabrics[engine], path_mtu=path_mtu)
        name = "fold" if path_mtu == roce.PATH_MTU else f"fold {path_mtu}"
        gateway = fabric.switches[0].mac
        results: Figures = {}
        with process(command(engine, None, fabric.switches[0].grpc, ["1@s1", "2@s2"]), self.folder) as switch:
            async with Controller(fabric, start_timeout=BOUND) as controller:
                plans = await asyncio.gather(*(
                    controller.jobs.join(Join("bench", 2, rank, host.address, "10.0.0.1:1", path_mtu))
                    for rank, host in enumerate(self.hosts)
                ))
                streams = [plan.trees[0].data for plan in plans]
                psns = [stream.psn for stream in streams]
                for segments in modes:
                    offloads(self.hosts, segments > 1, gateway)
                    flows = [self._contributions(s, psn, path_mtu) for s, psn in zip(streams, psns, strict=True)]
                    with contextlib.closing(TrafficLoad(self.hosts, flows, segments, gateway)) as load:
                        await asyncio.to_thread(until_through, load)
                        results[name, segments] = await asyncio.to_thread(self.measure, load, switch.pid)
                        psns = load.psns()
        return results

    @staticmethod
    def _contributions(stream: RankStream, psn: int, path_mtu: int) -> TrafficFlow:
        bth = roce.BTH.pack(roce.Opcode.WRITE_ONLY, 0, roce.PKEY_WINDOWED, stream.peer_qp, 0)
        lanes = struct.pack(f"!{path_mtu // 4}I", *range(1, path_mtu // 4 + 1))
        payload = bth + roce.RETH.pack(1 << 32, 0, path_mtu) + lanes + bytes(roce.ICRC_BYTES)
        return TrafficFlow(stream.peer, stream.source_port, roce.UDP_PORT, payload, psn)


# ---- start, compile, idle ----------------------------------------------------------------------------------------


def compile_times(folder: Path) -> dict[str, float]:
    """Seconds to compile the aggregation program with empty caches of P4 and C compiler, and with full ones."""
    found = {}
    for row in ("compile, cold", "compile, cached"):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "softswitch", "compile", str(FOLD)], check=True, timeout=300,
                       env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, stdout=subprocess.DEVNULL)
        found[row] = time.perf_counter() - begin
    return found


def start_time(folder: Path) -> float:
    """Seconds from the command to the log line `ready`, with the program in the cache."""
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
    """Processor seconds in a second that idle switches with the aggregation program take together."""
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
        before = sum(cpu_seconds(one.pid) for one in started)
        time.sleep(seconds)
        return (sum(cpu_seconds(one.pid) for one in started) - before) / seconds


# ---- table -------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The least, median and greatest value as text."""
    return " / ".join(form(value) for value in (min(values), statistics.median(values), max(values)))


def compare(other: Path, words: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Measure with this checkout's script and another one's in turns, a round each, and print the table.  Raises
    FileNotFoundError and subprocess.SubprocessError."""
    sides = (("this", checkouts.HERE), ("other", other.resolve()))
    found: dict[tuple[str, str, int], dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(rounds):
            for name, folder in sides if number % 2 == 0 else sides[::-1]:
                out = Path(scratch) / "round.json"
                subprocess.run([checkouts.python(folder), checkouts.script(folder, PLACES), *words, "--rounds", "1",
                                "--no-extras", "--json", out], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                               env=checkouts.environment(folder))
                for row in json.loads(out.read_text())["rows"]:
                    key = row["program"], row["switch"], row["segments"]
                    found.setdefault(key, {"this": [], "other": []})[name].append(row)
    print(f"{'program':10}{'switch':12}{'segments':>9}  {'checkout':9}{'kpps: min / median / max':>26}  "
          f"{'CPU ns a packet':>24}  {'lost':>5}  it / other")
    report = []
    for (program, engine, segments), of in sorted(found.items()):
        for name in ("other", "this"):
            pps, cpu = ([row[figure][0] for row in of[name]] for figure in ("pps", "cpu_ns"))
            if not pps:
                continue
            ratios = ""
            if name == "this" and of["other"]:
                faster, cost = (
                    [a[figure][0] / b[figure][0] for a, b in zip(of["this"], of["other"], strict=True)]
                    for figure in ("pps", "cpu_ns"))
                ratios = (f"packets a second {spread(faster, lambda v: f'{v:.2f}')}, "
                          f"CPU {spread(cost, lambda v: f'{v:.2f}')}")
            lost = sum(row["lost"] for row in of[name])
            print(f"{program:10}{engine:12}{segments:9}  {name:9}{spread(pps, lambda v: f'{v / 1e3:.1f}'):>26}  "
                  f"{spread(cpu, lambda v: f'{v:.0f}'):>24}  {lost:5.0f}  {ratios}")
            report.append({"program": program, "switch": engine, "segments": segments, "checkout": name, "pps": pps,
                           "cpu_ns": cpu, "lost": lost})
    return report


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of traffic, each row and round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--only", choices=("l3", "fold"))
    parser.add_argument("--segments", type=int, nargs="+", default=(1, 16, 60), metavar="N",
                        help="packets a super-packet for softswitch; 1: single packets")
    parser.add_argument("--no-extras", action="store_true", help="no compile, start and idle figures")
    parser.add_argument("--no-bmv2", action="store_true")
    parser.add_argument("--path-mtu", type=int, nargs="+", default=(roce.PATH_MTU,), choices=roce.PATH_MTUS,
                        help="payloads of fold's packets")
    parser.add_argument("--other", type=Path, metavar="DIR", help="measure beside another checkout of the project")
    options = parser.parse_args()
    if options.other:
        words = ["--seconds", str(options.seconds), "--segments", *map(str, options.segments)]
        words += ["--only", options.only] if options.only else []
        words += ["--no-bmv2"] if options.no_bmv2 else []
        words += ["--path-mtu", *map(str, options.path_mtu)] if options.path_mtu != (roce.PATH_MTU,) else []
        report = compare(options.other, words, options.rounds)
        if options.json:
            files.replace(options.json, json.dumps({"machine": machine(), "rows": report}, indent=1) + "\n")
        return
    sandbox.enter()
    have_bmv2 = not options.no_bmv2 and all(shutil.which(tool) for tool in ("simple_switch_grpc", "p4c-bm2-ss"))
    with tempfile.TemporaryDirectory(dir=sandbox.rundir()) as scratch:
        folder = Path(scratch)
        fabrics = {
            engine: msgspec.structs.replace(leafspine(1, 0, 2, engine=engine, rundir=folder, path_mtu=roce.PATH_MTU),
                                           probe=0)
            for engine in ("softswitch", "bmv2")
        }
        hosts = [VethHost(n, h.address, h.mac) for n, h in enumerate(fabrics["softswitch"].hosts, 1)]
        bench = Bench(hosts, folder, fabrics, options.seconds, options.path_mtu)
        rows: dict[tuple[str, Engine, int], list[dict[str, float]]] = defaultdict(list)
        plans: dict[str, Callable[[Engine, Sequence[int]], Figures]] = {
            "l3": bench.l3, "fold": bench.fold}
        for _ in range(options.rounds):
            for name, one in plans.items():
                if options.only in (None, name):
                    for (program, segments), figures in one("softswitch", options.segments).items():
                        rows[program, "softswitch", segments].append(figures)
                    for (program, segments), figures in (one("bmv2", (1,)) if have_bmv2 else {}).items():
                        rows[program, "bmv2", segments].append(figures)
        extras: dict[str, float] = {}
        if not options.no_extras:
            extras = compile_times(folder)
            extras["start to ready, cached"] = statistics.median(start_time(folder) for _ in range(5))
            extras["12 idle switches, cores"] = idle(folder)

    print(f"{'program':10}{'switch':12}{'segments':>9}  {'kpps: min / median / max':>26}  {'x BMv2':>7}  "
          f"{'CPU ns a packet':>24}  {'of BMv2':>8}  {'lost':>5}")
    report = []
    for (name, engine, segments), rounds in sorted(rows.items()):
        pps, cpu = ([one[key] for one in rounds] for key in ("pps", "cpu_ns"))
        lost = sum(one["lost"] for one in rounds)
        base = rows.get((name, "bmv2", 1))
        ratio = share = None
        if base:  # both switches of a round have run under the same load of the machine
            ratio = statistics.median(a["pps"] / b["pps"] for a, b in zip(rounds, base, strict=True))
            share = statistics.median(a["cpu_ns"] / b["cpu_ns"] for a, b in zip(rounds, base, strict=True))
        print(f"{name:10}{engine:12}{segments:9}  {spread(pps, lambda v: f'{v / 1e3:.1f}'):>26}  "
              f"{f'{ratio:.2f}' if ratio else '':>7}  {spread(cpu, lambda v: f'{v:.0f}'):>24}  "
              f"{f'{share:.2f}' if share else '':>8}  {lost:5.0f}")
        report.append({"program": name, "switch": engine, "segments": segments, "pps": pps, "cpu_ns": cpu,
                       "lost": lost, "times_bmv2": ratio, "cpu_of_bmv2": share})
    for extra, value in extras.items():
        print(f"{extra:28}{value:8.3f}")
    if options.json:
        files.replace(options.json, json.dumps({"machine": machine(), "rows": report, "extras": extras},
                                           indent=1) + "\n")


if __name__ == "__main__":
    main()

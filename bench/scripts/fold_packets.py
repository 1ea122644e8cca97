# SPDX-License-Identifier: Apache-2.0
"""The compiled fold alone: nanoseconds a packet of a switch in this process, without sockets.

    python bench/scripts/fold_packets.py [--other CHECKOUT] [--rounds 8] [--path-mtu 1024 4096]

Four children of one root send packets of the path MTU, as many at once as a super-packet holds; each result leaves to
all four. What counts is the processor time in the switch: parsing, ICRC, tables, registers, replicas, checksums,
deparsing, and a copy of what leaves. Nothing is cut or joined here. With --other, the same is done with another
checkout of the project, by its own Python in CHECKOUT/.venv where there is one, in turns; figures are the least and the
median of all rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import struct
import subprocess
import sys
from pathlib import Path

import cbuild
import netfold
from cbuild import cc
from netfold.bench.harness import checkouts
from netfold.disk import files
from netfold.wire import roce
from softswitch.compiler.driver import compile_file
from softswitch.engine import entities, linking, local

CHILDREN = 4
GROUP, CONNECTION = 7, 100
SUPER_PACKET = 64 << 10
PSNS = 512
"""Slots of the tree; twice as many packets as are at once in a slot's window."""
PACKETS = 24_000
"""Packets into the switch in one round, about."""


class FoldTarget(ctypes.Structure):
    """The C file's struct of the same name."""

    _fields_ = (("capture", ctypes.c_void_p), ("receive", ctypes.c_void_p), ("take", ctypes.c_void_p))


def frame(child: int, path_mtu: int) -> bytes:
    """A child's contribution, whose PSN and ICRC the C file fills in."""
    lanes = b"".join(struct.pack("!I", (7 * i + child) & 0xFFFF) for i in range(path_mtu // 4))
    bth = roce.BTH.pack(roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY_WINDOWED, CONNECTION * roce.QUEUE_PAIRS, 0)
    length = 8 + len(bth) + path_mtu + 4
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 2, 20 + length, 0, 0x4000, 64, 17, 0, bytes([10, 0, 1, 1]),
                     bytes([10, 0, 1, 2]))
    total = sum(struct.unpack("!10H", ip))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    ip = ip[:10] + struct.pack("!H", ~total & 0xFFFF) + ip[12:]
    ethernet = bytes(12) + b"\x08\x00"
    return ethernet + ip + struct.pack("!HHHH", 50000, roce.UDP_PORT, length, 0) + bth + lanes + bytes(4)


def measure(path_mtu: int, rounds: int) -> None:
    """Prints nanoseconds a packet, a line a round, each after a line was read."""
    program = compile_file(Path(netfold.__file__).parent / "p4src" / "netfold.p4", defines={"PATH_MTU": str(path_mtu)})
    driver = ctypes.CDLL(str(cc.build(
        [Path(__file__).with_suffix(".c")], kind="shared", name="fold_packets", include=[Path(cbuild.__file__).parent],
        flags=["-O2"], optional_flags=["-march=native"],
    )))
    switch = local.LocalEngine.open(linking.build(program), cpu_port=510)

    def insert(table: str, key: list[int], action: str, params: list[int]) -> None:
        info = switch.table(table)
        packed, mask = info.pack_key([(v, (1 << k.bits) - 1) for v, k in zip(key, info.keys, strict=True)])
        found = info.action(action)
        switch.insert(entities.Entry(info, packed, mask, entities.DoAction(found.index, found.pack(params))))

    full = (1 << CHILDREN) - 1
    switch.write_multicast("insert", entities.Multicast(GROUP, tuple((n + 1, n) for n in range(CHILDREN))))
    for child in range(CHILDREN):
        key = [child + 1, 0x0A000101, 0x0A000102, 50000, CONNECTION * roce.QUEUE_PAIRS]
        insert("connection", key, "contribution", [GROUP, child, full, 1, PSNS, PSNS - 1, child, 1, 1, 0])
        peer = (3, 4, 5, roce.UDP_PORT, 6 * roce.QUEUE_PAIRS)
        changes = [roce.icrc_change(*peer, more + path_mtu) for more in (0, roce.RETH_BYTES)]
        insert("replica", [GROUP, child], "rewrite", [1, 2, *peer, *changes, child])
    lib = switch._local._lib
    target = FoldTarget(switch._local._capture, ctypes.cast(lib.ss_capture_receive, ctypes.c_void_p),
                    ctypes.cast(lib.ss_capture_take, ctypes.c_void_p))
    frames = b"".join(frame(child, path_mtu) for child in range(CHILDREN))
    size = len(frames) // CHILDREN
    at_once = SUPER_PACKET // size
    turns = PACKETS // (CHILDREN * at_once)
    room, out = ctypes.create_string_buffer(at_once * size), ctypes.c_uint64()
    driver.fold_packets.restype = ctypes.c_uint64
    psn = 0
    for _ in range(rounds):
        sys.stdin.readline()
        out.value = 0
        spent = driver.fold_packets(
            ctypes.byref(target), frames, size, CHILDREN, at_once, turns, psn, room, ctypes.byref(out)
        )
        packets = CHILDREN * at_once * turns
        if out.value != packets * (size + 17):
            raise SystemExit(f"the switch did not fold: {out.value} bytes left for {packets} packets of {size}")
        psn += at_once * turns
        print(spent / packets, flush=True)


def start(checkout: Path, path_mtu: int, rounds: int) -> subprocess.Popen[str]:
    """This script, measuring another checkout's program and switch."""
    return subprocess.Popen(
        [checkouts.python(checkout), Path(__file__).resolve(), "--measure", str(path_mtu), "--rounds",
         str(rounds)],
        env=checkouts.environment(checkout), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )


def compare(checkouts: list[Path], path_mtu: int, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds a packet, by checkout, round by round."""
    running = {str(checkout): start(checkout, path_mtu, rounds) for checkout in checkouts}
    found: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, process in running.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"{name}: ended with status {process.wait()}")
            found[name].append(float(line))
    for process in running.values():
        process.wait()
    return found


def main() -> None:
    """Measures one checkout or two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, action="append", default=[])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--path-mtu", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.rounds)
        return
    here = Path(__file__).resolve().parents[2]
    report = {}
    for path_mtu in args.path_mtu:
        found = compare([here, *args.other], path_mtu, args.rounds)
        report[path_mtu] = found
        for name, values in found.items():
            print(f"path MTU {path_mtu}  {name}: {min(values):.0f} ns a packet at least, median "
                  f"{statistics.median(values):.0f}")
    if args.json:
        files.replace(args.json, json.dumps(report))


if __name__ == "__main__":
    main()

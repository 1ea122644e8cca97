# SPDX-License-Identifier: Apache-2.0
"""The hosts' engines under AddressSanitizer and UBSan, fed with packets that no peer of theirs would send.

    LD_PRELOAD=libasan.so PYTHONMALLOC=malloc python tests/support/hostile/hostile_host.py fold|rc SEED INPUTS SECONDS

A process of its own, since the sanitizer must be loaded first; ends with status 0 and a line of figures, or with the
sanitizer's report. PYTHONMALLOC lets each packet be an allocation of its own, so that a byte read too far is seen.
"""

from __future__ import annotations

import functools
import os
import random
import struct
import sys
from collections.abc import Iterator

import numpy as np

from cbuild import cc
from netfold.host.innet.core import Core, result_origin
from netfold.host.native.library import Origin
from netfold.host.operation.arrays import by_counts
from netfold.host.operation.coding import PLAIN
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import RowsCollective, RowsRequest
from netfold.host.roce.endpoint import Endpoint
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree
from support.models.roce import address, connect
from support.models.slot_model import as_result
from switch_support import fuzz, sanitized

ROOM = 1 << 16
SUM_QP, MAX_QP, OWN_SUM_QP, OWN_MAX_QP = 0x123450, 0x654320, 0x80, 0x90
DTYPES = ("float32", "int32")


def somewhere(draw: random.Random) -> Origin:
    """Where no packet should come from."""
    return Origin(draw.choice([0, 0x0A010001, 0xFFFFFFFF]), draw.randrange(1 << 16), draw.choice([-1, 0, 64, 255]))


def result(packet: bytes, *, later: int = 0) -> bytes:
    """What a switch, or somebody in its place, makes of a contribution: its queue pair is the rank's own."""
    opcode, flags, pkey, qp, psn = roce.BTH.unpack_from(packet)
    own = {SUM_QP: OWN_SUM_QP, MAX_QP: OWN_MAX_QP}.get(qp & ~15, qp)
    return roce.BTH.pack(opcode, flags, pkey, own | qp & 15, (psn + later) & 0xFFFFFFFF) + packet[roce.BTH.size :]


def lanes_of(presence: bytes, draw: random.Random) -> bytes:
    """The message that a rank with an empty contribution of a short tensor wants: the same one with lanes."""
    (address, key, _), end = roce.RETH.unpack_from(presence, roce.BTH.size), roce.BTH.size + roce.RETH.size
    reth = roce.RETH.pack(address, key, roce.PATH_MTU)
    return presence[: roce.BTH.size] + reth + draw.randbytes(roce.PATH_MTU) + presence[end:]


def rows_request(draw: random.Random, number: int, world: int) -> RowsRequest:
    """A collective of rows, the last one the longest, with its arrays."""
    kind: RowsCollective = draw.choice(["reduce_scatter", "reduce", "all_gather", "broadcast", "barrier", "exchange"])
    root, length = draw.randrange(world), draw.choice([0, 1, 257, 5000])
    counts = [length if kind not in ("reduce", "broadcast") or rank == root else 0 for rank in range(world)]
    counts[-1] += length // 3 if counts[-1] else 0
    rows = by_counts(counts)
    size, reduces = sum(counts), kind in ("reduce_scatter", "reduce", "exchange")
    source = np.full(size, draw.random() * 100).astype(draw.choice(DTYPES) if reduces else np.uint8)
    gathered, reduction = None, None
    if reduces:
        reduction = Reduction(draw.choice(["sum", "max"]), source.dtype.name)
    if kind == "exchange":
        gathered = np.zeros(size, np.uint8)
    return RowsRequest(kind, source, source, () if kind == "barrier" else rows, number, root, 0, reduction,
                       gathered=gathered, gathered_rows=rows if kind == "exchange" else ())


def fold(draws: Iterator[random.Random]) -> str:
    """One rank's fold: results in any order, twice, cut, spoiled, of other streams; operations that end or fail."""
    tree = RankTree(
        name="t", weight=1.0,
        data=RankStream(peer="10.1.2.4", peer_qp=SUM_QP, qp=OWN_SUM_QP, source_port=50123, psn=0xFFFFF0, slots=256,
                        predecessor="10.1.2.9", predecessor_port=50200),
        agreement=RankStream(peer="10.1.2.4", peer_qp=MAX_QP, qp=OWN_MAX_QP, source_port=50124, psn=5, slots=64,
                             predecessor="10.1.2.9", predecessor_port=50201),
    )
    core, now, number, finished, failed, packets = None, 0, 0, 0, 0, 0
    sent: list[bytes] = []
    wire: list[bytes] = []
    for draw in draws:
        if core is None or core.finished() or core.failure().error or draw.random() < 0.05:
            if core is not None:
                finished, failed = finished + core.finished(), failed + bool(core.failure().error)
                core.close()
            world = draw.choice([1, 1, 1, 4, 700])
            core = Core("10.1.2.3", world, [tree], max_run=draw.choice([1, 2, 60]))
            sent, wire, hostility = [], [], draw.choice([0.02, 0.1, 0.5])
            source = np.zeros(draw.choice([1, 255, 257, 5000, 70000]), np.dtype(draw.choice(DTYPES)))
            source[:] = draw.random() * 100
            number += 1
            if draw.random() < 0.5:
                core.start(number, source, np.empty_like(source), 1.0, now, coding=PLAIN)
            else:
                core.start_rows(rows_request(draw, number, world), draw.randrange(world), now)
        while run := core.send(now):
            wire += run.packets()
            sent = (sent + run.packets())[-2000:]
        now += draw.choice([0, 1000, 50_000, 10_000_000, 3_000_000_000])
        core.tick(now)
        for _ in range(40):
            packet = draw.randbytes(draw.randrange(90))
            if wire:
                packet = result(wire.pop(0))
                if len(packet) == roce.PRESENCE_BYTES and not packet[1] and draw.random() < 0.9:
                    packet = lanes_of(packet, draw)
            if sent and draw.random() < hostility:
                packet = result(draw.choice(sent), later=draw.choice([-1, 0, 1, 7, 64, 1 << 15, 1 << 23]))
            if draw.random() < hostility:
                packet = fuzz.spoil(draw, packet, most=9000)
            packets += 1
            agreement = packet[5:8] >= OWN_MAX_QP.to_bytes(3, "big")
            origin = result_origin(tree.agreement if agreement else tree.data)
            if draw.random() < hostility:
                origin = somewhere(draw)
            if len(packet) > roce.BTH.size + roce.ICRC_BYTES and draw.random() < 0.95:  # anybody can make an ICRC
                packet = as_result(packet, origin, core.address)
            segment = 0
            if draw.random() < hostility:
                packet += packet
                segment = draw.choice([0, 1, 12, len(packet) // 2, 65535])
            core.receive(packet, now, origin, segment=segment, marked=draw.random() < 0.3)
        core.state(0, draw.randrange(2))
        core.deadline()
    return f"{packets} packets, {finished} operations finished, {failed} failed"


def rc(draws: Iterator[random.Random]) -> str:
    """Queue pairs of two endpoints: writes, acknowledgements and NAKs on the way are lost, repeated and spoiled."""
    now, broken, opened, packets, ends = 0, 0, 0, 0, []
    for draw in draws:
        if not ends or draw.random() < 0.02:
            for end in ends:
                end.close()
            mtu, window = draw.choice([256, 1024, 4096]), draw.choice([2, 4, 512])
            ends = [Endpoint(address(i), path_mtu=mtu, window=window, max_run=draw.choice([1, 60]),
                             reorder=draw.choice([1, 3])) for i in range(2)]
            pairs = [connect(*ends, number=n + 1, psn=draw.choice([0, 0xFFFFFD, 77])) for n in range(3)]
            ends[0].limit_open(draw.choice([1, 2, 100]))
            memory = [np.zeros(ROOM, np.uint8) for _ in ends]
            keys = [[end.register(m.ctypes.data, draw.choice([1, 1000, ROOM]))]
                    for end, m in zip(ends, memory, strict=True)]
            opened += 1
            wire: list[tuple[int, bytes]] = []
        side = draw.randrange(2)
        match draw.randrange(8):
            case 0:
                keys[side].append(ends[side].register(memory[side].ctypes.data + 8, ROOM - 8))
            case 1 if keys[side]:
                ends[side].deregister(keys[side].pop(draw.randrange(len(keys[side]))))
            case 2:
                ends[side].move(draw.choice(pairs), draw.randrange(49152, 65536), now, lost=draw.random() < 0.5)
            case _:
                length = draw.choice([1, 255, 5000, ROOM])
                ends[side].write(draw.choice(pairs), memory[side].ctypes.data, length,
                                 key=draw.choice([0, 1, 2, 70000]), offset=draw.choice([0, 0, 8, ROOM, 1 << 40]), id=1)
        now += draw.choice([0, 1000, 100_000, 50_000_000])
        for index, end in enumerate(ends):
            end.tick(now)
            while (run := end.send(now)) and len(wire) < 3000:
                wire += [(1 - index, packet) for packet in run.packets()]
            broken += sum(event.what == 3 for event in end.events())
        for _ in range(min(40, len(wire))):
            to, packet = wire.pop(draw.randrange(len(wire)))
            packets += 1
            if draw.random() < 0.2:
                wire.append((to, packet))
            if draw.random() < 0.3:
                packet = fuzz.spoil(draw, packet, most=9000)
            elif draw.random() < 0.1 and len(packet) > 28:  # a right header, another place in memory
                packet = packet[:12] + struct.pack("!QII", draw.choice([0, 1 << 16, 2**64 - 1]), draw.randrange(4),
                                                   draw.choice([0, 1, ROOM, 2**32 - 1])) + packet[28:]
            port = draw.choice([0, 50000, 65535])
            origin = Origin.of(address(1 - to), port)
            if len(packet) > roce.BTH.size + roce.ICRC_BYTES and draw.random() < 0.95:  # anybody can make an ICRC
                packet = roce.sealed(packet, address(1 - to), port, address(to), draw.randrange(4))
            ends[to].receive(packet, now, somewhere(draw) if draw.random() < 0.05 else origin,
                             segment=draw.choice([0, 0, 1, 16, 65535]), marked=draw.random() < 0.2)
        ends[side].state(draw.choice(pairs))
    return f"{packets} packets, {opened} pairs of endpoints, {broken} queue pairs broken"


def main(engine: str, seed: str, inputs: str, seconds: str) -> None:
    """Runs one engine's fuzzer."""
    os.environ.pop("LD_PRELOAD", None)  # not for the C compiler
    build = cc.build
    cc.build = functools.wraps(build)(
        lambda sources, **more: build(sources, **{**more, "flags": [*more["flags"], *sanitized.FLAGS],
                                                  "optional_flags": ()})
    )
    fuzzing = fuzz.Fuzz(float(seconds), int(seed))
    figures = {"fold": fold, "rc": rc}[engine](fuzzing.inputs(int(inputs)))
    print(f"hostile: {engine}: {figures}")


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""A host that belongs to no job and attacks one that runs beside it, for so many seconds and tries at most.

    python -m netfold.bench.harness.stranger TASK        a JSON `StrangerTask`; prints a JSON `StrangerResult`

What it tries is drawn from a seed.  It knows what such a host could learn at best: addresses, ports, the job's epoch,
the queue pairs and PSNs of packets that were on the wire a moment ago, and what ranks have said to each other.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import grpc
import msgspec

from netfold.bench.harness.mesh_stranger import MeshStranger
from netfold.bench.harness.overhearing import OverheardHandshake
from netfold.rpc import channel, tokens
from netfold.wire import jobs, operator, paths, roce

Attack = Literal["spoof", "flood", "mesh", "service"]
GROUP: Final = "224.0.0.2"
"""Where switches send link probes."""
BURST: Final = 64
"""Tries between looks at the clock."""
CALL_SECONDS: Final = 0.2
"""How long an answer of the controller is waited for."""
METHODS: Final = tuple(
    f"{service}/{method}" for service, methods in (
        (jobs.SERVICE, ("Join", "Report", "Leave", "Missing", "Suspect", "Resume", "Settled", "Watch")),
        (operator.SERVICE, ("Status", "Drop", "Drain", "Wiring", "Diff", "Slots", "Stall")),
        (paths.SERVICE, ("Suspect", "Follow")),
        ("netfold.PathTable", ("Table", "SetMode", "SetPin")),
    ) for method in methods
)
BROKEN: Final = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
"""Answers that are failures of the controller; all others are refusals or answers."""


class SeenStream(msgspec.Struct, frozen=True):
    """A stream of packets that was on the wire: addresses, UDP ports, queue pair and its latest PSN."""

    source: str
    destination: str
    port: int
    qp: int
    psn: int
    to: int = roce.UDP_PORT
    """UDP destination port; ``port`` is the source port."""


class StrangerTask(msgspec.Struct, frozen=True):
    """The task of a process that does not belong to the fabric."""

    attack: Attack
    seed: int
    seconds: float
    rate: int
    """Tries a second at most."""
    own: str
    """Address of its host."""
    job: str
    streams: list[SeenStream] = []
    """spoof: what it imitates."""
    listeners: list[tuple[str, int]] = []
    """mesh: where ranks accept TCP connections."""
    overheard: list[OverheardHandshake] = []
    """mesh, service: what its ranks have said to each other."""
    controller: str = ""
    """service: address of the job service."""
    token_files: list[str] = []
    """service: files with tokens that it has, none of which is that of the job's tenant."""


class StrangerResult(msgspec.Struct, frozen=True):
    """How many packets, connections or requests it has tried, and what should not have been possible."""

    attack: Attack
    tried: int
    broken: list[str]
    met: dict[str, int] = {}
    """mesh: `mesh_stranger.MeshStranger.met`."""


def run(task: StrangerTask) -> StrangerResult:
    """Try until the time is over, no faster than the rate."""
    rng, broken, met = random.Random(task.seed), list[str](), dict[str, int]()
    tried, began = 0, time.monotonic()
    most = int(task.rate * task.seconds)
    with contextlib.ExitStack() as stack:
        if task.attack == "mesh":
            greets = MeshStranger(rng, task.listeners, task.overheard)
            stack.callback(greets.close)
            broken, met, attempt = greets.broken, greets.met, greets.attempt
        else:
            attempt = {"spoof": spoof, "flood": flood, "service": service}[task.attack](task, rng, stack, broken)
        while tried < most and time.monotonic() < began + task.seconds:
            for _ in range(min(BURST, most - tried)):
                tried += 1
                with contextlib.suppress(OSError):  # a queue is full, a link is down, or nobody is there
                    attempt()
                if time.monotonic() >= began + task.seconds:
                    break
            time.sleep(max(0.0, began + tried / task.rate - time.monotonic()))
    return StrangerResult(task.attack, tried, broken, dict(met))


# ---- packets -------------------------------------------------------------------------------------------------------


def spoof(task: StrangerTask, rng: random.Random, stack: contextlib.ExitStack, _: list[str]) -> Callable[[], None]:
    """Results and contributions of the job's streams with any TTL, queue pair, PSN and source address, from raw
    sockets; some from an ordinary socket."""
    raw = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
    plain = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    plain.bind((task.own, 0))
    addresses = sorted({address for stream in task.streams for address in (stream.source, stream.destination)})

    def attempt() -> None:
        stream = rng.choice(task.streams)
        qp = rng.choice([stream.qp, stream.qp, stream.qp ^ rng.randrange(1 << roce.OPERATION_BITS),
                         rng.randrange(1 << 24)])
        psn = (stream.psn + rng.choice([rng.randrange(-512, 4096), rng.randrange(1 << 24)])) & roce.PSN_MASK
        ttl = rng.choice([roce.RESULT_TTL, roce.CONTRIBUTION_TTL, rng.randrange(1, 256)])
        source = rng.choice([stream.source, stream.source, task.own, rng.choice(addresses)])
        body = roce.BTH.pack(rng.choice(list(roce.Opcode)), 0, roce.PKEY, qp, psn)
        body += rng.randbytes(rng.choice(roce.PATH_MTUS))
        if rng.random() < 0.2:
            plain.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
            plain.sendto(body + bytes(roce.ICRC_BYTES), (stream.destination, stream.to))
            return
        udp_bytes = roce.UDP_BYTES + len(body) + roce.ICRC_BYTES
        port = rng.choice([stream.port, stream.port, rng.randrange(1, 1 << 16)])
        packet = struct.pack("!BBHHHBBH4s4s", 0x45, 0, roce.IPV4_BYTES + udp_bytes, 0, 0x4000, ttl, socket.IPPROTO_UDP,
                             0, socket.inet_aton(source), socket.inet_aton(stream.destination))
        packet += struct.pack("!HHHH", port, stream.to, udp_bytes, 0) + body
        raw.sendto(packet + roce.icrc(packet), (stream.destination, 0))

    return attempt


def flood(task: StrangerTask, rng: random.Random, stack: contextlib.ExitStack, _: list[str]) -> Callable[[], None]:
    """Short datagrams to the group of link probes, with the TTL that probes have."""
    sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(task.own))
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, roce.RESULT_TTL)
    sock.connect((GROUP, roce.UDP_PORT))
    payloads = [rng.randbytes(rng.randrange(1, 64)) for _ in range(256)]

    def attempt() -> None:
        sock.send(rng.choice(payloads))

    return attempt


# ---- requests ------------------------------------------------------------------------------------------------------


def service(task: StrangerTask, rng: random.Random, stack: contextlib.ExitStack, broken: list[str]
            ) -> Callable[[], None]:
    """Requests of every method: noise, hostile values, and what a rank of the job would say, with any secret."""
    connection = stack.enter_context(channel.channel(task.controller))
    known = ["", *(tokens.read(Path(path), "token_files") for path in task.token_files)]

    def attempt() -> None:
        method, token = rng.choice(METHODS), rng.choice(known)
        body = rng.choice([spoiled, said])(task, rng)
        call = connection.unary_stream(f"/{method}", None, None)(
            body, timeout=CALL_SECONDS, metadata=tokens.metadata(token))
        try:
            for _answer in call:
                break
        except grpc.RpcError as error:
            if error.code() in BROKEN:
                broken.append(f"{method}: {error.code().name} for {body[:200]!r}: {error.details()}")
        finally:
            call.cancel()  # type: ignore[no-untyped-call]

    return attempt


def said(task: StrangerTask, rng: random.Random) -> bytes:
    """A request as a rank of the job would make it, but for the secret."""
    epoch = rng.choice([*(one.epoch for one in task.overheard), rng.getrandbits(31)])
    rank = {"job": task.job, "rank": rng.randrange(8), "epoch": epoch,
            "secret": {"value": rng.randbytes(32).hex()}}
    return msgspec.json.encode(rng.choice([
        rank, {**rank, "reason": "gone"}, {**rank, "missing": {}}, {**rank, "waits": {rng.randrange(1 << 24): 0}},
        {**rank, "ticket": {"value": rng.randbytes(64).hex()}}, {"job": task.job},
        {"name": "spine1", "drained": True, "wait": 0.0}, {"switch": "leaf1"}, {"mode": "ecmp"},
        {"job": task.job, "world": 4, "rank": 0, "address": task.own, "tcp": f"{task.own}:1", "path_mtu": 0,
         "timeout": CALL_SECONDS},
    ]))


def spoiled(task: StrangerTask, rng: random.Random) -> bytes:
    """A request with a byte turned, removed or repeated, or a value beyond all bounds."""
    data = bytearray(said(task, rng))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice([
            b"", rng.randbytes(1), b"1e400", b"1" * 30, b"[" * 1000, b"null", b'"\xff"', b"NaN", b"\\u001b[2J"])
    return bytes(data)


if __name__ == "__main__":
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=StrangerTask))).decode(), flush=True)

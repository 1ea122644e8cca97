# SPDX-License-Identifier: Apache-2.0
"""Sends what looks like results and contributions of a job, from a host of the fabric, for some seconds and at least
ENOUGH datagrams.

    python hostile.py JSON      {"role", "seconds", "own", "victim", "predecessor", "port", "qp", "psn", "span",
                                 "path_mtu"}

role "host": another host of the fabric, with an ordinary UDP socket whose TTL goes through 1..255, and as root with the
addresses of others.  Role "user": a user without privileges on the victim's own host, TTL 255.  PSNs are drawn from
``span`` from ``psn`` on.  Prints {"sent", "refused"}: datagrams sent, and what the kernel did not let it do.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import sys
import time
from typing import Any

from netfold.wire import roce

NOBODY = 65534
IP_FREEBIND = 15
ENOUGH = 3000
"""Datagrams that are sent, however busy the machine."""


def main(role: str, seconds: float, own: str, victim: str, predecessor: str, port: int, qp: int, psn: int,
         span: int, path_mtu: int) -> None:
    rng = random.Random(7)
    refused: list[str] = []
    senders = [udp(own)]
    raw = None
    if role == "host":
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    else:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        senders.append(udp("127.0.0.1"))
        for what, attempt in (
            ("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)),
            ("receiver", lambda: udp(own, roce.UDP_PORT)),
            ("predecessor", lambda: udp(predecessor, port, free=True).sendto(b"x", (victim, roce.UDP_PORT))),
        ):
            try:
                attempt()
            except OSError:
                refused.append(what)
    lanes = bytes([0x77]) * path_mtu
    sent, until = 0, time.monotonic() + seconds
    while time.monotonic() < until or sent < ENOUGH:
        for _ in range(50):
            at = (psn + rng.randrange(span)) & roce.PSN_MASK
            head = roce.BTH.pack(roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY_WINDOWED, qp, at)
            payload = head + lanes + bytes(roce.ICRC_BYTES)
            for sender in senders:
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255 if role == "user" else sent % 255 + 1)
                sender.sendto(payload, (victim, roce.UDP_PORT))
                sent += 1
            if raw is not None:
                ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(payload), 0, 0x4000, 255, 17, 0,
                                 socket.inet_aton(rng.choice([predecessor, victim, "10.255.0.1"])),
                                 socket.inet_aton(victim))
                raw.sendto(ip + struct.pack("!HHHH", port, roce.UDP_PORT, 8 + len(payload), 0) + payload, (victim, 0))
                sent += 1
        time.sleep(0.002)  # some 20,000 a second: an attack, not a test of the host's processor
    print(json.dumps({"sent": sent, "refused": refused}), flush=True)


def udp(address: str, port: int = 0, *, free: bool = False) -> socket.socket:
    """A UDP socket bound there; ``free``: to an address that the host does not have."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if free:
        sock.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
    sock.bind((address, port))
    return sock


arguments: dict[str, Any] = json.loads(sys.argv[1])
main(**arguments)

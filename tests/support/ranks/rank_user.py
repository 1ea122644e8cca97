# SPDX-License-Identifier: Apache-2.0
"""One rank of a user's job, beside that of another user on the same host.

    python rank_user.py UID [JSON]     JSON: what the other user's ranks have printed, by rank

It folds exact sums, one after the other.  Prints its ``Known`` once the first is right; then, with JSON, what the
kernel did not let it do to the other user's rank on this host.  SIGUSR1 kills it without a word; SIGUSR2 to rank 0 lets
the job end after MORE rounds.  Its last line says how many rounds there were, or which rank was lost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

import netfold
from netfold.host.errors import PeerLost
from netfold.testing import loopback_job, on_every_rank
from netfold.topo.processes.rank_program import check_data, print_message, run_rank
from netfold.wire import roce

ELEMENTS = 20_000
MORE = 20
DATAGRAMS = 2000


class Known(msgspec.Struct, frozen=True):
    """What another user of the host could learn of a rank, and more: only an operator sees queue pairs and PSNs."""

    address: str
    udp_port: int
    source_ports: list[int]
    next_address: str
    next_port: int
    qps: list[int]
    peer_qps: list[int]
    psn: int
    path_mtu: int
    folded: int


def main(uid: int, others: list[Known]) -> None:
    with loopback_job(2) as comms:  # what is imported and compiled on first use: this user may not read the files
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(10, np.int32)))
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    assert os.geteuid() == uid
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    ending: list[int] = []
    signal.signal(signal.SIGUSR2, lambda *_: ending.append(1))
    with netfold.init(rail="innet") as comm:
        data = np.arange(ELEMENTS, dtype=np.int32) * (comm.rank + 1)
        right = np.arange(ELEMENTS, dtype=np.int64) * sum(range(1, comm.size + 1))
        rounds, left = 0, -1

        def fold() -> bool:
            """One sum; whether rank 0 wants to end."""
            nonlocal rounds
            data[0] = bool(ending)
            total = comm.allreduce(data)
            wants, total[0] = bool(total[0]), 0
            check_data(total, right, rank=comm.rank, operation=f"sum {rounds}")
            rounds += 1
            return wants

        try:
            fold()
            print_message(known(comm))
            if others:
                print_message(attempts(others[comm.rank]))
            while left:
                if fold() and left < 0:
                    left = MORE
                left -= left > 0
        except PeerLost as error:
            print_message({"lost": str(error), "rounds": rounds})
            return
        print_message({"rounds": rounds, "folded": folded(comm), "rail": comm.rail})


def folded(comm: Any) -> int:
    return sum(tree.bytes_reduced for tree in comm.stats().by_tree.values())


def known(comm: Any) -> Known:
    """This rank's numbers."""
    plan = comm.plan
    streams = [stream for tree in plan.trees for stream in (tree.data, tree.agreement)]
    own = plan.peers[plan.rank]
    return Known(
        own.address, comm._parts.receiver.getsockname()[1], sorted({stream.source_port for stream in streams}),
        streams[0].peer, streams[0].peer_port, [stream.qp for stream in streams],
        [stream.peer_qp for stream in streams], streams[0].psn, plan.path_mtu, folded(comm),
    )


def attempts(other: Known) -> dict[str, Any]:
    """What the kernel refuses of: to bind the other user's ports, whatever options say, and to send from them.  Then
    packets with the rank's own numbers go to it, and in its name to its neighbour, from a port that this user has."""
    refused = {}
    for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        for where in (other.address, "0.0.0.0"):
            for port in (other.udp_port, *other.source_ports):
                refused[f"{option} {where} {port}"] = error_of(lambda o=option, w=where, p=port: udp(w, p, o))
    refused["raw"] = error_of(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
    refused["packet"] = error_of(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300))
    sender = udp(other.address, 0)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, roce.RESULT_TTL)
    sent = 0
    for number in range(DATAGRAMS):
        psn = (other.psn + number) & roce.PSN_MASK
        for qps, to in ((other.qps, (other.address, other.udp_port)),
                        (other.peer_qps, (other.next_address, other.next_port))):
            head = roce.BTH.pack(roce.Opcode.WRITE_MIDDLE, 0, roce.PKEY_WINDOWED, qps[number % len(qps)], psn)
            payload = head + b"\x77" * other.path_mtu + bytes(roce.ICRC_BYTES)
            sent += sender.sendto(roce.sealed(payload, *sender.getsockname(), to[0], 0, to[1]), to) > 0
    return {"refused": refused, "sent": sent}


def error_of(attempt: Callable[[], socket.socket]) -> str:
    """The kernel's error; empty where it lets this user do that."""
    try:
        attempt().close()
    except OSError as error:
        return error.strerror
    return ""


def udp(address: str, port: int, option: int = 0) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if option:
        sock.setsockopt(socket.SOL_SOCKET, option, 1)
    sock.bind((address, port))
    return sock


run_rank(main, int(sys.argv[1]), [msgspec.convert(one, Known) for one in json.loads(sys.argv[2])]
         if len(sys.argv) > 2 else [])

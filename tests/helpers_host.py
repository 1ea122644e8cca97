# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process on loopback addresses, with the reference switch on a real UDP socket."""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Literal

from slot_model import Packet, SlotSwitch

from netfold.host.communicator import Communicator, RailName
from netfold.host.link import listen
from netfold.wire import roce
from netfold.wire.jobs import Peer, Plan, Stream, Tree

_subnets = count(1)


def subnet() -> str:
    """Loopback addresses of this process's own, so that concurrent test runs do not meet on port 4791."""
    number = os.getpid() * 16 + next(_subnets) % 16
    return f"127.{64 + (number >> 8) % 128}.{number & 255}"


class LoopbackSwitch:
    """A root switch on ``address``:4791 that folds for ``world`` ranks; loses packets both ways with its own RNG."""

    def __init__(self, address: str, ranks: Sequence[str], *, slots: int, loss: float = 0.0, seed: int = 0) -> None:
        self.address = address
        self._ranks = list(ranks)
        self._loss = loss
        self._rng = random.Random(seed)
        self._folds = {op: SlotSwitch(len(ranks), slots, op, root=True) for op in ("sum", "max")}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind((address, roce.UDP_PORT))
        self._stop, self._stopped = os.pipe()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @staticmethod
    def qp(op: Literal["sum", "max"], rank: int) -> int:
        """Queue pair of a rank."""
        return (0x2000 if op == "sum" else 0x1000) + rank

    def trees(self, rank: int, *, slots: int, port: int = 50001) -> list[Tree]:
        """What a rank's plan says."""

        def stream(op: Literal["sum", "max"]) -> Stream:
            # A contribution carries its own rank's number, not the next one's: this switch is no ring.
            return Stream(
                peer=self.address, peer_qp=self.qp(op, rank), qp=self.qp(op, rank), source_port=port, psn=7, slots=slots
            )

        return [Tree(name="loop", weight=1.0, sum=stream("sum"), max=stream("max"))]

    def _serve(self) -> None:
        while True:
            watched: list[Any] = [self._socket, self._stop]
            ready, _, _ = select.select(watched, [], [], 60)
            if self._stop in ready or not ready:
                return
            payload = self._socket.recv(2048)
            if self._rng.random() < self._loss:
                continue
            qp = struct.unpack_from("!I", payload, 4)[0]
            op: Literal["sum", "max"] = "sum" if qp & 0x2000 else "max"
            verdict = self._folds[op].up(qp & 0xFFF, Packet.parse(payload))
            if verdict is None:
                continue
            target, packet = verdict
            for rank in range(len(self._ranks)) if target == "all" else [int(target)]:
                if self._rng.random() >= self._loss:
                    self._socket.sendto(packet.build(self.qp(op, rank)), (self._ranks[rank], roce.UDP_PORT))

    def close(self) -> None:
        """Stops the thread."""
        os.write(self._stopped, b"x")
        self._thread.join(10)
        self._socket.close()
        os.close(self._stop)
        os.close(self._stopped)


@contextmanager
def loopback_job(
    world: int, *, rail: RailName = "innet", timeout: float = 5.0, slots: int = 64, loss: float = 0.0, seed: int = 0
) -> Iterator[list[Communicator]]:
    """Communicators of all ranks of a job, over the reference switch or over the TCP ring."""
    net = subnet()
    addresses = [f"{net}.{rank + 1}" for rank in range(world)]
    listeners = [listen(address) for address in addresses]
    peers = [Peer(r, addresses[r], "{}:{}".format(*listeners[r].getsockname())) for r in range(world)]
    with ExitStack() as stack:
        switch = None
        if rail == "innet":
            switch = LoopbackSwitch(f"{net}.200", addresses, slots=slots, loss=loss, seed=seed)
            stack.callback(switch.close)
        comms = []
        for rank in range(world):
            trees = switch.trees(rank, slots=slots) if switch else []
            plan = Plan(job="loop", epoch=1, rank=rank, world=world, peers=peers, trees=trees, reason="a test")
            comm = Communicator(plan, address=addresses[rank], rail=rail, timeout=timeout, listener=listeners[rank])
            stack.callback(comm.close)
            comms.append(comm)
        yield comms


def everyone(comms: Sequence[Communicator], call: Callable[[Communicator], Any], *, timeout: float = 60) -> list[Any]:
    """Runs ``call`` on every rank at once; returns results or exceptions, by rank."""
    results: list[Any] = [None] * len(comms)

    def work(rank: int) -> None:
        try:
            results[rank] = call(comms[rank])
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(comms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), f"a rank hangs for {timeout} s"
    return results

# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process on loopback addresses, with the reference switch on a real UDP socket.

All of a training host runs, packets and sockets included; of the network there is one switch in plain Python, a few
thousand packets a second fast.
"""

from __future__ import annotations

import random
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from netfold.host.api.communicator import Communicator
from netfold.host.api.join_settings import RailName
from netfold.host.innet.slot_switch import ResultRoute, SlotSwitch, parse
from netfold.host.mesh.sockets import listen
from netfold.testing.subnets import subnet
from netfold.wire import roce
from netfold.wire.plan import Peer, Plan, RankStream, RankTree, Secret

FIRST = 50400
"""First number of a stream's connections, and the UDP source port of the first rank on each machine."""
AGREEMENT, DATA = 1, 2


class LoopbackSwitch:
    """A root switch on ``address``:4791 that folds for ranks at these addresses; loses packets both ways with its RNG.

    address  a loopback address of its own, as text; the switch listens from now on, until ``close``
    ranks    the ranks' addresses, by rank
    slots    number of slots, for data and for agreements each
    loss     probability that a packet is lost, 0 to 1
    seed     of the RNG
    place    which of its machine's ranks each of them is: it sends and receives at UDP ports of its own (``udp_port``)
    ttl      of the results
    """

    def __init__(
        self,
        address: str,
        ranks: Sequence[str],
        *,
        slots: int,
        loss: float = 0.0,
        seed: int = 0,
        place: int = 0,
        ttl: int = roce.RESULT_TTL,
    ) -> None:
        self.address = address
        self.refused = 0
        """Packets that were dropped, since no rank's contributions come from where they did."""
        self._source_port = FIRST + place
        self._routes = [ResultRoute(address, roce.UDP_PORT, rank, udp_port(place)) for rank in ranks]
        self._children = {(self.qp(kind, rank), (at, self._source_port)): (kind, rank)
                          for kind in (DATA, AGREEMENT) for rank, at in enumerate(ranks)}
        """The stream and the rank by the key of a contribution in p4src/connection.p4: the queue pair of operation 0,
        the address and the UDP source port."""
        self._loss = loss
        self._rng = random.Random(seed)
        self._folds = {kind: SlotSwitch(len(ranks), slots, root=True) for kind in (DATA, AGREEMENT)}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        self._socket.bind((address, roce.UDP_PORT))
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def qp(self, kind: int, rank: int) -> int:
        """Returns the queue pair of a rank for operation 0, in its stream of this kind (``DATA`` or ``AGREEMENT``)."""
        return (kind * FIRST + rank) * roce.QUEUE_PAIRS

    def trees(self, rank: int, *, slots: int) -> list[RankTree]:
        """Returns the trees of a rank's plan: this switch alone, with so many slots for each stream."""

        def stream(kind: int) -> RankStream:
            # A contribution carries its own rank's number, not the next one's: this switch is no ring.
            own = self.qp(kind, rank)
            return RankStream(
                peer=self.address, peer_qp=own, qp=own, source_port=self._source_port, psn=7, slots=slots,
                predecessor=self.address, predecessor_port=roce.UDP_PORT,
            )

        return [RankTree(name="loop", weight=1.0, data=stream(DATA), agreement=stream(AGREEMENT))]

    def _serve(self) -> None:
        while True:
            payload, sender = self._socket.recvfrom(2048)
            if self._closing:
                return
            if self._rng.random() < self._loss:
                continue
            child = self._children.get((int.from_bytes(payload[5:8]) & -roce.QUEUE_PAIRS, sender))
            if child is None or len(payload) < roce.BTH_BYTES:
                self.refused += 1
                continue
            kind, rank = child
            for target, packet in self._folds[kind].take(rank, parse(payload)):
                for to in range(len(self._routes)) if target == "all" else [int(target)]:
                    if self._rng.random() >= self._loss:
                        route = self._routes[to]
                        self._socket.sendto(packet.build(self.qp(kind, to), route), (route.destination, route.port))

    def close(self) -> None:
        """Stops the thread, and closes the socket."""
        self._closing = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:  # lost where others wait: they wake the thread
            waker.sendto(b"", (self.address, roce.UDP_PORT))
        self._thread.join(30)
        self._socket.close()


def udp_port(place: int) -> int:
    """The UDP port of a machine's rank: the first one's is RoCEv2's."""
    return roce.UDP_PORTS[place - 1] if place else roce.UDP_PORT


@contextmanager
def loopback_job(
    world: int,
    *,
    members: int | Sequence[Sequence[int]] = 1,
    rate: float = 0.0,
    rail: RailName = "innet",
    timeout: float = 20.0,
    slots: int = 64,
    loss: float = 0.0,
    seed: int = 0,
    ttl: int = roce.RESULT_TTL,
) -> Iterator[list[Communicator]]:
    """Yields the communicators of all ranks of a job, by rank; they and their switches are closed at the end.

    world    number of ranks
    members  how many ranks share an address, or which, machine by machine; one switch folds for each place that all
             machines have
    rate     of their links in bytes a second, as the plan has it; 0: not known
    rail     what carries sums: "innet" the reference switch, "tcp" a mesh, "roce" queue pairs, "auto" what is fastest
    timeout  seconds after which an operation fails that makes no progress
    slots    of each switch, for data and for agreements each
    loss     probability that a packet to or from a switch is lost, 0 to 1, drawn with ``seed``
    ttl      of the switches' results
    """
    net = subnet()
    if isinstance(members, int):
        members = [range(first, first + members) for first in range(0, world, members)]
    machines = [list(ranks) for ranks in members]
    if sorted(rank for ranks in machines for rank in ranks) != list(range(world)) or not all(machines):
        raise ValueError(f"world={world}, members={machines}: expected each rank on one machine")
    hosts, places = [f"{net}.{at + 1}" for at in range(len(machines))], min(map(len, machines))
    machine_of = {rank: at for at, ranks in enumerate(machines) for rank in ranks}
    addresses = [hosts[machine_of[rank]] for rank in range(world)]
    listeners = [listen(address) for address in addresses]
    peers = [
        Peer(r, addresses[r], "{}:{}".format(*listeners[r].getsockname()), udp_port(machines[machine_of[r]].index(r)))
        for r in range(world)
    ]
    secret = Secret(secrets.token_hex(32))
    with ExitStack() as stack:
        switches = []
        for place in range(places if rail in ("innet", "auto") else 0):
            switch = LoopbackSwitch(
                f"{net}.{200 + place}", hosts, slots=slots, loss=loss, seed=seed + place, place=place, ttl=ttl,
            )
            stack.callback(switch.close)
            switches.append(switch)

        def make(rank: int) -> Communicator:
            machine = machine_of[rank]
            place = machines[machine].index(rank)
            trees = switches[place].trees(machine, slots=slots) if place < len(switches) else []
            inside = bool(switches) and not trees
            plan = Plan("loop", 1, rank, world, peers, trees, "a test", machines, rate, secret=secret, inside=inside)
            return Communicator.of_plan(
                plan, address=addresses[rank], rail=rail, timeout=timeout, listener=listeners[rank]
            )

        with ThreadPoolExecutor(world) as pool:  # the ranks of a machine wait for each other
            made = [pool.submit(make, rank) for rank in range(world)]
        for future in made:
            if future.exception() is None:  # those that are there are closed, too, where another one is not
                stack.callback(future.result().close)
        yield [future.result() for future in made]


def on_every_rank(
    comms: Sequence[Communicator], call: Callable[[Communicator], Any], *, timeout: float = 60
) -> list[Any]:
    """Run ``call`` on every rank at once, each on a thread of its own; what each returned, or the exception that it
    raised, by rank.  Raises TimeoutError where a rank is not done in time (seconds)."""
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
        if thread.is_alive():
            raise TimeoutError(f"a rank is not done in {timeout:g} s")
    return results

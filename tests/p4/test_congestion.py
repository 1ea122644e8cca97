# SPDX-License-Identifier: Apache-2.0
"""ECN marks and congestion notification packets (CNPs) on the compiled program with NICs: both pass from end to end, in
both directions, through one level of switches and two; a CNP acknowledges nothing and is never taken for data.

A CNP (RoCEv2 annex A17) is a packet without a payload that counts: opcode 0x81, BECN set, 16 bytes that are reserved.
The NIC that has received marked packets sends it to the one that sent them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from netfold.fabric.graph import End
from netfold.wire import roce
from support.models.nic_packets import ACKNOWLEDGE, CNP, Packet
from support.models.slot_model import MICROSECOND, MILLISECOND, SECOND, TerribleNetwork
from support.p4.program import mac
from support.p4.rc_fabric import RcFabric, allreduce

BECN = 0x40
"""The BECN bit of the byte before the destination queue pair."""
CE, ECT = 3, 2
SHAPES = [(1, 0, 3), (2, 1, 4)]


class CongestedFabric(RcFabric):
    """Its NICs speak ECN, and ``marks`` says which frames meet a long queue; CNPs that reach a NIC are kept."""

    marks: Callable[[End, Packet], bool] = staticmethod(lambda _end, _packet: False)

    def watch(self) -> None:
        """Starts to keep what reaches the NICs."""
        self.cnps: list[tuple[int, Packet]] = []
        """(rank, packet) of each CNP that a NIC got."""
        self.marked: Counter[tuple[int, str]] = Counter()
        """Marked packets that NICs got, by rank and kind."""
        for rank, mine in self.ranks.items():
            mine.out.tos = mine.into.tos = ECT
            honest = self.nics[rank].receive
            self.nics[rank].receive = partial(self._note, rank, honest)  # type: ignore[method-assign]

    def _note(self, rank: int, honest: Callable[[bytes], None], frame: bytes) -> None:
        packet = Packet.parse(frame)
        assert packet is not None
        if packet.opcode == CNP:
            self.cnps.append((rank, packet))
        elif packet.tos & 3 == CE:
            self.marked[rank, "answer" if packet.opcode == ACKNOWLEDGE else "result"] += 1
        honest(frame)

    def bend(self, end: End, data: bytes) -> bytes | None:
        packet = Packet.parse(data)
        if packet is not None and packet.opcode != CNP and packet.tos & 3 == ECT and self.marks(end, packet):
            # as a queue does: the IPv4 checksum is put right (RFC 1624), the ICRC does not cover the mark
            whole = Packet(**{**packet.__dict__, "tos": packet.tos | CE}).frame()
            return data[:14] + whole[14:34] + data[34:]
        return super().bend(end, data)


def fabric_of(shape: tuple[int, int, int], seed: int = 1, loss: float = 0.0) -> CongestedFabric:
    """A fabric all of whose hosts' NICs fold, watched."""
    made = CongestedFabric(*shape, TerribleNetwork(random.Random(seed), loss=loss, packet_time=2 * MICROSECOND))
    made.watch()
    return made


def sources(fabric: RcFabric, rng: random.Random, messages: int = 6) -> dict[int, list[bytes]]:
    """The contributions of each rank."""
    longest = fabric.stream.slots // 4 * fabric.path_mtu
    sizes = [longest if n % 2 else rng.randrange(1, longest) for n in range(messages)]
    return {rank: [rng.randbytes(size) for size in sizes] for rank in fabric.rc_ranks}


@pytest.mark.parametrize(
    ("shape", "where"),
    [(shape, where) for shape in SHAPES for where in ("contributions", "sums", "results")
     if shape[1] or where != "sums"],
    ids=str,
)
def test_a_mark_on_any_link_reaches_every_rank_it_concerns(shape: tuple[int, int, int], where: str) -> None:
    """A contribution of one rank that met a queue, or a leaf's sum, marks the result of all; a mark on a result's way
    down reaches its receiver alone.  Sums stay exact, and the NICs repeat nothing."""
    fabric = fabric_of(shape)
    host, receiver = fabric.hosts[1].name, fabric.hosts[2].name

    def marks(end: End, packet: Packet) -> bool:
        if packet.opcode == ACKNOWLEDGE:
            return False
        far = fabric.ends[end].node
        return {"contributions": end.node == host, "sums": end.node == "leaf1" and far.startswith("spine"),
                "results": far == receiver}[where]

    fabric.marks = marks
    try:
        allreduce(fabric, sources(fabric, random.Random(2)), limit=20 * SECOND)
        taken = {rank: mine.into.counts["taken"] for rank, mine in fabric.ranks.items()}
        expected = taken if where != "results" else {2: taken[2]}
        assert {rank: count for (rank, kind), count in fabric.marked.items() if kind == "result"} == expected
        assert sum(mine.out.counts["repeated"] for mine in fabric.ranks.values()) == 0
    finally:
        fabric.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mark_is_kept_for_who_gets_its_result_again(shape: tuple[int, int, int]) -> None:
    """One rank's contributions are marked and a tenth of all packets lost: what a repeat is answered with is marked."""
    fabric = fabric_of(shape, seed=3, loss=0.1)
    fabric.marks = lambda end, packet: end.node == fabric.hosts[1].name and packet.opcode != ACKNOWLEDGE
    try:
        allreduce(fabric, sources(fabric, random.Random(4), 4), limit=20 * SECOND)
        for rank, mine in fabric.ranks.items():
            assert fabric.marked[rank, "result"] >= mine.into.counts["taken"]
    finally:
        fabric.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cnp_reaches_the_nic_whose_results_are_marked_for(shape: tuple[int, int, int]) -> None:
    """Each NIC that takes a marked result says so to its peer, by a CNP from its fold address to the peer's own; on an
    ACK that is marked the peer answers alike.  All CNPs of the first kind arrive, as they were sent but for TTL; those
    to a fold address die at the guard, as all does that a host addresses so.  No NIC repeats anything for them."""
    fabric = fabric_of(shape)
    fabric.marks = lambda end, _packet: fabric.ends[end].node.startswith("h")
    sent: Counter[tuple[int, str]] = Counter()
    for rank, mine in fabric.ranks.items():
        honest = mine.nic.receive

        def notify(frame: bytes, rank: int = rank, honest: Callable[[bytes], None] = honest) -> None:
            honest(frame)
            packet = Packet.parse(frame)
            assert packet is not None
            if packet.tos & 3 == CE:
                mine = fabric.ranks[rank]
                pair = mine.out if packet.opcode == ACKNOWLEDGE else mine.into
                # with a PSN that would acknowledge what is not there, were it an acknowledgement
                mine.nic.put(Packet(pair.local, pair.peer, CNP, pair.peer_number, pair.psn + 500 & roce.PSN_MASK,
                                    bytes(16), becn=BECN))
                sent[rank, "fold" if packet.opcode == ACKNOWLEDGE else "own"] += 1

        mine.nic.receive = notify  # type: ignore[method-assign]
    try:
        allreduce(fabric, sources(fabric, random.Random(5)), limit=20 * SECOND)
        assert all(sent[rank, "own"] > 50 and sent[rank, "fold"] > 0 for rank in fabric.ranks)
        while (then := fabric.network.next_time()) < fabric.network.now + MILLISECOND:
            fabric.network.step(then)  # the last ones are still under way
        got = Counter(rank for rank, _ in fabric.cnps)
        assert got == {rank: sent[fabric.stream.successor(rank), "own"] for rank in fabric.ranks}
        for rank, packet in fabric.cnps:
            after = fabric.stream.successor(rank)
            assert (packet.src, packet.dst) == (fabric.fold_address_of(after), fabric.hosts[rank].address)
            assert (packet.queue_pair, packet.becn, packet.payload) == (fabric.ranks[rank].out.number, BECN, bytes(16))
        assert sum(mine.out.counts["repeated"] for mine in fabric.ranks.values()) == 0
    finally:
        fabric.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_cnp_is_neither_an_acknowledgement_nor_data(shape: tuple[int, int, int]) -> None:
    """Under loss, CNPs with every number that an acknowledgement or a contribution has, from the queue pairs' own
    addresses, and with bodies as long as either's: sums are exact, and every result comes."""
    fabric = fabric_of(shape, seed=6, loss=0.02)
    rng = random.Random(7)

    def one(rank: int) -> None:
        mine = fabric.ranks[rank]
        pair = rng.choice([mine.out, mine.into])
        peer_psn = fabric.stream.psn + rng.randrange(200) & roce.PSN_MASK
        packet = Packet(pair.local, pair.peer, CNP, pair.peer_number, peer_psn,
                        rng.randbytes(rng.choice([4, 16, 1024, 1040])), becn=BECN, ack_req=rng.random() < 0.5,
                        pkey=rng.choice([0xFFFF, roce.PKEY_WINDOWED]))
        fabric.transmit(End(fabric.hosts[rank].name, 0), packet.frame(mac(fabric.hosts[rank].mac)))

    for number in range(700):
        fabric.network.at(number * 6 * MICROSECOND, partial(one, number % shape[2]))
    try:
        allreduce(fabric, sources(fabric, random.Random(8)), limit=20 * SECOND)
        assert len(fabric.cnps) > 150
    finally:
        fabric.close()

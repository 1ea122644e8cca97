# SPDX-License-Identifier: Apache-2.0
"""A NIC in software for tests, in simulated time: reliable connections as Linux's rdma_rxe has them.

What it does was read in the driver of Linux 6.1 (drivers/infiniband/sw/rxe: rxe_req.c, rxe_comp.c, rxe_resp.c,
rxe_recv.c) and measured on virtual machines; the names of the fields are the driver's.  In short:

    requester   129 packets outstanding; asks for an ACK on the last packet of a message and on every 66th; a NAK 0x60
                acknowledges all below it and sends the queue back to it, once until an ACK or the timer; an RNR NAK
                waits, then sends the queue back; the timer sends the queue back
    responder   in order alone: one NAK 0x60 for each gap, what is ahead is dropped; each duplicate is acknowledged and
                not written again; a SEND or an immediate without a posted receive gets an RNR NAK
    both        the peer's source address, the P_Key and the ICRC are checked; remote key, bounds and length of a WRITE
                too; a wrong one breaks the queue pair

A NIC does not know of switches that fold.  Times are nanoseconds of the network's clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, NamedTuple

from netfold.wire import roce
from support.models.nic_packets import (
    ACCESS,
    ACK,
    ACKNOWLEDGE,
    DEFAULT_PKEY,
    INVALID,
    RNR,
    SEQUENCE,
    Packet,
    Rc,
    Reth,
    icrc_holds,
    opcode_of,
)
from support.models.slot_model import MILLISECOND, TerribleNetwork

UNACKED: Final = 128
"""RXE_MAX_UNACKED_PSNS: a packet leaves while its PSN is at most so far ahead of the oldest unacknowledged one."""
PACKETS_PER_ACK: Final = 64
"""RXE_MAX_PKT_PER_ACK: packets without a request for an ACK, after which two more leave, the second with one."""
JIFFY: Final = 4 * MILLISECOND
"""The least that a timer of a kernel with 250 ticks a second waits."""
FOREVER: Final = 7
"""The retry counter that rdma_rxe never counts down."""
RNR_TIMES: Final = (
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840, 5_120, 7_680,
    10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
)
"""Microseconds that each RNR NAK timer code stands for (InfiniBand specification volume 1, table 45)."""


@dataclass
class Work:
    """A message that was posted to be sent, or a receive."""

    id: int
    data: bytes = b""
    verb: Literal["send", "write"] = "write"
    address: int = 0
    rkey: int = 0
    immediate: int | None = None
    first: int = 0
    """Number of its first packet, counted from the queue pair's first PSN."""
    packets: int = 0

    @property
    def last(self) -> int:
        """Number of its last packet."""
        return self.first + self.packets - 1


class Completion(NamedTuple):
    """An entry of a completion queue: a message was acknowledged, or arrived."""

    id: int
    what: Literal["sent", "received"]
    status: str
    """"success", or what broke the queue pair."""
    length: int = 0
    immediate: int | None = None


@dataclass
class Region:
    """Memory that a NIC knows by a remote key, from ``address`` on in the addresses of the RETH."""

    rkey: int
    address: int
    memory: bytearray


class Nic:
    """A machine's NIC: its memory and its queue pairs.

    transmit   puts a frame on the wire
    addresses  the machine's IPv4 addresses
    path_mtu   payload bytes of a full packet
    """

    def __init__(
        self, network: TerribleNetwork, transmit: Callable[[bytes], None], addresses: tuple[str, ...], *,
        mac: bytes = b"\x02\0\0\0\0\x02", path_mtu: int = roce.PATH_MTU, first_number: int = 17,
    ) -> None:
        self.network, self.transmit, self.addresses = network, transmit, addresses
        self.mac, self.path_mtu = mac, path_mtu
        self.pairs: dict[int, QueuePair] = {}
        self.regions: dict[int, Region] = {}
        self.dropped: Counter[str] = Counter()
        """Packets that reached no queue pair, by the reason."""
        self.watch: Callable[[QueuePair, int, Rc, bytes], None] = lambda *_: None
        """Called with queue pair, PSN, opcode and payload (its padding left out) of everything that a queue pair takes
        into memory."""
        self._next_number, self._next_id = first_number, 0

    def register(self, length: int, *, address: int | None = None) -> Region:
        """Registers new memory; ``address`` as of ibv_reg_mr_iova, by default one of the NIC's own choice."""
        count = len(self.regions) + 1
        rkey = count << 8 | 0xA5
        memory = bytearray(length)
        region = Region(rkey, 0x7F00_0000_0000 + (count << 28) + 0x1000 if address is None else address, memory)
        self.regions[rkey] = region
        return region

    def create(self, local: str) -> QueuePair:
        """Makes a queue pair at one of the NIC's addresses; the number is the NIC's choice."""
        if local not in self.addresses:
            raise ValueError(f"{local} is none of this NIC's addresses {self.addresses}")
        pair = QueuePair(self, self._next_number, local)
        self.pairs[pair.number] = pair
        self._next_number += 1
        return pair

    def receive(self, frame: bytes) -> None:
        """Takes a frame from the wire."""
        packet = Packet.parse(frame)
        if packet is None:
            self.dropped["no RoCEv2"] += 1
        elif packet.dst not in self.addresses:
            self.dropped["not ours"] += 1
        elif (pair := self.pairs.get(packet.queue_pair)) is None or not pair.ready:
            self.dropped["no queue pair"] += 1
        elif packet.pkey & 0x7FFF != DEFAULT_PKEY & 0x7FFF:
            self.dropped["P_Key"] += 1
        elif packet.src != pair.peer or packet.dst != pair.local:
            self.dropped["address"] += 1
        elif not icrc_holds(frame):
            self.dropped["ICRC"] += 1
        elif packet.opcode == ACKNOWLEDGE:
            pair.take_answer(packet)
        elif packet.opcode <= max(Rc):
            pair.take_request(packet)
        else:
            self.dropped["opcode"] += 1  # CNPs too: rdma_rxe has none

    def put(self, packet: Packet) -> None:
        """Sends a packet with this NIC's next IPv4 ID."""
        self._next_id = self._next_id + 1 & 0xFFFF
        frame = Packet(**{**packet.__dict__, "ip_id": self._next_id}).frame(self.mac)
        self.transmit(frame)


@dataclass
class QueuePair:
    """One reliable connection.  Packets have numbers from 0 inside, that is PSNs without their wrap."""

    nic: Nic
    number: int
    local: str
    peer: str = ""
    peer_number: int = 0
    psn: int = 0
    """First PSN that it sends."""
    peer_psn: int = 0
    """First PSN that it expects."""
    timeout: int = 14
    """4.096 microseconds times 2 to its power are the retransmission timer."""
    retries: int = FOREVER
    """Time-outs in a row that it survives, and then an RNR NAK stops the timer until its own is over; FOREVER: all, as
    with rdma_rxe, whose timer goes on."""
    rnr_code: int = 12
    """Code of the RNR NAKs that it sends: see RNR_TIMES."""
    tos: int = 0
    ready: bool = False
    error: str = ""
    """The error that broke it."""
    completions: list[Completion] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """sent, repeated, timeouts, naks, rnrs, acknowledged messages (of the requester); taken, duplicates, ahead, acks,
    naks sent, rnrs sent."""

    def __post_init__(self) -> None:
        # the requester: comp, the oldest that is not acknowledged; req, the next to send
        self.comp = self.req = self.highest = self.limit = 0
        self.works: deque[Work] = deque()
        self.noack = 0
        self.started_retry = self.waits_for_rnr = self.need_retry = False
        self.left = self.retries
        self._timer = self._rnr_timer = 0  # generation of the timer that counts; others were stopped
        self._armed = False
        # the responder
        self.expected = 0
        self.sent_nak = False
        self.message: Rc | None = None  # the opcode before, inside of a message
        self.target = Reth(0, 0, 0)
        self.written = 0
        self.receives: deque[Work] = deque()
        self.incoming = bytearray()
        self.msn = 0

    def connect(self, peer: str, peer_number: int, psn: int, peer_psn: int) -> None:
        """Makes it ready to send and receive."""
        self.peer, self.peer_number, self.psn, self.peer_psn = peer, peer_number, psn, peer_psn
        self.left = self.retries
        self.ready = True

    # ---- the requester ---------------------------------------------------------------------------------------------

    def post(self, work: Work) -> None:
        """Posts a message to be sent."""
        if self.error:
            self.completions.append(Completion(work.id, "sent", "flushed"))
            return
        work.first, work.packets = self.limit, max(1, -(-len(work.data) // self.nic.path_mtu))
        self.limit += work.packets
        self.works.append(work)
        self.send()

    def send(self) -> None:
        """Sends what may leave now."""
        if self.need_retry and not self.waits_for_rnr:
            self.need_retry = False
            self.req = self.comp
        while not self.error and self.req < self.limit and self.req - self.comp <= UNACKED:
            self._send_one(self.req)
            self.req += 1
        if self.req > self.comp and not self._armed:
            self._arm()

    def _send_one(self, number: int) -> None:
        work = next(w for w in self.works if w.first <= number <= w.last)
        mtu, at = self.nic.path_mtu, (number - work.first) * self.nic.path_mtu
        payload = work.data[at : at + mtu]
        opcode = opcode_of(work.verb, first=number == work.first, last=number == work.last,
                           immediate=work.immediate is not None)
        ask = opcode.ends or self.noack > PACKETS_PER_ACK
        self.noack = 0 if ask else self.noack + 1
        pad = -len(payload) & 3
        self.counts["sent"] += 1
        self.counts["repeated"] += number < self.highest
        self.highest = max(self.highest, number + 1)
        self.nic.put(Packet(
            self.local, self.peer, opcode, self.peer_number, (self.psn + number) & roce.PSN_MASK,
            payload + bytes(pad), ack_req=ask, pad=pad,
            reth=Reth(work.address, work.rkey, len(work.data)) if opcode.has_reth else None,
            immediate=work.immediate if opcode.has_immediate else None,
            source_port=0xC000 | (self.number * 0x9E37 & 0x3FFF), tos=self.tos))

    def take_answer(self, packet: Packet) -> None:
        """Takes an ACK or a NAK, as rxe_completer does."""
        syndrome = packet.syndrome
        assert syndrome is not None
        number = self.comp + roce.psn_age(packet.psn, (self.psn + self.comp) & roce.PSN_MASK)
        kind = syndrome >> 5
        if self.error:
            return
        rnr = False
        while self.works:
            work = self.works[0]
            if self.req <= work.first:
                break  # nothing of it was sent
            pending = self.req > work.last
            if number > work.last:
                if not pending:
                    break
                self._calm()
                self._complete(work)
                continue
            if number < self.comp:
                if packet.psn != (self.psn + work.last) & roce.PSN_MASK:
                    break
                self._complete(work)
                continue
            if kind == 0:
                self._calm()
                if pending and number == work.last:
                    self._complete(work)
                    continue
                self.comp = number + 1
            elif kind == 1:
                self.counts["rnrs"] += 1
                self.waits_for_rnr = rnr = True
                self._rnr_timer += 1
                wait = RNR_TIMES[syndrome & 31] * 1000
                self.nic.network.at(self.nic.network.now + wait, partial(self._rnr_over, self._rnr_timer))
            elif syndrome == SEQUENCE:
                self.counts["naks"] += 1
                self.comp = max(self.comp, number)
                if not self.started_retry:
                    self._retry()
            else:
                self._break({INVALID: "remote invalid request", ACCESS: "remote access"}.get(syndrome, "remote"))
            break
        if not self.error and not (rnr and self.retries == FOREVER):
            self._armed = False
        self.send()

    def _calm(self) -> None:
        self.left, self.started_retry = self.retries, False

    def _complete(self, work: Work) -> None:
        self.comp = max(self.comp, work.last + 1)
        self.works.popleft()
        self.completions.append(Completion(work.id, "sent", "success"))
        self.counts["acknowledged"] += 1

    def _retry(self) -> None:
        if self.left == 0:
            self._break("retries exceeded")
            return
        self.left -= self.retries != FOREVER
        if self.req > self.comp:
            self.need_retry = self.started_retry = True

    def _rnr_over(self, generation: int) -> None:
        if generation == self._rnr_timer and not self.error:
            self.need_retry, self.waits_for_rnr = True, False
            self.send()

    def _arm(self) -> None:
        self._armed = True
        self._timer += 1
        wait = max(4096 << self.timeout, JIFFY)
        self.nic.network.at(self.nic.network.now + wait, partial(self._expired, self._timer))

    def _expired(self, generation: int) -> None:
        if generation != self._timer or not self._armed or self.error:
            return
        self._armed = False
        if self.works and self.req > self.works[0].first:
            self.counts["timeouts"] += 1
            self._retry()
        self.send()

    def _break(self, why: str) -> None:
        self.error = why
        for work in self.works:
            self.completions.append(Completion(work.id, "sent", why))
            why = "flushed"
        self.works.clear()

    # ---- the responder ---------------------------------------------------------------------------------------------

    def post_receive(self, work: Work) -> None:
        """Posts a receive, which a SEND or an immediate takes."""
        self.receives.append(work)

    def take_request(self, packet: Packet) -> None:
        """Takes a packet of a message, as rxe_responder does."""
        if self.error:
            return
        ahead = roce.psn_age(packet.psn, (self.peer_psn + self.expected) & roce.PSN_MASK)
        if ahead > 0:
            self.counts["ahead"] += 1
            if not self.sent_nak:
                self.sent_nak = True
                self._answer(SEQUENCE, self.expected)
            return
        if ahead < 0:
            self.counts["duplicates"] += 1
            self._answer(ACK, self.expected - 1)
            return
        self.sent_nak = False
        opcode = Rc(packet.opcode)
        before = None if self.message is None or self.message.ends else self.message
        if (before is None) != opcode.begins or (before is not None and before.is_write != opcode.is_write):
            self._refuse(INVALID, "opcode sequence")
            return
        takes = opcode.has_immediate if opcode.is_write else opcode.begins
        if takes and not self.receives:
            self._answer(RNR | self.rnr_code, self.expected)
            return
        payload = packet.payload[: len(packet.payload) - packet.pad]
        if opcode.is_write:
            if packet.reth is not None:
                self.target, self.written = packet.reth, 0
            region = self.nic.regions.get(self.target.rkey)
            start = 0 if region is None else self.target.address - region.address
            if region is None or start < 0 or start + self.target.length > len(region.memory):
                self._refuse(ACCESS, "remote key or bounds")
                return
            rest = self.target.length - self.written
            if len(payload) != min(rest, self.nic.path_mtu) or packet.pad != -len(payload) & 3:
                self._refuse(INVALID, "length")
                return
            if opcode.ends != (rest <= self.nic.path_mtu):
                self._refuse(INVALID, "length")
                return
            region.memory[start + self.written : start + self.written + len(payload)] = payload
            self.written += len(payload)
        else:
            if opcode.begins:
                self.incoming = bytearray()
            if (not opcode.ends and len(payload) != self.nic.path_mtu) or len(payload) > self.nic.path_mtu:
                self._refuse(INVALID, "length")
                return
            self.incoming += payload
        self.nic.watch(self, packet.psn, opcode, payload)
        self.counts["taken"] += 1
        self.expected += 1
        self.message = opcode
        if opcode.ends:
            self.msn = self.msn + 1 & roce.PSN_MASK
            self._deliver(opcode, packet.immediate)
        if packet.ack_req:
            self._answer(ACK, self.expected - 1)

    def _deliver(self, opcode: Rc, immediate: int | None) -> None:
        if opcode.is_write and not opcode.has_immediate:
            return
        work = self.receives.popleft()
        length = self.target.length if opcode.is_write else len(self.incoming)
        if not opcode.is_write:
            work.data = bytes(self.incoming)
        self.completions.append(Completion(work.id, "received", "success", length, immediate))

    def _answer(self, syndrome: int, number: int) -> None:
        self.counts[{0: "acks", 1: "rnrs sent"}.get(syndrome >> 5, "naks sent")] += 1
        self.nic.put(Packet(
            self.local, self.peer, ACKNOWLEDGE, self.peer_number, (self.peer_psn + number) & roce.PSN_MASK,
            syndrome=syndrome, msn=self.msn, source_port=0xC000 | (self.number * 0x9E37 & 0x3FFF), tos=self.tos))

    def _refuse(self, syndrome: int, why: str) -> None:
        self._answer(syndrome, self.expected)
        self._break(why)

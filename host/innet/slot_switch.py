# SPDX-License-Identifier: Apache-2.0
"""One switch's part of the slot protocol (docs/protocol.md) in plain Python: the reference for p4src/, and what a
rank runs that stands in for switches that are gone (``stand_in``).

It has no sockets and no clock: packets in, packets out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netfold.wire import roce

_WIRE_LANES: Final = np.dtype(">u4")
NO_LANES: Final = np.empty(0, np.uint32)
"""The lanes of a header-only packet: none."""


class ResultRoute(NamedTuple):
    """Source and destination of a switch's packets: IPv4 addresses as text, and UDP ports."""

    source: str
    source_port: int
    destination: str
    port: int = roce.UDP_PORT


class Packet(NamedTuple):
    """A data packet without what switches rewrite: addresses, and the connection in the queue pair.

    One without lanes is presence: a contribution of nothing, or an acknowledgement without the result.
    """

    operation: int
    opcode: int
    ack: int
    psn: int
    reth: bytes
    lanes: NDArray[np.uint32]
    marked: bool = False
    content: bool = False
    """True if its sender wants no lanes back, only the acknowledgement."""
    order: int = 0
    """Order field, which refers to the packet that left before it to the same neighbour (``roce.order_of``)."""

    @staticmethod
    def parse(payload: bytes) -> Packet:
        """Returns the packet of a UDP payload, BTH to ICRC; its length must fit its opcode.  Raises ValueError."""
        opcode, flags, qp, ack_psn = _base_header(payload)
        if len(payload) == roce.PRESENCE_BYTES and opcode == roce.Opcode.WRITE_ONLY:
            reth, lanes = payload[roce.BTH_BYTES : roce.BTH_BYTES + roce.RETH_BYTES], NO_LANES
            if any(reth[12:]):
                raise ValueError(f"a WRITE of no bytes with length {int.from_bytes(reth[12:], 'big')} in its RETH: "
                                 "expected 0")
        else:
            data, others = _headers(opcode)
            path_mtu = len(payload) - others
            if path_mtu not in roce.PATH_MTUS:
                raise ValueError(f"{path_mtu} bytes of lanes: expected one of {', '.join(map(str, roce.PATH_MTUS))}")
            reth = payload[roce.BTH_BYTES : data]
            lanes = np.frombuffer(payload, _WIRE_LANES, path_mtu // roce.LANE_BYTES, data).astype(np.uint32)
        return Packet(qp % roce.QUEUE_PAIRS, opcode, ack_psn >> 24 & 0x80, ack_psn & roce.PSN_MASK, reth, lanes,
                      content=bool(flags & roce.CONTENT), order=roce.order_in(qp >> 24, ack_psn >> 24))

    @property
    def presence(self) -> bool:
        """True if it has no lanes: an empty contribution."""
        return not self.lanes.size

    def without_lanes(self) -> Packet:
        """The acknowledgement of this packet alone: presence of the same PSN."""
        address = self.reth[:8] or bytes(8)
        return self._replace(opcode=roce.Opcode.WRITE_ONLY, reth=address + bytes(8), lanes=NO_LANES)

    def build(self, connection: int, route: ResultRoute | None = None) -> bytes:
        """Returns the UDP payload for this operation's queue pair of a connection.

        connection  the queue pair of its operation 0
        route       for the ICRC; None: that is zeros
        """
        flags = roce.CONTENT if self.content else 0
        number = connection + self.operation
        high, low = roce.order_bytes(self.order)
        head = roce.BTH.pack(self.opcode, flags, roce.PKEY_WINDOWED, high << 24 | number,
                             (self.ack | low) << 24 | self.psn)
        body = head + self.reth + self.lanes.astype(_WIRE_LANES).tobytes() + bytes(roce.ICRC_BYTES)
        return _sealed(body, route, self.psn)


class Nak(NamedTuple):
    """A NAK (InfiniBand volume 1, section 9.7.5.2.3, "PSN sequence error") between neighbours of which neither is a
    NIC: who sends it lacks the other's packets from ``psn`` to before ``end``."""

    psn: int
    end: int

    @staticmethod
    def parse(payload: bytes) -> Nak:
        """Returns the NAK of a UDP payload, BTH to ICRC.  Raises ValueError."""
        opcode, _, _, ack_psn = _base_header(payload)
        if opcode != roce.Opcode.ACKNOWLEDGE or len(payload) != roce.NAK_BYTES:
            raise ValueError(f"{len(payload)} bytes of opcode {opcode:#x}: expected {roce.NAK_BYTES} of ACKNOWLEDGE")
        (syndrome_end,) = roce.AETH.unpack_from(payload, roce.BTH_BYTES)
        if syndrome_end >> 24 != roce.NAK_SEQUENCE_ERROR:
            raise ValueError(f"AETH syndrome {syndrome_end >> 24:#x}: expected {roce.NAK_SEQUENCE_ERROR:#x}")
        return Nak(ack_psn & roce.PSN_MASK, syndrome_end & roce.PSN_MASK)

    def build(self, connection: int, route: ResultRoute | None = None) -> bytes:
        """Returns the UDP payload for a connection; ``route`` as for ``Packet.build``."""
        head = roce.BTH.pack(roce.Opcode.ACKNOWLEDGE, 0, roce.PKEY_WINDOWED, connection, self.psn)
        payload = head + roce.AETH.pack(roce.NAK_SEQUENCE_ERROR << 24 | self.end) + bytes(roce.ICRC_BYTES)
        return _sealed(payload, route, self.psn)


def parse(payload: bytes) -> Packet | Nak:
    """Returns what a UDP payload holds.  Raises ValueError."""
    return Nak.parse(payload) if payload[0] == roce.Opcode.ACKNOWLEDGE else Packet.parse(payload)


def _sealed(payload: bytes, route: ResultRoute | None, psn: int) -> bytes:
    """The UDP payload with its ICRC."""
    if route is None:
        return payload
    return roce.sealed(payload, route.source, route.source_port, route.destination, psn & 0xFFFF, route.port)


@cache
def _headers(opcode: int) -> tuple[int, int]:
    """The offset of the lanes in packets of an opcode, and the number of bytes that are not lanes.  Raises ValueError
    for an unknown opcode."""
    known = roce.Opcode(opcode)
    return roce.BTH_BYTES + (roce.RETH_BYTES if known.has_reth else 0), roce.data_packet_bytes(known, 0)


def _base_header(payload: bytes) -> tuple[int, int, int, int]:
    """Opcode, flags, queue pair, and acknowledge request with PSN of a packet of a fold.  Raises ValueError."""
    opcode, flags, pkey, qp, ack_psn = roce.BTH.unpack_from(payload)
    if flags & ~roce.CONTENT or pkey != roce.PKEY_WINDOWED:
        raise ValueError(
            f"BTH flags {flags:#x} and partition key {pkey:#x}: expected 0x0 or {roce.CONTENT:#x}, and "
            f"{roce.PKEY_WINDOWED:#x}"
        )
    return opcode, flags, qp, ack_psn


@dataclass
class Slot:
    """A switch's state of one PSN of a stream; free until an epoch is in it."""

    epoch: int = 0
    psn: int = 0
    done: bool = False
    children: frozenset[int] = frozenset()
    content: frozenset[int] = frozenset()
    """The children that want no lanes back, according to each one's first contribution."""
    packet: Packet = field(default_factory=lambda: Packet(0, 0, 0, 0, b"", NO_LANES))
    """The sum so far, or the result: its lanes and headers, and the OR of the packets' congestion marks.  It has no
    lanes as long as only empty contributions have arrived."""

    def answer(self, child: int) -> Packet:
        """The packet by which a child gets the result."""
        return self.packet.without_lanes() if child in self.content else self.packet


Parent = Literal["parent"]
Sender = Parent | int
"""The sender of a packet: the parent, or a child by number from 0."""
Target = Literal["parent", "all"] | int
"""The destination of a packet: the parent, all children, or one child."""


def combine(operation: int, a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Returns the lanes that a switch makes of a slot's and a packet's (p4src/lanes.p4).

    operation  a value of ``roce.LaneOperation``: how the lanes, 32 bits each or narrower ones packed in these, combine
    a, b       the slot's and the packet's, of one length
    """
    narrow: dict[int, Any] = {roce.LaneOperation.SUM16: np.uint16, roce.LaneOperation.SUM8: np.uint8}
    lanes = narrow.get(operation, np.uint32)
    if operation == roce.LaneOperation.MAX32:
        return np.maximum(a.view(np.int32), b.view(np.int32)).view(np.uint32)
    if operation != roce.LaneOperation.SAT32:
        return np.asarray(a.view(lanes) + b.view(lanes)).view(np.uint32)
    x, y = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)
    low, high = -(2**31), 2**31 - 1
    total = np.where((y == low) | (y == high), y, np.clip(x + y, low, high))
    return np.where((x == low) | (x == high), x, total).astype(np.int32).view(np.uint32)


class SlotSwitch:
    """One switch's slots for one stream of one tree; the tables of p4src/ for children that are no NICs, as
    docs/protocol.md states them.

    children  number of hosts or switches below it
    slots     number of slots, at least two windows of the ranks; a PSN's is its remainder
    root      whether it is the tree's root, which answers itself; any other one sends sums to its parent
    epoch     of the job; slots of another one are free
    """

    def __init__(self, children: int, slots: int, *, root: bool, epoch: int = 1) -> None:
        self.all = frozenset(range(children))
        self.slots = [Slot() for _ in range(slots)]
        self.root = root
        self.epoch = epoch
        self.came: dict[Sender, tuple[int, int]] = {}
        """Sender -> the PSN that arrived from it last, and the one after the highest that has arrived."""
        self.left: dict[Target, int] = {}
        """Child or parent -> the PSN that was sent to it last."""

    def take(self, sender: Sender, packet: Packet | Nak) -> list[tuple[Target, Packet | Nak]]:
        """Takes a packet.  Returns what leaves, and where to: at most a NAK to its sender and one packet more, or one
        to each child where some want the result and others its acknowledgement."""
        if isinstance(packet, Nak):
            answer = self.ask_down(packet) if sender == "parent" else self.ask_up(sender, packet)
            return [] if answer is None else self._leave(*answer)
        folded = self.down(packet) if sender == "parent" else self.up(sender, packet)
        gap = self.gap(sender, packet)
        out: list[tuple[Target, Packet | Nak]] = [] if gap is None else [(sender, gap)]
        return out if folded is None else [*out, *self._leave(*folded)]

    def _leave(self, target: Target, packet: Packet | Nak) -> list[tuple[Target, Packet | Nak]]:
        """The packets to send for a packet: one to each child if they get different ones, each with its order field."""
        if isinstance(packet, Nak):
            return [(target, packet)]
        children = sorted(self.all)
        receivers: list[Target] = [*children] if target == "all" else [target]
        content = self.slots[packet.psn % len(self.slots)].content if target == "all" else frozenset()
        out: list[tuple[Target, Packet | Nak]] = []
        for receiver in receivers:
            order = roce.order_of(packet.psn, self.left.get(receiver, packet.psn - 1))
            self.left[receiver] = packet.psn
            one = packet.without_lanes() if receiver in content else packet
            out.append((receiver, one if one.order == order else one._replace(order=order)))
        same = target == "all" and not content and len({one.order for _, one in out if isinstance(one, Packet)}) == 1
        return [(target, out[0][1])] if same else out

    def gap(self, sender: Sender, packet: Packet) -> Nak | None:
        """Notes that a data packet came from a neighbour.  Returns the NAK that names what was lost on the way before
        it: the packet that left before it, and those below that never came."""
        previous = (packet.psn - 1 - packet.order) & roce.PSN_MASK
        following = (packet.psn + 1) & roce.PSN_MASK
        if sender not in self.came:
            self.came[sender] = packet.psn, following
            return None
        last, after = self.came[sender]
        self.came[sender] = packet.psn, following if roce.psn_age(packet.psn, after) >= 0 else after
        if previous == last or packet.order == roce.ORDER_UNSAID:
            return None
        if roce.psn_age(previous, after) > 0:
            return Nak(after, (previous + 1) & roce.PSN_MASK)
        return None if self._had(sender, previous) else Nak(previous, (previous + 1) & roce.PSN_MASK)

    def _had(self, sender: Sender, psn: int) -> bool:
        """True if a neighbour's packet has arrived after all: out of order, or again."""
        slot = self.slots[psn % len(self.slots)]
        age = roce.psn_age(slot.psn, psn)
        return slot.epoch == self.epoch and (age > 0 or (age == 0 and (slot.done or sender in slot.children)))

    def up(self, child: int, packet: Packet) -> tuple[Target, Packet] | None:
        """Takes a contribution of a child.  Returns where a packet goes, and the packet: a sum to the parent, a result
        to all or to the child that repeated its contribution; None where nothing leaves."""
        slot = self.slots[packet.psn % len(self.slots)]
        age = roce.psn_age(packet.psn, slot.psn)
        content = frozenset([child]) if packet.content else frozenset()
        if slot.epoch != self.epoch or age > 0:
            slot.epoch, slot.psn, slot.done = self.epoch, packet.psn, False
            slot.children, slot.content, slot.packet = frozenset([child]), content, packet._replace(content=False)
        elif age < 0 or not _alike(packet, slot.packet):
            return None
        elif child in slot.children and slot.packet.presence and not packet.presence:
            return None  # it has said that it has no lanes
        elif slot.done:
            return child, slot.answer(child)
        elif child in slot.children:
            return ("parent", self._sum(slot)) if slot.children == self.all else None
        else:
            slot.children |= {child}
            slot.content |= content
            slot.packet = _added(slot.packet, packet)
        if slot.children != self.all:
            return None
        slot.done = self.root
        return ("all", slot.packet) if self.root else ("parent", self._sum(slot))

    def down(self, packet: Packet) -> tuple[Target, Packet] | None:
        """Takes a result from the parent.  Returns its target, all children, and the packet; None where the slot has no
        use for it, because it is late, repeated or of another epoch."""
        slot = self._slot_of(packet.psn)
        if slot is None or slot.done or slot.children != self.all or not _alike(packet, slot.packet):
            return None
        if packet.presence and not slot.packet.presence and slot.content != self.all:
            return None  # what is in the slot is no result, and nobody may take it for one
        slot.done, marked = True, packet.marked or slot.packet.marked
        if slot.packet.presence or not packet.presence:
            slot.packet = packet._replace(marked=marked, content=False)
        return "all", packet._replace(marked=marked, content=False)

    def ask_up(self, child: int, nak: Nak) -> tuple[Target, Packet | Nak] | None:
        """Takes a child's NAK: it lacks the result of a PSN.  Returns the result, or the same NAK, to the parent where
        the result must come from there and to the child where its own contribution is missing; or None: wait."""
        one = Nak(nak.psn, (nak.psn + 1) & roce.PSN_MASK)
        slot = self._slot_of(nak.psn)
        if slot is None:
            held = self.slots[nak.psn % len(self.slots)]
            newer = held.epoch == self.epoch and roce.psn_age(held.psn, nak.psn) > 0
            return None if newer else (child, one)
        if slot.done:
            return child, slot.answer(child)
        if slot.children == self.all:
            return "parent", one
        return None if child in slot.children else (child, one)

    def ask_down(self, nak: Nak) -> tuple[Target, Packet] | None:
        """Takes the parent's NAK: it lacks this switch's sum of a PSN.  Returns the sum, or None: it is not complete,
        or went up and came back."""
        slot = self._slot_of(nak.psn)
        return ("parent", self._sum(slot)) if slot and slot.children == self.all and not slot.done else None

    def _sum(self, slot: Slot) -> Packet:
        """The packet that goes up: lanes are wanted back as soon as one child wants them."""
        return slot.packet._replace(content=slot.content == self.all)

    def _slot_of(self, psn: int) -> Slot | None:
        """The slot that holds this PSN, if one does."""
        slot = self.slots[psn % len(self.slots)]
        return slot if slot.epoch == self.epoch and slot.psn == psn else None


def _alike(packet: Packet, other: Packet) -> bool:
    """True if two contributions may share a slot: if both have lanes, opcode and length must be equal."""
    both = not packet.presence and not other.presence
    return not both or (packet.opcode, packet.lanes.size) == (other.opcode, other.lanes.size)


def _added(so_far: Packet, packet: Packet) -> Packet:
    """A slot's packet with one contribution more; the headers are those of one that has lanes, where there is any."""
    ack, marked = packet.ack | so_far.ack, packet.marked or so_far.marked
    if packet.presence or so_far.presence:
        return (so_far if packet.presence else packet)._replace(ack=ack, marked=marked, content=False)
    lanes = combine(packet.operation, so_far.lanes, packet.lanes)
    return packet._replace(ack=ack, marked=marked, content=False, lanes=lanes)

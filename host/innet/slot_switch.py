# SPDX-License-Identifier: Apache-2.0
"""One switch's part of the slot protocol (docs/protocol.md) in plain Python: the reference for p4src/verdict.p4, and
what a rank runs that stands in for switches that are gone (``stand_in``).

It has no sockets and no clock: packets in, packets out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from netfold.wire import roce


@dataclass(frozen=True)
class Packet:
    """A data packet without what switches rewrite: addresses, and the connection in the queue pair."""

    operation: int
    opcode: int
    ack: int
    psn: int
    reth: bytes
    lanes: NDArray[np.uint32]
    marked: bool = False

    @staticmethod
    def parse(payload: bytes) -> Packet:
        """Returns the packet of a UDP payload, BTH to ICRC; its length must fit its opcode.  Raises ValueError."""
        opcode, flags, pkey, qp, ack_psn = roce.BTH.unpack_from(payload)
        if flags != 0 or pkey != roce.PKEY:
            raise ValueError(f"BTH flags {flags:#x} and partition key {pkey:#x}: expected 0x0 and {roce.PKEY:#x}")
        path_mtu = len(payload) - roce.data_packet_bytes(roce.Opcode(opcode), 0)
        if path_mtu not in roce.PATH_MTUS:
            raise ValueError(f"{path_mtu} bytes of lanes: expected one of {', '.join(map(str, roce.PATH_MTUS))}")
        data = roce.BTH_BYTES + (roce.RETH_BYTES if roce.Opcode(opcode).has_reth else 0)
        lanes = np.frombuffer(payload, ">u4", path_mtu // roce.LANE_BYTES, data).astype(np.uint32)
        reth = payload[roce.BTH_BYTES : data]
        return Packet(qp % roce.QUEUE_PAIRS, opcode, ack_psn >> 24, ack_psn & roce.PSN_MASK, reth, lanes)

    def build(self, connection: int) -> bytes:
        """Returns the UDP payload for this operation's queue pair of a connection, with an ICRC of zeros: hosts do not
        look at it (native/roce.h says why).

        connection  the queue pair of its operation 0
        """
        head = roce.BTH.pack(self.opcode, 0, roce.PKEY, connection + self.operation, self.ack << 24 | self.psn)
        return head + self.reth + self.lanes.astype(">u4").tobytes() + bytes(4)


@dataclass
class Slot:
    """What a switch keeps of one PSN of a stream; free until an epoch is in it."""

    epoch: int = 0
    psn: int = 0
    done: bool = False
    marked: bool = False
    children: frozenset[int] = frozenset()
    lanes: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(roce.LANES, np.uint32))


Target = Literal["parent", "all"] | int
"""Where a packet goes on: up, to every child, or to the child that asked."""


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
    """One switch's slots for one stream of one tree; the table of p4src/verdict.p4 as docs/protocol.md states it.

    children  number of hosts or switches below it
    slots     number of slots, at least the window of the ranks; a PSN's is its remainder
    root      whether it is the tree's root, which answers itself; any other one sends sums to its parent
    epoch     of the job; slots of another one are free
    """

    def __init__(self, children: int, slots: int, *, root: bool, epoch: int = 1) -> None:
        self.all = frozenset(range(children))
        self.slots = [Slot() for _ in range(slots)]
        self.root = root
        self.epoch = epoch

    def up(self, child: int, packet: Packet) -> tuple[Target, Packet] | None:
        """Takes a contribution of a child, by number from 0.  Returns where a packet goes, and the packet: a sum
        to the parent, a result to all or to the child that repeated its contribution; None where nothing leaves."""
        slot = self.slots[packet.psn % len(self.slots)]
        age = roce.psn_age(packet.psn, slot.psn)
        if slot.epoch != self.epoch or age > 0:
            slot.epoch, slot.psn, slot.done = self.epoch, packet.psn, False
            slot.marked, slot.children, slot.lanes = packet.marked, frozenset([child]), packet.lanes
        elif age < 0:
            return None
        elif slot.done:
            return child, replace(packet, lanes=slot.lanes, marked=slot.marked)
        elif child in slot.children:
            if slot.children != self.all:
                return None
            return "parent", replace(packet, lanes=slot.lanes, marked=slot.marked)
        else:
            slot.children |= {child}
            slot.marked |= packet.marked
            slot.lanes = combine(packet.operation, slot.lanes, packet.lanes)
        if slot.children != self.all:
            return None
        slot.done = self.root
        return ("all" if self.root else "parent"), replace(packet, lanes=slot.lanes, marked=slot.marked)

    def down(self, packet: Packet) -> tuple[Target, Packet] | None:
        """Takes a result from the parent.  Returns its target, all children, and the packet; None where the slot has no
        use for it, because it is late, repeated or of another epoch."""
        slot = self.slots[packet.psn % len(self.slots)]
        if slot.epoch != self.epoch or slot.psn != packet.psn or slot.done or slot.children != self.all:
            return None
        slot.done, slot.lanes = True, packet.lanes
        slot.marked |= packet.marked
        return "all", replace(packet, marked=slot.marked)

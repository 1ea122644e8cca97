# SPDX-License-Identifier: Apache-2.0
"""A switch of one tree in plain Python, packet by packet: the rules of docs/protocol.md for both kinds of children.

It stands beside the compiled program: each packet that a child or the parent sends goes into both, and both must say
the same.  What leaves is told as ``Out``: to whom, as what, with which number, headers and lanes; which addresses and
queue pairs that makes is for the caller to check, who knows the fabric.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple

import numpy as np

from netfold.wire import roce
from support.models.nic_packets import ACK, ACKNOWLEDGE, RNR, SEQUENCE, Packet, Rc

PARENT: Final = -1
"""Stands for the parent where else a child's place stands."""
ASKED_AT_ONCE: Final = 64
"""The most PSNs of one question that are answered; of a longer one the first is."""
RNR_CODE: Final = 14
"""1.28 ms."""
Form = Literal["sum", "result", "onward", "ack", "nak", "rnr", "ask"]


class Kind(Enum):
    """How a child is answered."""

    WINDOWED = "windowed"
    RC = "rc"


class Out(NamedTuple):
    """A packet that leaves: a ``sum`` to the parent, a ``result`` to a child, a NIC's repeat ``onward`` to its
    successor, an ``ack``, ``nak`` or ``rnr`` to a NIC, or an ``ask`` for [psn, end) between windowed neighbours."""

    to: int
    """A child's place, or PARENT; for ``onward`` the child whose successor gets it."""
    form: Form
    psn: int
    end: int = 0
    opcode: int = ACKNOWLEDGE
    ack_req: bool = False
    lanes: bytes = b""
    offset: int = 0
    length: int = 0


@dataclass
class Child:
    """A switch's state of a child."""

    kind: Kind = Kind.WINDOWED
    first_psn: int = 0
    base: int = 0
    """RC: where its successor's region begins."""


@dataclass
class Slot:
    """The state of a slot."""

    epoch: int = 0
    psn: int = 0
    done: bool = False
    ack_req: bool = False
    shape: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Opcode, bytes of payload, pad count, and offset of the write."""
    length: int = 0
    """Length of the whole write."""
    children: frozenset[int] = frozenset()
    lanes: bytes = b""


@dataclass
class Flow:
    """Where a sender's packets stand: the next one; of a windowed sender the one that came last, and of a NIC the
    lowest that its successor has not acknowledged."""

    epoch: int = 0
    next: int = 0
    last: int = 0
    lowest: int = 0
    told: bool = False


def following(psn: int, count: int = 1) -> int:
    """The PSN so far after another one."""
    return psn + count & roce.PSN_MASK


@dataclass
class ModelSwitch:
    """One switch of one stream.

    slots  a power of two
    root   whether sums become results here
    grows  whether a question can become the packet that it asks for: not on BMv2
    """

    children: list[Child]
    slots: int
    epoch: int
    root: bool
    grows: bool = True
    table: list[Slot] = field(default_factory=list)
    flows: dict[int, Flow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = [Slot() for _ in range(self.slots)]
        self.everybody = frozenset(range(len(self.children)))

    # ---- what arrives ----------------------------------------------------------------------------------------------

    def receive(self, sender: int, packet: Packet) -> list[Out]:
        """Takes a packet of a child, or of the parent, whose ICRC holds."""
        if packet.syndrome is not None:
            return self._asked(sender, packet)
        if sender != PARENT and self.children[sender].kind is Kind.RC:
            return self._from_nic(sender, packet)
        out = self._down(packet) if sender == PARENT else self._up(sender, packet)
        return self._gap(sender, packet) + out

    def acknowledged(self, child: int, packet: Packet) -> None:
        """Takes note of an ACK or NAK of a NIC's successor, which passes on its way to the NIC."""
        flow = self.flows.get(child)
        assert packet.syndrome is not None
        lowest = following(packet.psn, packet.syndrome < RNR)
        if flow is None or flow.epoch != self.epoch or packet.syndrome > SEQUENCE:
            return
        if roce.psn_age(lowest, flow.lowest) >= 0 and roce.psn_age(flow.next, lowest) >= 0:
            flow.lowest = lowest

    # ---- flows -----------------------------------------------------------------------------------------------------

    def _flow(self, sender: int, first: int) -> Flow:
        flow = self.flows.get(sender)
        if flow is None or flow.epoch != self.epoch:
            flow = self.flows[sender] = Flow(self.epoch, first, following(first, -1), first)
        return flow

    def _gap(self, sender: int, packet: Packet) -> list[Out]:
        new = sender not in self.flows or self.flows[sender].epoch != self.epoch
        flow = self._flow(sender, packet.psn)
        previous, last, missing = following(packet.psn, -1 - packet.order), flow.last, flow.next
        flow.last = packet.psn
        if roce.psn_age(packet.psn, flow.next) >= 0:
            flow.next = following(packet.psn)
        if new or previous == last or packet.order == roce.ORDER_UNSAID:
            return []
        if roce.psn_age(previous, missing) > 0:
            return [Out(sender, "ask", missing, following(previous))]
        return [] if self._had(sender, previous) else [Out(sender, "ask", previous, following(previous))]

    def _had(self, sender: int, psn: int) -> bool:
        """True if a windowed neighbour's packet is here after all: it came out of turn, or again."""
        slot = self.table[psn & self.slots - 1]
        age = self._age(slot, psn)
        return age < 0 or (age == 0 and (slot.done or sender in slot.children))

    # ---- contributions and results ---------------------------------------------------------------------------------

    def _find(self, packet: Packet, base: int = 0) -> tuple[Slot, int, tuple[int, int, int, int]]:
        """The packet's slot, how far the packet is ahead of it (None-like: 1 for another epoch's), and its shape."""
        slot = self.table[packet.psn & self.slots - 1]
        offset = 0 if packet.reth is None else packet.reth.address - base & (1 << 64) - 1
        return slot, self._age(slot, packet.psn), (packet.opcode, len(packet.payload), packet.pad, offset)

    def _age(self, slot: Slot, psn: int) -> int:
        return 1 if slot.epoch != self.epoch else roce.psn_age(psn, slot.psn)

    def _from_nic(self, place: int, packet: Packet) -> list[Out]:
        child = self.children[place]
        flow = self._flow(place, child.first_psn)
        ahead = roce.psn_age(packet.psn, flow.next)
        if ahead == 0:
            flow.next, flow.told = following(packet.psn), False
            return self._add(place, packet, child.base)
        if ahead > 0:
            told, flow.told = flow.told, True
            return [] if told else [Out(place, "nak", flow.lowest)]
        acknowledgement = [Out(place, "ack", following(flow.lowest, -1))]
        lowest = roce.psn_age(packet.psn, flow.lowest)
        if lowest < 0:
            return acknowledgement
        if lowest > 0 and flow.told:
            return []
        slot, age, shape = self._find(packet, child.base)
        if age < 0:
            return acknowledgement
        if age > 0 or not self._alike(slot, shape, address=packet.reth is not None):
            return []
        if slot.done:
            return [self.leaves(place, "onward", slot, ack_req=packet.ack_req)]
        if place not in slot.children:
            return []
        patience = [Out(place, "rnr", flow.lowest)] if lowest == 0 else []
        if slot.children == self.everybody:
            return [self.leaves(PARENT, "sum", slot, ack_req=packet.ack_req or slot.ack_req), *patience]
        return patience

    def _up(self, place: int, packet: Packet) -> list[Out]:
        slot, age, shape = self._find(packet)
        if age < 0:
            return []
        if age == 0:
            if not self._alike(slot, shape):
                return []
            if slot.done:
                return [self.leaves(place, "result", slot, ack_req=packet.ack_req or slot.ack_req)]
            if place in slot.children:
                whole = slot.children == self.everybody
                return [self.leaves(PARENT, "sum", slot, ack_req=packet.ack_req or slot.ack_req)] if whole else []
        return self._add(place, packet, 0)

    def _add(self, place: int, packet: Packet, base: int) -> list[Out]:
        slot, age, shape = self._find(packet, base)
        nic = self.children[place].kind is Kind.RC and packet.reth is not None
        alike = age or self._alike(slot, shape, address=nic)
        if age < 0 or not alike or (age == 0 and (slot.done or place in slot.children)):
            return []
        if age > 0:
            slot.epoch, slot.psn, slot.done, slot.shape = self.epoch, packet.psn, False, shape
            slot.length = 0 if packet.reth is None else packet.reth.length
            slot.ack_req, slot.children, slot.lanes = packet.ack_req, frozenset([place]), packet.payload
        else:
            slot.ack_req |= packet.ack_req
            slot.children |= {place}
            total = np.frombuffer(slot.lanes, ">u4").astype(np.uint32) + np.frombuffer(packet.payload, ">u4")
            slot.lanes = total.astype(">u4").tobytes()
        if slot.children != self.everybody:
            return []
        if self.root:
            slot.done = True
            return self._to_all(slot)
        return [self.leaves(PARENT, "sum", slot)]

    def _down(self, packet: Packet) -> list[Out]:
        slot, age, shape = self._find(packet)
        if age or slot.done or slot.children != self.everybody or not self._alike(slot, shape):
            return []
        slot.done, slot.lanes = True, packet.payload
        slot.ack_req |= packet.ack_req
        return self._to_all(slot)

    def _alike(self, slot: Slot, shape: tuple[int, int, int, int], *, address: bool = False) -> bool:
        return slot.shape == shape if address else slot.shape[:3] == shape[:3]

    # ---- questions -------------------------------------------------------------------------------------------------

    def _asked(self, sender: int, packet: Packet) -> list[Out]:
        out: list[Out] = []
        missing = packet.msn - packet.psn & roce.PSN_MASK
        for ahead in range(missing if missing <= ASKED_AT_ONCE else 1):
            out += self._ask(sender, following(packet.psn, ahead))
        return out

    def _ask(self, sender: int, psn: int) -> list[Out]:
        slot = self.table[psn & self.slots - 1]
        age = self._age(slot, psn)
        bare = age == 0 and self.grows and not Rc(slot.shape[0]).has_immediate
        whole = age == 0 and slot.children == self.everybody
        back = [Out(sender, "ask", psn, following(psn))]
        if sender == PARENT:
            return [self.leaves(PARENT, "sum", slot)] if whole and not slot.done and bare else []
        if age < 0:
            return []
        if age > 0:
            return back
        if slot.done:
            return [self.leaves(sender, "result", slot)] if bare else back
        if whole:
            return [Out(PARENT, "ask", psn, following(psn))] if bare else back
        return [] if sender in slot.children else back

    # ---- what leaves -----------------------------------------------------------------------------------------------

    def _to_all(self, slot: Slot) -> list[Out]:
        return [self.leaves(place, "result", slot) for place in range(len(self.children))]

    def leaves(self, to: int, form: Form, slot: Slot, *, ack_req: bool | None = None) -> Out:
        """The packet of a slot that leaves in this form."""
        opcode, _, _, offset = slot.shape
        return Out(to, form, slot.psn, 0, opcode, slot.ack_req if ack_req is None else ack_req, slot.lanes, offset,
                   slot.length)


def answer_of(out: Out) -> int:
    """The syndrome of an answer."""
    return {"ack": ACK, "nak": SEQUENCE, "rnr": RNR | RNR_CODE, "ask": SEQUENCE}[out.form]

# SPDX-License-Identifier: Apache-2.0
"""Questions to the data plane: a packet-out asks and a packet-in answers, since BMv2's registers cannot be read over
P4Runtime.  One is for a slot's state (probe_t of p4src/headers.p4; p4src/slot.p4 names the fields of slot_state_t and
slot_headers_t), one for the ports at which neighbours' link probes have come in (heard_t)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

PROBE: Final = 1
"""Kind of a packet-out or packet-in that carries a probe of a slot: CPU_PROBE of p4src/sizes.p4; 0 is a frame."""
NEIGHBOURS: Final = 2
"""Kind of a packet-out that goes to all neighbouring switches: CPU_NEIGHBOURS."""
HEARD: Final = 3
"""Kind of the question which neighbours were heard, and of its answer: CPU_HEARD."""
HEARD_QUESTION: Final = bytes(64)
"""Payload of that question; the answer has a bit for each port."""

_PSN: Final = (1 << 24) - 1


@dataclass(frozen=True)
class SlotState:
    """The state of one slot of a switch when it was read."""

    epoch: int
    """Epoch of the job that used the slot last; 0 if none has."""
    psn: int
    done: bool
    """True if the slot holds the result."""
    ecn: bool
    """True if a contribution was marked by congestion."""
    bitmap: int
    """Bit i is set once the contribution of child i has come."""
    operation: int = 0
    """The operation on its lanes, a value of `roce.LaneOperation`."""
    ack_req: bool = False
    """True if a contribution asks for an acknowledgement."""
    opcode: int = 0
    """BTH opcode of the contributions."""
    udp_length: int = 0
    """Bytes of the contributions' UDP datagrams."""
    presence: bool = False
    """True if only empty contributions have arrived: the slot has no lanes."""
    content: bool = False
    """True if some child needs only the acknowledgement."""


def question(slot: int, children: int) -> bytes:
    """Payload of the packet-out that asks for a slot's state.

    children  bits of the program's bitmaps
    """
    return _layout(children).pack(slot, 0, b"", b"")


def answer(payload: bytes, children: int) -> tuple[int, SlotState]:
    """Slot and state in the payload of a packet-in.  Raises ValueError for a payload that is too short.

    children  as above
    """
    layout = _layout(children)
    if len(payload) < layout.size:
        raise ValueError(f"answer to a probe: expected {layout.size} bytes, got {len(payload)}: {payload.hex()}")
    slot, state, *raw = layout.unpack_from(payload)
    bitmap, headers = (int.from_bytes(number, "big") for number in raw)
    return slot, SlotState(
        epoch=state >> 32,
        psn=state >> 8 & _PSN,
        done=bool(state >> 7 & 1),
        ecn=bool(state >> 6 & 1),
        bitmap=bitmap,
        operation=state >> 3 & 7,
        ack_req=bool(state >> 2 & 1),
        opcode=headers >> 120,
        udp_length=headers >> 96 & 0xFFFF,
        presence=bool(state >> 1 & 1),
        content=bool(state & 1),
    )


def _layout(children: int) -> struct.Struct:
    """Slot, state but for its bitmap, bitmap and headers."""
    return struct.Struct(f"!IQ{children // 8}s16s")

# SPDX-License-Identifier: Apache-2.0
"""What a slot holds: a question in a packet-out, the answer in a packet-in, since BMv2's registers cannot be read over
P4Runtime.  Layout: probe_t of p4src/headers.p4, and slot_state_t, whose fields p4src/slot.p4 names."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

FRAME: Final = 0
"""Kind of packets from and to the CPU port: a frame.  CPU_FRAME of p4src/sizes.p4."""
PROBE: Final = 1
"""A probe.  CPU_PROBE of p4src/sizes.p4."""

_PROBE: Final = struct.Struct("!I16s")
_PSN: Final = (1 << 24) - 1
_BITMAP: Final = (1 << 64) - 1


@dataclass(frozen=True)
class SlotState:
    """One slot of one switch at one moment."""

    epoch: int
    """Of the job that used it last; 0 where none has."""
    psn: int
    done: bool
    """The result is stored."""
    ecn: bool
    """A contribution was marked."""
    bitmap: int
    """Bit i: the contribution of child i is in."""
    operation: int = 0
    """What is done with its lanes: a roce.LaneOperation where a switch of ours speaks."""


def question(slot: int) -> bytes:
    """Payload of the packet-out."""
    return _PROBE.pack(slot, bytes(16))


def answer(payload: bytes) -> tuple[int, SlotState]:
    """Slot and state of a packet-in.  Raises ValueError for what is too short."""
    if len(payload) < _PROBE.size:
        raise ValueError(f"answer to a probe: expected {_PROBE.size} bytes, got {len(payload)}: {payload.hex()}")
    slot, raw = _PROBE.unpack_from(payload)
    state = int.from_bytes(raw, "big")
    return slot, SlotState(
        epoch=state >> 112,
        psn=state >> 88 & _PSN,
        done=bool(state >> 87 & 1),
        ecn=bool(state >> 86 & 1),
        bitmap=state & _BITMAP,
        operation=state >> 83 & 7,
    )

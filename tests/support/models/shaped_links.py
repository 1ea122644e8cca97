# SPDX-License-Identifier: Apache-2.0
"""Links as the kernel's shapers make them (HTB): what comes at once leaves at once, and then nothing for as long as
it takes at the link's rate.  So packets arrive in bursts, and wait behind the sender's own window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from netfold.host.innet.slot_switch import Nak
from support.models.slot_model import TerribleNetwork

RUN: int = 15
"""Packets of a super-packet at most: of path MTU 4096."""
BURST: int = 31
"""Packets that an idle link lets through at once: 128 KB."""
NAK_PART: int = 69
"""A NAK takes this part of a packet's time: 60 bytes for 4154."""


@dataclass
class _Group:
    """Packets that were given to a link at the same time, and leave as one."""

    came: int
    leaves: int
    packets: int = 1


@dataclass
class ShapedLinks(TerribleNetwork):
    """Every link has a token bucket: a burst may take it into debt, and the next one waits until that is paid."""

    groups: dict[Callable[[Any], None], _Group] = field(default_factory=dict)
    paid: dict[Callable[[Any], None], int] = field(default_factory=dict)
    """Until when a link's tokens are used up."""

    def send(self, packet: Any, deliver: Callable[[Any], None]) -> None:
        """Puts a packet on a link."""
        nak = isinstance(packet, Nak)
        paid = max(self.paid.get(deliver, -1 << 60), self.now - BURST * self.packet_time)
        group = self.groups.get(deliver)
        if not nak and group is not None and group.came == self.now and group.packets < RUN:
            group.packets += 1
            leaves = group.leaves
        else:
            leaves = max(self.now, paid)
            self.groups[deliver] = _Group(self.now, leaves)
        self.paid[deliver] = paid + (self.packet_time // NAK_PART if nak else self.packet_time)
        if self.rng.random() < self.loss:
            self.lost += 1
            return
        self.at(leaves + self.delay, lambda: deliver(packet))

# SPDX-License-Identifier: Apache-2.0
"""Cables between switches in memory: what one sends, the other gets, unless the cable is cut."""

from __future__ import annotations

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.graph import End, Fabric
from support.controller import MemorySwitch

NARROW_BYTES = 512
"""Bytes of the longest frame that a narrow link carries."""


def link_between(fabric: Fabric, a: str, b: str) -> int:
    """The number of the link between two nodes."""
    return next(n for n, link in enumerate(fabric.links) if {end.node for end in link.ends} == {a, b})


class Cables:
    """Between switches in memory: what a switch sends arrives at its neighbour, if that lets it reach the CPU port.

    cut     numbers of the links over which nothing arrives
    narrow  numbers of those over which only short frames arrive
    """

    def __init__(self, fabric: Fabric, switches: dict[str, MemorySwitch]) -> None:
        self.cut: set[int] = set()
        self.narrow: set[int] = set()
        for n, link in enumerate(fabric.links):
            for a, b in (link.ends, link.ends[::-1]):
                if a.node in switches and b.node in switches:
                    self._lay(n, a, b, switches)

    def _lay(self, n: int, a: End, b: End, switches: dict[str, MemorySwitch]) -> None:
        before = switches[a.node].sends

        def sends(port: int, frame: bytes) -> None:
            if port != a.port:
                before(port, frame)
            elif n in self.narrow and len(frame) > NARROW_BYTES:
                pass
            elif n not in self.cut and self._to_cpu(switches[b.node], b.port):
                switches[b.node].arrives(b.port, frame)

        switches[a.node].sends = sends

    @staticmethod
    def _to_cpu(switch: MemorySwitch, port: int) -> bool:
        key = (tables.ROUTE, (("dst", (0xE0000002, 32)),))
        entry = switch.state.get(key)
        punting = (tables.PUNT, (("ingress_port", port),)) in switch.state
        return punting and isinstance(entry, Entry) and entry.action == tables.TO_CPU

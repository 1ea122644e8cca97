# SPDX-License-Identifier: Apache-2.0
"""Cables between switches in memory: what one sends, the other gets, unless the cable is cut."""

from __future__ import annotations

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.graph import End, Fabric
from netfold.wire import roce
from support.control.controller import MemorySwitch

NARROW_BYTES = 512
"""Bytes of the longest frame that a narrow link carries."""


def link_between(fabric: Fabric, a: str, b: str) -> int:
    """The number of the link between two nodes."""
    return next(n for n, link in enumerate(fabric.links) if {end.node for end in link.ends} == {a, b})


class Cables:
    """Between switches in memory: what a switch sends arrives at its neighbour, which counts a probe as expected, and
    sends others to the controller, if its entries say so.

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
            elif n not in self.cut:
                self._punt(switches[b.node], b.port, frame)

        switches[a.node].sends = sends

    @staticmethod
    def _punt(switch: MemorySwitch, port: int, frame: bytes) -> None:
        """What p4src/route.p4 and punt.p4 do."""
        route = switch.state.get((tables.ROUTE, (("dst", (0xE0000002, 32)),)))
        punt = switch.state.get((tables.PUNT, (("ingress_port", port),)))
        if not isinstance(route, Entry) or route.action != tables.TO_CPU or not isinstance(punt, Entry):
            return
        expected = dict(punt.params)
        sender = expected["address"].to_bytes(4, "big"), expected["sport"].to_bytes(2, "big")
        asks = frame[roce.ETHERNET_BYTES + roce.IPV4_BYTES + roce.UDP_BYTES + 8] >> 7
        if (frame[26:30], frame[34:36]) == sender and len(frame) > roce.PATH_MTU and not asks:
            switch.heard |= 1 << port
        else:
            switch.arrives(port, frame)

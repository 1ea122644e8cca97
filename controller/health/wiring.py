# SPDX-License-Identifier: Apache-2.0
"""Compares the cables with the fabric file: probes sent from every end of a link show where its cable leads.

Links to hosts are not probed: a misplaced host shows when it sends.
"""

from __future__ import annotations

import msgspec

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.fabric.graph import Fabric


class AskWiring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks where all cables lead."""



class Cable(msgspec.Struct, frozen=True):
    """One link of the fabric file, and where its cable leads."""

    a: str
    b: str
    up: bool
    why: str
    """Why the link is down; empty if it is up."""
    drained: bool
    asked: bool
    """True if it was probed: a link between two switches that are up."""
    from_a: str
    """The end at which probes from ``a`` arrive; empty if they arrive nowhere."""
    from_b: str

    @property
    def wrong(self) -> list[str]:
        """How the cable differs from the file, one sentence for each end that does."""
        return [
            f"{here}: expected {there}, sees {found}"
            for here, there, found in ((self.a, self.b, self.from_a), (self.b, self.a, self.from_b))
            if found and found != there
        ]


class Cables(msgspec.Struct, frozen=True):
    """The answer to AskWiring, in the order of the fabric file."""

    cables: list[Cable]


class Discovery:
    """Answers where the cables of one fabric lead."""

    def __init__(self, fabric: Fabric, liveness: Liveness, drains: Drains) -> None:
        self._fabric = fabric
        self._liveness = liveness
        self._drains = drains

    async def answer(self, _: AskWiring) -> Cables:
        """Probe all links between switches now."""
        seen = {str(end): str(found) for end, found in (await self._liveness.discover()).items()}
        graph, down = self._liveness.graph(), self._liveness.links_down()
        up = {number for *_, number in graph.edges(keys=True)}
        switches = {switch.name for switch in self._fabric.switches}
        found = []
        for number, link in enumerate(self._fabric.links):
            gone = [end.node for end in link.ends if end.node not in graph]
            why = f"{', '.join(gone)} is down" if gone else down.get(number, "")
            found.append(Cable(link.a, link.b, number in up, why, number in self._drains.links,
                               not gone and {end.node for end in link.ends} <= switches,
                               seen.get(link.a, ""), seen.get(link.b, "")))
        return Cables(found)

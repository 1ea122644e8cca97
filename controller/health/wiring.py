# SPDX-License-Identifier: Apache-2.0
"""The cables as they are against the fabric's file: a probe goes out at every end, and tells where it comes out.

Links to hosts are not asked: what a host's port leads to shows when its host sends.
"""

from __future__ import annotations

import msgspec

from netfold.controller.health.drains import Drains
from netfold.controller.health.liveness import Liveness
from netfold.fabric.graph import Fabric


class AskWiring(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where do the cables lead?"""

    token: str = ""


class Cable(msgspec.Struct, frozen=True):
    """One link of the fabric's file."""

    a: str
    b: str
    up: bool
    why: str
    """Why it is down."""
    drained: bool
    asked: bool
    """Whether it is one between switches that are both up."""
    from_a: str
    """Where what leaves ``a`` comes out; empty: nowhere that we hear of."""
    from_b: str

    @property
    def wrong(self) -> list[str]:
        """What is not as the file says, a sentence an end."""
        return [
            f"{here}: expected {there}, sees {found}"
            for here, there, found in ((self.a, self.b, self.from_a), (self.b, self.a, self.from_b))
            if found and found != there
        ]


class Cables(msgspec.Struct, frozen=True):
    """The answer to AskWiring, in the file's order."""

    cables: list[Cable]


class Discovery:
    """Of one controller's links."""

    def __init__(self, fabric: Fabric, liveness: Liveness, drains: Drains) -> None:
        self._fabric = fabric
        self._liveness = liveness
        self._drains = drains

    async def answer(self, _: AskWiring) -> Cables:
        """Asks all of them now."""
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

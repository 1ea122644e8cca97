# SPDX-License-Identifier: Apache-2.0
"""Keeps every switch's routes, policies and pins as they follow from what is up, drained, suspect and chosen.

Planning them takes a good part of a minute in a fabric of hundreds of switches, and most of what makes a controller
look again changes none of it: so a plan is made anew only where something that it follows from has changed, or for a
switch that was down when it was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Final

from netfold.controller.paths.steering import Steering
from netfold.controller.switch.target import Target

if TYPE_CHECKING:
    import networkx as nx

PART: Final = "routes"
"""The part of a switch's desired state."""


class Routing:
    """The routing of one fabric.

    steering  what paths follow from
    targets   all switches, by name
    """

    def __init__(self, steering: Steering, targets: Mapping[str, Target]) -> None:
        self._steering = steering
        self._targets = targets
        self._planned: Hashable = None
        """What the last plan follows from."""
        self._given: dict[str, Hashable] = {}
        """What the plan that each switch was given last follows from."""

    def preset(self, graph: nx.MultiGraph[str]) -> None:
        """Give all switches their entries before their targets start."""
        self._planned = self._steering.inputs(graph)
        found = self._steering.base(graph)
        for name, target in self._targets.items():
            target.preset(PART, found.get(name, ()))
            self._given[name] = self._planned

    async def update(self, graph: nx.MultiGraph[str]) -> None:
        """Give the switches that are up what follows from the graph now, where that is not what they were given."""
        inputs = self._steering.inputs(graph)
        lacking = {name: target for name, target in self._targets.items()
                   if target.is_heard and self._given.get(name) != inputs}
        if not lacking and inputs == self._planned:
            return
        found = self._steering.base(graph)
        self._planned = inputs
        self._given.update(dict.fromkeys(lacking, inputs))
        await asyncio.gather(*(target.replace(PART, found.get(name, ())) for name, target in lacking.items()))

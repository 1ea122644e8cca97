# SPDX-License-Identifier: Apache-2.0
"""Keeps every switch's routes, policies and pins as they follow from what is up, drained, suspect and chosen.

Most of what makes a controller look again changes none of it: so a plan is made anew only where something that it
follows from has changed, and only switches that it changes get new entries.  Plans are made beside the controller's
loop, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from netfold.controller.paths.steering import Inputs, Steering
from netfold.controller.switch.entities import State
from netfold.controller.switch.path_tables import Forwarding
from netfold.controller.switch.target import Target
from netfold.fabric.graph import Up

AT_ONCE: Final = 16
"""Switches that receive their entries in one turn of the controller's loop."""
_NONE: Final = Forwarding()
"""Forwarding of a switch that is not in the plan."""


class Routing:
    """The routing of one fabric.

    steering  what paths follow from
    targets   all switches, by name
    """

    def __init__(self, steering: Steering, targets: Mapping[str, Target]) -> None:
        self._steering = steering
        self._targets = targets
        self._turn = asyncio.Lock()
        self._planned: Inputs | None = None
        """The inputs of the last plan."""
        self._ways: dict[str, Forwarding] = {}
        """The last plan."""
        self._given: dict[str, Forwarding] = {}
        """Switch -> the forwarding that it was last given, by any plan."""

    async def preset(self, up: Up) -> None:
        """Give all switches their entries before their targets start."""
        await asyncio.to_thread(self._preset, self._steering.inputs(up))

    def _preset(self, inputs: Inputs) -> None:
        found = self._plan(inputs, list(self._targets))
        for name, target in self._targets.items():
            target.preset(found.get(name, {}))

    async def update(self, up: Up) -> None:
        """Give the switches that are heard what follows from what is up, where that is not what they were given."""
        # whoever asked may be cancelled: switches are given what the plan says they were
        await asyncio.shield(asyncio.create_task(self._update(up), name="routes are planned"))

    async def _update(self, up: Up) -> None:
        async with self._turn:  # until all have been told, since a switch takes what comes last
            inputs = self._steering.inputs(up)
            heard = [name for name, target in self._targets.items() if target.is_heard]
            if inputs == self._planned and all(self._given.get(name) == self._of(name) for name in heard):
                return
            found = await asyncio.to_thread(self._plan, inputs, heard)
            telling = []
            for count, (name, parts) in enumerate(found.items(), 1):
                told = self._targets[name].replace(parts)
                telling.append(asyncio.create_task(told, name=f"routes of {name}"))
                if count % AT_ONCE == 0:
                    await asyncio.sleep(0)
        await asyncio.gather(*telling)

    def _plan(self, inputs: Inputs, heard: list[str]) -> dict[str, dict[str, State]]:
        """Plan, unless nothing has changed, and make the entries of those of some switches that differ from what they
        were given.  Nothing else runs this at the same time."""
        if inputs != self._planned:
            self._ways, self._planned = self._steering.plan(inputs), inputs
        changed = {name: ways for name in heard if self._given.get(name) != (ways := self._of(name))}
        self._given.update(changed)
        return self._steering.tables.all_parts(changed)

    def _of(self, switch: str) -> Forwarding:
        return self._ways.get(switch, _NONE)

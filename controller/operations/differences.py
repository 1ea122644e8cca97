# SPDX-License-Identifier: Apache-2.0
"""Desired against actual: the writes that would bring every switch to what it should hold, from what it holds now.

`netfold diff` asks a running controller, which knows of jobs; `netfold up --dry-run` needs none: it reads the switches
itself, without a word that would make it primary there, and says what a controller that starts would write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

import msgspec

from netfold.controller.health.drains import Drains
from netfold.controller.operations import state_file
from netfold.controller.paths.steering import Steering
from netfold.controller.switch import pipeline, tables
from netfold.controller.switch.entities import Entity, State, state
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.reconcile import Update, Verb, diff
from netfold.controller.switch.switch import Session, SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import Fabric, Switch


class AskDiff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What do the switches hold that they should not, or lack?"""

    apply: bool = False
    """And write it."""
    token: str = ""


class Difference(msgspec.Struct, frozen=True):
    """One write."""

    switch: str
    verb: Verb
    entity: str
    """As it should be; of a delete: as it is."""
    was: str
    """Of a modify: as it is."""

    def __str__(self) -> str:
        return f"{self.switch}: {self.verb} {self.entity}" + (f"\n    instead of {self.was}" if self.was else "")


class Differences(msgspec.Struct, frozen=True):
    """Of all switches."""

    writes: list[Difference]
    problems: list[str]
    """Switches that could not be read, or written, and why."""


class SwitchComparison:
    """Of one controller's switches."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets

    async def answer(self, request: AskDiff) -> Differences:
        """All switches at once; `apply` writes what it answers."""

        async def one(target: Target) -> list[Difference]:
            actual, updates = await target.compare(repair=request.apply)
            return differences(target.name, actual, updates)

        return await _gathered([one(target) for target in self._targets.values()])


async def dry_run(fabric: Fabric, *, built: Pipeline | None = None) -> Differences:
    """What a controller that starts would write to the switches, read now.  Raises PipelineError, FabricError."""
    drains = Drains(fabric)
    state_file.restore(drains, fabric.state)
    wanted = tables.merge([tables.fixed(fabric), Steering(fabric, drains).base(fabric.graph())])
    if built is None:
        built = await asyncio.to_thread(pipeline.build, fabric.engine, path_mtu=fabric.path_mtu)
    return await _gathered([_dry(switch, built, wanted.get(switch.name, ())) for switch in fabric.switches])


async def _dry(switch: Switch, made: Pipeline, wanted: Sequence[Entity]) -> list[Difference]:
    session = Session(switch.name, switch.grpc, switch.device_id, made, election_id=0)
    try:
        loaded = await session.runs_pipeline()
        actual: State = await session.read_state(tables.MANAGED) if loaded else {}
    finally:
        await session.close()
    found = differences(switch.name, actual, diff(actual, state(wanted)))
    program = Difference(switch.name, "modify", f"the program, to {made.cookie:#x}; that empties the switch", "")
    return found if loaded else [program, *found]


def differences(switch: str, actual: State, updates: Sequence[Update]) -> list[Difference]:
    """In words."""
    return [
        Difference(switch, update.verb, str(update.entity),
                   str(actual.get(update.entity.identity, "nothing")) if update.verb == "modify" else "")
        for update in updates
    ]


async def _gathered(asked: Sequence[Awaitable[list[Difference]]]) -> Differences:
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    writes: list[Difference] = []
    problems: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, SwitchError):
            problems.append(str(outcome))
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            writes += outcome
    return Differences(writes, problems)

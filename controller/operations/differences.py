# SPDX-License-Identifier: Apache-2.0
"""The difference between desired and actual state: the writes that each switch lacks.

`netfold diff` asks a running controller, which knows of jobs.  `netfold up --dry-run` needs none: it reads the switches
itself, without becoming primary, and prints what a controller that starts would write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence

import msgspec

from netfold.controller.health.drains import Drains
from netfold.controller.operations import state_file
from netfold.controller.paths.steering import Steering
from netfold.controller.switch import credentials, fold_tables, pipeline, tables
from netfold.controller.switch.entities import Entity, State, state
from netfold.controller.switch.pipeline import Pipeline
from netfold.controller.switch.reconcile import Update, Verb, diff
from netfold.controller.switch.switch import Session, SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import Fabric, Switch
from netfold.rpc.certificates import TlsError


class AskDiff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks in what the switches differ from their desired state."""

    apply: bool = False
    """True if the differences should also be written."""


class Difference(msgspec.Struct, frozen=True):
    """One write to one switch."""

    switch: str
    verb: Verb
    entity: str
    """The entity as it should be; for a delete: as it is."""
    was: str
    """For a modify: the entity as it is."""

    def __str__(self) -> str:
        return f"{self.switch}: {self.verb} {self.entity}" + (f"\n    instead of {self.was}" if self.was else "")


class Differences(msgspec.Struct, frozen=True):
    """The answer to AskDiff: the differences of all switches."""

    writes: list[Difference]
    problems: list[str]
    """Why switches could not be read or written, a sentence for each."""


class SwitchComparison:
    """Compares the switches of one controller with their desired states."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets

    async def answer(self, request: AskDiff) -> Differences:
        """The differences of all switches; with ``apply`` they are written as well."""

        async def one(target: Target) -> list[Difference]:
            actual, updates = await target.compare(repair=request.apply)
            return differences(target.name, actual, updates)

        return await _gathered([one(target) for target in self._targets.values()])


async def dry_run(fabric: Fabric, *, built: Pipeline | None = None) -> Differences:
    """The entities that a newly started controller would write to the switches.  Raises PipelineError and
    FabricError."""
    drains = Drains(fabric)
    state_file.restore(drains, fabric.state)
    wanted = tables.merge([tables.fixed_entries(fabric), Steering(fabric, drains).base(fabric.graph())])
    if built is None:
        built = await asyncio.to_thread(pipeline.of_fabric, fabric)
    return await _gathered([_dry(fabric, switch, built, wanted.get(switch.name, ())) for switch in fabric.switches])


async def _dry(fabric: Fabric, switch: Switch, made: Pipeline, wanted: Sequence[Entity]) -> list[Difference]:
    try:
        tls = credentials.of(fabric, switch)
    except TlsError as error:
        raise SwitchError(str(error)) from error
    session = Session(switch.name, switch.grpc, switch.device_id, made, election_id=0, credentials=tls)
    try:
        loaded = await session.runs_pipeline()
        actual: State = await session.read_state(tables.MANAGED) if loaded else {}
    finally:
        await session.close()
    desired = state(wanted)
    # a controller that starts keeps what it finds of jobs
    for entities in fold_tables.by_epoch(entity for key, entity in actual.items() if key not in desired).values():
        desired.update(state(entities))
    found = differences(switch.name, actual, diff(actual, desired))
    program = Difference(switch.name, "modify", f"the program, to {made.cookie:#x}; that empties the switch", "")
    return found if loaded else [program, *found]


def differences(switch: str, actual: State, updates: Sequence[Update]) -> list[Difference]:
    """Updates of a switch as differences, with the entities that they replace."""
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

# SPDX-License-Identifier: Apache-2.0
"""What to write so that a switch holds what it should: the difference of two states, in an order that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from netfold.controller.entities import Entity, Multicast, State

Verb = Literal["insert", "modify", "delete"]


@dataclass(frozen=True)
class Update:
    """One write."""

    verb: Verb
    entity: Entity

    def __str__(self) -> str:
        return f"{self.verb} {self.entity}"


def diff(actual: State, desired: State) -> list[Update]:
    """Writes that turn ``actual`` into ``desired``; none where they are equal.

    What refers to something is deleted before it and made after it: groups come before the entries that send to them,
    an uplink group's members before the route that spreads over them.
    """
    deletes = [Update("delete", entity) for key, entity in actual.items() if key not in desired]
    modifies = [Update("modify", entity) for key, entity in desired.items() if actual.get(key, entity) != entity]
    inserts = [Update("insert", entity) for key, entity in desired.items() if key not in actual]
    deletes.sort(key=lambda update: -_order(update.entity))
    inserts.sort(key=lambda update: _order(update.entity))
    return deletes + modifies + inserts


def show(switch: str, updates: Sequence[Update]) -> str:
    """The dry run's text: one line a write."""
    return "".join(f"{switch}: {update}\n" for update in updates)


def _order(entity: Entity) -> int:
    """Low numbers are there first and go last."""
    if isinstance(entity, Multicast):
        return 0
    # contributions must find the slot's group and rewriting in place
    return 2 if entity.table.endswith((".connection", ".route")) else 1

# SPDX-License-Identifier: Apache-2.0
"""What to write so that a switch holds what it should: the difference of two states, in an order that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from netfold.controller.switch.entities import Entity, Entry, State

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

    What refers to something is made after it, moved off it before it goes, and deleted before it: groups come before
    the entries that send to them, an uplink group's members before the route that spreads over them.
    A default action that nobody wants otherwise is left as it is: there is no such thing as none.
    """
    deletes = [Update("delete", e) for key, e in actual.items() if key not in desired and not _is_default(e)]
    modifies = [Update("modify", e) for key, e in desired.items()
                if actual.get(key, None if _is_default(e) else e) != e]
    inserts = [Update("insert", e) for key, e in desired.items() if key not in actual and not _is_default(e)]
    deletes.sort(key=lambda update: -_order(update.entity))
    inserts.sort(key=lambda update: _order(update.entity))
    referred = sum(_order(update.entity) < _REFERRING for update in inserts)
    return inserts[:referred] + modifies + deletes + inserts[referred:]


def show(switch: str, updates: Sequence[Update]) -> str:
    """The dry run's text: one line a write."""
    return "".join(f"{switch}: {update}\n" for update in updates)


_REFERRING: Final = 2


def _is_default(entity: Entity) -> bool:
    return isinstance(entity, Entry) and entity.is_default


def _order(entity: Entity) -> int:
    """Low numbers are there first and go last."""
    if not isinstance(entity, Entry):  # groups and sessions
        return 0
    # contributions must find the slot's group and rewriting in place
    return _REFERRING if entity.table.endswith((".connection", ".route")) else 1

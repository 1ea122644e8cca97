# SPDX-License-Identifier: Apache-2.0
"""Reconciliation: the writes that turn a switch's actual state into the desired one, in a safe order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from netfold.controller.switch.entities import Entity, Entry, State

Verb = Literal["insert", "modify", "delete"]


class Update(msgspec.Struct, frozen=True, gc=False):
    """One write to a switch."""

    verb: Verb
    entity: Entity

    def __str__(self) -> str:
        return f"{self.verb} {self.entity}"


def diff(actual: State, desired: State) -> list[Update]:
    """The writes that turn ``actual`` into ``desired``; none if they are equal.

    An entity that refers to another one is inserted after it, modified before the other is deleted, and deleted before
    it: groups come before the entries that send to them, members of an uplink group before the routes to the group.
    A default action cannot be deleted: one that ``desired`` lacks is left as it is.
    """
    inserts, modifies = [], []
    for key, wanted in desired.items():
        held = actual.get(key)
        if held is not wanted and held != wanted:
            if held is None and not _is_default(wanted):
                inserts.append(Update("insert", wanted))
            else:
                modifies.append(Update("modify", wanted))
    deletes = [Update("delete", held) for key, held in actual.items() if key not in desired and not _is_default(held)]
    deletes.sort(key=lambda update: -_order(update.entity))
    inserts.sort(key=lambda update: _order(update.entity))
    referred = sum(_order(update.entity) < _REFERRING for update in inserts)
    return inserts[:referred] + modifies + deletes + inserts[referred:]


def show(switch: str, updates: Sequence[Update]) -> str:
    """The updates of a switch as text, one line for each."""
    return "".join(f"{switch}: {update}\n" for update in updates)


_REFERRING: Final = 2


def _is_default(entity: Entity) -> bool:
    return isinstance(entity, Entry) and entity.is_default


def _order(entity: Entity) -> int:
    """Entities of lower order are inserted first and deleted last."""
    if not isinstance(entity, Entry):  # groups and sessions
        return 0
    # contributions must find the slot's group and rewriting in place
    return _REFERRING if entity.table.endswith((".connection", ".route")) else 1

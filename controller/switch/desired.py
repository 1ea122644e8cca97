# SPDX-License-Identifier: Apache-2.0
"""The desired state of a switch, as named parts, and the places where its state may differ since parts have changed.

Most changes are of a few entities of a switch that holds thousands: only those are compared and written.
"""

from __future__ import annotations

from collections.abc import Iterable

from netfold.controller.switch.entities import Conflict, Identity, State
from netfold.controller.switch.reconcile import Update, diff


class Desired:
    """The desired state of one switch: what the fabric needs, and a part for each tree of a job."""

    def __init__(self) -> None:
        self._parts: dict[str, State] = {}
        self.all: State = {}
        """All parts together."""
        self._changed: dict[Identity, None] | None = None
        """Entities that parts have added or removed since `settle`; None: the switch may differ anywhere."""

    def part(self, name: str) -> State | None:
        """A part; None if there is none of that name."""
        return self._parts.get(name)

    def put(self, name: str, wanted: State) -> None:
        """Add or replace a part.  Raises Conflict where another part has something else for an entity."""
        before = self._parts.get(name, {})
        new = [key for key, entity in wanted.items() if (held := before.get(key)) is not entity and held != entity]
        for key in new:
            entity, other = wanted[key], self.all.get(key)
            if other is not None and other != entity and (key not in before or self._has(key, but=name)):
                raise Conflict(f"{entity}\n  contradicts {other}")
        self._parts.pop(name, None)
        self._drop([key for key in before if key not in wanted])
        self._parts[name] = wanted
        self.all |= wanted
        self._note(new)

    def remove(self, name: str) -> bool:
        """Remove a part.  Returns False if there is none of that name."""
        before = self._parts.pop(name, None)
        self._drop(before or ())
        return before is not None

    def rename(self, name: str, to: str) -> None:
        """Give a part another name, with nothing to write."""
        self._parts[to] = self._parts.pop(name)

    @property
    def size(self) -> int:
        """Number of entities that `lacking` compares."""
        return len(self.all if self._changed is None else self._changed)

    def lacking(self, actual: State) -> list[Update]:
        """The updates that a switch with this state lacks."""
        if self._changed is None:
            return diff(actual, self.all)
        return diff(*({key: held[key] for key in self._changed if key in held} for held in (actual, self.all)))

    def settle(self, actual: State) -> None:
        """The switch, which had this state, holds what it should: make ``actual`` that."""
        if self._changed is None:
            actual.clear()
            actual |= self.all
        for key in self._changed or ():
            if (entity := self.all.get(key)) is None:
                actual.pop(key, None)
            else:
                actual[key] = entity
        self._changed = {}

    def unsettle(self) -> None:
        """From now on the switch may differ anywhere."""
        self._changed = None

    def _drop(self, keys: Iterable[Identity]) -> None:
        gone = [key for key in keys if not self._has(key)]
        for key in gone:
            del self.all[key]
        self._note(gone)

    def _note(self, keys: Iterable[Identity]) -> None:
        if self._changed is not None:
            self._changed.update(dict.fromkeys(keys))

    def _has(self, key: Identity, *, but: str = "") -> bool:
        """True if a part other than ``but`` has an entity."""
        return any(key in part for name, part in self._parts.items() if name != but)

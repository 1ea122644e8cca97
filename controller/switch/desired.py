# SPDX-License-Identifier: Apache-2.0
"""The desired state of a switch, as named parts, and the places where the switch may hold something else.

Most changes are of a few entities of a switch that holds thousands: only those are compared and written.  What a switch
holds is kept where it differs alone, since a fabric of thousands of switches has millions of entities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from netfold.controller.switch.entities import Conflict, Entity, Identity, State, state
from netfold.controller.switch.reconcile import Update, diff


class Desired:
    """The desired state of one switch: what the fabric needs, and a part for each tree of a job."""

    def __init__(self) -> None:
        self._parts: dict[str, State] = {}
        self.all: State = {}
        """All parts together."""
        self._changed: dict[Identity, Entity | None] | None = None
        """The state of the switch where it may differ from ``all``; it holds nothing there where this is None.  It
        holds ``all`` elsewhere.  None: nobody knows what it holds."""

    def part(self, name: str) -> State | None:
        """A part; None if there is none of that name."""
        return self._parts.get(name)

    def put(self, parts: Mapping[str, State]) -> None:
        """Add or replace parts, but those that are the same object as before.  Raises Conflict where two parts have
        different things for an entity."""
        changed = {name: wanted for name, wanted in parts.items() if self._parts.get(name) is not wanted}
        before, wanted = _together([self._parts.get(name, {}) for name in changed]), _together(changed.values())
        new = [key for key, entity in wanted.items() if (held := before.get(key)) is not entity and held != entity]
        for key in new:
            entity, other = wanted[key], self.all.get(key)
            if other is not None and other != entity and (key not in before or self._has(key, but=changed)):
                raise Conflict(f"{entity}\n  contradicts {other}")
        for name in changed:
            self._parts.pop(name, None)
        self._drop([key for key in before if key not in wanted])
        self._parts |= changed
        self._note(new)
        self.all |= wanted

    def remove(self, name: str) -> bool:
        """Remove a part.  Returns False if there is none of that name."""
        before = self._parts.pop(name, None)
        self._drop(before or ())
        return before is not None

    def rename(self, name: str, to: str) -> None:
        """Give a part another name, with nothing to write."""
        self._parts[to] = self._parts.pop(name)

    @property
    def is_compared(self) -> bool:
        """True if it is known where the switch may differ."""
        return self._changed is not None

    @property
    def size(self) -> int:
        """Number of entities that `lacking` compares."""
        return len(self._changed or ())

    def compare(self, actual: State) -> None:
        """The switch holds this."""
        self._changed = {key: held for key, held in actual.items() if self.all.get(key) != held}
        self._changed |= dict.fromkeys(key for key in self.all if key not in actual)

    def lacking(self) -> list[Update]:
        """The updates that the switch lacks, once it is known where it may differ."""
        assert self._changed is not None
        return diff({key: held for key, held in self._changed.items() if held is not None},
                    {key: self.all[key] for key in self._changed if key in self.all})

    def settle(self) -> None:
        """The switch holds what it should."""
        self._changed = {}

    def unsettle(self) -> None:
        """From now on nobody knows what the switch holds."""
        self._changed = None

    def _drop(self, keys: Iterable[Identity]) -> None:
        gone = [key for key in keys if not self._has(key)]
        self._note(gone)
        for key in gone:
            del self.all[key]

    def _note(self, keys: Iterable[Identity]) -> None:
        """These are about to change: the switch holds what they were."""
        if self._changed is not None:
            for key in keys:
                self._changed.setdefault(key, self.all.get(key))

    def _has(self, key: Identity, *, but: Collection[str] = ()) -> bool:
        """True if a part other than these has an entity."""
        return any(key in part for name, part in self._parts.items() if name not in but)


def _together(parts: Collection[State]) -> State:
    """The entities of parts.  Raises Conflict."""
    if len(parts) == 1:
        return next(iter(parts))
    found: State = {}
    for part in parts:
        found |= part
    if len(found) < sum(map(len, parts)):
        state(entity for part in parts for entity in part.values())
    return found

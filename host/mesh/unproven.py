# SPDX-License-Identifier: Apache-2.0
"""How many accepted connections may be unproven at once, and for how long, so that strangers cannot take all file
descriptors of a rank nor keep its own peers out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

HANDSHAKE_SECONDS: Final = 5.0
"""Seconds that an accepted connection has for its handshake."""
SPARE: Final = 64
"""Unproven connections beyond one for each rank of the job, all of which may connect at once."""

K = TypeVar("K")


@dataclass(frozen=True)
class _Entry:
    source: str
    deadline: float


class UnprovenLimit(Generic[K]):
    """The keys of accepted connections that are unproven.

    most     connections at once
    seconds  for each
    """

    def __init__(self, world: int, *, seconds: float = HANDSHAKE_SECONDS) -> None:
        self.most = world + SPARE
        self._seconds = seconds
        self._entries: dict[K, _Entry] = {}
        """In the order of their arrival, which is that of their deadlines."""
        self._by_source: dict[str, dict[K, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: K, source: str, now: float) -> K | None:
        """Adds a connection from this address.  Returns the one to close where there are too many now: the oldest of
        the address that has most, so that a flood from one address drives out itself alone."""
        self._entries[key] = _Entry(source, now + self._seconds)
        self._by_source.setdefault(source, {})[key] = None
        if len(self._entries) <= self.most:
            return None
        return self.drop_one()

    def drop_one(self) -> K | None:
        """Removes the oldest connection of the address that has most, and returns it; None where there is none."""
        if not self._entries:
            return None
        most = max(self._by_source.values(), key=lambda of_source: len(of_source))
        oldest = next(iter(most))
        self.remove(oldest)
        return oldest

    def remove(self, key: K) -> None:
        """Removes a connection that is proven or closed."""
        source = self._entries.pop(key).source
        of_source = self._by_source[source]
        del of_source[key]
        if not of_source:
            del self._by_source[source]

    def deadline(self) -> float | None:
        """When the first connection has had its time, or None."""
        return next(iter(self._entries.values())).deadline if self._entries else None

    def expired(self, now: float) -> list[K]:
        """Removes the connections that have had their time, and returns them."""
        late = []
        while (deadline := self.deadline()) is not None and deadline <= now:
            late.append(next(iter(self._entries)))
            self.remove(late[-1])
        return late

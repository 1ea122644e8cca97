# SPDX-License-Identifier: Apache-2.0
"""What a rank has heard of the others: who is lost, and who waits in vain for whom.

    fact   "rank 3 is lost: it closed the connection"      ends the operation of everybody who hears it
    wait   "rank 1 waits for rank 2"                       only all of them together say whose fault it is

Each is passed on once, by whoever it is new to, and told to those who connect later (``connected``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netfold.host.mesh.mesh import culprits


class FailureReports:
    """Of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.lost_ranks: dict[int, str] = {}
        """By rank that is lost: why."""
        self.waits: dict[int, set[int]] = {}
        """By rank that waits: for whom."""

    @property
    def announced(self) -> bool:
        """A reason to give up is known, and the others have it from us."""
        return bool(self.lost_ranks) or self._rank in self.waits

    def add_lost(self, whom: int, why: str) -> bool:
        """A fact; whether it is new: the first reason stands."""
        new = whom not in self.lost_ranks
        self.lost_ranks.setdefault(whom, why)
        return new

    def add_wait(self, who: int, whom: int) -> bool:
        """A wait; whether it is new."""
        known = self.waits.setdefault(who, set())
        new = whom not in known
        known.add(whom)
        return new

    def set_own_waits(self, whoms: Sequence[int]) -> None:
        """Whom this rank itself waits for."""
        self.waits[self._rank] = set(whoms)

    def all(self) -> Iterator[tuple[int, int, str]]:
        """As they are told: who says or waits, whom it is about, and why, which a wait has not."""
        yield from ((self._rank, whom, why) for whom, why in self.lost_ranks.items())
        yield from ((who, whom, "") for who, whoms in self.waits.items() for whom in whoms)

    def culprits(self) -> list[int]:
        """The ranks that are missed and have said nothing themselves (``mesh.culprits``)."""
        return culprits(self.waits, self._rank)

# SPDX-License-Identifier: Apache-2.0
"""The failure reports that a rank has received: which ranks are lost, and which rank waits in vain for which.

    loss   "rank 3 is lost: it closed the connection"      ends the operation of every rank that hears it
    leave  "rank 3 left after operation 7"                 is the reason where somebody still waits for that rank
    wait   "rank 1 waits for rank 2"                       only all waits together, a wait-for graph, show who is at
           fault

A rank passes each loss and wait on once, when it is new to it, and repeats all of them to ranks that connect later
(``connected``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from netfold.host.mesh.mesh import culprits


class LongWait(NamedTuple):
    """A peer's word that it has waited for long: in which of its calls, and for which ranks."""

    number: int
    ranks: frozenset[int]


class FailureReports:
    """The failure reports that one rank knows of, its own among them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.lost_ranks: dict[int, str] = {}
        """Lost rank -> the first reason that was reported."""
        self.left: dict[int, str] = {}
        """Rank that has left in order -> when and why."""
        self.waits: dict[int, set[int]] = {}
        """Waiting rank -> the ranks that it reported to wait for."""
        self._long_waits: dict[int, LongWait] = {}

    @property
    def announced(self) -> bool:
        """True if this rank knows a reason to give up and has already sent it to the others."""
        return bool(self.lost_ranks) or self._rank in self.waits

    def add_lost(self, whom: int, why: str) -> bool:
        """Records that rank ``whom`` is lost.  Returns whether that is new; the first reason is kept."""
        new = whom not in self.lost_ranks
        self.lost_ranks.setdefault(whom, why)
        return new

    def add_left(self, whom: int, why: str) -> None:
        """Records that rank ``whom``, this one or one of which the controller says so, has left in order."""
        self.left.setdefault(whom, why)

    def add_wait(self, who: int, whom: int) -> bool:
        """Records that rank ``who`` waits for rank ``whom``.  Returns whether that is new."""
        known = self.waits.setdefault(who, set())
        new = whom not in known
        known.add(whom)
        return new

    def set_own_waits(self, whoms: Sequence[int]) -> None:
        """Records the ranks that this rank itself waits for."""
        self.waits[self._rank] = set(whoms)

    def add_long_wait(self, who: int, number: int, whom: str) -> None:
        """Records that a peer has waited for long, in its call of this number, for ranks separated by commas."""
        self._long_waits[who] = LongWait(number, frozenset(int(rank) for rank in whom.split(",") if rank.isdecimal()))

    def to_name(self, number: int, awaited: Sequence[int]) -> tuple[list[int], bool]:
        """The ranks, of those for which this one waits, that have not said that they wait themselves.  And whether this
        one is to warn: no peer with a lower number waits for the same ones, or where there are none, for any."""
        waiting = {who: wait.ranks for who, wait in self._long_waits.items() if wait.number == number}
        named = [whom for whom in awaited if whom not in waiting]
        lower = [whom for who, whom in waiting.items() if who < self._rank]
        return named, not any(whom.issuperset(named) for whom in lower)

    def all(self) -> Iterator[tuple[int, int, str]]:
        """Every report as (reporting rank, rank concerned, reason); the reason of a wait is empty."""
        yield from ((self._rank, whom, why) for whom, why in self.lost_ranks.items())
        yield from ((who, whom, "") for who, whoms in self.waits.items() for whom in whoms)

    def culprits(self) -> list[int]:
        """The awaited ranks that have not reported any wait themselves (``mesh.culprits``), in ascending order."""
        return culprits(self.waits, self._rank)

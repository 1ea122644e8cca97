# SPDX-License-Identifier: Apache-2.0
"""The change of ranks that `Communicator.shrink` and `Communicator.grow` return."""

from __future__ import annotations

from dataclasses import dataclass

from netfold.wire.plan import Change, Plan


@dataclass(frozen=True)
class RankChange:
    """A change of the ranks of a communicator; the same on all ranks.

    former    by new rank: its old number; None for a rank that has just joined
    lost      old numbers of the ranks that are gone
    finished  by new rank: number of the last operation of the communicator that it had finished; for a rank that has
              just joined, the least of the others' numbers
    """

    former: tuple[int | None, ...]
    lost: tuple[int, ...]
    finished: tuple[int, ...]

    @classmethod
    def of_plan(cls, plan: Plan) -> RankChange:
        """The change that a plan describes."""
        assert plan.change is not None
        former = tuple(None if rank < 0 else rank for rank in plan.change.former)
        return cls(former, tuple(plan.change.lost), tuple(plan.change.finished))

    @classmethod
    def none(cls, world: int, finished: int) -> RankChange:
        """No change: all ranks keep their numbers."""
        return cls(tuple(range(world)), (), (finished,) * world)

    @property
    def ranks(self) -> dict[int, int]:
        """Old rank -> new rank, for the ranks that remain."""
        return {before: now for now, before in enumerate(self.former) if before is not None}

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that have just joined."""
        return tuple(rank for rank, before in enumerate(self.former) if before is None)

    @property
    def last(self) -> int:
        """Number of the last operation that all ranks had finished; all of them repeat the later ones."""
        return min(self.finished)

    @property
    def ahead(self) -> tuple[int, ...]:
        """Ranks that had finished further operations, whose results the others lack; empty if all stopped at the same
        one."""
        return tuple(rank for rank, number in enumerate(self.finished) if number > self.last)

    def __bool__(self) -> bool:
        """True if anything has changed."""
        return bool(self.lost or self.joined)


def following(first: Change, second: Change) -> Change:
    """The change of two that follow each other, from the ranks before the first to those after the second."""
    before = first.former
    former = [before[rank] if rank >= 0 else -1 for rank in second.former]
    lost = [before[rank] for rank in second.lost if before[rank] >= 0]
    return Change(former, sorted([*first.lost, *lost]), second.finished)

# SPDX-License-Identifier: Apache-2.0
"""The change of ranks that `Communicator.shrink` and `Communicator.grow` return."""

from __future__ import annotations

from dataclasses import dataclass

from netfold.wire.jobs import Plan


@dataclass(frozen=True)
class RankChange:
    """How the ranks of a communicator have changed.  The same on all ranks.

    former    by rank of now: its number before; None for one that has joined now
    lost      numbers before of ranks that are gone
    finished  by rank of now: number of the last operation of the communicator that it had finished; of one that has
              joined now, the least of the others'
    """

    former: tuple[int | None, ...]
    lost: tuple[int, ...]
    finished: tuple[int, ...]

    @classmethod
    def of_plan(cls, plan: Plan) -> RankChange:
        """The change that a plan tells of."""
        assert plan.change is not None
        former = tuple(None if rank < 0 else rank for rank in plan.change.former)
        return cls(former, tuple(plan.change.lost), tuple(plan.change.finished))

    @classmethod
    def none(cls, world: int, finished: int) -> RankChange:
        """No change: all ranks are what they were."""
        return cls(tuple(range(world)), (), (finished,) * world)

    @property
    def ranks(self) -> dict[int, int]:
        """Ranks before -> ranks now, of those that are there still."""
        return {before: now for now, before in enumerate(self.former) if before is not None}

    @property
    def joined(self) -> tuple[int, ...]:
        """Ranks that have joined now."""
        return tuple(rank for rank, before in enumerate(self.former) if before is None)

    @property
    def last(self) -> int:
        """Number of the last operation that all had finished; those after it are to be repeated, by all."""
        return min(self.finished)

    @property
    def ahead(self) -> tuple[int, ...]:
        """Ranks that had finished further operations, whose results the others lack; none where all stopped at the same
        one."""
        return tuple(rank for rank, number in enumerate(self.finished) if number > self.last)

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return bool(self.lost or self.joined)

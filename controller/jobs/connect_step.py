# SPDX-License-Identifier: Apache-2.0
"""The queue pairs that the RC ranks of one plan have told, and the answer for which they wait (connecting.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from netfold.fabric.folding.slots import RcEnd, Stream
from netfold.rpc.rpc import Refusal
from netfold.wire.jobs import Connected, NeighbourPairs, OwnPairs
from netfold.wire.plan import Secret


class ConnectStep:
    """The second step of a job's RC ranks after one plan.

    number   of the recovery round whose plan it is; 0: the first plan
    streams  those of the plan, which have all RC ranks in each
    changed  called when a rank has connected, and when the step was aborted
    """

    def __init__(self, number: int, streams: Sequence[Stream], changed: Callable[[], None]) -> None:
        self.number = number
        self.pairs: dict[int, list[OwnPairs]] = {}
        """The queue pairs of each RC rank that has connected so far, by rank."""
        self.planned = list(streams)
        """The streams as ranks have them by their plans."""
        self._changed = changed
        first = streams[0]
        self.ranks = [first.ranks[place] for place in first.rc_ranks]
        """The RC ranks, in the order of their ring."""
        self._answers: asyncio.Future[dict[int, Connected]] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """True while ranks may connect: the step has neither succeeded nor failed."""
        return not self._answers.done()

    @property
    def missing(self) -> list[int]:
        """RC ranks that have not connected."""
        return [rank for rank in self.ranks if rank not in self.pairs]

    @property
    def pairs_per_rank(self) -> int:
        """How many pairs of queue pairs each rank must have: one for each stream."""
        return len(self.planned)

    def tell(self, rank: int, pairs: list[OwnPairs] | None) -> None:
        """Record the queue pairs of a rank, or that it no longer waits."""
        if pairs is None:
            self.pairs.pop(rank, None)
        else:
            self.pairs[rank] = pairs
        self._changed()

    def streams(self) -> list[Stream]:
        """The streams with what all RC ranks have told."""
        return [
            replace(stream, rc={
                place: RcEnd(pair.out_qp, pair.in_qp, pair.address, pair.rkey)
                for place in stream.rc_ranks for pair in [self.pairs[stream.ranks[place]][number]]
            })
            for number, stream in enumerate(self.planned)
        ]

    async def answer(self, rank: int) -> Connected:
        """The answer to a rank, once the step has ended.  Raises Refusal where it was aborted."""
        return (await asyncio.shield(self._answers))[rank]

    def finish(self, streams: Sequence[Stream], ticket: Secret, reason: str) -> None:
        """End it well: the switches fold these streams, or fold nothing, for a reason, where there are none."""
        if self.is_open:
            self._answers.set_result({
                rank: Connected([_neighbours(stream, rank) for stream in streams], ticket, "" if streams else reason)
                for rank in self.ranks
            })

    def abort(self, refusal: Refusal) -> None:
        """End it without the ranks being connected."""
        if self.is_open:
            self._answers.set_exception(refusal)
            self._answers.exception()  # asyncio would complain about an exception that nobody retrieved
            self._changed()


def reused(old: Sequence[Stream], new: Sequence[Stream]) -> bool:
    """True if a new queue pair has the number of one for which the switches still hold entries of the old streams."""

    def held(streams: Sequence[Stream]) -> set[tuple[int, int]]:
        return {(stream.ranks[place], number) for stream in streams for place, end in stream.rc.items()
                for number in (end.out_qp, end.in_qp)}

    return bool(held(old) & held(new))


def _neighbours(stream: Stream, rank: int) -> NeighbourPairs:
    place = stream.ranks.index(rank)
    after, before = stream.rc[stream.successor(place)], stream.rc[stream.predecessor(place)]
    return NeighbourPairs(after.in_qp, before.out_qp, after.address, after.rkey)

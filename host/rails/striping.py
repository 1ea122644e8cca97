# SPDX-License-Identifier: Apache-2.0
"""A long call: each rail carries a stripe of the operation, in chunks of 30 to 120 ms, on a thread of its own.

A chunk is what has to be done again after a failure, so chunks are short.  But all ranks end one before any begins the
next, and the link is idle meanwhile, for about the rail's latency; so where that is long, chunks are longer too.

What a chunk overwrites and needs then, its source where it is reduced in place and the residual of narrow lanes, is
kept of the last two chunks, since no rank is further ahead of another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise

from netfold.host.errors import NetFoldError, RankMismatch
from netfold.host.rails.cut import CutOperation, Kept, call_number
from netfold.host.rails.rail_set import RailSet
from netfold.host.rails.rank_state import RankState
from netfold.host.rails.shares import BLOCK, Figure, Split
from netfold.host.tracing.timeline import Timeline

CHUNK_SECONDS, MAX_CHUNK_SECONDS = 0.03, 0.12
"""Bounds of the time that a chunk takes."""
CHUNK_LATENCIES = 100
"""Duration of a chunk in multiples of the rail's latency, between these bounds.  On a busy machine that is
milliseconds, and one late rank in each gap of 30 ms cost two equal rails of 200 Mb/s 5 % of the time of 16 MB."""
LEAST_CHUNK = 128 << 10
GRAIN = BLOCK // 4
"""Elements of a block, the granularity of chunks."""


@dataclass
class Stripe:
    """One rail's part of a long call on this rank."""

    chunks: list[slice]
    done: int = 0
    seconds: float = 0.0
    processor: float = 0.0
    """Processor seconds of the thread that carried it."""
    error: NetFoldError | None = None
    saved: dict[int, Kept] = field(default_factory=dict)
    """Chunk -> the former contents of the memory that it overwrites."""
    saturated: list[int] = field(default_factory=list)
    """By finished chunk: elements of a saturating sum that ended at a limit of the range."""

    @property
    def elements(self) -> int:
        """Number of units in all chunks."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


def cut_stripes(
    left: Sequence[slice], split: Split, figures: Sequence[Figure], unit: int = 4
) -> dict[int, Stripe]:
    """Splits what is left to do of an operation into chunks for every rail, in order.

    figures  of the rails, from which the length of a chunk follows
    unit     bytes of what slices count, an element of the tensor
    """
    stripes = {}
    queue = list(left)
    for rail in split.used:
        wanted = split.nbytes[rail] // unit if rail != split.used[-1] else 1 << 62
        most = max(LEAST_CHUNK, int((figures[rail].bandwidth or 0.0) * chunk_seconds(figures[rail]))) // unit
        chunks: list[slice] = []
        while queue and wanted > 0:
            piece = queue.pop(0)
            size = min(piece.stop - piece.start, wanted)
            if size < piece.stop - piece.start:
                queue.insert(0, slice(piece.start + size, piece.stop))
            wanted -= size
            chunks += _chunks(piece.start, size, most)
        if chunks:
            stripes[rail] = Stripe(chunks)
    return stripes


def chunk_seconds(figure: Figure) -> float:
    """How long a chunk takes on a rail with this figure."""
    return min(max(CHUNK_SECONDS, CHUNK_LATENCIES * figure.latency), MAX_CHUNK_SECONDS)


def missing_chunks(stripes: Mapping[int, Stripe], done: Sequence[int]) -> list[slice]:
    """Chunks that some rank lacks, given how many chunks of each rail all ranks have; restores what they have
    overwritten."""
    left = []
    for rail, part in stripes.items():
        for index, chunk in enumerate(part.chunks[done[rail] :], done[rail]):
            left.append(chunk)
            for memory, before in part.saved.get(index, ()):
                memory[...] = before
    return left


class StripeThreads:
    """The threads that carry stripes, one for each rail.  Parameters as of ``MultiRail`` and ``policy``."""

    def __init__(
        self, rails: RailSet, state: RankState, *, timeline: Timeline | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rails, self.state, self._timeline, self._clock = rails, state, timeline, clock
        self._threads = ThreadPoolExecutor(len(rails), thread_name_prefix="netfold-rail")

    def run(self, stripes: Mapping[int, Stripe], cut: CutOperation) -> None:
        """Carries all stripes at once.  Returns when each has ended, well or not; raises what ends the whole call."""
        self.state.enter_stripes(self.rails.advance(), list(stripes), call_number(cut.what))
        jobs: list[Future[None]] = [
            self._threads.submit(self._carry, rail, part, cut) for rail, part in stripes.items()
        ]
        try:
            wait(jobs)
        except BaseException as error:  # Ctrl-C: the arrays belong to the caller again once this returns
            self.rails.stop(error)
            wait(jobs)
            raise
        for job in jobs:
            job.result()
        if self.rails.stopped is not None:
            raise self.rails.stopped
        for rail, part in stripes.items():
            if part.error is not None:
                self.rails.broken.setdefault(rail, part.error)

    def _carry(self, rail: int, part: Stripe, cut: CutOperation) -> None:
        begin, used = self._clock(), time.thread_time()
        try:
            if rail in self.rails.broken:
                raise self.rails.broken[rail]
            for index, chunk in enumerate(part.chunks):
                part.saved[index] = cut.keep(chunk)
                part.saved.pop(index - 2, None)
                part.saturated.append(self._chunk(rail, f"{index + 1} of {len(part.chunks)}", cut, chunk))
                part.done = index + 1
        except NetFoldError as error:
            part.error = error
            if isinstance(error, RankMismatch):
                self.rails.stop_mismatched(error)
        finally:
            part.seconds, part.processor = self._clock() - begin, time.thread_time() - used
            self.state.leave_rail(rail, failure=part.error)

    def _chunk(self, rail: int, name: str, cut: CutOperation, chunk: slice) -> int:
        begin = time.monotonic_ns()
        try:
            return cut.carry(self.rails[rail], chunk, self.rails.position)
        finally:
            if self._timeline is not None:
                about = {"nbytes": (chunk.stop - chunk.start) * cut.unit}
                self._timeline.add(self.rails.names[rail], f"chunk {name}", begin, time.monotonic_ns(), about)

    def close(self) -> None:
        """Ends the threads; to be called between calls."""
        self._threads.shutdown()


def _chunks(start: int, size: int, most: int) -> list[slice]:
    """A range of elements in chunks of similar length, whole blocks except the last."""
    count = max(1, -(-size // most))
    cuts = [start + round(size * i / count / GRAIN) * GRAIN for i in range(count)] + [start + size]
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]

# SPDX-License-Identifier: Apache-2.0
"""One allreduce over several rails at once (Nezha): cut so that all finish together, whole when one of them dies.

    short   a *settlement*: one rail carries it all, whichever is predicted to be the soonest
    long    each rail carries a range, in chunks of some 30 ms, on a thread of its own; then a short settlement in which
            every rank tells how many chunks each rail got done, and what the rails cost.  Chunks that some rank lacks
            are cut over the rails that are left, in the same call

A rail that fails on any rank is dead on all (``ledger``).  It is opened again behind the scenes (``revive``); once it
is open on all ranks, which a settlement tells too, it carries its share again (``rail_set``).

Nothing is sent from memory that a failure could not restore: a settlement's result goes to memory of our own first;
of a range that is reduced in place, the last two chunks are kept, since no rank is further ahead of another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from netfold.host.errors import Closed, NetFoldError, PeerLost, RankMismatch
from netfold.host.rails.ledger import Ask, Ledger, Outcome, Question, Sideline
from netfold.host.rails.rail import Flat, Op, RailStats
from netfold.host.rails.rail_set import GONE, HEARING, STALL, Fenced, RailSet, Revive, Track
from netfold.host.rails.shares import BLOCK, LONG, Estimate, Figure, Shares, Split

CHUNK_SECONDS = 0.03
"""Of a chunk: what a failure makes us send again."""
LEAST_CHUNK = 128 << 10
SHORT = 2 << 20
"""Bytes of a settlement at most: its result is kept for ranks that may lack it."""
LINGER = 0.3
"""Seconds after its last settlement for which a closing rank still answers."""
EVERY = 100
"""Figures are exchanged at the latest when calls have taken as long as so many settlements."""
GRAIN = BLOCK // 4
"""Elements of a block."""
COLUMNS = 5
"""Of a rank's row in a settlement, for each rail: chunks done, broken, revived as, latency, picoseconds a byte."""
CALIBRATION = (1024,) * 5 + (LONG, 4 * LONG)
"""Bytes of the calls at the start that tell what each rail costs."""

log = logging.getLogger("netfold")


State = Literal["up", "down"]


@dataclass(frozen=True)
class RailUse:
    """What one rail did for this rank, and what is known of it."""

    name: str
    state: State
    nbytes: int
    """Of tensors that it carried, what failed left out."""
    deaths: int
    latency: float
    """Seconds, as agreed."""
    bandwidth: float | None
    """Bytes per second, as agreed; None while nobody knows."""
    why: str
    """Of its last death."""


@dataclass
class _Range:
    """One rail's part of a long call on this rank."""

    chunks: list[slice]
    done: int = 0
    seconds: float = 0.0
    error: NetFoldError | None = None
    kept: dict[int, Flat] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return sum(chunk.stop - chunk.start for chunk in self.chunks)


class MultiRail:
    """Several rails as one.  All ranks make it from like rails in the same order, and call it alike.

    rails     one each, up; taken over
    names     of the rails, for people
    rank, world
    ledger    answers for this rank; ``sideline`` asks the others
    revive    opens a dead rail again; None: it stays dead
    start     "hot": measures all rails at once, and cuts from the first call; "cold": measures latencies alone, and
              begins on the quickest rail, with a trial for the others
    stall     seconds (STALL)
    timeout   seconds without an answer or any progress after which a call gives up
    clock     monotonic seconds, those of the rails' progress
    """

    def __init__(
        self,
        rails: Sequence[Track],
        names: Sequence[str],
        rank: int,
        world: int,
        *,
        ledger: Ledger,
        sideline: Sideline,
        revive: Revive | None = None,
        start: Literal["hot", "cold"] = "hot",
        stall: float = STALL,
        timeout: float = 10.0,
        news: Callable[[], NetFoldError | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        join: float = 0.0003,
    ) -> None:
        if len(rails) < 2 or len(rails) != len(names):
            raise ValueError(f"{len(rails)} rails named {list(names)}: expected two or more, and a name for each")
        self.name = "+".join(names)
        self._rails = RailSet(
            rails, names, [other for other in range(world) if other != rank], ledger, sideline, revive,
            stall=stall, timeout=timeout, clock=clock,
        )  # fmt: skip
        self.rank, self.world = rank, world
        self._ledger, self._sideline = ledger, sideline
        self._others = [other for other in range(world) if other != rank]
        self._timeout, self._news, self._clock = timeout, news, clock
        self.shares = Shares(len(rails), join=join)
        self._estimates = [Estimate() for _ in rails]
        self._kept: list[Flat] = [np.empty(0, np.uint8), np.empty(0, np.uint8)]
        self._settled = 0
        self._nbytes = [0] * len(rails)
        self._operations = self._bytes = 0
        self._seconds = 0.0
        self._owed = self._due = 0.0
        self._closed = False
        self._threads = ThreadPoolExecutor(len(rails), thread_name_prefix="netfold-rail")
        try:
            self._calibrate([n for n in CALIBRATION if start == "hot" or n < LONG])
        except BaseException:
            self.close()
            raise

    # ---- the rail that it is ---------------------------------------------------------------------------------------
    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        """See ``Rail``.  Raises what the rails raise where all of them are down, RankMismatch, PeerLost."""
        if self._closed:
            raise Closed("the rails were closed")
        begin = self._clock()
        live = self._rails.live
        split = self.shares.split(source.nbytes, live)
        used = split.used
        if len(used) <= 1 and source.nbytes <= SHORT:
            np.copyto(out, self._settle(source, op, used[0] if used else self.shares.quickest(live)))
            # nothing that only one rank knows: every rank must exchange figures after the same calls
            self._owed += 1.0 if split.seconds is None else split.seconds
            if self._owed > self._due:
                self._exchange({})
        else:
            self._carry(source, out, op, split)
        self._operations += 1
        self._bytes += source.nbytes
        self._seconds += self._clock() - begin

    @property
    def live(self) -> list[int]:
        """Rails that are up, as all ranks agree."""
        return self._rails.live

    def track(self, index: int) -> Track:
        """A rail that is up."""
        return self._rails[index]

    def use(self) -> list[RailUse]:
        """Each rail's part so far."""
        uses = []
        for index, figure in enumerate(self.shares.figures):
            state: State = "up" if index in self.live else "down"
            why, _, _ = str(self._rails.causes[index] or "").partition("\n")
            uses.append(
                RailUse(
                    self._rails.names[index], state, self._nbytes[index], self._rails.deaths[index],
                    figure.latency, figure.bandwidth, why,
                )
            )  # fmt: skip
        return uses

    @property
    def retransmissions(self) -> int:
        return self._rails.retransmissions

    def stats(self) -> RailStats:
        rails = self._rails.stats()
        by_tree = {f"{i}/{name}": tree for i, stats in enumerate(rails) for name, tree in stats.by_tree.items()}
        return RailStats(
            operations=self._operations,
            bytes_reduced=self._bytes,
            packets_sent=sum(stats.packets_sent for stats in rails),
            retransmissions=sum(stats.retransmissions for stats in rails),
            seconds=self._seconds,
            by_tree=by_tree,
        )

    def describe(self, nbytes: int) -> str:
        split = self.shares.preview(nbytes, self.live)
        down = [f"; {use.name} is down: {use.why}" for use in self.use() if use.state == "down"]
        alone, seconds = split.single
        known = ", ".join(
            f"{self._rails.names[rail]} {_time(figure.latency)} + {_rate(figure.bandwidth)}"
            for rail in self.live
            for figure in [self.shares.figures[rail]]
        )
        if len(split.used) > 1:
            parts = " + ".join(f"{split.nbytes[r] / nbytes:.0%} {self._rails.names[r]}" for r in split.used)
            text = f"{nbytes} bytes over {len(split.used)} rails: {parts}, {_time(split.seconds)} predicted, "
            text += f"{_time(seconds)} on {self._rails.names[alone]} alone"
        else:
            text = f"{nbytes} bytes over one rail, {self._rails.names[alone]}: {_time(seconds)} predicted, soonest"
        return f"{text} ({known}){''.join(down)}"

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._threads.shutdown()
        left = self._ledger.concluded + LINGER - self._clock()
        if left > 0 and self._others:
            time.sleep(min(left, LINGER))
        self._sideline.close()
        self._rails.close()

    # ---- short -----------------------------------------------------------------------------------------------------
    def _settle(self, source: Flat, op: Op, rail: int, *, learn: bool = True) -> Flat:
        """The reduction of every rank's ``source``, in memory that stays until the next settlement but one.

        learn  whether it says anything of the rail: not where the ranks do not come to it together
        Over ``rail``, and over the quickest one left where that dies.  All ranks get it, or all raise.
        """
        while True:
            self._rails.position += 1
            position = self._rails.position
            self._ledger.enter(position, [rail], settles=True)
            result = self._memory(source)
            begin = self._clock()
            try:
                if rail in self._rails.broken:
                    raise self._rails.broken[rail]
                self._rails[rail].allreduce(source, result, op, position)
            except RankMismatch:
                raise
            except NetFoldError as error:
                failure = error
                if not isinstance(error, Fenced):
                    self._rails.broken.setdefault(rail, error)
            else:
                if self._ledger.conclude(position, result):
                    if learn:
                        self._estimates[rail].add(source.nbytes, self._clock() - begin)
                        self._nbytes[rail] += source.nbytes
                    return result
                failure = Fenced("another rank stopped it")
            self._ledger.left(rail)
            told = self._inquire(position, rail, failure)
            if told is not None:
                # somebody had it before the rail died: the rail is dead at the next use, by our not taking part
                result.view(np.uint8)[:] = np.frombuffer(told, np.uint8)
                self._ledger.adopt(position, result)
                self._rails.broken.setdefault(rail, failure)
                return result
            self._ledger.adopt(position, None)
            self._rails.bury([rail], failure)
            rail = self.shares.quickest(self.live)

    def _inquire(self, position: int, rail: int, failure: NetFoldError) -> bytes | None:
        """Fences a settlement on every rank.  Its result where any had it, None where none has it and none will."""
        question = Question(Ask.FENCE, position, rail)
        own = self._ledger.answer(question)
        if own.outcome is Outcome.DONE:
            return own.result
        left = set(self._others)
        begin = heard = self._clock()
        result: bytes | None = None
        while left:
            before = len(left)
            answers = self._sideline.ask(question, left, HEARING)
            for rank, answer in answers.items():
                if answer.outcome is Outcome.FORGOTTEN:
                    raise NetFoldError(f"rank {rank} knows nothing of step {position} any more; join anew")
                if answer.outcome is Outcome.DONE:
                    result = answer.result
                if answer.outcome is not Outcome.NOT_YET:
                    left.discard(rank)
            now = self._clock()
            if len(left) < before:
                heard = now
            self._check(left, left - set(answers), now - heard, now - begin, failure)
            if left and answers:
                time.sleep(0.002)  # they answer, but have not come yet
        return result

    def _check(self, left: set[int], silent: set[int], quiet: float, since: float, failure: NetFoldError) -> None:
        """Raises where waiting for the ranks in ``left`` has no end."""
        if (news := self._news()) is not None and since > GONE:
            raise type(news)(f"{news}; on the rails: {failure}")
        gone = sorted(silent & set(self._sideline.refused()))
        if gone and since > GONE:
            raise PeerLost(f"rank(s) {gone} are gone: nobody listens there any more; on the rails: {failure}")
        if quiet > self._timeout:
            what = "do not answer" if silent else "have not come to this operation"
            raise PeerLost(f"rank(s) {sorted(left)} {what} for {self._timeout:g} s; on the rails: {failure}")

    def _memory(self, like: Flat) -> Flat:
        self._settled ^= 1
        if self._kept[self._settled].nbytes < like.nbytes:
            self._kept[self._settled] = np.empty(like.nbytes, np.uint8)
        return self._kept[self._settled][: like.nbytes].view(like.dtype)

    # ---- long ------------------------------------------------------------------------------------------------------
    def _carry(self, source: Flat, out: Flat, op: Op, split: Split) -> None:
        """A tensor in ranges.  Repeats what some rank lacks until nobody lacks anything."""
        left = [slice(0, source.size)]
        while True:
            ranges = self._cut(left, split)
            self._rails.position += 1
            self._ledger.enter(self._rails.position, list(ranges), settles=False)
            self._run(ranges, source, out, op)
            done = self._exchange(ranges)
            left = []
            for rail, part in ranges.items():
                for index, chunk in enumerate(part.chunks):
                    if index < done[rail]:
                        self._nbytes[rail] += source[chunk].nbytes
                        continue
                    left.append(chunk)
                    if index in part.kept:
                        source[chunk] = part.kept[index]
            if not left:
                return
            again = sum(chunk.stop - chunk.start for chunk in left) * source.itemsize
            split = self.shares.split(again, self.live)

    def _cut(self, left: Sequence[slice], split: Split) -> dict[int, _Range]:
        """Chunks for every rail, in order, from what is left to do."""
        ranges = {}
        queue = list(left)
        for rail in split.used:
            wanted = split.nbytes[rail] // 4 if rail != split.used[-1] else 1 << 62
            bandwidth = self.shares.figures[rail].bandwidth
            most = max(LEAST_CHUNK, int((bandwidth or 0.0) * CHUNK_SECONDS)) // 4
            chunks: list[slice] = []
            while queue and wanted > 0:
                piece = queue.pop(0)
                size = min(piece.stop - piece.start, wanted)
                if size < piece.stop - piece.start:
                    queue.insert(0, slice(piece.start + size, piece.stop))
                wanted -= size
                chunks += _chunks(piece.start, size, most)
            if chunks:
                ranges[rail] = _Range(chunks)
        return ranges

    def _run(self, ranges: dict[int, _Range], source: Flat, out: Flat, op: Op) -> None:
        """All ranges at once.  Returns when each has ended, well or not."""
        self._rails.stop = None
        jobs: list[Future[None]] = [
            self._threads.submit(self._run_range, rail, part, source, out, op) for rail, part in ranges.items()
        ]
        try:
            wait(jobs)
        except BaseException as error:  # Ctrl-C: the arrays are the caller's again when we are gone
            self._rails.stop = error
            wait(jobs)
            raise
        for job in jobs:
            job.result()
        for rail, part in ranges.items():
            if isinstance(part.error, RankMismatch):
                raise part.error
            if part.error is not None:
                self._rails.broken.setdefault(rail, part.error)
            else:
                self._estimates[rail].add(part.elements * source.itemsize, part.seconds)

    def _run_range(self, rail: int, part: _Range, source: Flat, out: Flat, op: Op) -> None:
        in_place = source.ctypes.data == out.ctypes.data
        begin = self._clock()
        try:
            if rail in self._rails.broken:
                raise self._rails.broken[rail]
            for index, chunk in enumerate(part.chunks):
                if in_place:
                    part.kept[index] = source[chunk].copy()
                    part.kept.pop(index - 2, None)
                self._rails[rail].allreduce(source[chunk], out[chunk], op, self._rails.position)
                part.done = index + 1
        except NetFoldError as error:
            part.error = error
            if isinstance(error, RankMismatch):
                self._rails.stop = error
        finally:
            part.seconds = self._clock() - begin
            self._ledger.left(rail, failed=part.error is not None)

    # ---- what the ranks tell each other ------------------------------------------------------------------------------
    def _exchange(self, ranges: dict[int, _Range]) -> list[int]:
        """Tells all ranks what each has to tell: chunks done by rail, which are agreed on, returned; failures; costs.

        Dead rails are buried, revived ones taken, shares learn.
        """
        rails = len(self._rails)
        table = np.zeros((self.world, rails, COLUMNS), np.int32)
        for rail in range(rails):
            latency, bandwidth = self._estimates[rail].latency(), self._estimates[rail].bandwidth()
            table[self.rank, rail] = (
                ranges[rail].done if rail in ranges else 0,
                rail in self._rails.broken,
                self._rails.mark(rail),
                0 if latency is None else _whole(latency * 1e6),
                0 if bandwidth is None else _whole(1e12 / bandwidth),
            )
        table = self._settle(table.reshape(-1), "sum", self.shares.quickest(self.live), learn=False)
        table = table.reshape(self.world, rails, COLUMNS)
        self._owed = 0.0
        agreed = table[:, :, 0].min(axis=0).tolist()
        dead = [
            rail
            for rail in self.live
            if table[:, rail, 1].any() or (rail in ranges and agreed[rail] < len(ranges[rail].chunks))
        ]
        figures = [_figure(table[:, rail, 3], table[:, rail, 4]) for rail in range(rails)]
        self._rails.bury(dead, None)
        for rail, marks in enumerate(table[:, :, 2].T):
            if marks[0] and (marks == marks[0]).all():
                self._rails.take_back(rail)
        if self.shares.learn(figures, self.live):
            log.info("rails: %s", self.describe(64 << 20))
        self._due = EVERY * max(self.shares.figures[self.shares.quickest(self.live)].latency, 1e-5)
        return agreed  # type: ignore[no-any-return]

    # ---- the beginning -----------------------------------------------------------------------------------------------
    def _calibrate(self, sizes: Sequence[int]) -> None:
        """Measures every rail by itself and agrees on what came out."""
        for rail in self.live:
            for nbytes in sizes:
                self._settle(np.zeros(nbytes // 4, np.int32), "sum", rail)
        self._exchange({})


def _chunks(start: int, size: int, most: int) -> list[slice]:
    """A range in chunks of like length, whole blocks but for the last."""
    count = max(1, -(-size // most))
    cuts = [start + round(size * i / count / GRAIN) * GRAIN for i in range(count)] + [start + size]
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]


def _figure(latencies: np.ndarray, picoseconds: np.ndarray) -> Figure:
    """All ranks' figures of a rail in one, by whole numbers: the median rate of those who know, and the lowest latency,
    that of the rank for which nobody is late."""
    known = np.sort(picoseconds[picoseconds > 0])
    some = latencies[latencies > 0]
    latency = int(some.min()) / 1e6 if some.size else 0.0
    return Figure(latency, 1e12 / int(known[known.size // 2]) if known.size else None)


def _whole(value: float) -> int:
    return max(1, min(round(value), (1 << 31) - 1))


def _time(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _rate(bandwidth: float | None) -> str:
    return "an unknown rate" if bandwidth is None else f"{bandwidth * 8 / 1e6:.4g} Mb/s"

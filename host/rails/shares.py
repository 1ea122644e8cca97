# SPDX-License-Identifier: Apache-2.0
"""How much of a tensor each rail carries (Nezha): costs from what calls took, shares from costs, and no flapping.

A rail takes a + n/b seconds for n bytes.  All rails used finish together at T = (S + sum a_i b_i) / sum b_i, with
share_i = b_i (T - a_i) (``cost.equal_finish``); what that gains over the best single rail must be worth the join.

Every rank measures (``Estimate``); the ranks exchange their figures, and each computes the same shares from the same
figures (``RailShares``): nothing here may depend on what only one rank knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from netfold.host.rails.split_overhead import SplitOverhead
from netfold.host.selection.cost import RailCost, equal_finish

BLOCK = 1024
"""Bytes of 256 elements: what shares a block's exponent stays on one rail, so that no cut changes a sum's bits."""
LONG = 256 << 10
"""Bytes from which a call tells the rate."""
BRIEF = 8 << 10
"""Bytes up to which it tells the latency."""
WINDOW = 5
"""Calls of each kind that count."""
PRIOR = 3
GAIN = 0.92
"""Several rails must be predicted to take less than this part of the best single one's time."""
REGRET = 0.02
"""RailShares stay while new figures predict them to be no more than this part slower than the best ones."""
SIZES = (64 << 10, 256 << 10, 4 << 20, 64 << 20)
"""Bytes at which that is looked at."""
TRIAL = 256 << 10
"""Bytes that a rail of unknown rate is given, of a tensor at least 8 times as long."""
REMEMBERED = 1024
"""Splits of short tensors."""
EXPLORE = 32
"""Every so many cut calls, a rail that is too slow to be used gets a trial all the same: it may have become better."""


@dataclass(frozen=True)
class Figure:
    """What the ranks have agreed on about a rail.  ``bandwidth`` is None where nobody knows."""

    latency: float
    bandwidth: float | None

    @property
    def cost(self) -> RailCost | None:
        """For ``equal_finish``."""
        return None if self.bandwidth is None else RailCost(self.latency, self.bandwidth)


class Estimate:
    """One rail's cost on one rank.  Medians: a call that waited for a late rank, or for the CPU, does not count.

    known  what an earlier run found: counts as much as ``PRIOR`` calls of each kind, until later ones have replaced it
    """

    def __init__(self, known: Figure | None = None) -> None:
        self._short: deque[float] = deque(maxlen=WINDOW)
        self._long: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        if known is not None and known.cost is not None:
            self._short.extend([known.latency] * PRIOR)
            self._long.extend([(LONG, known.cost.seconds(LONG))] * PRIOR)

    def add(self, nbytes: int, seconds: float) -> None:
        """One call."""
        if nbytes >= LONG:
            self._long.append((nbytes, seconds))
        elif nbytes <= BRIEF:
            self._short.append(seconds)

    def latency(self) -> float | None:
        """Seconds, or None before the first short call."""
        return median(self._short) if self._short else None

    def bandwidth(self) -> float | None:
        """Bytes per second, or None before the first long call.  Long calls count by their bytes."""
        if not self._long:
            return None
        # a latency beyond the whole call is noise of the short ones: a tenth of the call is always the bytes'
        wait = self.latency() or 0.0
        rates = sorted((n / max(t - wait, t / 10, 1e-9), n) for n, t in self._long)
        half = sum(n for _, n in rates) / 2
        for rate, n in rates:
            half -= n
            if half <= 0:
                return rate
        return rates[-1][0]


@dataclass(frozen=True)
class Split:
    """Bytes for each rail, multiples of ``BLOCK`` but for the end of the tensor; ``seconds`` predicted, None unknown.

    ``single``: the best rail alone, and its seconds.  ``names``: of the rails.  ``longest``: predicted seconds of the
    longest range, None where unknown or none is cut
    """

    nbytes: tuple[int, ...]
    seconds: float | None
    single: tuple[int, float | None]
    names: tuple[str, ...]
    longest: float | None = None

    @cached_property
    def used(self) -> list[int]:
        """Rails that carry anything."""
        return [rail for rail, nbytes in enumerate(self.nbytes) if nbytes]

    @cached_property
    def whole(self) -> bool:
        """Whether one rail carries all of it."""
        return len(self.used) <= 1

    @cached_property
    def text(self) -> str:
        """Which rail carries what share, and why, for people and for the flight recorder."""
        alone, seconds = self.single
        if len(self.used) < 2:
            why = "the quickest, rates unknown" if seconds is None else f"soonest, {show_seconds(seconds)} predicted"
            return f"{self.names[alone]} ({why})"
        total = sum(self.nbytes)
        parts = " + ".join(f"{self.nbytes[rail] / total:.0%} {self.names[rail]}" for rail in self.used)
        if self.seconds == seconds:
            return f"{parts} (a trial beside {self.names[alone]})"
        return f"{parts} ({show_seconds(self.seconds)} predicted, {show_seconds(seconds)} on {self.names[alone]} alone)"


def show_seconds(seconds: float | None) -> str:
    """Seconds for people."""
    return "unknown" if seconds is None else f"{seconds * 1e3:.3g} ms"


class RailShares:
    """The present shares, the same on every rank.

    names  of the rails
    join   seconds that using several costs in itself in the beginning, besides the exchange on the quickest rail; what
           it costs then is learned (``join_costs``)
    """

    def __init__(self, names: Sequence[str], *, join: float = 0.0003) -> None:
        self._names = tuple(names)
        self._join = join
        self._overhead = SplitOverhead(8 * TRIAL)
        self.figures = [Figure(0.0, None)] * len(names)
        self._cuts = 0
        self._short: dict[int, Split] = {}
        self._live: Sequence[int] = ()
        """Rails for which those splits hold: the list itself, which is another one where rails change."""

    def learn(self, fresh: Sequence[Figure], live: Sequence[int]) -> bool:
        """New figures that all ranks share; adopts them where the present ones have become too wrong.  Says whether."""
        present = [self.figures[rail] for rail in live]
        wanted = [fresh[rail] for rail in live]
        if any(figure.bandwidth is None for figure in present) or any(
            _regret(size, present, wanted) > REGRET for size in SIZES
        ):
            for rail in live:
                self.figures[rail] = fresh[rail]
            self._short.clear()
            return True
        return False

    def record_cut_call(self, split: Split, live: Sequence[int]) -> None:
        """A call was cut so and ended well, on all ranks: what it took is told with the next exchange."""
        if split.longest is not None and split.single[1] is not None:
            self._overhead.record_call(sum(split.nbytes), split.longest, self._start(live), split.single[1])

    def adopt_cut_seconds(self, seconds: float | None) -> None:
        """What all ranks say that the last cut call took, None where there was none: at each exchange."""
        if self._overhead.update(seconds):
            self._short.clear()

    def _start(self, live: Sequence[int]) -> float:
        """Seconds that joining takes in the beginning."""
        return self._join + min(self.figures[rail].latency for rail in live)

    def quickest(self, live: Sequence[int]) -> int:
        """The rail with the lowest latency."""
        return min(live, key=lambda rail: (self.figures[rail].latency, rail))

    def best(self, nbytes: int, live: Sequence[int]) -> tuple[int, float | None]:
        """The rail that carries this alone the soonest, and the seconds it takes, None where unknown."""
        costs = {rail: cost for rail in live if (cost := self.figures[rail].cost) is not None}
        if not costs:
            return self.quickest(live), None
        rail = min(costs, key=lambda rail: (costs[rail].seconds(nbytes), rail))
        return rail, costs[rail].seconds(nbytes)

    def split(self, nbytes: int, live: Sequence[int]) -> Split:
        """RailShares of a tensor over the rails that are up.  Counts as a call that is cut where several get any.

        live  a new list where it changes
        """
        # what is computed here counts beside what it is computed for: once for each size
        split = self._short.get(nbytes) if live is self._live else None
        if split is not None:
            return split
        if len(live) > 1 and nbytes >= 8 * TRIAL:
            self._cuts += 1
            return self._with_trials(self.preview(nbytes, live), live)
        if live is not self._live or len(self._short) >= REMEMBERED:
            self._live = live
            self._short.clear()
        split = self._short[nbytes] = self.preview(nbytes, live)
        return split

    def preview(self, nbytes: int, live: Sequence[int]) -> Split:
        """The same without trials, for people."""
        first, alone = self.best(nbytes, live)
        whole = [nbytes if rail == first else 0 for rail in range(len(self.figures))]
        only = Split(tuple(whole), alone, (first, alone), self._names)
        known = [rail for rail in live if self.figures[rail].bandwidth is not None]
        if alone is None or len(known) < 2:
            return only
        costs = [cost for rail in known if (cost := self.figures[rail].cost) is not None]
        ideal = equal_finish(nbytes, costs)
        longest = max(cost.seconds(n) for cost, n in zip(costs, ideal, strict=True))
        together = longest + max(0.0, self._start(known) + self._overhead.extra_seconds(nbytes))
        if together >= GAIN * alone:
            return only
        cut = _aligned(nbytes, ideal)
        whole = [0] * len(self.figures)
        for rail, n in zip(known, cut, strict=True):
            whole[rail] = n
        return Split(tuple(whole), together, (first, alone), self._names, longest)

    def _with_trials(self, split: Split, live: Sequence[int]) -> Split:
        whole = list(split.nbytes)
        for rail in live:
            unknown = self.figures[rail].bandwidth is None
            if whole[rail] == 0 and (unknown or self._cuts % EXPLORE == 0):
                giver = max(range(len(whole)), key=lambda rail: (whole[rail], -rail))
                whole[giver] -= TRIAL
                whole[rail] += TRIAL
        return Split(tuple(whole), split.seconds, split.single, self._names)


def _regret(nbytes: int, present: Sequence[Figure], fresh: Sequence[Figure]) -> float:
    """By what part the shares that follow from ``present`` are slower than the best ones, if ``fresh`` is the truth."""
    pairs = [(p.cost, f.cost) for p, f in zip(present, fresh, strict=True)]
    known = [(p, f) for p, f in pairs if p is not None and f is not None]
    if not known:
        return 0.0
    shares = equal_finish(nbytes, [p for p, _ in known])
    ours = max(f.seconds(n) for n, (_, f) in zip(shares, known, strict=True))
    best = max(f.seconds(n) for n, (_, f) in zip(equal_finish(nbytes, [f for _, f in known]), known, strict=True))
    return ours / best - 1 if best > 0 else 0.0


def _aligned(nbytes: int, ideal: Sequence[float]) -> list[int]:
    """Whole blocks for each rail but the last one used, which takes what is left.  They add up to ``nbytes``."""
    cut, given, at = [], 0.0, 0
    last = max(i for i, n in enumerate(ideal) if n > 0)
    for i, n in enumerate(ideal):
        given += n
        end = nbytes if i >= last else min(nbytes, round(given / BLOCK) * BLOCK)
        cut.append(end - at)
        at = end
    return cut

# SPDX-License-Identifier: Apache-2.0
"""How much of a tensor each rail carries (Nezha): costs from measured calls, shares from costs, and hysteresis.

A rail takes a + n/b seconds for n bytes.  All rails used finish together at T = (S + sum a_i b_i) / sum b_i, with
share_i = b_i (T - a_i) (``cost.equal_finish``); the gain over the best single rail must exceed what splitting costs.

Every rank measures (``Estimate``); the ranks exchange their figures, and each computes the same shares from the same
figures (``RailShares``): nothing here may depend on what only one rank knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from netfold.host.rails.split_overhead import SplitOverhead
from netfold.host.selection.cost import RailCost, equal_finish

BLOCK = 1024
"""Bytes of a block of 256 elements.  Elements that share a scale stay on one rail, so that no split changes a sum's
bits."""
LONG_BYTES = 256 << 10
"""Smallest size in bytes of calls from which a rail's rate is estimated."""
BRIEF_BYTES = 8 << 10
"""Largest size in bytes of calls from which a rail's latency is estimated."""
WINDOW = 5
"""Number of recent calls of each kind that count."""
PRIOR = 3
LEAST_PART = 0.1
"""Least fraction of a call's time that is due to its bytes, and least fraction that is due to the rail's latency.  If
the other part seems to take longer than the whole call, that is noise."""
GAIN_FRACTION = 0.92
"""Several rails are used where they are predicted to take less than this fraction of the best single rail's time."""
MAX_REGRET = 0.02
"""Shares stay while new figures predict them to be slower than the best ones by no more than this fraction."""
COMPARED_SIZES = (64 << 10, 256 << 10, 4 << 20, 64 << 20)
"""Sizes in bytes at which present and new shares are compared."""
TRIAL_BYTES = 256 << 10
"""Bytes given to a rail of unknown rate, taken from a tensor at least 8 times as long."""
REMEMBERED = 1024
"""Number of splits of short tensors that are remembered."""
TRIAL_INTERVAL = 32
"""Number of split calls between trials of a rail that is too slow to be used: it may have become faster."""


@dataclass(frozen=True)
class Figure:
    """A rail's latency in seconds and bandwidth in bytes per second, as the ranks agreed.  ``bandwidth`` is None where
    it is unknown."""

    latency: float
    bandwidth: float | None

    @property
    def cost(self) -> RailCost | None:
        """The figure as ``equal_finish`` takes it; None where the bandwidth is unknown."""
        return None if self.bandwidth is None else RailCost(self.latency, self.bandwidth)

    def narrowed(self, lane_bits: int) -> Figure:
        """The figure in bytes of a tensor whose lanes have so many bits, made of that in bytes of 32-bit lanes."""
        if self.bandwidth is None or lane_bits == 32:
            return self
        return Figure(self.latency, self.bandwidth * 32 / lane_bits)


class Estimate:
    """The cost of one rail as one rank measures it.

    A call lasts on this rank from its own arrival on, so it contains the wait for ranks that came later.  What a short
    call cost is known only from all ranks (``rail_report``): it is the duration on the rank that came last.  Of long
    calls, which last longer than such waits, the median counts.

    Every rank adds the same calls in the same order, so that they can be compared.

    known  figures of an earlier run, which count as ``PRIOR`` calls of each kind until later calls have replaced them
    """

    def __init__(self, known: Figure | None = None) -> None:
        self._short: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._long: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        if known is not None and known.cost is not None:
            self._short.extend([(0, known.latency)] * PRIOR)
            self._long.extend([(LONG_BYTES, known.cost.seconds(LONG_BYTES))] * PRIOR)

    def add(self, nbytes: int, seconds: float) -> None:
        """Adds the duration of one call, 0 where the rail failed in it on this rank."""
        if nbytes <= BRIEF_BYTES:
            self._short.append((nbytes, seconds))
        elif nbytes >= LONG_BYTES and seconds:
            self._long.append((nbytes, seconds))

    def latencies(self, bandwidth: float | None) -> list[float]:
        """By each of the last short calls, at most ``WINDOW``, the newest first: seconds that it took here without
        those of its bytes at this bandwidth; 0 where the rail failed in it on this rank.

        The bytes matter: a rail that carries calls of 8 KB would else look slower than one that carries none.
        """
        each = 0.0 if bandwidth is None else 1 / bandwidth
        return [max(t - n * each, t * LEAST_PART) for n, t in reversed(self._short)]

    def bandwidth(self) -> float | None:
        """Bytes per second, or None before the first long call: the median of long calls, weighted by their bytes."""
        if not self._long:
            return None
        # the slope from the shortest call on, the one with the least waiting for other ranks in it
        least, wait = min(((n, t) for n, t in self._short if t), key=lambda call: call[1], default=(0, 0.0))
        rates = sorted(((n - least) / max(t - wait, t * LEAST_PART, 1e-9), n) for n, t in self._long)
        half = sum(n for _, n in rates) / 2
        for rate, n in rates:
            half -= n
            if half <= 0:
                return rate
        return rates[-1][0]


@dataclass(frozen=True)
class Split:
    """Bytes for each rail, multiples of ``BLOCK`` except at the end of the tensor, and the predicted seconds, None if
    unknown.

    ``single``: the best rail alone, and its seconds.  ``names``: of the rails.  ``longest``: predicted seconds of the
    longest stripe, None where unknown or where the tensor is not split
    """

    nbytes: tuple[int, ...]
    seconds: float | None
    single: tuple[int, float | None]
    names: tuple[str, ...]
    longest: float | None = None

    @cached_property
    def used(self) -> list[int]:
        """Indices of the rails that carry anything."""
        return [rail for rail, nbytes in enumerate(self.nbytes) if nbytes]

    @cached_property
    def whole(self) -> bool:
        """True if one rail carries everything."""
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
    """Seconds for people, in milliseconds."""
    return "unknown" if seconds is None else f"{seconds * 1e3:.3g} ms"


class RailShares:
    """The present shares, the same on every rank.

    names   of the rails
    narrow  whether each rail has lanes narrower than 32 bits; default: none has
    figures to begin with, the same on all ranks; default: none is known
    join    initial estimate of the seconds that using several rails costs in itself, besides the exchange on the
            quickest rail; the actual cost is learned (``split_overhead``)
    """

    def __init__(self, names: Sequence[str], *, narrow: Sequence[bool] = (), join: float = 0.0003,
                 figures: Sequence[Figure] = ()) -> None:
        self._names = tuple(names)
        self._narrow = tuple(narrow) or (False,) * len(names)
        self._join = join
        self._overhead = SplitOverhead(8 * TRIAL_BYTES)
        self.figures = list(figures) or [Figure(0.0, None)] * len(names)
        """The figures from which shares are computed."""
        self._latest = list(self.figures)
        """The figures of the last exchange, even if the shares did not change."""
        self._cuts = 0
        self._short: dict[tuple[int, int], Split] = {}
        self._live: Sequence[int] = ()
        """The rails to which the cached splits apply: the list object itself, which is replaced when rails change."""

    def learn(self, fresh: Sequence[Figure], live: Sequence[int]) -> bool:
        """Takes new figures that all ranks share, and adopts them where the present ones have become too wrong.
        Returns whether it did."""
        present = [self.figures[rail] for rail in live]
        wanted = [fresh[rail] for rail in live]
        for rail in live:
            self._latest[rail] = fresh[rail]
        if any(figure.bandwidth is None for figure in present) or any(
            _regret(size, present, wanted) > MAX_REGRET for size in COMPARED_SIZES
        ):
            for rail in live:
                self.figures[rail] = fresh[rail]
            self._short.clear()
            return True
        return False

    def record_cut_call(self, split: Split, live: Sequence[int]) -> None:
        """Records that a call was split this way and succeeded on all ranks; its duration is part of the next
        exchange."""
        if split.longest is not None and split.single[1] is not None:
            self._overhead.record_call(sum(split.nbytes), split.longest, self._start(live), split.single[1])

    def adopt_cut_seconds(self, seconds: float | None) -> None:
        """Takes the duration of the last split call as all ranks have exchanged it, None where there was none; called
        at each exchange."""
        if self._overhead.update(seconds):
            self._short.clear()

    def _start(self, live: Sequence[int]) -> float:
        """Initial estimate in seconds of what splitting costs."""
        return self._join + min(self.figures[rail].latency for rail in live)

    def quickest(self, live: Sequence[int]) -> int:
        """The rail with the lowest latency."""
        return min(live, key=lambda rail: (self.figures[rail].latency, rail))

    def figures_at(self, lane_bits: int) -> list[Figure]:
        """The rails' figures in bytes of a tensor whose lanes have so many bits on the rails that have such lanes."""
        if lane_bits == 32:
            return self.figures
        return [figure.narrowed(lane_bits) if narrow else figure
                for figure, narrow in zip(self.figures, self._narrow, strict=True)]

    def wire_bytes(self, rail: int, nbytes: int, lane_bits: int) -> int:
        """Bytes of the lanes in which the rail carries so many bytes of a tensor; its figure is in these."""
        return nbytes * lane_bits // 32 if self._narrow[rail] else nbytes

    def best(self, nbytes: int, live: Sequence[int], lane_bits: int = 32) -> tuple[int, float | None]:
        """The rail that carries this many bytes alone the soonest, and the seconds that it takes, None where
        unknown."""
        figures = self.figures_at(lane_bits)
        costs = {rail: cost for rail in live if (cost := figures[rail].cost) is not None}
        if not costs:
            return self.quickest(live), None
        rail = min(costs, key=lambda rail: (costs[rail].seconds(nbytes), rail))
        return rail, costs[rail].seconds(nbytes)

    def expected(self, nbytes: int, live: Sequence[int]) -> float | None:
        """Seconds of the longest stripe of a tensor by the figures of the last exchange, where all rails that are up
        finish together; None where no rail's rate is known."""
        costs = [cost for rail in live if (cost := self._latest[rail].cost) is not None]
        if not costs:
            return None
        return max(cost.seconds(n) for cost, n in zip(costs, equal_finish(nbytes, costs), strict=True))

    def split(self, nbytes: int, live: Sequence[int], lane_bits: int = 32) -> Split:
        """The shares of a tensor over the rails that are up.  It counts as a split call where several rails get any.

        live       must be a new list object whenever it changes
        lane_bits  of the tensor, on the rails that have lanes so narrow
        """
        # remembered by size, since computing it takes long beside a short call
        split = self._short.get((nbytes, lane_bits)) if live is self._live else None
        if split is not None:
            return split
        if len(live) > 1 and nbytes >= 8 * TRIAL_BYTES:
            self._cuts += 1
            return self._with_trials(self.preview(nbytes, live, lane_bits), live)
        if live is not self._live or len(self._short) >= REMEMBERED:
            self._live = live
            self._short.clear()
        split = self._short[nbytes, lane_bits] = self.preview(nbytes, live, lane_bits)
        return split

    def preview(self, nbytes: int, live: Sequence[int], lane_bits: int = 32) -> Split:
        """The same split without trials and without counting, for people."""
        first, alone = self.best(nbytes, live, lane_bits)
        figures = self.figures_at(lane_bits)
        whole = [nbytes if rail == first else 0 for rail in range(len(self.figures))]
        only = Split(tuple(whole), alone, (first, alone), self._names)
        known = [rail for rail in live if figures[rail].bandwidth is not None]
        if alone is None or len(known) < 2:
            return only
        costs = [cost for rail in known if (cost := figures[rail].cost) is not None]
        ideal = equal_finish(nbytes, costs)
        longest = max(cost.seconds(n) for cost, n in zip(costs, ideal, strict=True))
        together = longest + max(0.0, self._start(known) + self._overhead.extra_seconds(nbytes))
        if together >= GAIN_FRACTION * alone:
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
            if whole[rail] == 0 and (unknown or self._cuts % TRIAL_INTERVAL == 0):
                giver = max(range(len(whole)), key=lambda rail: (whole[rail], -rail))
                whole[giver] -= TRIAL_BYTES
                whole[rail] += TRIAL_BYTES
        return Split(tuple(whole), split.seconds, split.single, self._names)


def _regret(nbytes: int, present: Sequence[Figure], fresh: Sequence[Figure]) -> float:
    """By what fraction the shares that follow from ``present`` are slower than the best ones, if ``fresh`` is the
    truth."""
    pairs = [(p.cost, f.cost) for p, f in zip(present, fresh, strict=True)]
    known = [(p, f) for p, f in pairs if p is not None and f is not None]
    if not known:
        return 0.0
    shares = equal_finish(nbytes, [p for p, _ in known])
    ours = max(f.seconds(n) for n, (_, f) in zip(shares, known, strict=True))
    best = max(f.seconds(n) for n, (_, f) in zip(equal_finish(nbytes, [f for _, f in known]), known, strict=True))
    return ours / best - 1 if best > 0 else 0.0


def _aligned(nbytes: int, ideal: Sequence[float]) -> list[int]:
    """Whole blocks for each rail but the last one used, which takes the rest.  They add up to ``nbytes``."""
    cut, given, at = [], 0.0, 0
    last = max(i for i, n in enumerate(ideal) if n > 0)
    for i, n in enumerate(ideal):
        given += n
        end = nbytes if i >= last else min(nbytes, round(given / BLOCK) * BLOCK)
        cut.append(end - at)
        at = end
    return cut

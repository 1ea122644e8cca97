# SPDX-License-Identifier: Apache-2.0
"""Results of Ethereal's comparison, and which claims of the paper they confirm (arXiv 2407.00550)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from operator import attrgetter
from typing import Literal

State = Literal["healthy", "link breaks", "link is out"]
STATES: tuple[State, ...] = ("healthy", "link breaks", "link is out")
IN_WORDS: dict[State, str] = {"healthy": "all links up", "link breaks": "while a link breaks that routing knows not of",
                              "link is out": "with a link known to be out"}

GIVE_UP = 0.05
"""Simulated seconds after which a run counts as unfinished: 50 time-outs, half the time until routing converges."""

BASELINES: tuple[tuple[str, int], ...] = (("spray", 30), ("spray-rr", 30), ("spray-ideal", 30), ("reps", 40))
"""The schemes with which the paper compares, and by how many per cent it finishes earlier at best.  Its spraying is
ideal, and it does not say how; so each kind has its own verdict."""
SPRAYING: dict[str, str] = {"spray": "random", "spray-rr": "round-robin", "spray-ideal": "ideal"}
"""The kinds of packet spraying in words."""

Key = tuple[object, ...]
"""(fabric, workload, size, state, number of links where it is not 1, seed)."""
identity = attrgetter("fabric", "workload", "size", "scheme", "state", "links", "seed")
"""The values that distinguish simulations: the same for a `ComparisonRow` and the `points.Point` that it results
from."""


@dataclass(frozen=True)
class ComparisonRow:
    """The result of one simulation."""

    fabric: str
    workload: str
    size: int
    scheme: str
    state: State
    seed: int
    time: float
    """Completion time in seconds; inf where it did not finish."""
    unfinished: int
    queue_pairs: int
    """Queue pairs by which one host sends in one step, one for each destination and path; the greatest number."""
    uplink: float
    """Bytes on the busiest uplink of a leaf over the mean of its uplinks, on the worst leaf; where rates differ, over
    its part of the leaf's bytes by rate."""
    timeouts: int
    dropped: int
    links: int = 1
    """Cables that break or are out; 1 also where all are up."""

    @property
    def key(self) -> Key:
        """Everything that tells simulations apart but the scheme: rows of one key are compared."""
        links = f"{self.links} links" if self.links > 1 else ""
        return self.fabric, self.workload, self.size, self.state, links, self.seed


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, whether it holds here, and what was measured."""

    says: str
    holds: bool
    found: str


def relative(rows: Iterable[ComparisonRow], scheme: str, to: str, states: Sequence[State] = STATES) -> dict[Key, float]:
    """Completion time of ``scheme`` over that of ``to``, where both were simulated and ``to`` finished."""
    others = {r.key: r.time for r in rows if r.scheme == to}
    return {r.key: r.time / other for r in rows if r.scheme == scheme and r.state in states
            and isfinite(other := others.get(r.key, inf))}


def by_case(ratios: Mapping[Key, float]) -> dict[Key, list[float]]:
    """The ratios of all seeds, by the rest of their keys."""
    found: dict[Key, list[float]] = {}
    for key, ratio in ratios.items():
        found.setdefault(key[:-1], []).append(ratio)
    return found


def claims(rows: Sequence[ComparisonRow]) -> list[Claim]:
    """Check the paper's claims on these rows; claims about schemes that were not simulated are left out.

    Of several seeds the median counts, and what was found has their range.
    """
    found: list[Claim] = []
    for scheme in ("ethereal", "netfold"):
        found += [claim for baseline, percent in BASELINES for state in STATES
                  if (claim := _up_to(rows, scheme, baseline, percent, state))]
        for baseline, words in SPRAYING.items():
            if slower := by_case(relative(rows, scheme, baseline, ["healthy"])):
                worst = max(slower, key=lambda case: statistics.median(slower[case]))
                found.append(Claim(f"{scheme} is nearly as good as {words} packet spraying everywhere (at most 5 % "
                                   "later, healthy)", statistics.median(slower[worst]) <= 1.05,
                                   f"worst {_over_seeds(slower[worst])} ({describe(worst)})"))
    calm = [r for r in rows if r.state == "healthy" and r.workload in ("ring", "double-binary-tree")]
    spreads = {key: max(times) / min(times) for key, times in _by_work(calm).items() if len(times) > 1}
    if spreads:
        worst = max(spreads, key=spreads.__getitem__)
        found.append(Claim("ring and double binary tree do not care about the balancer (within 10 %)",
                           spreads[worst] <= 1.1,
                           f"largest spread {100 * (spreads[worst] - 1):.0f} % ({describe(worst)})"))
    hashed = [r for r in rows if r.state == "link breaks" and (r.scheme == "ecmp" or r.scheme.startswith("mp-rdma"))]
    if hashed:
        stuck = sum(not isfinite(r.time) for r in hashed)
        found.append(Claim("ECMP and MP-RDMA never finish under a failure", stuck == len(hashed),
                           f"{stuck} of {len(hashed)} runs had not finished after {GIVE_UP * 1e3:.0f} ms"))
    for scheme in ("ethereal", "netfold"):
        sent = [r for r in rows if r.scheme == scheme and r.size and r.workload != "all-to-all"]
        if sent:
            most = max(sent, key=lambda r: r.queue_pairs)
            found.append(Claim(f"{scheme} needs at most 64 queue pairs a host (all-to-all has one a peer anyway)",
                               most.queue_pairs <= 64, f"most {most.queue_pairs} ({describe(most.key)})"))
        long = {r.workload: r for r in sorted(rows, key=lambda r: r.size) if r.scheme == scheme and r.size
                and r.state == "healthy"}
        if long:
            busiest = max(long.values(), key=lambda r: r.uplink)
            found.append(Claim(f"{scheme} loads uplinks as evenly as ideal spraying (busiest within 2 % of the mean, "
                               "at the largest size)", busiest.uplink <= 1.02,
                               f"busiest uplink {busiest.uplink:.3f} of the mean ({describe(busiest.key)})"))
    return found


def _up_to(rows: Sequence[ComparisonRow], scheme: str, baseline: str, percent: int, state: State) -> Claim | None:
    """The claim "up to ``percent`` % earlier" in one state of the links; None where the two were not compared in it.

    What was found names the workload and the size of the best and of the worst case.
    """
    mine = {r.key for r in rows if r.scheme == scheme and r.state == state}
    others = [r for r in rows if r.scheme == baseline and r.key in mine]
    stuck = [r for r in others if not isfinite(r.time)]
    ratios = by_case(relative(rows, scheme, baseline, [state]))
    middle = {case: statistics.median(of_seeds) for case, of_seeds in ratios.items()}
    if not others:
        return None
    found = [f"{baseline} never finished in {len(stuck)} of {len(others)} runs, which are left out"] if stuck else []
    least = inf
    if ratios:
        best, worst = min(middle, key=middle.__getitem__), max(middle, key=middle.__getitem__)
        least = middle[best]
        found = [*(f"{words} {_over_seeds(ratios[case])} ({describe(case)})"
                   for words, case in (("best", best), ("worst", worst))),
                 f"median {_change(statistics.median(middle.values()))} of {len(middle)}", *found]
    return Claim(f"{scheme} finishes up to {percent} % earlier than {baseline}, {IN_WORDS[state]}",
                 least <= 1 - percent / 100, "; ".join(found))


def _by_work(rows: Iterable[ComparisonRow]) -> dict[Key, list[float]]:
    times: dict[Key, list[float]] = {}
    for r in rows:
        times.setdefault(r.key, []).append(r.time)
    return times


def _over_seeds(ratios: Sequence[float]) -> str:
    """The median of several seeds, with their range where it is one."""
    middle, least, most = (_change(f(ratios)) for f in (statistics.median, min, max))
    return middle if least == most else f"{middle}, by seed {least} to {most}"


def _change(ratio: float) -> str:
    if not isfinite(ratio):
        return "never finishing"
    percent = round(100 * (ratio - 1))
    if percent == 0:
        return "as early, within 0.5 %"
    return f"{abs(percent)} % {'later' if percent > 0 else 'earlier'}"


def describe(key: Key) -> str:
    """A key as text, without the seed."""
    parts = [f"{part >> 20} MB" if isinstance(part, int) and part >= 1 << 20 else str(part) for part in key]
    return ", ".join(part for part in parts[:5] if part not in ("0", ""))

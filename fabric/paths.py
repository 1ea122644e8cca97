# SPDX-License-Identifier: Apache-2.0
"""Ethereal's planners: which flow takes which path, and which few flows are cut.

Flows of one collective step have known sizes, so the load of every uplink can be made exactly what ideal packet
spraying would give, with each piece pinned to one path.  A *group* is the flows between two leaves (or, as the paper's
hosts do it without a controller, from one host to a leaf).  n flows over s paths; two ways to cut them:

    equal split      whole flows round-robin; the last r = n mod s are cut into s/gcd(r,s) equal pieces each
                     (Ethereal, arXiv 2407.00550, Theorem 1): n + r (s/gcd(r,s) - 1) pieces
    fewest pieces    flows laid end to end on a line, cut where one path's share ends and the next begins
                     (McNaughton's wrap-around rule): n + s - gcd(n,s) pieces

      flow    |----0----|----1----|----2----|          3 flows, 2 paths: 4 pieces
      path    |-------a------|-------b------|

n + s - gcd(n,s) is a lower bound: draw pieces as edges between flows and paths; a connected part with a flows and b
paths that is exactly even needs a s = b n, so there are at most gcd(n,s) parts, and edges >= vertices - parts.  With
unequal flows or unequal paths the same rule needs at most n + s - 1.  (Finding an order of unequal flows that saves
more is number partitioning, NP-hard: not tried.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm
from typing import Literal, NamedTuple

from netfold.fabric.clos import Clos, Hop, Path, PlanError
from netfold.fabric.trees import Tree

Share = int | Fraction


class Cut(NamedTuple):
    """Bytes ``offset .. offset+size`` of flow number ``flow`` go over path number ``path``."""

    flow: int
    path: int
    offset: int
    size: int


Planner = Callable[..., list[Cut]]
"""(sizes, shares, *, unit, start) -> cuts: `equal_split` or `fewest_pieces`."""


def equal_split(sizes: Sequence[int], shares: Sequence[Share], *, unit: int = 1, start: int = 0) -> list[Cut]:
    """The paper's planner.

    sizes    bytes of each flow; they must be equal
    shares   what each path should carry, in any common unit; they must be equal, 0 leaves a path out
    unit     cuts fall on multiples of this many bytes of a flow (a path MTU, say)
    start    number of the path that the first flow takes: lets neighbours begin at different paths
    Raises PlanError for unequal sizes or shares: `fewest_pieces` takes those.
    """
    paths = _check(sizes, shares, unit, start)
    if len(set(sizes)) > 1 or len({Fraction(shares[p]) for p in paths}) > 1:
        raise PlanError(f"equal_split: flows and path shares must be equal, got sizes {sorted(set(sizes))[:4]} and "
                        f"shares {sorted({str(shares[p]) for p in paths})[:4]}; use fewest_pieces")
    n, s = len(sizes), len(paths)
    rest = n % s
    cuts = [Cut(f, paths[f % s], 0, size) for f, size in enumerate(sizes[: n - rest])]
    pieces = s // gcd(rest, s)
    for k in range(rest * pieces):
        flow, piece = n - rest + k // pieces, k % pieces
        size = sizes[flow]
        low, high = (_aligned(size * i // pieces, size, unit) for i in (piece, piece + 1))
        if high > low:
            cuts.append(Cut(flow, paths[k % s], low, high - low))
    return cuts


def fewest_pieces(sizes: Sequence[int], shares: Sequence[Share], *, unit: int = 1, start: int = 0) -> list[Cut]:
    """Wrap-around cutting; arguments as for `equal_split`, but sizes and shares may differ.

    Every path's load is its share of the total to within less than ``unit`` bytes, exactly where units divide.
    n + s - gcd(n,s) pieces for equal sizes and shares, never more than n + s - 1.
    """
    paths = _check(sizes, shares, unit, start)
    # in whole numbers, with the line stretched by `scale`: fractions would cost ten times as much
    common = lcm(*(Fraction(shares[p]).denominator for p in paths))
    parts = [int(shares[p] * common) for p in paths]
    scale, total = sum(parts), sum(sizes)
    bounds = [total * reached for reached in accumulate(parts)]
    cuts: list[Cut] = []
    begin = turn = 0  # where the present flow begins on the line; whose share it is
    for flow, size in enumerate(sizes):
        offset = 0
        while offset < size:
            end = _aligned((bounds[turn] - begin * scale) // scale, size, unit)
            if end > offset:
                cuts.append(Cut(flow, paths[turn], offset, end - offset))
                offset = end
            if bounds[turn] <= (begin + size) * scale and turn < len(paths) - 1:
                turn += 1
        begin += size
    return cuts


def _check(sizes: Sequence[int], shares: Sequence[Share], unit: int, start: int) -> list[int]:
    """The paths in use, from ``start`` on and around."""
    if any(size < 1 for size in sizes):
        raise PlanError(f"sizes: expected at least 1 byte a flow, got {min(sizes)}")
    if any(share < 0 for share in shares):
        raise PlanError(f"shares: expected none below 0, got {min(shares)}")
    if unit < 1:
        raise PlanError(f"unit: expected at least 1 byte, got {unit}")
    used = [p for p, share in enumerate(shares) if share]
    if sizes and not used:
        raise PlanError(f"no path for {len(sizes)} flows: all {len(shares)} shares are 0")
    first = start % len(used) if used else 0
    return used[first:] + used[:first]


def _aligned(position: int, size: int, unit: int) -> int:
    """A cut inside a flow: down to a whole unit, kept inside the flow; its end stays its end."""
    return size if position >= size else max(0, position // unit * unit)


def water_fill(total: int, capacities: Sequence[Share], loads: Sequence[Share]) -> list[Fraction]:
    """Shares of ``total`` so that loads plus shares stand as level as they can, relative to capacity.

    Returns Fractions that add up to ``total``: max(0, level x capacity - load), 0 for capacity 0.
    Raises PlanError where no path has capacity.
    """
    order = sorted((p for p, c in enumerate(capacities) if c), key=lambda p: Fraction(loads[p]) / capacities[p])
    if not order:
        raise PlanError(f"no path with capacity for {total} bytes")
    volume = capacity = Fraction(0)
    level = Fraction(0)
    for i, p in enumerate(order):
        volume, capacity = volume + loads[p], capacity + capacities[p]
        level = (total + volume) / capacity
        if i + 1 == len(order) or level * capacities[order[i + 1]] <= loads[order[i + 1]]:
            break
    return [max(Fraction(0), level * c - load) if c else Fraction(0)
            for c, load in zip(capacities, loads, strict=True)]


class Flow(NamedTuple):
    """Bytes from host to host in one step of a collective."""

    source: str
    destination: str
    size: int


class Piece(NamedTuple):
    """A part of a flow, pinned to a path; ``path`` is empty where both hosts share a leaf."""

    flow: int
    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class Plan:
    """Where every byte of a step goes."""

    flows: tuple[Flow, ...]
    pieces: tuple[Piece, ...]
    """In order of flow, then of offset."""
    background: Mapping[Hop, Share]
    """Bytes of folded trees on each hop."""

    def loads(self) -> dict[Hop, Share]:
        """Bytes on each hop between switches, trees included."""
        loads = dict(self.background)
        for piece in self.pieces:
            for hop in piece.path:
                loads[hop] = loads.get(hop, 0) + piece.size
        return loads

    def pieces_of(self, host: str) -> list[Piece]:
        """What one host sends: each piece is a queue pair."""
        return [piece for piece in self.pieces if self.flows[piece.flow].source == host]


def plan(
    clos: Clos,
    flows: Sequence[Flow],
    *,
    planner: Planner = fewest_pieces,
    scope: Literal["leaf", "host"] = "leaf",
    background: Mapping[Hop, Share] | None = None,
    unit: int = 1,
) -> Plan:
    """Paths for all flows of a step.

    scope        "leaf": the flows between two leaves are cut together, which a controller can do and which needs far
                 fewer pieces; "host": each host cuts its own flows to a leaf, as in the paper
    background   bytes that folded trees put on hops (`tree_loads`); flows fill what they leave, so that both
                 together stand even.  Of a hop's tree bytes a group reckons the part that its own bytes are of all
                 flows there: exact where leaves send and receive alike
    unit         cuts fall on multiples of this many bytes
    Raises PlanError where two hosts have no live path, or for a host that the fabric does not have.
    """
    background = dict(background or {})
    groups: dict[tuple[str, str, str], list[int]] = {}
    out: dict[str, int] = {}
    into: dict[str, int] = {}
    for i, flow in enumerate(flows):
        try:
            a, b = clos.leaf_of[flow.source], clos.leaf_of[flow.destination]
        except KeyError as error:
            raise PlanError(f"flow {i}: the fabric has no host {error.args[0]} with a link") from None
        groups.setdefault((a, b, flow.source if scope == "host" else ""), []).append(i)
        if a != b:
            out[a], into[b] = out.get(a, 0) + flow.size, into.get(b, 0) + flow.size

    pieces: list[Piece] = []
    turns: dict[str, int] = {}
    for (a, b, _), members in groups.items():
        if a == b:
            pieces += [Piece(i, (), 0, flows[i].size) for i in members]
            continue
        paths = clos.paths(a, b)
        sizes = [flows[i].size for i in members]
        shares: Sequence[Share] = clos.weights(paths)
        if background:
            total = sum(sizes)
            shares = water_fill(total, shares, [
                max(_part(total, out[a], path[: len(path) // 2], background),
                    _part(total, into[b], path[len(path) // 2:], background)) for path in paths])
        # groups of one leaf begin at different paths, so that not all first flows of a step meet in one queue
        start = turns.get(a, 0)
        turns[a] = start + 1
        pieces += [Piece(members[c.flow], paths[c.path], c.offset, c.size)
                   for c in planner(sizes, shares, unit=unit, start=start)]
    return Plan(tuple(flows), tuple(sorted(pieces, key=lambda p: (p.flow, p.offset))), background)


def _part(group: int, everything: int, hops: Path, background: Mapping[Hop, Share]) -> Fraction:
    return Fraction(group, everything) * max((background.get(hop, 0) for hop in hops), default=0)


def tree_loads(clos: Clos, trees: Sequence[Tree], size: int) -> dict[Hop, Fraction]:
    """Bytes that folding ``size`` bytes over a job's trees puts on every hop between switches.

    Each link of a tree carries the tree's share once up, as partial sums, and once down, as results.
    """
    loads: dict[Hop, Fraction] = {}
    for tree in trees:
        share = size * Fraction(tree.weight).limit_denominator(2**20)  # a weight is a float near some small fraction
        for fold in tree.folds:
            if fold.parent is not None:
                for hop in (clos.hop(fold.switch, fold.parent), clos.hop(fold.parent, fold.switch)):
                    loads[hop] = loads.get(hop, Fraction(0)) + share
    return loads

# SPDX-License-Identifier: Apache-2.0
"""Ethereal's planners: which flow takes which path, and which few flows are cut.

Flows of one collective step have known sizes, so every uplink can be loaded exactly as ideal packet spraying would,
with each piece pinned to one path.  A *group* is the flows between two leaves (or, as the paper's
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

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from netfold.fabric.graph import PlannerName
from netfold.fabric.routing.path_graph import Path, PathError, PathGraph

Share = int | Fraction
Host = TypeVar("Host", bound=Hashable)
Leaf = TypeVar("Leaf", bound=Hashable)


class Cut(NamedTuple):
    """Bytes ``offset .. offset+size`` of flow number ``flow`` go over path number ``path``."""

    flow: int
    path: int
    offset: int
    size: int


Planner = Callable[..., list[Cut]]
"""(sizes, shares, *, unit, start) -> cuts: `equal_split` or `fewest_pieces`."""


def equal_split(sizes: Sequence[int], shares: Sequence[Share], *, unit: int = 1, start: int = 0) -> list[Cut]:
    """Cut flows as Ethereal's Theorem 1 does: whole flows round-robin, the remaining ones into equal pieces.

    sizes    bytes of each flow; they must be equal
    shares   what each path should carry, in any common unit; they must be equal, 0 leaves a path out
    unit     cuts fall on multiples of this many bytes of a flow (a path MTU, say)
    start    number of the path that the first flow takes: lets neighbours begin at different paths
    Raises PathError for unequal sizes or shares: `fewest_pieces` takes those.
    """
    paths = _check(sizes, shares, unit, start)
    if len(set(sizes)) > 1 or len({Fraction(shares[p]) for p in paths}) > 1:
        raise PathError(f"equal_split: flows and path shares must be equal, got sizes {sorted(set(sizes))[:4]} and "
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
    """Cut flows by McNaughton's wrap-around rule; arguments as for `equal_split`, but sizes and shares may differ.

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
    """Numbers of the paths with a share, beginning with number ``start`` of them.  Raises PathError."""
    if any(size < 1 for size in sizes):
        raise PathError(f"sizes: expected at least 1 byte a flow, got {min(sizes)}")
    if any(share < 0 for share in shares):
        raise PathError(f"shares: expected none below 0, got {min(shares)}")
    if unit < 1:
        raise PathError(f"unit: expected at least 1 byte, got {unit}")
    used = [p for p, share in enumerate(shares) if share]
    if sizes and not used:
        raise PathError(f"no path for {len(sizes)} flows: all {len(shares)} shares are 0")
    first = start % len(used) if used else 0
    return used[first:] + used[:first]


def _aligned(position: int, size: int, unit: int) -> int:
    """A cut position rounded down to a multiple of ``unit``, within 0..size; the flow's end is not rounded."""
    return size if position >= size else max(0, position // unit * unit)


def equal_where_possible(
    sizes: Sequence[int], shares: Sequence[Share], *, unit: int = 1, start: int = 0
) -> list[Cut]:
    """`equal_split`, and `fewest_pieces` for unequal flows or paths, which the paper's rule does not take."""
    return (equal_split if _alike(sizes, shares) else fewest_pieces)(sizes, shares, unit=unit, start=start)


def _alike(sizes: Sequence[int], shares: Sequence[Share]) -> bool:
    return len(set(sizes)) <= 1 and len({share for share in shares if share}) <= 1


PLANNERS: Final[dict[PlannerName, Planner]] = {"fewest_pieces": fewest_pieces, "equal_split": equal_where_possible}
"""The planners that a fabric file's ``planner`` and `netfold paths planner` may name."""


class Flow(NamedTuple):
    """The traffic from one host to another in one step of a collective; ``size`` in bytes."""

    source: str
    destination: str
    size: int


class Piece(NamedTuple):
    """Bytes ``offset .. offset+size`` of a flow, pinned to a path, which is empty if both hosts share a leaf."""

    flow: int
    path: Path
    offset: int
    size: int


@dataclass(frozen=True)
class PathPlan:
    """Which path every byte of a step takes."""

    flows: tuple[Flow, ...]
    pieces: tuple[Piece, ...]
    """The flows' pieces, in order of flow, then of offset."""
    not_equal: str = ""
    """The first two leaves between which `equal_where_possible` could not split equally, ``a -> b``; else empty."""


class CutGroup(NamedTuple, Generic[Leaf]):
    """The flows of a step that were cut together: those of a leaf, or of a host, to a leaf."""

    source: Leaf
    destination: Leaf
    shares: Sequence[Share]
    """The share of each path between the two leaves; one share, of the empty path, if they are the same leaf."""
    cuts: list[Cut]
    """With the flows' numbers in the step, and the paths' numbers in ``shares``."""


def cut_step(
    flows: Sequence[tuple[Host, Host, int]],
    leaf_of: Callable[[Host], Leaf],
    place_of: Callable[[Host], tuple[int, int]],
    shares: Callable[[Mapping[tuple[Leaf, Leaf], int]], Mapping[tuple[Leaf, Leaf], Sequence[Share]]],
    *,
    planner: Planner,
    scope: Literal["leaf", "host"],
    unit: int,
) -> list[CutGroup[Leaf]]:
    """Group the flows of a step, and cut each group: the one rule of the controller and of the simulator.

    flows      (source, destination, bytes) of each; hosts and leaves are named as the caller likes
    place_of   how many hosts of its leaf come before a host, and how many the leaf has
    shares     of the paths of each pair of different leaves, by the bytes that each pair sends, all above 0
    planner, scope, unit   as in `plan`
    """
    groups: dict[tuple[Leaf, Leaf, Host | None], list[int]] = {}
    demands: dict[tuple[Leaf, Leaf], int] = {}
    for i, (source, destination, size) in enumerate(flows):
        a, b = leaf_of(source), leaf_of(destination)
        groups.setdefault((a, b, source if scope == "host" else None), []).append(i)
        if a != b:
            demands[a, b] = demands.get((a, b), 0) + size
    # above 0, since the planner is what rejects flows without a byte
    known = shares({pair: max(1, nbytes) for pair, nbytes in demands.items()})
    result: list[CutGroup[Leaf]] = []
    for (a, b, _), members in groups.items():
        if a == b:
            result.append(CutGroup(a, b, (1,), [Cut(i, 0, 0, flows[i][2]) for i in members]))
            continue
        # a host begins with the same path to all leaves: what it sends at any time, to however many, is no more than
        # its own link takes; where all hosts of a leaf send, others begin elsewhere
        before, hosts = place_of(flows[members[0]][0])
        cuts = planner(tuple([flows[i][2] for i in members]), known[a, b], unit=unit,
                       start=before * len(known[a, b]) // hosts)
        result.append(CutGroup(a, b, known[a, b], [cut._replace(flow=members[cut.flow]) for cut in cuts]))
    return result


def plan(
    clos: PathGraph,
    flows: Sequence[Flow],
    *,
    planner: Planner = fewest_pieces,
    scope: Literal["leaf", "host"] = "leaf",
    unit: int = 1,
) -> PathPlan:
    """Assign paths to all flows of a step.

    scope        "leaf": the flows between two leaves are cut together, which a controller can do and which needs far
                 fewer pieces; "host": each host cuts its own flows to a leaf, as in the paper
    unit         cuts fall on multiples of this many bytes
    Raises PathError where two hosts have no live path, or for a host that the fabric does not have.
    """
    for i, flow in enumerate(flows):
        if unknown := {flow.source, flow.destination} - clos.leaf_of.keys():
            raise PathError(f"flow {i}: the fabric has no host {min(unknown)} with a link")
    pieces: list[Piece] = []
    not_equal = ""
    for a, b, shares, cuts in cut_step(flows, clos.leaf_of.__getitem__, clos.place_of.__getitem__, clos.shares,
                                       planner=planner, scope=scope, unit=unit):
        paths = clos.paths(a, b) if a != b else ((),)
        pieces += [Piece(c.flow, paths[c.path], c.offset, c.size) for c in cuts]
        if planner is equal_where_possible and not _alike([flows[c.flow].size for c in cuts], shares):
            not_equal = not_equal or f"{a} -> {b}"
    return PathPlan(tuple(flows), tuple(sorted(pieces, key=lambda p: (p.flow, p.offset))), not_equal)

# SPDX-License-Identifier: Apache-2.0
"""The cost of each algorithm in the alpha-beta-gamma model.  Pure functions; ``choice`` compares them.

A message of n bytes takes alpha + n beta seconds on a link of its own; reducing n bytes takes n gamma.  Links are full
duplex.  A cost is that of the critical path when all ranks start together; see each algorithm's module for its steps.
Links that are shared inside the fabric are not part of this model, but of ``choice.Setting.contention``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from netfold.host.collectives.byteps import byteps_shares


@dataclass(frozen=True)
class LinkCost:
    """The cost of sending from one rank to another.

    alpha  seconds for the smallest message, software included
    beta   seconds per byte, the inverse of the rate
    gamma  seconds per byte to reduce two arrays into one
    """

    alpha: float
    beta: float
    gamma: float = 0.0

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value}: expected seconds, 0 or more")


def _log2(ranks: int) -> int:
    return (ranks - 1).bit_length()


def _ends(nbytes: float, ranks: int) -> None:
    if nbytes < 0 or ranks < 1:
        raise ValueError(f"nbytes={nbytes}, ranks={ranks}: expected 0 or more bytes and 1 or more ranks")


# ---- allreduce: n bytes on each of p ranks --------------------------------------------------------------------------
def ring(n: float, p: int, link: LinkCost) -> float:
    """2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma."""
    _ends(n, p)
    return 2 * (p - 1) * link.alpha + (p - 1) / p * n * (2 * link.beta + link.gamma)


def halving_doubling(n: float, p: int, link: LinkCost) -> float:
    """2 log2(p) alpha + 2(p-1)/p n beta + (p-1)/p n gamma; for other than powers of two 3 alpha + 2 n beta more."""
    _ends(n, p)
    core = 1 << (p.bit_length() - 1)
    cost = 2 * _log2(core) * link.alpha + (core - 1) / core * n * (2 * link.beta + link.gamma)
    return cost if core == p else cost + 3 * link.alpha + 2 * n * link.beta + n / 2 * link.gamma


def recursive_doubling(n: float, p: int, link: LinkCost) -> float:
    """log2(p) (alpha + n beta + n gamma); for other than powers of two two more exchanges."""
    _ends(n, p)
    core = 1 << (p.bit_length() - 1)
    step = link.alpha + n * link.beta
    return _log2(core) * (step + n * link.gamma) + (0 if core == p else 2 * step + n * link.gamma)


def double_binary_tree(n: float, p: int, link: LinkCost, segment: float = 64 << 10) -> float:
    """Two trees of depth log2(p), half of the data each, pipelined up and down: about 2 log2(p) alpha + 2 n beta.

    Inside one tree a rank takes n/2 from each of two children and n/2 of the result, and n/2 as leaf of the other: its
    link is busy for 2 n beta; the pipeline fills and drains in 2 log2(p) segments.  Up to 3 ranks only roots have
    children.
    """
    _ends(n, p)
    if p == 1:
        return 0.0
    passes = min(p / 2, 2.0)
    fill = min(n / 2, segment)
    return 2 * _log2(p) * (link.alpha + fill * link.beta) + n * (passes * link.beta + min(1, (p - 1) / 2) * link.gamma)


def parameter_server(n: float, p: int, link: LinkCost, servers: int | None = None) -> float:
    """2 alpha + p n/s beta with s dedicated servers; with every rank serving (None) 2 alpha + 2(p-1)/p n beta.

    A server's link carries p n/s each way; pushes and results overlap in segments.
    """
    _ends(n, p)
    if servers is None:
        return (2 * link.alpha if p > 1 else 0.0) + (p - 1) / p * n * (2 * link.beta + link.gamma)
    if servers < 1:
        raise ValueError(f"servers={servers}: expected 1 or more")
    return 2 * link.alpha + n * max(p / servers, 1) * link.beta + (p - 1) * n / servers * link.gamma


def byteps(n: float, workers: int, helpers: int, link: LinkCost) -> float:
    """2 alpha + 2 w (w-1) / D n beta, with D = w^2 + k w - 2 k for w workers and k helpers (BytePS, OSDI 2020)."""
    _ends(n, workers)
    return 2 * link.alpha + byteps_shares(workers, helpers).link_bytes * n * link.beta


def mesh2d(n: float, rows: int, columns: int, link: LinkCost, *, own_links: bool = False) -> float:
    """2 (r-1 + c-1) alpha, and beta for the bytes of an inner rank, over one link or one to each neighbour.

    own_links  each neighbour has a link of its own, as on a mesh of chips; else all share the rank's one link
    In a line of k places an inner one sends k+1 pieces in all (one of two sends 1), at most k-1 to one side.  Each half
    of the data goes through both dimensions, in opposite order, by reduce-scatter and by all-gather.
    """
    _ends(n, rows * columns)
    steps = 2 * (rows - 1 + columns - 1)
    if own_links:

        def line(k: int) -> float:
            return (k - 1) / k

        share = max(line(rows) + line(columns) / rows, line(columns) + line(rows) / columns) / 2
    else:

        def line(k: int) -> float:
            return (k + 1) / k if k > 2 else (k - 1) / k

        share = (line(rows) + line(columns) / rows + line(columns) + line(rows) / columns) / 2
    return steps * link.alpha + share * n * (2 * link.beta + link.gamma)


def tidalmesh(n: float, rows: int, columns: int, link: LinkCost, chunks: int = 1) -> float:
    """2 (r-1 + c-1) alpha a chunk in flight, and beta for the bytes of a link between neighbours, each way.

    In a line of k places a link carries k - 1 pieces in the busier of reduce-scatter and all-gather, and k in both
    together: the more chunks overlap, the nearer is the time to that of k.  Each half of the data goes through both
    dimensions, in opposite order.
    """
    _ends(n, rows * columns)

    def line(k: int) -> float:
        apart, together = 2 * (k - 1) / k, float(k > 1)
        return apart / chunks + together * (1 - 1 / chunks)

    share = max(line(columns) * (1 + 1 / rows), line(rows) * (1 + 1 / columns)) / 2
    if min(rows, columns) == 1:
        share = line(max(rows, columns))
    steps = 2 * (rows - 1 + columns - 1)
    added = (rows * columns - 1) / (rows * columns)
    return steps * link.alpha * (1 + (chunks - 1) / 4) + n * (share * link.beta + added * link.gamma)


def hierarchical(n: float, groups: int, members: int, inside: LinkCost, across: LinkCost) -> float:
    """Tencent's parallel scheme: ring reduce-scatter and all-gather inside; rings across share a machine's link."""
    _ends(n, groups * members)
    within = 2 * (members - 1) * inside.alpha + (members - 1) / members * n * (2 * inside.beta + inside.gamma)
    return within + ring(n, groups, across)


def innet(n: float, p: int, link: LinkCost, *, hops: int = 2) -> float:
    """One pass through the switches, which fold: hops alpha + n beta, since each rank sends n and receives n at the
    same time."""
    _ends(n, p)
    return hops * link.alpha + n * link.beta


def netreduce_parallel(n: float, groups: int, members: int, inside: LinkCost, across: LinkCost) -> float:
    """NetReduce over machines of several ranks: 2(m-1)/m n/B_intra + n/B_inter + (2(m-1)+1) alpha
    (``innet.netreduce_conditions``)."""
    _ends(n, groups * members)
    within = 2 * (members - 1) * inside.alpha + (members - 1) / members * n * (2 * inside.beta + inside.gamma)
    return within + across.alpha + n * across.beta


# ---- others ---------------------------------------------------------------------------------------------------------
def reduce_scatter(n: float, p: int, link: LinkCost) -> float:
    """Over a ring: (p-1) alpha + (p-1)/p n (beta + gamma)."""
    _ends(n, p)
    return (p - 1) * link.alpha + (p - 1) / p * n * (link.beta + link.gamma)


def all_gather(n: float, p: int, link: LinkCost) -> float:
    """Over a ring: (p-1) alpha + (p-1)/p n beta, where n is the gathered size."""
    _ends(n, p)
    return (p - 1) * link.alpha + (p - 1) / p * n * link.beta


def all_to_all(n: float, p: int, link: LinkCost) -> float:
    """By pairwise exchange: (p-1) alpha + (p-1)/p n beta."""
    return all_gather(n, p, link)


def broadcast_binomial(n: float, p: int, link: LinkCost) -> float:
    """ceil(log2 p) (alpha + n beta)."""
    _ends(n, p)
    return _log2(p) * (link.alpha + n * link.beta)


def broadcast_chain(n: float, p: int, link: LinkCost, segment: float | None = None) -> float:
    """(p-2+C) (alpha + n beta / C), with C = n / segment pieces; default: the best segment."""
    _ends(n, p)
    if p == 1 or n == 0:
        return 0.0
    pieces = max(1, math.ceil(n / (segment or chain_segment(n, p, link))))
    return (p - 2 + pieces) * (link.alpha + n * link.beta / pieces)


def chain_segment(n: float, p: int, link: LinkCost) -> float:
    """Bytes of the best segment of a pipelined chain: n / sqrt((p-2) n beta / alpha)."""
    if p <= 2 or link.beta == 0 or n == 0:
        return max(n, 1.0)
    if link.alpha == 0:
        return 1.0
    return max(1.0, n / max(1.0, math.sqrt((p - 2) * n * link.beta / link.alpha)))


def broadcast_scatter_all_gather(n: float, p: int, link: LinkCost) -> float:
    """alpha + (p-1)/p n beta to scatter, and (p-1) alpha + (p-1)/p n beta to gather (van de Geijn)."""
    _ends(n, p)
    return 0.0 if p == 1 else p * link.alpha + 2 * (p - 1) / p * n * link.beta


def barrier(p: int, link: LinkCost) -> float:
    """ceil(log2 p) alpha."""
    return _log2(p) * link.alpha


# ---- shares ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RailCost:
    """The cost of a rail: ``latency`` seconds plus bytes divided by ``bandwidth`` (bytes per second)."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.latency) and self.latency >= 0 and math.isfinite(self.bandwidth)):
            raise ValueError(f"{self}: expected a finite latency of 0 or more and a finite bandwidth")
        if self.bandwidth <= 0:
            raise ValueError(f"{self}: expected a bandwidth above 0; leave a dead rail out")

    def seconds(self, nbytes: float) -> float:
        """Seconds for this many bytes; 0 for none, since an unused rail costs nothing."""
        return self.latency + nbytes / self.bandwidth if nbytes else 0.0


def equal_finish(nbytes: float, rails: Sequence[RailCost]) -> list[float]:
    """Bytes for each rail such that all rails that are used finish together, as early as possible (Nezha).

    T = (S + sum a_i b_i) / sum b_i over the rails used, share_i = b_i (T - a_i); a rail with a_i >= T is not used.
    At least one rail is used; the shares add up to ``nbytes``.
    """
    if not rails:
        raise ValueError("no rails: expected at least one that is up")
    if nbytes < 0:
        raise ValueError(f"nbytes={nbytes}: expected 0 or more")
    shares = [0.0] * len(rails)
    used: list[int] = []
    finish = math.inf
    for i in sorted(range(len(rails)), key=lambda i: (rails[i].latency, -rails[i].bandwidth)):
        if used and rails[i].latency >= finish:
            break  # those that follow take even longer to begin
        used.append(i)
        finish = (nbytes + sum(rails[j].latency * rails[j].bandwidth for j in used)) / sum(
            rails[j].bandwidth for j in used
        )
    for i in used:
        shares[i] = max(0.0, rails[i].bandwidth * (finish - rails[i].latency))
    shares[used[0]] = max(0.0, nbytes - sum(shares[i] for i in used[1:]))
    return shares

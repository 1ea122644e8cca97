# SPDX-License-Identifier: Apache-2.0
"""Which algorithm is the cheapest: the cost model's predictions, corrected by measured times.  Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final, Literal

from netfold.host.collectives.mesh2d import grid
from netfold.host.collectives.tidalmesh import TIDALMESH, chunks_of
from netfold.host.selection import cost
from netfold.host.selection.cost import LinkCost

INNET: Final = "innet"
"""The algorithm in which the switches fold."""
BETWEEN_HOSTS: Final = ("ring", "halving_doubling", "recursive_doubling", "double_binary_tree", "mesh2d")
"""Algorithms between the hosts that load every rank's link equally."""
MARGIN = 1.1
"""Factor by which an algorithm that loads links less may be slower than the cheapest one, and still be chosen."""
TIMED = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20)
"""Sizes in bytes of the allreduces that a group may time to correct the model (``measure``)."""

Collective = Literal["allreduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "barrier", "exchange"]
Timed = Mapping[str, Mapping[int, float]]
"""Algorithm -> bytes -> seconds that an allreduce took."""


@dataclass(frozen=True)
class Setting:
    """The participants of a collective, and their links.

    link        one rank's link;  inside  between ranks of one group;  fold  to the switches, None if they do not fold
    groups      (groups, members of each)
    mesh        (rows, columns) of the mesh that the ranks are on, whose neighbours have links of their own
    contention  factor by which ranks far apart slow each other down: 1 on a fabric without oversubscription
    """

    ranks: int
    link: LinkCost
    contention: float = 1.0
    groups: tuple[int, int] | None = None
    inside: LinkCost | None = None
    fold: LinkCost | None = None
    mesh: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.contention < 1:
            raise ValueError(f"contention={self.contention}: expected 1 or more")


@dataclass(frozen=True)
class Choice:
    """An algorithm, its predicted seconds, and all candidates with theirs, from best to worst."""

    algorithm: str
    seconds: float
    candidates: tuple[tuple[str, float], ...]
    text: str

    def __str__(self) -> str:
        return self.text


def predict(
    nbytes: int, setting: Setting, *, folded: int | None = None, collective: Collective = "allreduce"
) -> dict[str, float]:
    """Predicted seconds of each algorithm that fits, by the model.  The arguments are those of ``choose``."""
    ranks, link, groups, inside = setting.ranks, setting.link, setting.groups, setting.inside
    # Partners far apart share the fabric's inner links; neighbours in a well-ordered ring do not.
    far = LinkCost(link.alpha, link.beta * setting.contention, link.gamma)
    found: dict[str, float] = {}
    if collective == "reduce_scatter":
        found["ring"] = cost.reduce_scatter(nbytes, ranks, link)
    elif collective == "all_gather":
        found["ring"] = cost.all_gather(nbytes, ranks, link)
    elif collective == "exchange":  # half to reduce, half to gather, one ring after the other
        found["ring"] = cost.reduce_scatter(nbytes / 2, ranks, link) + cost.all_gather(nbytes / 2, ranks, link)
    elif collective == "broadcast":
        found |= {
            "binomial": cost.broadcast_binomial(nbytes, ranks, far),
            "chain": cost.broadcast_chain(nbytes, ranks, link),
            "scatter_all_gather": cost.broadcast_scatter_all_gather(nbytes, ranks, link),
        }
    elif collective == "reduce":
        found |= {
            "binomial": cost.broadcast_binomial(nbytes, ranks, far),  # the same tree, the other way
            "reduce_scatter_gather": cost.reduce_scatter(nbytes, ranks, link) + link.alpha + nbytes * link.beta,
        }
    elif collective == "barrier":
        found["dissemination"] = cost.barrier(ranks, far)
    else:
        found |= {
            "ring": cost.ring(nbytes, ranks, link),
            "halving_doubling": cost.halving_doubling(nbytes, ranks, far),
            "recursive_doubling": cost.recursive_doubling(nbytes, ranks, far),
            "double_binary_tree": cost.double_binary_tree(nbytes, ranks, far),
            "parameter_server": cost.parameter_server(nbytes, ranks, far),
        }
        rows, columns = grid(ranks)
        if rows > 1:
            found["mesh2d"] = cost.mesh2d(nbytes, rows, columns, far)
        if setting.mesh is not None:
            found[TIDALMESH] = cost.tidalmesh(nbytes, *setting.mesh, link, chunks_of(int(nbytes), *setting.mesh))
        if groups is not None and inside is not None:
            found["hierarchical"] = cost.hierarchical(nbytes, *groups, inside, link)
    lanes = nbytes if folded is None else folded
    if setting.fold is not None and groups is not None and inside is not None:
        found[INNET] = cost.netreduce_parallel(lanes, *groups, inside, setting.fold)
    elif setting.fold is not None:
        # Of a row nobody sends, or gets, what is his own.
        share = (ranks - 1) / ranks if collective in ("reduce_scatter", "all_gather") else 1.0
        share = 0.5 if collective == "exchange" else share  # each half fills the direction that the other leaves free
        found[INNET] = cost.innet(lanes * share, ranks, setting.fold)
    return found


def choose(
    nbytes: int,
    setting: Setting,
    *,
    folded: int | None = None,
    collective: Collective = "allreduce",
    timed: Timed | None = None,
    only: Callable[[str], bool] = lambda name: True,
) -> Choice:
    """The cheapest algorithm, and why.  The same arguments give the same choice on every rank.

    nbytes      of the tensor, on each rank
    folded      bytes that each rank sends to be folded; default: nbytes
    collective  what is asked for; the times are those of allreduces all the same
    timed       measured times.  A prediction is multiplied by the ratio of measured to predicted time of the same
                algorithm, interpolated between two sizes on a logarithmic scale; an algorithm that was not timed by the
                median ratio, or it would seem quick where the machine is slow
    only        whether an algorithm may be taken

    Two timings differ by up to ``MARGIN``; unless something is cheaper by more than that,
      an allreduce folds, since that leaves the links to others,
      and a tensor longer than all that were timed takes the ring.  There bytes decide, which the model knows, and not
      what made another algorithm quick at a shorter one (a burst that a shaped link let pass): none is expected to be
      quicker beside its model than the ring is.  What the model does not know speaks for the ring: its links carry one
      message each way at a time, where other algorithms make queues overflow.
    """
    costs = predict(nbytes, setting, folded=folded, collective=collective)
    timed = timed or {}
    corrections: dict[str, float] = {}
    for name, taken in timed.items():
        if name in costs and taken:
            sent = folded if name == INNET and folded is not None else nbytes
            corrections[name] = _correction(sent, taken, {size: predict(size, setting)[name] for size in taken})
    beyond = nbytes > max(timed.get("ring", ()), default=nbytes)
    usual = median(corrections.values()) if corrections else 1.0
    for name in costs:
        least = corrections["ring"] if beyond and name in BETWEEN_HOSTS else 0.0
        costs[name] *= max(corrections.get(name, usual), least)
    # Names break ties, so that no rank's dictionary order decides.
    order = sorted(((name, cost) for name, cost in costs.items() if only(name)), key=lambda item: (item[1], item[0]))
    if not order:
        raise ValueError(f"none of {', '.join(sorted(costs))} is allowed: expected at least one")
    best, seconds = order[0]
    why = ""
    if collective == "allreduce":
        preferred = (INNET, "ring") if beyond else (INNET,)
        found = next((name for name in preferred if dict(order).get(name, math.inf) <= seconds * MARGIN), best)
        if found != best:
            why = f", within {MARGIN - 1:.0%} of {best} and easier on the links"
            best, seconds = found, costs[found]
    link = setting.link
    rest = ", ".join(f"{name} {_time(cost)}" for name, cost in order if name != best)
    rate = f"{1 / link.beta * 8 / 1e9:.3g} Gb/s" if link.beta else "any rate"
    text = (
        f"{nbytes} bytes on {setting.ranks} ranks: {best}, {_time(seconds)} predicted{why} "
        f"(links: {_time(link.alpha)}, {rate})" + (f"; {rest}" if rest else "")
    )
    return Choice(best, seconds, tuple(order), text)


def _correction(nbytes: int, taken: Mapping[int, float], model: Mapping[int, float]) -> float:
    """The ratio of measured to predicted time of an algorithm at this size, from its ratios at other sizes."""
    sizes = sorted(taken)
    factors = [taken[size] / model[size] if model[size] else 1.0 for size in sizes]
    return _between(math.log(max(nbytes, 1)), [math.log(size) for size in sizes], factors)


def _between(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Linear interpolation between the points, constant beyond them."""
    if x <= xs[0]:
        return ys[0]
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return ys[-1]


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"

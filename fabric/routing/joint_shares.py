# SPDX-License-Identifier: Apache-2.0
"""The share of each path of each pair of leaves, planned for all pairs of a step together.

In a Clos, paths of different pairs share links evenly if each pair uses its own evenly.  In a mesh or torus they do
not: the links in the middle of many pairs' paths would be the busiest.  Here the paths' shares put the least load on
the busiest link, to within a few per cent, by multiplicative weights (Plotkin, Shmoys and Tardos, 1995; Garg and
Könemann, 2007): each link has a price that rises steeply with its load, and each pair moves its traffic from expensive
paths to cheap ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from netfold.fabric.routing.path_graph import Hop, PathGraph

Pair = tuple[str, str]
"""Source leaf and destination leaf."""

ROUNDS: Final = 300
"""Most rounds of prices and moves; the best shares of all rounds count."""
FRUITLESS: Final = 120
"""Rounds without a gain of a thousandth on the busiest link, after which the search ends."""
STEEP: Final = 4.0
"""Exponent of the first round's prices, in logarithms of the number of links; each round adds ``STEEPER``."""
STEEPER: Final = 0.5
MOVE: Final = 0.3
"""Rate at which a share shrinks on a path whose price exceeds that of its pair's cheapest path by the most expensive
link's price."""
LEAST_GAIN: Final = 0.01
"""Part of the busiest link's load that planning together must take off."""
GRAIN: Final = 64
"""Sum of the shares, which are whole numbers: a path that would carry less than half of one carries nothing."""


def joint_shares(graph: PathGraph, demands: Mapping[Pair, int]) -> dict[Pair, list[Fraction]]:
    """The share of each path of `PathGraph.paths`, for each pair of different leaves, in any unit of the pair.

    demands  bytes that each pair sends, above 0
    Where that is no better, each pair has the shares that it would have by itself (`PathGraph.weights`).  Raises
    PathError where a pair has no live path.
    """
    import numpy as np

    links: dict[Hop, int] = {}
    path_of: list[int] = []  # with `link_of`: each hop of each path
    link_of: list[int] = []
    pair_of: list[int] = []  # of each path
    alone: list[float] = []  # each path's share if its pair were alone
    for number, pair in enumerate(demands):
        paths = graph.paths(*pair)
        weights = graph.weights(paths)
        for path, weight in zip(paths, weights, strict=True):
            link_of += [links.setdefault(hop, len(links)) for hop in path]
            path_of += [len(pair_of)] * len(path)
            pair_of.append(number)
            alone.append(float(weight))
    if not pair_of:
        return {}
    hops, used, pairs = np.array(path_of), np.array(link_of), np.array(pair_of)
    sent = np.array(list(demands.values()), float)[pairs]
    room = np.array([max(1, graph.capacity(hop)) for hop in links], float)
    room /= room.max()
    shares = np.maximum(alone, 1e-9 * max(alone))
    shares = best = shares / np.bincount(pairs, shares, minlength=len(demands))[pairs]
    least, since, worth = np.inf, 0, 0.0
    for turn in range(ROUNDS):
        load = np.bincount(used, (shares * sent)[hops], minlength=len(room)) / room
        busiest = load.max()
        since = 0 if busiest < least * 0.999 else since + 1
        worth = worth or busiest * (1 - LEAST_GAIN)
        if busiest < least:
            least, best = busiest, shares
        if since >= FRUITLESS:
            break
        steep = np.log(len(room) + 1) * (STEEP + STEEPER * turn)
        price = np.exp(steep * (load / busiest - 1)) / room
        cost = np.bincount(hops, price[used], minlength=len(shares))
        cheapest = np.full(len(demands), np.inf)
        np.minimum.at(cheapest, pairs, cost)
        shares = shares * np.exp(-MOVE * (cost - cheapest[pairs]) / price.max())
        shares /= np.bincount(pairs, shares, minlength=len(demands))[pairs]
    if least > worth:
        return {pair: graph.weights(graph.paths(*pair)) for pair in demands}
    result: dict[Pair, list[Fraction]] = {pair: [] for pair in demands}
    names = list(demands)
    for number, share in zip(pair_of, best.tolist(), strict=True):
        result[names[number]].append(Fraction(round(GRAIN * share)))
    return {pair: whole if any(whole) else graph.weights(graph.paths(*pair)) for pair, whole in result.items()}

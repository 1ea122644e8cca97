# SPDX-License-Identifier: Apache-2.0
"""NetReduce's sufficient conditions: when folding over machines with several ranks is faster than the alternatives.

P ranks, n on each of H = P/n machines; B_intra inside a machine, B_inter its link; M bytes; latencies a.  Where
machines have unlike numbers of ranks, n is the most: their slowest machine takes the longest inside.

    parallel NetReduce   2(n-1)/n M/B_intra +           M/B_inter + 2(n-1) a_intra +            a_inter
    flat ring                                 2(P-1)/P  M/B_inter +                    2(P-1)   a_inter
    Tencent's            2(n-1)/n M/B_intra + 2(H-1)/H  M/B_inter + 2(n-1) a_intra +   2(H-1)   a_inter

By bandwidth it beats the ring where B_intra/B_inter > 2P(n-1) / (n(P-2)), and Tencent's where H > 2.
"""

from __future__ import annotations

import math


def ratio(ranks: int, members: int) -> float:
    """The B_intra/B_inter above which parallel NetReduce beats a flat ring by bandwidth; infinite where it never does.

    ranks  P, in all;  members  n, of each machine, or of the one with the most
    """
    if not 1 <= members <= ranks:
        raise ValueError(f"ranks={ranks}, members={members}: expected 1 or more, and no more on a machine than in all")
    if ranks <= 2:
        return math.inf  # two ranks: a ring sends M too
    return 2 * ranks * (members - 1) / (members * (ranks - 2))


def beats_ring(ranks: int, members: int, intra: float, inter: float) -> bool:
    """True if the condition holds.  ``intra`` and ``inter`` are rates in the same unit; lower latency makes it hold
    more often."""
    if not (intra > 0 and inter > 0):
        raise ValueError(f"intra={intra}, inter={inter}: expected rates above 0")
    return intra / inter > ratio(ranks, members)

# SPDX-License-Identifier: Apache-2.0
"""Several ranks on one machine: which ranks fold together in the network then (NetReduce's parallel scheme).

    machines          h1: 0 1      h2: 2 3      h3: 4 5       each machine has one address, and one link
    fold groups       local rank 0: 0 2 4       local rank 1: 1 3 5

The ranks of a machine reduce-scatter among themselves, each then folds its own piece with the ranks of the same local
rank on the other machines, and they gather the results: a machine's link carries the tensor once, not once a rank.

    machines          h1: 0 1      h2: 2        h3: 3 4       unlike numbers of ranks: as many groups as the least has
    fold groups       local rank 0: 0 2 3                     ranks 1 and 4 have no piece to fold
"""

from __future__ import annotations

from collections.abc import Sequence

from netfold.fabric.folding.trees import NoTree
from netfold.fabric.graph import Fabric, bits_per_second


def machines(hosts: Sequence[str]) -> list[list[int]]:
    """The ranks of each machine, in order of each machine's first rank.  ``hosts`` are host names by rank."""
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    return list(by_host.values())


def fold_groups(machines: Sequence[Sequence[int]], hosts: Sequence[str]) -> list[list[int]]:
    """Ranks that fold together: group l has local rank l of every machine; there are as many groups as the machine with
    the fewest ranks has ranks.  Raises NoTree where all ranks are on one machine."""
    if len(machines) == 1:
        raise NoTree(f"every rank is on {hosts[0]}: nothing to fold in the network")
    return [list(group) for group in zip(*machines, strict=False)]


def slowest(fabric: Fabric, hosts: Sequence[str]) -> float:
    """Bytes per second of the host with the least bandwidth, all links of a host added up; 0 if a link has no rate."""
    rates: dict[str, list[str | None]] = {host: [] for host in hosts}
    for link in fabric.links:
        for end in link.ends:
            if end.node in rates:
                rates[end.node].append(link.rate)
    known = [[bits_per_second(rate) for rate in of if rate is not None] for of in rates.values()]
    return min((sum(found) / 8 if len(found) == len(of) else 0.0
                for found, of in zip(known, rates.values(), strict=True)), default=0.0)

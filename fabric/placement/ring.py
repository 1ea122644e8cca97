# SPDX-License-Identifier: Apache-2.0
"""The order in which a ring visits the ranks of a job that does not fold (Patarasuk and Yuan 2009, section 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def ring_order(links: Iterable[tuple[str, str]], hosts: Sequence[str]) -> list[int]:
    """Ranks in the depth-first order of a tree of switches, rank 0 first.

    links  cables between named nodes; of a graph with loops a breadth-first tree from rank 0's switch is used
    hosts  node of each rank; ranks on one node stay together
    Going round in this order crosses every cable of the tree at most once each way.
    Raises ValueError for a rank whose node cannot be reached.
    """
    near: dict[str, list[str]] = {}
    for a, b in links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    children: dict[str, list[str]] = {hosts[0]: []}
    queue = [hosts[0]]
    for node in queue:
        for other in near.get(node, []):
            if other not in children:
                children[other] = []
                children[node].append(other)
                queue.append(other)
    place: dict[str, int] = {}
    stack = [hosts[0]]
    while stack:
        node = stack.pop()
        place[node] = len(place)
        stack.extend(reversed(children[node]))
    lost = [f"rank {rank} on {host!r}" for rank, host in enumerate(hosts) if host not in place]
    if lost:
        raise ValueError(f"no path from {hosts[0]!r} to {', '.join(lost)}: expected one connected fabric")
    return sorted(range(len(hosts)), key=lambda rank: (place[hosts[rank]], rank))

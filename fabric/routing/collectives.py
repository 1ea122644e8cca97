# SPDX-License-Identifier: Apache-2.0
"""The flows of each collective algorithm: what the path planners of controller and simulator need to know of it.

A collective is a list of steps; the flows of a step run together, and those of different steps do not.  Ranks are
numbers 0 .. n-1, sizes are relative: what counts is how flows of one step compare.  Where two algorithms differ only in
when they send what (a ring's reduce-scatter and all-gather), their flows are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

Step = dict[tuple[int, int], int]
"""Relative bytes by (sender, receiver)."""
UNIT: Final = 1 << 20
"""Relative bytes of the largest flow of a step."""


def ring(n: int) -> list[Step]:
    """Each rank sends to the next one: allreduce, reduce-scatter and all-gather on a ring."""
    return [{(r, (r + 1) % n): UNIT for r in range(n)}]


def chain(n: int, root: int = 0) -> list[Step]:
    """Broadcast along a chain of ranks: pipelined, so that all hops are busy at once."""
    return [{((root + v) % n, (root + v + 1) % n): UNIT for v in range(n - 1)}]


def all_to_all(n: int) -> list[Step]:
    """Each rank sends to every other one at the same time."""
    return [{(r, (r + k) % n): UNIT for r in range(n) for k in range(1, n)}]


def halving_doubling(n: int) -> list[Step]:
    """Exchanges between partners at distance 1, 2, 4 ... among 2^k ranks.  Each rank beyond 2^k sends its data to its
    left neighbour before, and gets the result from it afterwards.  Recursive doubling has the same flows."""
    core = 1 << (n.bit_length() - 1)
    extra = n - core
    taking_part = [2 * place if place < extra else place + extra for place in range(core)]
    folded = {pair: UNIT for r in range(extra) for pair in ((2 * r, 2 * r + 1), (2 * r + 1, 2 * r))}
    distances = [1 << k for k in range(core.bit_length() - 1)]
    steps = [{(taking_part[p], taking_part[p ^ d]): UNIT for p in range(core)} for d in distances]
    return [step for step in (folded, *steps) if step]


def binomial(n: int, root: int = 0) -> list[Step]:
    """Broadcast on a binomial tree: rank v, counted from the root, receives from v without its lowest set bit; the
    greatest distance comes first."""
    distances = [1 << k for k in reversed(range((n - 1).bit_length()))]
    return [{((root + v) % n, (root + v + d) % n): UNIT for v in range(0, n - d, 2 * d)} for d in distances]


def binomial_reduce(n: int, root: int = 0) -> list[Step]:
    """Reduce on a binomial tree: the flows of `binomial` in reverse."""
    return [{(b, a): size for (a, b), size in step.items()} for step in reversed(binomial(n, root))]


def scatter(n: int, root: int = 0) -> list[Step]:
    """The root sends a piece to every other rank."""
    return [{(root, r): UNIT for r in range(n) if r != root}]


def gather(n: int, root: int = 0) -> list[Step]:
    """Every rank sends its piece to the root."""
    return [{(r, root): UNIT for r in range(n) if r != root}]


def scatter_all_gather(n: int, root: int = 0) -> list[Step]:
    """Broadcast as a scatter followed by an all-gather on a ring."""
    return _apart(scatter(n, root), ring(n))


def reduce_scatter_gather(n: int, root: int = 0) -> list[Step]:
    """Reduce as a reduce-scatter on a ring followed by a gather."""
    return _apart(ring(n), gather(n, root))


def double_binary_tree(n: int) -> list[Step]:
    """Allreduce up and down two trees at once, half of the data on each; see `binary_tree`."""
    flows: Counter[tuple[int, int]] = Counter()
    for shift in (0, 1):
        for child, parent in binary_tree(n, shift).items():
            flows[child, parent] += UNIT // 2
            flows[parent, child] += UNIT // 2
    return [dict(flows)]


def binary_tree(n: int, shift: int) -> dict[int, int]:
    """Parent of every rank but the root, by rank (Sanders, Speck and Traeff 2009): number v of 1 .. n stands for rank
    (v + shift - 1) mod n, and its height is the number of its trailing zero bits.  Shifts 0 and 1 give the two trees:
    an inner node of one is a leaf of the other."""
    parents: dict[int, int] = {}

    def build(low: int, high: int, parent: int) -> None:
        if low <= high:
            top = max(range(low, high + 1), key=lambda v: v & -v)
            if parent:
                parents[(top + shift - 1) % n] = (parent + shift - 1) % n
            build(low, top - 1, top)
            build(top + 1, high, top)

    build(1, n, 0)
    return parents


def mesh2d(n: int) -> list[Step]:
    """Neighbours in the rows and columns of a grid exchange data both ways; the grid is as square as n allows."""
    rows = next(r for r in range(int(n**0.5), 0, -1) if n % r == 0)
    columns = n // rows
    right = [(r, r + 1) for r in range(n) if (r + 1) % columns]
    down = [(r, r + columns) for r in range(n - columns)]
    return [{pair: UNIT for a, b in right + down for pair in ((a, b), (b, a))}]


def _apart(*parts: Iterable[Step]) -> list[Step]:
    """The steps of all parts in order, each flow only where it comes first: a message to a peer is cut in one way."""
    seen: set[tuple[int, int]] = set()
    steps = []
    for step in (step for part in parts for step in part):
        steps.append({pair: size for pair, size in step.items() if pair not in seen})
        seen.update(step)
    return [step for step in steps if step]


UNROOTED: Final[dict[str, Callable[[int], list[Step]]]] = {
    "all_to_all": all_to_all,
    "ring": ring,
    "halving_doubling": halving_doubling,
    "recursive_doubling": halving_doubling,
    "double_binary_tree": double_binary_tree,
    "mesh2d": mesh2d,
}
ROOTED: Final[dict[str, Callable[[int, int], list[Step]]]] = {
    "binomial": binomial,
    "binomial_reduce": binomial_reduce,
    "chain": chain,
    "scatter": scatter,
    "gather": gather,
    "scatter_all_gather": scatter_all_gather,
    "reduce_scatter_gather": reduce_scatter_gather,
}


def steps(name: str, n: int, root: int = 0, *, sender: int | None = None) -> list[Step]:
    """Steps of a collective among n ranks; an unknown one is planned as an all-to-all.

    sender  the flows of this rank alone, in as many steps; None: those of all ranks
    Raises ValueError for fewer than 2 ranks, or a root that is none of them.
    """
    _check(name, n, root)
    if sender is not None and _is_all_to_all(name):  # its n (n - 1) flows would be many
        return [{(sender, (sender + k) % n): UNIT for k in range(1, n)}]
    whole = ROOTED[name](n, root) if name in ROOTED else UNROOTED.get(name, all_to_all)(n)
    if sender is None:
        return whole
    return [{pair: size for pair, size in step.items() if pair[0] == sender} for step in whole]


def count(name: str, n: int, root: int = 0) -> int:
    """Number of flows in all steps of a collective; arguments and errors are those of `steps`."""
    _check(name, n, root)
    return n * (n - 1) if _is_all_to_all(name) else sum(map(len, steps(name, n, root)))


def _check(name: str, n: int, root: int) -> None:
    if n < 2 or not 0 <= root < n:
        raise ValueError(f"{name} among {n} ranks with root {root}: expected 2 ranks or more, and one of them")


def _is_all_to_all(name: str) -> bool:
    return name not in ROOTED and UNROOTED.get(name, all_to_all) is all_to_all

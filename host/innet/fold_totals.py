# SPDX-License-Identifier: Apache-2.0
"""Totals of a rank's fold so far: operations, bytes by tree, and the engine's packet counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from netfold.host.innet.abi import AGREEMENT, DATA
from netfold.host.innet.core import Core
from netfold.host.innet.repeated import RepeatedFold
from netfold.host.operation.rail import RailStats, TreeStats
from netfold.host.operation.request import AllreduceRequest
from netfold.wire.plan import RankTree

REMEMBERED: Final = 256
"""Sizes of operations whose stripes are remembered."""


class FoldTotals:
    """The totals of one rank.

    core   counts the packets
    trees  the first ones of the job, by whose names totals are told: later ones may share a root
    """

    def __init__(self, core: Core, trees: Sequence[RankTree]) -> None:
        self._core = core
        self._names = [tree.name for tree in trees]
        self._operations = 0
        self._bytes = [0] * len(trees)
        self._seconds = 0.0
        self._shares: dict[tuple[int, int, int], list[int]] = {}
        """Number of elements, bytes per element and lane bits of an allreduce -> bytes of each tree's stripe."""
        self._repeated: list[RepeatedFold] = []

    def count(self, piece: AllreduceRequest, nanoseconds: int, operations: int) -> None:
        """Adds an allreduce that the core has just ended, or a piece of one, which took so long.

        operations  1 for the first piece of an operation, else 0
        """
        source = piece.source  # one call for each short tensor, beside which each step counts
        asked = source.size, source.itemsize, piece.coding.lane_bits
        shares = self._shares.get(asked)
        if shares is None:
            shares = self.stripes(source.itemsize)
            if len(self._shares) < REMEMBERED:
                self._shares[asked] = shares
        for tree, share in enumerate(shares):
            self._bytes[tree] += share
        self._operations += operations
        self._seconds += nanoseconds / 1e9

    def include(self, repeated: RepeatedFold) -> None:
        """From now on these are in the totals as well."""
        self._repeated.append(repeated)

    def stripes(self, itemsize: int) -> list[int]:
        """Bytes of each tree's stripe of the operation that the core has just ended."""
        return [self._core.elements(tree) * itemsize for tree in range(len(self._bytes))]

    def count_rows(self, nanoseconds: int, operations: int) -> None:
        """The same for a collective of rows, whose rows are of any length."""
        for tree in range(len(self._bytes)):
            self._bytes[tree] += self._core.carried(tree)
        self._operations += operations
        self._seconds += nanoseconds / 1e9

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """A context whose operations, and their bytes and seconds, are left out of the totals."""
        counted = self._operations, self._bytes[:], self._seconds
        try:
            yield
        finally:
            self._operations, self._bytes, self._seconds = counted

    def progress(self, retransmissions: int) -> RailStats:
        """Operations and bytes so far, and so many packets sent again; may be called on any thread, at any time."""
        carried = self._all_bytes()
        return RailStats(
            operations=self._all_operations(), bytes_reduced=sum(carried), retransmissions=retransmissions,
            by_tree={name: TreeStats(bytes_reduced=count) for name, count in zip(self._names, carried, strict=True)},
        )

    def _all_operations(self) -> int:
        return self._operations + sum(counts.operations for counts in self._repeated)

    def _all_bytes(self) -> list[int]:
        """Bytes of each tree."""
        return [
            once + sum(counts.shares[tree] * counts.operations for counts in self._repeated)
            for tree, once in enumerate(self._bytes)
        ]

    def stats(self, fallback: str) -> RailStats:
        """All totals.

        fallback  why the switches fold no longer; empty while they do
        """
        by_tree: dict[str, TreeStats] = {}
        carried = self._all_bytes()
        for index, name in enumerate(self._names):
            both = [self._core.state(index, kind).counters for kind in (AGREEMENT, DATA)]
            by_tree[name] = TreeStats(
                bytes_reduced=carried[index],
                packets_sent=sum(c.sent for c in both),
                packets_received=sum(c.received for c in both),
                retransmissions=sum(c.retransmitted for c in both),
                timeouts=sum(c.timeouts for c in both),
                duplicates=sum(c.duplicates for c in both),
                asks=sum(c.asks for c in both),
                naks=sum(c.naks for c in both),
                ecn_marks=sum(c.marks for c in both),
            )
        return RailStats(
            operations=self._all_operations(),
            bytes_reduced=sum(carried),
            packets_sent=sum(t.packets_sent for t in by_tree.values()),
            retransmissions=sum(t.retransmissions for t in by_tree.values()),
            seconds=self._seconds + sum(counts.nanoseconds for counts in self._repeated) / 1e9,
            packets_refused=self._core.refused()[0],
            packets_unfolded=self._core.unfolded(),
            packets_corrupt=self._core.corrupt(),
            by_tree=by_tree,
            fallback=fallback,
        )

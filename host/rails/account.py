# SPDX-License-Identifier: Apache-2.0
"""Counts what one rank has sent over its several rails: operations, bytes and time, in all and by rail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from netfold.host.operation.rail import RailStats, TreeStats
from netfold.host.rails.rail_set import JobCounts, RailSet
from netfold.host.rails.rank_state import first_line
from netfold.host.rails.shares import RailShares

State = Literal["up", "down", "spare"]
"""Of a rail: ``spare`` is up, and carries nothing while another rail is up."""


@dataclass(frozen=True)
class RailUse:
    """The work of one rail for this rank, and its agreed figures."""

    name: str
    state: State
    nbytes: int
    """Bytes of tensors that it carried, without those of calls that failed on it."""
    deaths: int
    latency: float
    """Agreed latency in seconds."""
    bandwidth: float | None
    """Agreed bandwidth in bytes per second; None while it is unknown."""
    why: str
    """Cause of its last failure."""
    processor: float = 0.0
    """Processor seconds of the thread that carried its parts of long calls."""


class Account:
    """The counts of one rank, which are written by the thread that makes the calls alone."""

    __slots__ = ("_rails", "nbytes", "operations", "processor", "reduced", "seconds")

    def __init__(self, rails: RailSet) -> None:
        self._rails = rails
        self.operations = 0
        self.reduced = 0
        """Bytes of all allreduces."""
        self.seconds = 0.0
        """Seconds inside all calls."""
        self.nbytes = [0] * len(rails)
        """By rail: bytes of tensors that it carried."""
        self.processor = [0.0] * len(rails)
        """By rail: processor seconds of the thread that carried its parts of long calls."""
        rails.counted_by(lambda: JobCounts(self.operations, dict(zip(rails.names, self.nbytes, strict=True))))

    def count(self, nbytes: int, seconds: float = 0.0) -> None:
        """Adds an allreduce of so many bytes, and seconds inside it that are not counted yet."""
        self.operations += 1
        self.reduced += nbytes
        self.seconds += seconds

    def add_seconds(self, seconds: float) -> None:
        """Adds seconds inside a call that is counted by itself."""
        self.seconds += seconds

    def count_rows(self) -> None:
        """Adds another collective."""
        self.operations += 1

    def use(self, shares: RailShares) -> list[RailUse]:
        """The work of each rail so far, with its figures from these shares."""
        rails, uses = self._rails, []
        for index, figure in enumerate(shares.figures):
            state: State = "up" if index in rails.live else "down" if rails.rails[index] is None else "spare"
            why = first_line(rails.causes[index] or "")
            uses.append(
                RailUse(
                    rails.names[index], state, self.nbytes[index], rails.deaths[index],
                    figure.latency, figure.bandwidth, why, self.processor[index],
                )
            )
        return uses

    def progress(self) -> RailStats:
        """How much all rails have done together, which each of them reports too; may be called on any thread."""
        return RailStats(operations=self.operations, by_rail=dict(zip(self._rails.names, self.nbytes, strict=True)))

    def stats(self) -> RailStats:
        """Totals of all rails; the trees of each are told by its name."""
        named = self._rails.stats()
        rails = [stats for _, stats in named]
        by_tree: dict[str, TreeStats] = {}
        for rail, stats in named:
            for tree, counts in stats.by_tree.items():
                name = f"{rail}/{tree}"
                by_tree[name] = by_tree[name] + counts if name in by_tree else counts
        return RailStats(
            operations=self.operations,
            bytes_reduced=self.reduced,
            packets_sent=sum(stats.packets_sent for stats in rails),
            retransmissions=sum(stats.retransmissions for stats in rails),
            seconds=self.seconds,
            packets_refused=sum(stats.packets_refused for stats in rails),
            packets_unfolded=sum(stats.packets_unfolded for stats in rails),
            packets_corrupt=sum(stats.packets_corrupt for stats in rails),
            by_tree=by_tree,
        )

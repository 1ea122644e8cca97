# SPDX-License-Identifier: Apache-2.0
"""The mesh between some ranks as a rail: it carries what no switch folds for a group."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.conversion import between_hosts, deliver
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.rails.rail_set import JobCounts
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import Peers


def carry_between(peers: Peers, request: AllreduceRequest) -> int:
    """Carries a request between the hosts, which have neither residuals nor saturating sums.  Returns what
    ``Rail.allreduce`` does."""
    if request.feedback is None and not request.coding.saturate:
        return peers.allreduce(request)
    carried = between_hosts(request, request.algorithm)
    return peers.allreduce(carried) + deliver(carried, request)


class MeshRail:
    """A ``rail_set.WatchedRail`` over a group's part of a mesh that belongs to others, who watch it.

    hosts  the group's ranks
    """

    narrows = carries_rows = False
    retransmissions = 0

    def __init__(self, hosts: Peers) -> None:
        # numbers of its own: the group's operations go on from theirs
        self._peers = Peers(
            hosts.mesh, label=f"{hosts.label}rail ", algorithm=hosts.algorithm, order=hosts.order, fabric=hosts.fabric,
            note=hosts.note,
        )
        self.name = self.between_name = hosts.mesh.rail

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        return True

    def way(self, coding: Coding, algorithm: str | None) -> Callable[[AllreduceRequest], int]:
        return self.allreduce

    def allreduce(self, request: AllreduceRequest) -> int:
        if request.algorithm == INNET:
            request = structs.replace(request, algorithm=None)
        return carry_between(self._peers, request)

    def between_hosts(self, number: int, operation: Callable[[Peers], None]) -> None:
        self._peers.count_from(number)
        operation(self._peers)

    def collect(self, request: RowsRequest) -> None:
        raise AssertionError("a mesh has no switches")

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Does nothing: who owns the mesh watches it."""

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        """Does nothing: no controller hears of it."""

    def leave(self, why: str, *, at_once: bool = False) -> None:
        """Does nothing: the ranks stay on the mesh."""

    def stats(self) -> RailStats:
        return self._peers.stats()

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        return self._peers.explain(nbytes)

    def close(self) -> None:
        """Does nothing: the mesh belongs to the job."""

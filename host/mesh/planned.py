# SPDX-License-Identifier: Apache-2.0
"""Where a mesh gets the paths that were planned for its messages: the contract, which ``client.path_client`` keeps."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from netfold.wire.paths import PathPiece, Paths, Reach
from netfold.wire.plan import Plan


class Collective(NamedTuple):
    """The collective that paths are planned for: an algorithm, and the ranks that take part, in its order; no ranks:
    all, by number."""

    algorithm: str
    ranks: tuple[int, ...] = ()
    root: int = 0


class PathSource(Protocol):
    """A rank's paths, by collective."""

    ports: list[int]
    """Source ports of all paths that this rank may ever use."""
    changed_fd: int
    """A descriptor that is readable when there may be newer paths."""

    @property
    def queue_pairs(self) -> int:
        """Most paths to any one peer."""

    def changed(self, wanted: Collective) -> Paths | None:
        """The newest paths for a collective, or None where they are the ones returned last."""

    def newer(self) -> Paths | None:
        """Paths that have arrived since the collective began, or since the last call, else None."""

    def suspect(self, peer: int, port: int) -> None:
        """Reports that nothing comes through by this source port, without waiting."""

    def close(self) -> None:
        """Lets go of the controller; safe to call twice."""


class OnePort:
    """A ``PathSource`` without a controller: everything to every peer by one source port, that of packets to spray."""

    changed_fd = -1
    queue_pairs = 1

    def __init__(self, plan: Plan, port: int) -> None:
        self.ports = [port]
        peers = [peer.rank for peer in plan.peers if peer.rank != plan.rank]
        self._paths: Paths | None = Paths(
            1, [port], [PathPiece(peer, 0, 1, port) for peer in peers],
            [Reach(peer, f"rank {peer}", [port]) for peer in peers],
        )

    def changed(self, wanted: Collective) -> Paths | None:
        """All paths, the first time."""
        del wanted
        paths, self._paths = self._paths, None
        return paths

    def newer(self) -> Paths | None:
        """None: they never change."""
        return None

    def suspect(self, peer: int, port: int) -> None:
        """Nothing: no path is to blame."""

    def close(self) -> None:
        """Nothing to let go of."""

# SPDX-License-Identifier: Apache-2.0
"""The prospects of a group of ranks without trees: it gets trees of its own once it needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from netfold.host.operation.rail import FoldingRail, RailStats, RailTeam
from netfold.host.selection.peers import Peers


class OpenedFold(NamedTuple):
    """What folds for a group from now on: ``switches``, or several rails used as one.

    hosts  the group's ranks for what does not fold
    """

    hosts: Peers
    switches: FoldingRail | None = None
    rails: RailTeam | None = None


class Prospect(Protocol):
    """The rail that folds for a group, which its ranks open together when one of its reductions is worth it.  All ranks
    call it alike, between the same operations."""

    @property
    def why(self) -> str:
        """Why nothing folds now, or why it does, for people to read."""

    def due(self, nbytes: int) -> bool:
        """Counts a reduction of so many bytes that could fold.  Returns whether ``open`` is to be called before it."""

    def open(self, hosts: Peers, progress: Callable[[], RailStats]) -> OpenedFold | None:
        """What folds, where all ranks of the group have it; None, on all of them, where one could not.  Inside an
        operation of the group.  Raises what a mesh raises.

        progress  of the group's dispatch, which reads counts that may be read on any thread
        """

    def lost(self) -> None:
        """The rail folds no longer (``FoldingRail.begin``): it is closed, and may be opened anew later."""

    def close(self, reason: str = "") -> None:
        """Closes the rail, and opens none any more; safe to call twice, on any thread.

        reason  why the communicator has failed, where it has
        """


class Prospects(Protocol):
    """Makes those of a job's groups."""

    def of(self, members: Sequence[int]) -> Prospect:
        """The prospect of the group of these ranks of the job, in this order."""

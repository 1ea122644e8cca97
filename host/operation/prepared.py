# SPDX-License-Identifier: Apache-2.0
"""A kind of allreduce, and what its first calls have found out for the later ones.

Training loops repeat the same few allreduces.  Beside a short tensor it is the steps in Python that cost: where ranks
share processors no cache is warm, and each object that a step touches comes from memory.  MPI calls such calls
persistent collectives (MPI 4.1, section 6.13).
"""

from __future__ import annotations

from typing import Any


class PreparedCall:
    """Allreduces of one group that are alike in dtype, size and arguments.  All of their requests carry this object.

    Each layer that carries such a call keeps here what it has found out, and checks before the next one that it still
    holds.  A layer that finds nothing decides anew, which never changes the result.
    """

    __slots__ = ("choice", "fold", "repeated")

    def __init__(self) -> None:
        self.choice: Any = None
        """What carries it (``selection.dispatch.Chosen``)."""
        self.fold: Any = None
        """The folding rail's own preparation (``FoldingRail.prepare``)."""
        self.repeated: tuple[Any, Any] | None = None
        """Choice and fold, if these are enough to carry it while the choice holds."""

    def choose(self, choice: Any) -> None:
        """From now on this carries it; None: that is decided anew each time."""
        self.choice, self.repeated = choice, None

    def repeat_by(self, fold: Any) -> None:
        """The folding rail that has been chosen may carry it by this preparation alone."""
        self.fold, self.repeated = fold, (self.choice, fold)

    def look_anew(self) -> None:
        """What carries the next one is to be examined: the rail is not as it was."""
        self.repeated = None

# SPDX-License-Identifier: Apache-2.0
"""Opens resources that ranks need together: on all of them, or on none.

A rank may lack a resource that others have: a UDP port, shared memory.  One rank that cannot fold prevents all others
from folding, so each reports to the others if it could open everything.  Then all know the same reasons, and decide
alike.  The ranks of a job tell their controller (`wire.jobs.Opened`); where there is none, they agree over the mesh:

    bit     1 where this rank lacks something; the ranks take the maximum
    why     if any rank does: each rank's reason in a row of its own, all rows added up
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeVar

import numpy as np

from netfold.host.collectives.flow import run
from netfold.host.collectives.recursive_doubling import allreduce
from netfold.host.errors import NetFoldError, TransportError
from netfold.host.mesh.connection import printable
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.reduction import Reduction

REASON_BYTES: Final = 512
"""Most bytes of a rank's reason that are sent to the others."""

T = TypeVar("T")
Agreement: TypeAlias = Callable[[str], Mapping[int, str]]
"""Called by all ranks with each one's missing resources, "" for none.  Returns, the same on all ranks: rank -> its
missing resources, for ranks that lack any."""


class Unfit(Exception):
    """Some ranks cannot fold; the message names them, the same on all ranks.

    lacking  what each of them lacks, by rank
    own      what this rank could not open, or None
    """

    def __init__(self, lacking: Mapping[int, str], own: Exception | None) -> None:
        self.lacking, self.own = lacking, own
        super().__init__(self.say("cannot fold"))

    def say(self, what: str) -> str:
        """Which ranks lack something, why, and what comes of it."""
        return "; ".join(f"rank {rank} {what}: {why}" for rank, why in self.lacking.items())

    def error(self, me: str) -> TransportError:
        """The error of a rank that was to fold, whatever else there is.  ``me``: job and rank."""
        number = self.own.errno if isinstance(self.own, OSError) else None
        return TransportError(number, f"{me}: {self}; rail=\"auto\" goes over TCP then")


def open_on_all(agree: Agreement, open_: Callable[[], T], close: Callable[[T], object]) -> T | Unfit:
    """The value of ``open_``, if it succeeds on every rank that agrees.  If one lacks something: Unfit on all of them,
    to be raised after their operation.  Called by all ranks.

    open_  raises OSError or MemoryError if this host lacks something
    close  undoes it if another rank lacks something
    """
    failure: Exception | None = None
    opened: list[T] = []
    try:
        opened.append(open_())
    except (OSError, MemoryError) as error:
        if isinstance(error, NetFoldError) and not isinstance(error, TransportError):
            raise  # of the other ranks, not of this host
        failure = error
    try:
        lacking = agree("" if failure is None else str(failure) or type(failure).__name__)
    except BaseException:
        for one in opened:
            close(one)
        raise
    if not lacking:
        return opened[0]
    for one in opened:
        close(one)
    return Unfit(lacking, failure)


def agreed_over(mesh: Mesh) -> Agreement:
    """The agreement of all ranks of a mesh over it, inside an operation, which it does not end."""

    def agree(lacks: str) -> Mapping[int, str]:
        some = np.array([bool(lacks)], np.int32)
        run(mesh, allreduce(mesh, some, Reduction("max", "int32")))
        if not some[0]:
            return {}
        rows = np.zeros((mesh.size, REASON_BYTES), np.uint8)
        said = lacks.encode(errors="replace")[:REASON_BYTES]
        rows[mesh.rank, : len(said)] = np.frombuffer(said, np.uint8)
        run(mesh, allreduce(mesh, rows.reshape(-1).view(np.int32), Reduction("sum", "int32")))
        texts = {rank: printable(row.tobytes().rstrip(b"\0").decode(errors="replace")) for rank, row in enumerate(rows)}
        return {rank: text for rank, text in texts.items() if text}

    return agree

# SPDX-License-Identifier: Apache-2.0
"""Which ranks share a machine, and the shared memory over which they then reduce."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence

import numpy as np

from netfold.host.collectives import ring
from netfold.host.collectives.flow import run
from netfold.host.collectives.open_on_all import Unfit, agreed_over, open_on_all
from netfold.host.collectives.shared_memory import SHARED, SharedRows
from netfold.host.mesh.mesh import Mesh, Subset
from netfold.host.operation.arrays import by_counts

log = logging.getLogger("netfold")


def machine() -> bytes:
    """16 bytes that are equal for processes which can share memory: those with the same kernel and the same
    /dev/shm."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    where = os.stat(SHARED)
    return hashlib.blake2b(f"{boot} {where.st_dev} {where.st_ino}".encode(), digest_size=16).digest()


def find(mesh: Mesh, own: bytes | None = None) -> list[list[int]]:
    """Ranks grouped by machine, in order of their first rank.  All ranks call it together, inside an operation.

    own  16 bytes to use in place of ``machine()``
    """
    keys = np.zeros(16 * mesh.size, np.uint8)
    pieces = by_counts([16] * mesh.size)
    keys[pieces[mesh.rank]] = np.frombuffer(machine() if own is None else own, np.uint8)
    run(mesh, ring.all_gather(mesh, keys, pieces))
    groups: dict[bytes, list[int]] = {}
    for rank, piece in enumerate(pieces):
        groups.setdefault(keys[piece].tobytes(), []).append(rank)
    return list(groups.values())


class Machines:
    """The machines of a mesh's ranks.  All ranks use it alike, inside operations.

    groups  ranks by machine, where they are known; else ``find`` finds out
    """

    def __init__(self, mesh: Mesh, groups: Sequence[Sequence[int]] = ()) -> None:
        self._mesh = mesh
        self.groups = [list(ranks) for ranks in groups]
        self._rows: SharedRows | None = None
        self._without = False
        """True if all ranks know that some of them have no shared memory."""

    def find(self) -> list[list[int]]:
        """Ranks by machine; finds out where they are not known yet."""
        if not self.groups:
            self.groups = find(self._mesh)
        return self.groups

    def shape(self) -> tuple[int, int] | None:
        """(machines, ranks of the one with the most); None where machines are not known."""
        return (len(self.groups), max(map(len, self.groups))) if self.groups else None

    def parts(self) -> int:
        """How many pieces a hierarchical allreduce cuts a window into: the ranks of the machine with the fewest."""
        return min(map(len, self.groups))

    def local(self) -> Subset:
        """The ranks of this rank's machine."""
        return Subset(self._mesh, next(group for group in self.groups if self._mesh.rank in group))

    def rows(self) -> SharedRows | None:
        """Shared memory, made at the first call, where machines are known, and one has more than one rank; else None,
        and where a rank has none, with a warning."""
        shape = self.shape()
        if self._rows is None and not self._without and shape is not None and shape[1] > 1:
            opened = open_on_all(agreed_over(self._mesh), lambda: SharedRows(self.local()), SharedRows.close)
            if isinstance(opened, Unfit):
                self._without = True
                log.warning("rank %d of %d: nothing is reduced in shared memory: %s", self._mesh.rank, self._mesh.size,
                            opened.say("has none"))
            else:
                self._rows = opened
        return self._rows

    def close(self) -> None:
        """Releases the shared memory."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

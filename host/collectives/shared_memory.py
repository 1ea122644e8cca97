# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of one machine share, so that reducing among them moves nothing over any link.

m ranks, M bytes: each copies its data into a row of its own, reduces one of m pieces over all rows, and copies the
result out: 3 memory passes, 2 barriers for each window of the data, no bytes on the network but the barriers'.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from netfold.host.collectives import ring
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.broadcast import binomial
from netfold.host.collectives.elements import Reduction
from netfold.host.collectives.flow import Strand, by_counts, even, run
from netfold.host.errors import TransportError
from netfold.host.mesh import Flat, Mesh

ROW = 4 << 20
"""Bytes of each rank's row: the window in which long data is worked through."""
_NAME = 32


def machine() -> bytes:
    """16 bytes that are equal for processes that can share memory: same kernel, same /dev/shm."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    where = os.stat("/dev/shm")
    return hashlib.blake2b(f"{boot} {where.st_dev} {where.st_ino}".encode(), digest_size=16).digest()


def machines(mesh: Mesh, own: bytes | None = None) -> list[list[int]]:
    """Ranks grouped by machine, in order of their first rank.  All ranks call it together, inside an operation.

    own  16 bytes in place of ``machine()``
    """
    keys = np.zeros(16 * mesh.size, np.uint8)
    pieces = by_counts([16] * mesh.size)
    keys[pieces[mesh.rank]] = np.frombuffer(machine() if own is None else own, np.uint8)
    run(mesh, ring.all_gather(mesh, keys, pieces))
    groups: dict[bytes, list[int]] = {}
    for rank, piece in enumerate(pieces):
        groups.setdefault(keys[piece].tobytes(), []).append(rank)
    return list(groups.values())


class SharedRows:
    """One row of ``row`` bytes for each rank of ``local``, a mesh (or Subset) of ranks of one machine.

    All ranks make it together, inside an operation.  The name is gone as soon as everybody has it open: a crash leaves
    nothing behind.  Raises TransportError where the machine has no room.
    """

    def __init__(self, local: Mesh, *, row: int = ROW) -> None:
        self._local = local
        self._row = row
        name = np.zeros(_NAME, np.uint8)
        memory: SharedMemory | None = None
        refused = ""
        if local.rank == 0:
            try:
                text = f"netfold-{secrets.token_hex(8)}"
                memory = SharedMemory(text, create=True, size=row * local.size)
                name[: len(text)] = np.frombuffer(text.encode(), np.uint8)
            except OSError as error:  # the others must hear of it too: they get a name without letters
                refused = str(error)
        try:
            run(local, binomial(local, name))
            if local.rank:
                text = name.tobytes().rstrip(b"\0").decode()
                memory = _attach(text) if text else None
            if memory is None:
                raise TransportError(
                    f"rank {local.rank}: no shared memory of {row * local.size} bytes {refused}: give the machine a "
                    "larger /dev/shm, or use an algorithm without shared memory"
                )
            run(local, barrier(local))
        finally:
            if local.rank == 0 and memory is not None:
                memory.unlink()
        self._memory = memory
        self._rows = np.frombuffer(memory.buf or b"", np.uint8, row * local.size).reshape(local.size, row)

    def windows(self, count: int, itemsize: int) -> Iterator[slice]:
        """``count`` elements in windows that fit into a row."""
        most = self._row // itemsize
        for at in range(0, count, most):
            yield slice(at, min(at + most, count))

    def reduce_scatter(self, data: Flat, reduction: Reduction) -> Strand:
        """Reduces a window: afterwards the own piece of ``even(data.size, ranks)`` is whole, in ``data``."""
        local, mine = self._local, even(data.size, self._local.size)[self._local.rank]
        rows = [self._view(rank, data) for rank in range(local.size)]
        np.copyto(rows[local.rank], data)
        yield from barrier(local)
        own = data[mine]
        np.copyto(own, rows[0][mine])
        for row in rows[1:]:
            reduction(own, row[mine], out=own)
        yield from barrier(local)  # nobody may write into its row while others still read it

    def all_gather(self, data: Flat) -> Strand:
        """Fills a window with each rank's piece of ``even(data.size, ranks)``."""
        local, pieces = self._local, even(data.size, self._local.size)
        np.copyto(self._view(0, data)[pieces[local.rank]], data[pieces[local.rank]])
        yield from barrier(local)
        np.copyto(data, self._view(0, data))
        yield from barrier(local)

    def close(self) -> None:
        """Lets the memory go."""
        del self._rows
        self._memory.close()

    def _view(self, rank: int, like: Flat) -> Flat:
        return self._rows[rank, : like.nbytes].view(like.dtype)


def _attach(name: str) -> SharedMemory:
    if sys.version_info >= (3, 13):
        return SharedMemory(name, track=False)
    memory = SharedMemory(name)
    # Before 3.13 attaching registers with a tracker that would unlink it again at exit, and warn.
    resource_tracker.unregister(memory._name, "shared_memory")  # type: ignore[attr-defined]
    return memory

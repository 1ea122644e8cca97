# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of one machine share, so that reducing among them moves nothing over any link.

m ranks, M bytes: each copies what others reduce into a row of its own, reduces one of m pieces over all rows, and
copies the others' results out: 2 to 3 memory passes, 2 barriers for each window of the data, no bytes on the network
but the barriers'.

Two sets of rows take turns, one a step: who writes into a set has passed the barrier of the step before, which each
rank began after it had read the same set for the last time.

Files of /dev/shm are mapped directly: Python's own SharedMemory does not reserve its pages, so that a full /dev/shm
kills the process by SIGBUS instead of raising, and its tracker unlinks files that other processes still use.

No rank tells another one a path: they exchange a nonce, and each derives the name from it and the job's secret.  Who
does not know the secret can neither guess the name nor make the ranks open a file of his choice.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
from collections.abc import Iterator, Sequence

import numpy as np

from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.broadcast import binomial
from netfold.host.collectives.flow import Strand, run
from netfold.host.collectives.inner_step import ROW, windows_of
from netfold.host.errors import TransportError
from netfold.host.job_secret import derive
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import Reduction

SHARED = "/dev/shm"
NONCE_BYTES = 16
NAME_BYTES = 16
"""Bytes of the derived key that are the file's name, in hexadecimal digits."""


class SharedRows:
    """Two rows of ``row`` bytes for each rank of ``local``, a mesh (or Subset) of ranks of one machine.

    All ranks make it together, inside an operation.  Raises TransportError as ``shared_file`` does.
    """

    def __init__(self, local: Mesh, *, row: int = ROW) -> None:
        self._local = local
        self.row = row
        size = 2 * row * local.size
        file = shared_file(local, size)
        try:
            self._memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        self._rows = np.frombuffer(self._memory, np.uint8, size).reshape(2, local.size, row)
        self._turn = 0
        """Index of the set of rows to use next."""

    def windows(self, count: int, itemsize: int) -> Iterator[slice]:
        """See ``InnerStep``."""
        return windows_of(self.row, count, itemsize)

    def reduce_scatter(self, data: Flat, out: Flat, reduction: Reduction, pieces: Sequence[slice]) -> Strand:
        """See ``InnerStep``."""
        local, mine = self._local, pieces[self._local.rank]
        if local.size == 1:
            if not np.may_share_memory(data, out):
                np.copyto(out[mine], data[mine])
            return
        rows = [self._view(rank, data) for rank in range(local.size)]
        self._turn ^= 1
        # nobody else reads this rank's own piece, and it itself has it, unless an earlier step overwrites it in place
        keeps = local.rank < 2 or not np.may_share_memory(data, out)
        for rank, piece in enumerate(pieces):
            if rank != local.rank or not keeps:
                np.copyto(rows[local.rank][piece], data[piece])
        yield from barrier(local)
        if keeps:
            rows[local.rank] = data
        own = out[mine]
        reduction(rows[0][mine], rows[1][mine], out=own)
        for row in rows[2:]:
            reduction(own, row[mine], out=own)

    def all_gather(self, data: Flat, pieces: Sequence[slice]) -> Strand:
        """See ``InnerStep``."""
        local = self._local
        if local.size == 1:
            return
        shared = self._view(0, data)
        self._turn ^= 1
        np.copyto(shared[pieces[local.rank]], data[pieces[local.rank]])
        yield from barrier(local)
        for rank, piece in enumerate(pieces):
            if rank != local.rank:
                np.copyto(data[piece], shared[piece])

    def close(self) -> None:
        """Unmaps the memory."""
        del self._rows
        with contextlib.suppress(BufferError):  # an error's traceback holds a view: unmapped with the last of them
            self._memory.close()

    def _view(self, rank: int, like: Flat) -> Flat:
        return self._rows[self._turn, rank, : like.nbytes].view(like.dtype)


def shared_file(local: Mesh, size: int) -> int:
    """The descriptor of a file of so many bytes in shared memory, for the ranks of one machine alone; they call it
    together, inside an operation.

    The file's name is removed as soon as all ranks have opened it, so a crash leaves nothing behind.  Raises
    TransportError where the machine has no room, or the file is not this user's.
    """
    nonce = np.zeros(NONCE_BYTES, np.uint8)
    path, refused, file = "", "", -1
    try:
        if local.rank == 0:
            drawn = secrets.token_bytes(NONCE_BYTES)
            try:
                file = create_file(_path(local, drawn), size)
                path = _path(local, drawn)
                nonce[:] = np.frombuffer(drawn, np.uint8)
            except OSError as error:  # a nonce of zeros tells the others that it failed
                refused = f" ({error.strerror})"
        run(local, binomial(local, nonce))
        if local.rank and nonce.any():
            try:
                file = open_file(_path(local, nonce.tobytes()), size)
            except OSError as error:
                refused = f" (this process does not see the first rank's {SHARED}: {error.strerror})"
        run(local, barrier(local))
    except BaseException:
        if file >= 0:
            os.close(file)
        raise
    finally:
        if path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    if file < 0:
        raise TransportError(
            errno.ENOMEM,
            f"rank {local.rank} of a machine's {local.size}: no {size} bytes of shared memory{refused}: give the "
            f"machine a larger {SHARED}, or use an algorithm without shared memory",
        )
    return file


def _path(local: Mesh, nonce: bytes) -> str:
    """The file that ranks of this job mean by a nonce."""
    return f"{SHARED}/netfold-{derive(local.secret, 'shared memory', nonce.hex())[:NAME_BYTES].hex()}"


def create_file(path: str, size: int) -> int:
    """Makes and opens a file that nobody but this user can open.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if size:
            os.posix_fallocate(file, 0, size)
    except BaseException:
        os.unlink(path)
        os.close(file)
        raise
    return file


def open_file(path: str, size: int) -> int:
    """Opens a file that another process of this user has made by ``create_file``.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(
                errno.EPERM, f"{path} has mode {found.st_mode:o} and belongs to user {found.st_uid}; expected a file "
                             f"of mode 0600 of user {os.geteuid()}"
            )
        if found.st_size != size:
            raise OSError(errno.EINVAL, f"{path} has {found.st_size} bytes; expected {size}")
    except BaseException:
        os.close(file)
        raise
    return file

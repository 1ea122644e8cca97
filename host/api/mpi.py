# SPDX-License-Identifier: Apache-2.0
"""MPI-style buffers: a communicator under mpi4py's names, for programs written against its upper-case methods.

    from netfold import mpi as MPI
    comm = MPI.COMM_WORLD                                  # joins the job that the environment names, at first use
    comm.Allreduce(MPI.IN_PLACE, gradient, op=MPI.SUM)

A buffer is a numpy array, another object with the buffer protocol (bytearray, array.array, memoryview), or a list of
such an object and a datatype or count, as in [array, MPI.FLOAT].  The array alone determines both; a contradiction is
refused.  Contiguous memory only, as with MPI.  Errors are netfold's (``errors``), not MPI's codes.  Methods in lower
case, which pickle objects, are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netfold.host.api import verbs
from netfold.host.api.group import Group
from netfold.host.api.work import Work
from netfold.host.operation.arrays import plain
from netfold.host.operation.reduction import ReduceOp

Array = NDArray[Any]
Buffer = Any
"""An array, another object with a buffer, or [buffer, datatype or count...]."""


class _InPlace:
    def __repr__(self) -> str:
        return "MPI.IN_PLACE"


IN_PLACE: Final = _InPlace()
"""Passed as sendbuf: recvbuf already holds the data."""
SUM: Final[ReduceOp] = "sum"
PROD: Final[ReduceOp] = "product"
MAX: Final[ReduceOp] = "max"
MIN: Final[ReduceOp] = "min"
FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
INT, INT32_T, INT64_T = np.dtype(np.intc), np.dtype(np.int32), np.dtype(np.int64)
UNSIGNED_CHAR, BYTE = np.dtype(np.uint8), np.dtype(np.uint8)


class Request:
    """A started operation."""

    def __init__(self, work: Work[Array]) -> None:
        self._work = work

    def Wait(self) -> bool:
        """Returns once recvbuf holds the result; raises the operation's error."""
        self._work.wait()
        return True

    def Test(self) -> bool:
        """True if ``Wait`` would return or raise at once."""
        return self._work.done()

    wait, test = Wait, Test


class Comm:
    """A group of ranks (of all ranks of a job: its Communicator) with MPI's methods."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def Get_rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self.group.rank

    def Get_size(self) -> int:
        """The number of ranks."""
        return self.group.size

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1 (``Get_rank``)."""
        return self.group.rank

    @property
    def size(self) -> int:
        """The number of ranks (``Get_size``)."""
        return self.group.size

    def Create_group(self, ranks: Sequence[int]) -> Comm:
        """A communicator of some of the ranks, in this order; only they call it."""
        return Comm(self.group.group(ranks))

    # ---- reductions --------------------------------------------------------------------------------------------------
    def Allreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: ReduceOp = SUM) -> None:
        """Fills recvbuf with the reduction of all ranks' sendbuf, folded in the network if possible."""
        out = _array(recvbuf, "recvbuf", write=True)
        self.group.allreduce(self._sent(sendbuf, out, out.size), out, op)

    def Iallreduce(self, sendbuf: Buffer, recvbuf: Buffer, op: ReduceOp = SUM) -> Request:
        """Starts an ``Allreduce`` and returns at once; neither buffer may be touched before ``Wait``."""
        out = _array(recvbuf, "recvbuf", write=True)
        return Request(self.group.iallreduce(self._sent(sendbuf, out, out.size), out, op))

    def Reduce(self, sendbuf: Buffer, recvbuf: Buffer | None, op: ReduceOp = SUM, root: int = 0) -> None:
        """Fills the root's recvbuf with the reduction of all ranks' sendbuf; on other ranks recvbuf may be None."""
        if self.rank != root:
            if sendbuf is IN_PLACE:
                raise ValueError(f"Reduce on rank {self.rank}: IN_PLACE is for the root, {root}, alone")
            self.group.reduce(_array(sendbuf, "sendbuf"), op=op, root=root)
            return
        out = _array(recvbuf, "recvbuf", write=True)
        self.group.reduce(self._sent(sendbuf, out, out.size), out, op, root=root)

    def Reduce_scatter(
        self, sendbuf: Buffer, recvbuf: Buffer, recvcounts: Sequence[int] | None = None, op: ReduceOp = SUM
    ) -> None:
        """Fills recvbuf with this rank's elements of the reduction of all ranks' sendbuf.

        recvcounts  elements for each rank; default: as many for each as recvbuf has.  IN_PLACE: recvbuf holds all
                    ranks' elements, and this rank's result at its beginning
        """
        out = _array(recvbuf, "recvbuf", write=True)
        if sendbuf is not IN_PLACE:
            counts = [out.size] * self.size if recvcounts is None else list(recvcounts)
            self.group.reduce_scatter(self._sent(sendbuf, out, sum(counts)), out, op, counts=counts)
            return
        if recvcounts is None:
            if out.size % self.size:
                raise ValueError(f"recvbuf has {out.size} elements: expected a multiple of {self.size}, or recvcounts")
            recvcounts = [out.size // self.size] * self.size
        mine = self.group.reduce_scatter(out, op=op, counts=recvcounts)
        out[: mine.size] = mine

    def Reduce_scatter_block(self, sendbuf: Buffer, recvbuf: Buffer, op: ReduceOp = SUM) -> None:
        """``Reduce_scatter`` with equally many elements for each rank."""
        self.Reduce_scatter(sendbuf, recvbuf, None, op)

    # ---- copies ------------------------------------------------------------------------------------------------------
    def Bcast(self, buf: Buffer, root: int = 0) -> None:
        """Fills every rank's buffer with that of the root."""
        data = _array(buf, "buf", write=self.rank != root)
        self.group.broadcast(data if data.flags.writeable else data.copy(), root=root)

    def Allgather(self, sendbuf: Buffer, recvbuf: Buffer) -> None:
        """Fills recvbuf with all ranks' sendbuf, in order.  IN_PLACE: this rank's part is at its place in recvbuf."""
        out = _array(recvbuf, "recvbuf", write=True)
        part = self._part(out, "recvbuf")
        mine = out[self.rank * part : (self.rank + 1) * part]
        self.group.all_gather(mine.copy() if sendbuf is IN_PLACE else self._sent(sendbuf, out, part), out)

    def Gather(self, sendbuf: Buffer, recvbuf: Buffer | None, root: int = 0) -> None:
        """Fills the root's recvbuf with all ranks' sendbuf, in order; on other ranks recvbuf may be None."""
        if self.rank != root:
            self.group.gather(_array(sendbuf, "sendbuf"), root=root)
            return
        out = _array(recvbuf, "recvbuf", write=True)
        part = self._part(out, "recvbuf")
        mine = out[root * part : (root + 1) * part]
        self.group.gather(mine.copy() if sendbuf is IN_PLACE else self._sent(sendbuf, out, part), out, root=root)

    def Scatter(self, sendbuf: Buffer | None, recvbuf: Buffer, root: int = 0) -> None:
        """Fills recvbuf with this rank's part of the root's sendbuf.  IN_PLACE as the root's recvbuf: its part stays in
        sendbuf."""
        if self.rank != root:
            self.group.scatter(None, _array(recvbuf, "recvbuf", write=True), root=root)
            return
        source = _array(sendbuf, "sendbuf")
        part = self._part(source, "sendbuf")
        out = np.empty(part, source.dtype) if recvbuf is IN_PLACE else _array(recvbuf, "recvbuf", write=True)
        self.group.scatter(source, out, root=root)

    def Alltoall(self, sendbuf: Buffer, recvbuf: Buffer) -> None:
        """Sends part r of sendbuf to rank r, and fills part r of recvbuf with the part from rank r."""
        out = _array(recvbuf, "recvbuf", write=True)
        self._part(out, "recvbuf")
        self.group.all_to_all(out.copy() if sendbuf is IN_PLACE else self._sent(sendbuf, out, out.size), out)

    def Barrier(self) -> None:
        """Returns once every rank has called it."""
        self.group.barrier()

    # ---- between two -------------------------------------------------------------------------------------------------
    def Send(self, buf: Buffer, dest: int, tag: int = 0) -> None:
        """Sends to one rank, which must call ``Recv`` with a buffer of this size."""
        self.group.send(_array(buf, "buf"), dest, tag=tag)

    def Recv(self, buf: Buffer, source: int, tag: int = 0) -> None:
        """Receives the next message from one rank with this tag; there are no wildcards."""
        self.group.receive(_array(buf, "buf", write=True), source, tag=tag)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _part(self, array: Array, name: str) -> int:
        if array.size % self.size:
            raise ValueError(f"{name} has {array.size} elements: expected a multiple of {self.size}, one part a rank")
        return array.size // self.size

    def _sent(self, sendbuf: Buffer, out: Array, size: int) -> Array:
        """sendbuf as an array of ``size`` elements of recvbuf's dtype; for IN_PLACE, recvbuf itself."""
        if sendbuf is IN_PLACE:
            return out
        array = _array(sendbuf, "sendbuf")
        if (array.size, array.dtype) != (size, out.dtype):
            wanted = f"{size} x {out.dtype}"
            raise ValueError(f"sendbuf has {array.size} x {array.dtype}: expected {wanted}, as recvbuf says")
        return array


def _array(buffer: Buffer, name: str, *, write: bool = False) -> Array:
    """The memory of a buffer as a flat array.  Raises TypeError and ValueError."""
    extra: Sequence[Any] = ()
    if isinstance(buffer, list | tuple):
        buffer, *extra = buffer
    if buffer is None or isinstance(buffer, _InPlace):
        raise ValueError(f"{name} is {buffer!r}: expected an array")
    try:
        memory = buffer if isinstance(buffer, np.ndarray) else memoryview(buffer)
    except TypeError:
        raise TypeError(f"{name} is a {type(buffer).__name__}: expected an array, or what offers its memory") from None
    array = plain(memory, name)
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} has strides {array.strides}: expected contiguous memory")
    if write and not array.flags.writeable:
        raise ValueError(f"{name} is read-only")
    for said in extra:
        if isinstance(said, Integral):
            if said != array.size:
                raise ValueError(f"{name}: count {said}, but the array has {array.size} elements: give a slice of it")
        elif said is not None and _datatype(said, name) != array.dtype:
            raise ValueError(f"{name}: datatype {_datatype(said, name)}, but the array has {array.dtype}")
    return array.reshape(-1)


def _datatype(said: object, name: str) -> np.dtype[Any]:
    """The datatype that a buffer's list names, as numpy does.  Raises ValueError for what names none."""
    try:
        if isinstance(said, str | type | np.dtype):
            return np.dtype(said)
    except TypeError:
        pass
    raise ValueError(f"{name}: {said!r}: expected a datatype, or one number, the count of all elements: for a "
                     "displacement give a slice")


def __getattr__(name: str) -> Comm:
    """COMM_WORLD: all ranks of the process's job, which is joined at first use (``netfold.init``)."""
    if name != "COMM_WORLD":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return Comm(verbs.communicator() if verbs.is_initialized() else verbs.init())

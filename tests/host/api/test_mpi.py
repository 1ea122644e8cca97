# SPDX-License-Identifier: Apache-2.0
"""The MPI-style methods: every one against MPI's definition, in place and not, and buffers that are refused."""

from __future__ import annotations

import array as arrays
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from netfold import mpi as MPI
from netfold.host.api import verbs
from netfold.host.api.communicator import Communicator
from netfold.host.errors import NetFoldError
from netfold.testing import loopback_job, on_every_rank

RANKS = 3


@pytest.fixture(scope="module")
def job() -> Iterator[list[Communicator]]:
    """The ranks of one job."""
    with loopback_job(RANKS, rail="tcp") as comms:
        yield comms


def everywhere(work: Callable[[MPI.Comm], Any], *, rail: Any = "tcp") -> list[Any]:
    """The result of every rank."""
    with loopback_job(RANKS, rail=rail) as comms:
        results = on_every_rank(comms, lambda comm: work(MPI.Comm(comm)))
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_allreduce_in_place_and_not(rail: str) -> None:
    """Sums fold where there is a fabric; IN_PLACE uses what is in recvbuf; Iallreduce is done after Wait."""

    def work(comm: MPI.Comm) -> None:
        send, total = np.full((2, 5), comm.rank, np.float32), np.empty((2, 5), np.float32)
        comm.Allreduce([send, np.int64(10), "f"], [total, None, np.float32])
        comm.Allreduce([send, MPI.FLOAT], [total, 10, MPI.FLOAT])
        assert (total == 3).all()
        assert (send == comm.rank).all()
        comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        assert (total == 9).all()
        peak = np.full(4, comm.Get_rank(), np.int64)
        request = comm.Iallreduce(MPI.IN_PLACE, peak, op=MPI.MAX)
        assert request.Wait()
        assert request.Test()
        assert peak.tolist() == [RANKS - 1] * 4

    everywhere(work, rail=rail)


def test_reductions_to_one_and_to_parts() -> None:
    """Reduce and Reduce_scatter work with and without counts, and in place."""

    def work(comm: MPI.Comm) -> None:
        mine = np.arange(6.0) + comm.rank
        whole = np.arange(6.0) * 3 + 3
        out = np.empty(6) if comm.rank == 1 else None
        comm.Reduce(mine, out, op=MPI.SUM, root=1)
        if comm.rank == 1:
            np.testing.assert_array_equal(out, whole)  # type: ignore[arg-type]
        held = mine.copy()
        comm.Reduce(MPI.IN_PLACE if comm.rank == 0 else held, held if comm.rank == 0 else None)
        np.testing.assert_array_equal(held, whole if comm.rank == 0 else mine)
        part = np.empty(2)
        comm.Reduce_scatter_block(mine, part)
        np.testing.assert_array_equal(part, whole[2 * comm.rank :][:2])
        counts = [1, 0, 5]
        some = np.empty(counts[comm.rank])
        comm.Reduce_scatter(mine, some, counts)
        np.testing.assert_array_equal(some, [whole[:1], whole[:0], whole[1:]][comm.rank])
        comm.Reduce_scatter(MPI.IN_PLACE, mine)
        np.testing.assert_array_equal(mine[:2], whole[2 * comm.rank :][:2])

    everywhere(work)


def test_copies() -> None:
    """Bcast, Allgather, Gather, Scatter, Alltoall, Send and Recv work, also with buffers other than numpy's."""

    def work(comm: MPI.Comm) -> None:
        rank = comm.rank
        word = bytearray(b"root!" if rank == 2 else b".....")
        comm.Bcast([word, MPI.BYTE], root=2)
        assert word == b"root!"
        everyone_, own = arrays.array("d", [0.0] * 6), arrays.array("d", [rank, rank + 0.5])
        comm.Allgather(own, everyone_)
        assert everyone_.tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
        grid = np.zeros((3, 2), np.int32)
        grid[rank] = rank
        comm.Allgather(MPI.IN_PLACE, grid)
        assert grid.tolist() == [[0, 0], [1, 1], [2, 2]]
        gathered = np.empty(3, np.int64) if rank == 0 else None
        comm.Gather(np.array([rank * 7]), gathered)
        if gathered is not None:
            assert gathered.tolist() == [0, 7, 14]
        piece = np.empty(2, np.int32)
        comm.Scatter(grid if rank == 1 else None, piece, root=1)
        assert piece.tolist() == [rank, rank]
        given, taken = np.arange(3) + 10 * rank, np.empty(3, np.int64)
        comm.Alltoall(given, taken)
        assert taken.tolist() == [rank, 10 + rank, 20 + rank]
        comm.Alltoall(MPI.IN_PLACE, given)
        assert given.tolist() == taken.tolist()
        comm.Barrier()
        if rank == 0:
            comm.Send(np.array([5.0]), dest=2, tag=4)
        if rank == 2:
            got = np.empty(1)
            comm.Recv(got, source=0, tag=4)
            assert got[0] == 5
        if rank != 1:
            pair = comm.Create_group([2, 0])
            total = np.empty(1)
            pair.Allreduce(np.ones(1), total)
            assert (total[0], pair.Get_size(), pair.rank) == (2, 2, rank == 0)

    everywhere(work)


@pytest.mark.parametrize("rail", ["tcp", "innet"])
def test_what_is_only_sent_may_be_read_only(rail: str) -> None:
    """No call writes to a buffer from which it only sends, not even the root's of Bcast."""
    given = bytes(range(6))

    def work(comm: MPI.Comm) -> None:
        root, out, whole = comm.rank == 0, bytearray(6), bytearray(6 * RANKS)
        comm.Bcast(given if root else out)
        assert root or bytes(out) == given
        for send in (
            lambda: comm.Allreduce(given, out, op=MPI.MAX),
            lambda: comm.Iallreduce(given, out, op=MPI.MAX).Wait(),
            lambda: comm.Reduce(given, out if root else None, op=MPI.MAX),
            lambda: comm.Reduce_scatter_block(given * RANKS, out, op=MPI.MAX),
            lambda: comm.Scatter(given * RANKS if root else None, out),
            lambda: comm.Send(given, 1) if root else comm.Recv(out, 0) if comm.rank == 1 else None,
        ):
            out[:] = bytes(6)
            send()
            assert bytes(out) in (given, bytes(6))
        for gather in (
            lambda: comm.Allgather(given, whole),
            lambda: comm.Gather(given, whole),
            lambda: comm.Alltoall(given * RANKS, whole),
        ):
            gather()
            assert bytes(whole) == given * RANKS or not root
        assert given == bytes(range(6))

    everywhere(work, rail=rail)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: c.Allreduce(np.zeros(3), np.zeros(4)), ValueError, "sendbuf has 3 x float64: expected 4 x float64"),
        (lambda c: c.Allreduce(np.zeros(3), np.zeros(3, "f4")), ValueError, "expected 3 x float32"),
        (lambda c: c.Allreduce(np.zeros(6)[::2], np.zeros(3)), ValueError, "contiguous memory"),
        (lambda c: c.Allreduce(3.0, np.zeros(3)), TypeError, "sendbuf is a float"),
        (lambda c: c.Allreduce(MPI.IN_PLACE, MPI.IN_PLACE), ValueError, "recvbuf is MPI.IN_PLACE"),
        (lambda c: c.Bcast(b"fixed", root=1), ValueError, "buf is read-only"),
        (lambda c: c.Bcast([np.zeros(3), 2]), ValueError, "count 2, but the array has 3"),
        (lambda c: c.Bcast([np.zeros(3), MPI.FLOAT]), ValueError, "datatype float32, but the array has float64"),
        (lambda c: c.Bcast([np.zeros(8), np.int64(4)]), ValueError, "count 4, but the array has 8"),
        (lambda c: c.Bcast([np.zeros(8), (4, 2)]), ValueError, r"\(4, 2\): expected a datatype, or one number"),
        (lambda c: c.Bcast([np.zeros(8), 8.0]), ValueError, "8.0: expected a datatype, or one number"),
        (lambda c: c.Bcast([np.zeros(8), "no type"]), ValueError, "'no type': expected a datatype"),
        (lambda c: c.Bcast([np.zeros(8, "f4"), 8, "d"]), ValueError, "datatype float64, but the array has float32"),
        (lambda c: c.Bcast([np.zeros(8, "f4"), np.float64]), ValueError, "datatype float64, but the array has float32"),
        (lambda c: c.Allgather(np.zeros(1), np.zeros(4)), ValueError, "expected a multiple of 3"),
        (lambda c: c.Reduce(MPI.IN_PLACE, None, root=1), ValueError, "IN_PLACE is for the root, 1, alone"),
        (lambda c: c.Reduce(np.zeros(1), None), ValueError, "recvbuf is None"),
    ],
)
def test_buffers_that_cannot_be_are_refused(
    job: list[Communicator], call: Callable[[MPI.Comm], None], error: type[Exception], says: str
) -> None:
    """They are refused before anything is sent, and the communicator stays usable."""
    with pytest.raises(error, match=says):
        call(MPI.Comm(job[0]))
    assert on_every_rank(job, lambda comm: float(comm.allreduce(np.ones(1))[0])) == [3.0] * 3


def test_the_world_is_the_processs_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """COMM_WORLD joins at first use, and is the communicator that netfold's verbs use."""
    with loopback_job(1, rail="tcp") as comms:
        joined: list[Communicator] = []

        def init() -> Communicator:
            joined.append(comms[0])
            monkeypatch.setattr(verbs, "_world", comms[0])
            return comms[0]

        monkeypatch.setattr(verbs, "_world", None)
        monkeypatch.setattr(verbs, "init", init)
        assert MPI.COMM_WORLD.Get_size() == 1
        assert MPI.COMM_WORLD.group is comms[0]
        assert len(joined) == 1
    with pytest.raises(AttributeError, match="no attribute 'allreduce'"):
        MPI.allreduce  # noqa: B018
    with pytest.raises(NetFoldError, match="closed"):
        MPI.Comm(comms[0]).Barrier()

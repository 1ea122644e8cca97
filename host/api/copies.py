# SPDX-License-Identifier: Apache-2.0
"""What moves arrays between the ranks of a group and leaves them as they are: checked at the border.

Conventions of all operations of a group: arrays of any shape and layout, copies of any dtype but object; what is cut
into pieces is cut along its first axis; all ranks call the same operations in the same order.  Every operation raises
TypeError and ValueError for what it cannot take, before anything is sent, and CollectiveTimeout, PeerLost,
RankMismatch, TransportError, Busy, Closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, repeat

import numpy as np

from netfold.host.api.work import Turns
from netfold.host.collectives import BROADCAST
from netfold.host.operation.arrays import (
    Array,
    check_writeable,
    counts_of,
    flat,
    flat_copy,
    in_bytes,
    native,
    pieces_of,
    result_of,
    rows_of,
    rows_with,
)
from netfold.host.selection.peers import Peers, named


class Copies:
    """Ranks 0 .. size-1, who take turns."""

    def __init__(self, peers: Peers, turns: Turns) -> None:
        self._peers = peers
        self._peers.note = turns.flight.note
        self._turns = turns
        self._numbers = count(1)

    @property
    def rank(self) -> int:
        """This rank, 0 .. size - 1."""
        return self._peers.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._peers.size

    # ---- all ranks ---------------------------------------------------------------------------------------------------
    def broadcast(self, array: Array, *, root: int = 0, algorithm: str | None = None) -> Array:
        """Fills every rank's array with the root's, in place.

        algorithm  one of ``collectives.BROADCAST``; default: the cheapest
        """
        self._check_rank(root, "root")
        named(algorithm, BROADCAST)
        check_writeable(array, "array")
        data = flat(array)
        with self._turn("broadcast", data.nbytes, dtype=data.dtype):
            self._peers.broadcast(data.view(np.uint8), root, algorithm=algorithm)
        if not np.may_share_memory(data, array):
            array[...] = data.reshape(array.shape)
        return array

    def all_gather(self, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None) -> Array:
        """Every rank's rows, one after another.

        counts  rows of each rank's array; default: as many as this one's
        """
        array = np.asarray(array)
        rows = rows_with(array, counts, self.rank, self.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out)
        pieces = pieces_of(rows, array)
        data = flat(result)
        data[pieces[self.rank]] = array.reshape(-1)
        with self._turn("all_gather", data.nbytes, dtype=data.dtype):
            self._peers.all_gather(data.view(np.uint8), in_bytes(pieces, data))
        if not np.may_share_memory(data, result):
            result[...] = data.reshape(result.shape)
        return result

    def gather(
        self, array: Array, out: Array | None = None, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array | None:
        """Every rank's rows, one after another, on ``root``; None elsewhere."""
        self._check_rank(root, "root")
        array = np.asarray(array)
        rows = rows_with(array, counts, self.rank, self.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out) if self.rank == root else None
        pieces = pieces_of(rows, array)
        data = np.empty(pieces[-1].stop, native(array))
        data[pieces[self.rank]] = array.reshape(-1)
        with self._turn("gather", data.nbytes, dtype=data.dtype):
            self._peers.gather(data.view(np.uint8), in_bytes(pieces, data), root)
        if result is not None:
            result[...] = data.reshape(result.shape)
        return result

    def scatter(
        self, array: Array | None, out: Array, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array:
        """Fills ``out`` with this rank's rows of the root's ``array``, which the others leave out (None)."""
        self._check_rank(root, "root")
        check_writeable(out, "out")
        rows = rows_with(out, counts, self.rank, self.size)
        pieces = pieces_of(rows, out)
        data = np.empty(pieces[-1].stop, native(out))
        if self.rank == root:
            if array is None:
                raise ValueError("scatter on the root: expected an array, got None")
            if array.shape != (sum(rows), *out.shape[1:]) or native(array) != data.dtype:
                wanted = f"{data.dtype}{[sum(rows), *out.shape[1:]]}"
                raise ValueError(f"array is {array.dtype}{list(array.shape)}: expected {wanted}, all ranks' rows")
            data[:] = array.reshape(-1)
        with self._turn("scatter", data.nbytes, dtype=data.dtype):
            self._peers.scatter(data.view(np.uint8), in_bytes(pieces, data), root)
        out[...] = data[pieces[self.rank]].reshape(out.shape)
        return out

    def all_to_all(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
    ) -> Array:
        """Rows ``r`` of this rank go to rank r, rows from all ranks come back, in order of rank.

        counts      rows for each rank; default: all alike
        out_counts  rows from each rank; default: ``counts`` were all alike, so as many
        """
        array = np.asarray(array)
        given = rows_of(array, counts, self.size)
        if out_counts is None and len(set(given)) > 1:
            raise ValueError(f"counts={given}: unlike numbers need out_counts, the rows that come from each rank")
        taken = given if out_counts is None else counts_of(out_counts, self.size, "out_counts")
        result = result_of((sum(taken), *array.shape[1:]), array, out)
        if given[self.rank] != taken[self.rank]:
            raise ValueError(f"counts={given}, out_counts={taken}: rank {self.rank} must take what it gives itself")
        source = flat_copy(array)
        data = np.empty(result.size, source.dtype)
        to, by = in_bytes(pieces_of(given, array), data), in_bytes(pieces_of(taken, array), data)
        with self._turn("all_to_all", source.nbytes, dtype=source.dtype):
            self._peers.all_to_all(source.view(np.uint8), to, data.view(np.uint8), by)
        result[...] = data.reshape(result.shape)
        return result

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        with self._turn("barrier"):
            self._peers.barrier()

    # ---- between two -------------------------------------------------------------------------------------------------
    def send(self, array: Array, peer: int, *, tag: int = 0) -> None:
        """Sends to another rank, which calls ``receive``.  Between two ranks messages arrive in the order sent."""
        self._check_peer(peer)
        data = flat(np.asarray(array))
        with self._turn("send", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            self._peers.send(data, peer, tag)

    def receive(self, out: Array, peer: int, *, tag: int = 0) -> Array:
        """Fills ``out`` with the peer's next ``send``, which must have its size, dtype and tag."""
        self._check_peer(peer)
        check_writeable(out, "out")
        data = flat(out)
        with self._turn("receive", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            self._peers.receive(data, peer, tag)
        if not np.may_share_memory(data, out):
            out[...] = data.reshape(out.shape)
        return out

    # ---- inside ------------------------------------------------------------------------------------------------------
    @contextmanager
    def _turn(
        self, name: str, nbytes: int = 0, op: str = "", dtype: object = "", *, counted: bool = True
    ) -> Iterator[int]:
        """An operation's turn and number; ``counted``: one that all ranks of the group call, else it has number 0."""
        numbers = self._numbers if counted else repeat(0)
        with self._turns.turn(numbers, self._peers.name.strip(), name, nbytes, op, dtype) as number:
            if counted:
                self._peers.number = number
            yield number

    def _check_rank(self, rank: int, name: str) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"{name}={rank}: expected a rank of 0 .. {self.size - 1}")

    def _check_peer(self, peer: int) -> None:
        self._check_rank(peer, "peer")
        if peer == self.rank:
            raise ValueError(f"peer={peer} is this rank itself: expected another one")

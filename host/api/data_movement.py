# SPDX-License-Identifier: Apache-2.0
"""The operations of a group that move arrays between ranks without changing them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from netfold.host.api.members import Members
from netfold.host.collectives import BROADCAST
from netfold.host.operation.arrays import (
    Array,
    as_held,
    check_writeable,
    counts_of,
    fill,
    flat,
    flat_copy,
    held,
    in_bytes,
    native,
    pieces_of,
    plain,
    result_of,
    rows_of,
    rows_with,
)


class DataMovement:
    """The part of a ``Group`` that moves arrays as they are."""

    def __init__(self, ranks: Members) -> None:
        self._ranks = ranks

    def broadcast(self, array: Array, *, root: int = 0, algorithm: str | None = None) -> Array:
        """Fills every rank's array with that of the root, in place.

        algorithm  one of ``collectives.BROADCAST``, or "innet": the switches replicate it; default: the cheapest
        """
        ranks = self._ranks
        ranks.check_rank(root, "root")
        ranks.dispatch.rows.check(algorithm, BROADCAST)
        check_writeable(array, "array")
        data = flat(array)
        with ranks.operation("broadcast", data.nbytes, dtype=data.dtype) as number:
            ranks.dispatch.rows.broadcast(as_held(data, held(array)), root, number, algorithm)
        if not np.may_share_memory(data, array):
            array[...] = data.reshape(array.shape)
        return array

    def all_gather(
        self, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None,
        algorithm: str | None = None,
    ) -> Array:
        """Every rank's rows, one after another.

        counts     rows of each rank's array; default: as many as this one's
        algorithm  "ring", or "innet": the switches replicate each rank's rows to all; default: the cheaper one
        """
        ranks = self._ranks
        ranks.dispatch.rows.check(algorithm, ("ring",))
        array = plain(array)
        rows = rows_with(array, counts, ranks.rank, ranks.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out)
        pieces = pieces_of(rows, array)
        data = flat(result)
        fill(data[pieces[ranks.rank]], array)
        with ranks.operation("all_gather", data.nbytes, dtype=data.dtype) as number:
            ranks.dispatch.rows.all_gather(as_held(data, held(array)), in_bytes(pieces, data), number, algorithm)
        if not np.may_share_memory(data, result):
            result[...] = data.reshape(result.shape)
        return result

    def gather(
        self, array: Array, out: Array | None = None, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array | None:
        """Every rank's rows, one after another, on ``root``; None elsewhere."""
        ranks = self._ranks
        ranks.check_rank(root, "root")
        array = plain(array)
        rows = rows_with(array, counts, ranks.rank, ranks.size)
        result = result_of((sum(rows), *array.shape[1:]), array, out) if ranks.rank == root else None
        pieces = pieces_of(rows, array)
        data = np.empty(pieces[-1].stop, native(array))
        data[pieces[ranks.rank]] = array.reshape(-1)
        with ranks.operation("gather", data.nbytes, dtype=data.dtype):
            ranks.peers.gather(as_held(data, held(array)), in_bytes(pieces, data), root)
        if result is not None:
            result[...] = data.reshape(result.shape)
        return result

    def scatter(
        self, array: Array | None, out: Array, *, root: int = 0, counts: Sequence[int] | None = None
    ) -> Array:
        """Fills ``out`` with this rank's rows of the root's ``array``, which the other ranks do not pass (None)."""
        ranks = self._ranks
        ranks.check_rank(root, "root")
        check_writeable(out, "out")
        rows = rows_with(out, counts, ranks.rank, ranks.size)
        pieces = pieces_of(rows, out)
        data = np.empty(pieces[-1].stop, native(out))
        if ranks.rank == root:
            if array is None:
                raise ValueError("scatter on the root: expected an array, got None")
            array = plain(array)
            if array.shape != (sum(rows), *out.shape[1:]) or native(array) != data.dtype:
                wanted = f"{data.dtype}{[sum(rows), *out.shape[1:]]}"
                raise ValueError(f"array is {array.dtype}{list(array.shape)}: expected {wanted}, all ranks' rows")
            data[:] = array.reshape(-1)
        with ranks.operation("scatter", data.nbytes, dtype=data.dtype):
            ranks.peers.scatter(as_held(data, held(out)), in_bytes(pieces, data), root)
        out[...] = data[pieces[ranks.rank]].reshape(out.shape)
        return out

    def all_to_all(
        self,
        array: Array,
        out: Array | None = None,
        *,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
    ) -> Array:
        """Sends rows ``r`` of this rank to rank r, and returns the rows from all ranks, in order of rank.

        counts      rows for each rank; default: equally many
        out_counts  rows from each rank; default: as many as in ``counts``, which then are all equal
        """
        ranks = self._ranks
        array = plain(array)
        given = rows_of(array, counts, ranks.size)
        if out_counts is None and len(set(given)) > 1:
            raise ValueError(f"counts={given}: unlike numbers need out_counts, the rows that come from each rank")
        taken = given if out_counts is None else counts_of(out_counts, ranks.size, "out_counts")
        result = result_of((sum(taken), *array.shape[1:]), array, out)
        if given[ranks.rank] != taken[ranks.rank]:
            raise ValueError(f"counts={given}, out_counts={taken}: rank {ranks.rank} must take what it gives itself")
        source = flat_copy(array)
        data = np.empty(result.size, source.dtype)
        to, by = in_bytes(pieces_of(given, array), data), in_bytes(pieces_of(taken, array), data)
        with ranks.operation("all_to_all", source.nbytes, dtype=source.dtype):
            ranks.peers.all_to_all(source.view(np.uint8), to, as_held(data, held(array)), by)
        result[...] = data.reshape(result.shape)
        return result

    def barrier(self, *, algorithm: str | None = None) -> None:
        """Returns once every rank has called it.

        algorithm  "dissemination" between the hosts, or "innet": one packet from each rank, which the switches fold;
                   default: "innet" if they fold
        """
        ranks = self._ranks
        ranks.dispatch.rows.check(algorithm, ("dissemination",))
        with ranks.operation("barrier") as number:
            ranks.dispatch.rows.barrier(number, algorithm)

    def send(self, array: Array, peer: int, *, tag: int = 0) -> None:
        """Sends to another rank, which calls ``receive``.  Between two ranks messages arrive in the order sent."""
        ranks = self._ranks
        ranks.check_peer(peer)
        data = flat(plain(array))
        with ranks.operation("send", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            ranks.peers.send(data, peer, tag)

    def receive(self, out: Array, peer: int, *, tag: int = 0) -> Array:
        """Fills ``out`` with the peer's next ``send``, which must have its size, dtype and tag."""
        ranks = self._ranks
        ranks.check_peer(peer)
        check_writeable(out, "out")
        data = flat(out)
        with ranks.operation("receive", counted=False, nbytes=data.nbytes, dtype=data.dtype):
            ranks.peers.receive(data, peer, tag)
        if not np.may_share_memory(data, out):
            out[...] = data.reshape(out.shape)
        return out

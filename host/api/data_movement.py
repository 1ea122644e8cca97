# SPDX-License-Identifier: Apache-2.0
"""Implements the operations of a group that move arrays between ranks without changing them: checks, pieces, copies.

The methods of ``Group`` call these functions and describe them.
"""

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
    flat,
    flat_copy,
    held,
    in_bytes,
    native,
    pieces_of,
    result_of,
    rows_of,
    rows_with,
)


def broadcast(ranks: Members, array: Array, *, root: int = 0, algorithm: str | None = None) -> Array:
    """Implements ``Group.broadcast``."""
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
    ranks: Members, array: Array, out: Array | None = None, *, counts: Sequence[int] | None = None,
    algorithm: str | None = None,
) -> Array:
    """Implements ``Group.all_gather``."""
    ranks.dispatch.rows.check(algorithm, ("ring",))
    array = np.asarray(array)
    rows = rows_with(array, counts, ranks.rank, ranks.size)
    result = result_of((sum(rows), *array.shape[1:]), array, out)
    pieces = pieces_of(rows, array)
    data = flat(result)
    data[pieces[ranks.rank]] = array.reshape(-1)
    with ranks.operation("all_gather", data.nbytes, dtype=data.dtype) as number:
        ranks.dispatch.rows.all_gather(as_held(data, held(array)), in_bytes(pieces, data), number, algorithm)
    if not np.may_share_memory(data, result):
        result[...] = data.reshape(result.shape)
    return result


def gather(
    ranks: Members, array: Array, out: Array | None = None, *, root: int = 0, counts: Sequence[int] | None = None
) -> Array | None:
    """Implements ``Group.gather``."""
    ranks.check_rank(root, "root")
    array = np.asarray(array)
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
    ranks: Members, array: Array | None, out: Array, *, root: int = 0, counts: Sequence[int] | None = None
) -> Array:
    """Implements ``Group.scatter``."""
    ranks.check_rank(root, "root")
    check_writeable(out, "out")
    rows = rows_with(out, counts, ranks.rank, ranks.size)
    pieces = pieces_of(rows, out)
    data = np.empty(pieces[-1].stop, native(out))
    if ranks.rank == root:
        if array is None:
            raise ValueError("scatter on the root: expected an array, got None")
        if array.shape != (sum(rows), *out.shape[1:]) or native(array) != data.dtype:
            wanted = f"{data.dtype}{[sum(rows), *out.shape[1:]]}"
            raise ValueError(f"array is {array.dtype}{list(array.shape)}: expected {wanted}, all ranks' rows")
        data[:] = array.reshape(-1)
    with ranks.operation("scatter", data.nbytes, dtype=data.dtype):
        ranks.peers.scatter(as_held(data, held(out)), in_bytes(pieces, data), root)
    out[...] = data[pieces[ranks.rank]].reshape(out.shape)
    return out


def all_to_all(
    ranks: Members,
    array: Array,
    out: Array | None = None,
    *,
    counts: Sequence[int] | None = None,
    out_counts: Sequence[int] | None = None,
) -> Array:
    """Implements ``Group.all_to_all``."""
    array = np.asarray(array)
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


def barrier(ranks: Members, *, algorithm: str | None = None) -> None:
    """Implements ``Group.barrier``."""
    ranks.dispatch.rows.check(algorithm, ("dissemination",))
    with ranks.operation("barrier") as number:
        ranks.dispatch.rows.barrier(number, algorithm)


def send(ranks: Members, array: Array, peer: int, *, tag: int = 0) -> None:
    """Implements ``Group.send``."""
    ranks.check_peer(peer)
    data = flat(np.asarray(array))
    with ranks.operation("send", counted=False, nbytes=data.nbytes, dtype=data.dtype):
        ranks.peers.send(data, peer, tag)


def receive(ranks: Members, out: Array, peer: int, *, tag: int = 0) -> Array:
    """Implements ``Group.receive``."""
    ranks.check_peer(peer)
    check_writeable(out, "out")
    data = flat(out)
    with ranks.operation("receive", counted=False, nbytes=data.nbytes, dtype=data.dtype):
        ranks.peers.receive(data, peer, tag)
    if not np.may_share_memory(data, out):
        out[...] = data.reshape(out.shape)
    return out

# SPDX-License-Identifier: Apache-2.0
"""The arrays that callers pass to collectives: checked, made flat, and split along their first axis.

Checks raise TypeError and ValueError that name the argument, what it is, and what was expected.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.half_precision import dtype_name

Array = NDArray[Any]
"""A caller's array of any shape and layout."""
Flat = NDArray[Any]
"""A one-dimensional, C-contiguous, aligned array in this machine's byte order."""


HELD = "held"
"""Key of a dtype's metadata: the dtype of the elements that the bytes represent."""


def address_of(array: Array) -> int:
    """Where the array's elements begin in memory."""
    try:  # a quarter of what the other way takes
        return C.addressof(C.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, not contiguous, or of a dtype that has no buffer
        return int(array.__array_interface__["data"][0])


def plain(array: object, name: str = "array") -> Array:
    """A caller's array as an ``np.ndarray`` itself, of the same memory; of other objects, what numpy makes of them.
    Raises TypeError for arrays that have more than their memory says: a mask, or elements that refer to objects."""
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):  # np.ma is imported only where it must
        raise TypeError(
            f"{name} is a {type(array).__name__}, whose mask would be lost: expected a numpy array; give "
            "array.filled(value), or array.data to ignore the mask"
        )
    found = np.asarray(array)
    if found.dtype.hasobject:
        raise TypeError(
            f"{name} is {found.dtype}, whose elements refer to Python objects or strings elsewhere in memory: expected "
            "numbers, or other elements of a fixed number of bytes"
        )
    return found


def native(array: Array) -> np.dtype[Any]:
    """The array's dtype in the machine's byte order."""
    return array.dtype.newbyteorder("=")


def flat(array: Array) -> Flat:
    """The array's own memory as a flat array where it is plain, else a copy in the machine's byte order."""
    if type(array) is not np.ndarray:
        array = array.view(np.ndarray)  # np.matrix keeps two dimensions
    if array.flags.carray and array.dtype.isnative:  # the same as below, without its 3 us
        return array if array.ndim == 1 else array.reshape(-1)
    return np.require(array, native(array), ["C", "A"]).reshape(-1)


def flat_copy(array: Array) -> Flat:
    """A flat copy in the machine's byte order."""
    return np.array(array, native(array), order="C", copy=True).reshape(-1)


def result_of(shape: tuple[int, ...], like: Array, out: Array | None) -> Array:
    """``out`` where it can hold a result of this shape and of the dtype of ``like``; None: a new array."""
    if out is None:
        return np.empty(shape, native(like))
    if type(out) is not np.ndarray or not out.flags.writeable:
        check_writeable(out, "out")
    if out.shape != shape or (out.dtype != like.dtype and native(out) != native(like)):
        raise ValueError(f"out is {out.dtype}{list(out.shape)}: expected {like.dtype}{list(shape)}")
    return out


def check_writeable(array: Array, name: str) -> None:
    """Raises TypeError or ValueError unless it is an array that can be written and received into (``plain``)."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is a {type(array).__name__}: expected a numpy array")
    plain(array, name)
    if not array.flags.writeable:
        raise ValueError(f"{name} is read-only")


# ---- bytes that are moved, and say what they hold --------------------------------------------------------------------
def held(array: Array) -> str:
    """The dtype's name of an array, for ranks to compare; for bytes, the name of the dtype that they represent
    (``as_held``)."""
    metadata = array.dtype.metadata
    return metadata[HELD] if metadata and HELD in metadata else dtype_name(array.dtype)


def as_held(data: Flat, element: str = "") -> Flat:
    """The bytes of a flat array, which say by their dtype's metadata what elements they are.

    element  a dtype's name; default: what the array itself holds
    """
    return data.view(_bytes_of(element or held(data)))


@cache
def _bytes_of(element: str) -> np.dtype[np.uint8]:
    return np.dtype(np.uint8, metadata={HELD: element})


# ---- rows: what ``size`` ranks have of an array's first axis ---------------------------------------------------------
def counts_of(counts: Sequence[int], size: int, name: str) -> list[int]:
    """Checks numbers of rows, one for each rank."""
    if len(counts) != size or min(counts) < 0:
        raise ValueError(f"{name}={list(counts)}: expected {size} numbers of rows, one for each rank")
    return list(counts)


def rows_of(array: Array, counts: Sequence[int] | None, size: int) -> list[int]:
    """Each rank's rows in an array that holds all of them; without ``counts`` all have equally many."""
    if array.ndim == 0:
        raise ValueError("array has no axis to cut: expected one or more dimensions")
    if counts is None:
        if array.shape[0] % size:
            raise ValueError(f"array has {array.shape[0]} rows: expected a multiple of {size}, or counts")
        return [array.shape[0] // size] * size
    rows = counts_of(counts, size, "counts")
    if sum(rows) != array.shape[0]:
        raise ValueError(f"counts={rows} are {sum(rows)} rows, array has {array.shape[0]}: expected the same")
    return rows


def rows_with(array: Array, counts: Sequence[int] | None, rank: int, size: int) -> list[int]:
    """Each rank's rows, of which ``array`` holds this rank's; without ``counts`` all have equally many."""
    if array.ndim == 0:
        raise ValueError("a single number has no rows to put together: expected one or more dimensions")
    rows = [array.shape[0]] * size if counts is None else counts_of(counts, size, "counts")
    if rows[rank] != array.shape[0]:
        raise ValueError(f"counts={rows}: rank {rank} has {array.shape[0]} rows")
    return rows


def pieces_of(rows: Sequence[int], like: Array) -> list[slice]:
    """Each rank's elements in the flat array; rows have the width of those of ``like``."""
    width = int(np.prod(like.shape[1:], dtype=np.int64))
    return by_counts(count * width for count in rows)


def in_bytes(pieces: Sequence[slice], data: Flat) -> list[slice]:
    """The pieces of a flat array in bytes instead of elements."""
    return [slice(piece.start * data.itemsize, piece.stop * data.itemsize) for piece in pieces]


def fill(piece: Flat, rows: Array) -> None:
    """Fills a rank's piece of a flat array with its rows, which may lie in the memory of the array."""
    own = rows.reshape(-1)
    if np.may_share_memory(own, piece) and (address_of(own) != address_of(piece) or own.strides != piece.strides):
        own = own.copy()  # numpy's assignment reads what it has overwritten if only the strides differ
    piece[:] = own


def by_counts(counts: Iterable[int]) -> list[slice]:
    """Adjacent slices of these lengths."""
    pieces, at = [], 0
    for count in counts:
        pieces.append(slice(at, at + count))
        at += count
    return pieces

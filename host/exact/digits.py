# SPDX-License-Identifier: Apache-2.0
"""Floats as integers in digits that ranks add exactly, and the one rounding of their sums (native/exact.c)."""

from __future__ import annotations

import ctypes as C
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from netfold.host.native.library import load
from netfold.host.operation.arrays import Flat, address_of

BLOCK: Final = 256
"""Elements that share a scale."""
ZERO: Final = -(1 << 20)
SPECIAL: Final = 1 << 16
"""``NF_EXACT_ZERO``: ``high`` and ``low`` of a block of zeros; ``NF_EXACT_SPECIAL``: added to ``low`` of a block with
an Inf or NaN."""
KINDS: Final = {"float32": 0, "float64": 1, "half": 2}
"""Numbers of the added types, ``nf_exact_kind``. A half is added as float32, and left rounded to odd."""
RANGE: Final = {"float32": (128, 149), "float64": (1024, 1074), "half": (128, 149)}
"""Every finite value is below 2^first, and a multiple of 2^-second."""
SOURCES = ("quantise.c", "exact_round.c", "exact.c")


class ExactCoding(C.Structure):
    """``nf_exact_coding``: how a sum over so many ranks is coded."""

    digit: int
    flag: int
    most: int
    wide: int
    _fields_ = [(name, C.c_uint32) for name in (
        "kind", "digit", "flag", "most", "wide", "power", "divisor", "world",
    )]


class ExactBlock(C.Structure):
    """``nf_exact_block``: where a block's lanes are, and what they mean."""

    _fields_ = [
        ("at", C.c_uint64), ("unit", C.c_int32), ("low", C.c_int32), ("size", C.c_uint16), ("lanes", C.c_uint8),
        ("flags", C.c_uint8),
    ]


@cache
def library() -> C.CDLL:
    """The compiled arithmetic, built for this CPU on first use.  Raises cbuild.cc.BuildError."""
    number, address, kind = C.c_uint64, C.c_void_p, C.c_uint32
    how = C.POINTER(ExactCoding)
    functions: dict[str, tuple[Any, ...]] = {
        "nf_exact_abi_size": (C.c_uint32, C.c_uint32),
        "nf_exact_coding_of": (None, kind, C.c_uint32, C.c_uint32, how),
        "nf_exact_scan": (None, kind, address, number, address, address),
        "nf_exact_layout": (number, how, number, address, address, address),
        "nf_exact_heads": (None, how, address, address, number, address),
        "nf_exact_round": (number, how, address, address, number, address, address, C.POINTER(C.c_uint64)),
        "nf_exact_tails": (None, how, address, address, address, number, address),
        "nf_exact_settle": (None, how, address, address, address, number, address, address),
    }
    return load(
        "netfold-exact", SOURCES, functions, sizes="nf_exact_abi_size", structures=(ExactCoding, ExactBlock),
        libs=("-lm",),
    )


def blocks_of(elements: int) -> int:
    """The number of blocks of so many elements."""
    return -(-elements // BLOCK)


def most_lanes(kind: str, world: int) -> int:
    """The largest number of lanes of an element's leading digits, in a sum over so many ranks."""
    how = ExactCoding()
    library().nf_exact_coding_of(KINDS[kind], world, 1, C.byref(how))
    return how.most


def scan(kind: str, x: Flat) -> NDArray[np.int32]:
    """For each block of ``x`` the exponent that all of it is below, and for each block minus the exponent that all of
    it is a multiple of: int32[2, blocks], of which ranks agree on the largest."""
    bounds = np.empty((2, blocks_of(x.size)), np.int32)
    library().nf_exact_scan(KINDS[kind], address_of(x), x.size, address_of(bounds[0]), address_of(bounds[1]))
    return bounds


class ExactSum:
    """One sum's lanes.

    kind     of ``KINDS``
    x        this rank's contribution, flat: float32 or float64
    bounds   what the ranks agreed on, the largest of all ranks' ``scan``; checked by the caller
    world    number of ranks, 1 .. MAX_WORLD
    divisor  what the sum is divided by, before it is rounded
    """

    def __init__(self, kind: str, x: Flat, bounds: NDArray[np.int32], world: int, divisor: int = 1) -> None:
        self._x = x
        self.coding = ExactCoding()
        lib = self._lib = library()
        lib.nf_exact_coding_of(KINDS[kind], world, divisor, C.byref(self.coding))
        count = blocks_of(x.size)
        self._blocks = np.empty(count * C.sizeof(ExactBlock), np.uint8)
        lanes = lib.nf_exact_layout(
            C.byref(self.coding), x.size, address_of(bounds[0]), address_of(bounds[1]), address_of(self._blocks)
        )
        self.heads = np.empty(lanes, np.int32)
        """Lanes of the leading digits; ``round`` needs the ranks' sum of them."""
        lib.nf_exact_heads(C.byref(self.coding), self._block_table, address_of(x), x.size, address_of(self.heads))
        self._open = np.empty(0, np.uint64)

    @property
    def _block_table(self) -> int:
        return address_of(self._blocks)

    def round(self, out: Flat) -> NDArray[np.int32] | None:
        """With the sum in ``heads``: fills ``out`` where that decides the result, and returns the tails of the other
        elements, to be summed for ``settle``; None where there are none."""
        places, tails = np.empty(self._x.size, np.uint64), C.c_uint64()
        count = self._lib.nf_exact_round(
            C.byref(self.coding), self._block_table, address_of(self.heads), self._x.size, address_of(out),
            address_of(places), C.byref(tails),
        )
        if not count:
            return None
        self._open = places[:count].copy()
        lanes = np.empty(tails.value, np.int32)
        self._lib.nf_exact_tails(
            C.byref(self.coding), self._block_table, address_of(self._x), address_of(self._open), count,
            address_of(lanes),
        )
        return lanes

    def settle(self, tails: NDArray[np.int32], out: Flat) -> None:
        """With the sum of the tails: fills the rest of ``out``, which may be the contribution's memory."""
        self._lib.nf_exact_settle(
            C.byref(self.coding), self._block_table, address_of(self.heads), address_of(self._open), self._open.size,
            address_of(tails), address_of(out),
        )

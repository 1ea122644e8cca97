# SPDX-License-Identifier: Apache-2.0
"""Lanes of whole arrays, as native/quantise.c and narrow.c make them block by block; for tests and benchmarks."""

from __future__ import annotations

import ctypes as C
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.host.innet.abi import Narrowing
from netfold.host.innet.native import library
from netfold.host.operation.rail import Flat

Scales = NDArray[np.uint32]
"""Scales of blocks of 256 elements."""


def headroom(world: int) -> int:
    """Number of bits that a sum of ``world`` lanes may need beyond one lane's."""
    return int(library().nf_headroom(world))


def scales(x: Flat, bits: int = 32, residual: Flat | None = None) -> Scales:
    """The scale that each block of 256 float32 needs: its largest biased exponent (256: Inf or NaN), or for narrow
    lanes the bits of its largest magnitude."""
    out = np.empty(-(-x.size // 256), np.uint32)
    library().nf_scales_of(
        x.ctypes.data, None if residual is None else residual.ctypes.data, x.size, bits, out.ctypes.data
    )
    return out


def levels(world: int, bits: int) -> int:
    """Largest lane that one of ``world`` ranks may send; 0 where their sums do not fit into ``bits``."""
    return int(library().nf_levels(world, bits))


def narrow(
    x: Flat, agreed: Scales, world: int, bits: int, *, key: int | None = None, residual: Flat | None = None
) -> NDArray[np.int16]:
    """The narrow lanes of ``x``.  ``key``: seed of stochastic rounding, or None; ``residual``: what earlier calls left
    out, replaced by what this one leaves out."""
    wire = np.empty(x.size, ">i2" if bits == 16 else np.int8)
    how = Narrowing(bits, levels(world, bits), key is not None, key or 0)
    library().nf_narrow_all(
        C.byref(how), x.ctypes.data, None if residual is None else residual.ctypes.data, x.size, agreed.ctypes.data,
        wire.ctypes.data,
    )
    return wire.astype(np.int16)


def widen(lanes: NDArray[Any], agreed: Scales, world: int, bits: int, divisor: float = 1.0) -> NDArray[np.float32]:
    """The values of sums of narrow lanes."""
    wire = np.ascontiguousarray(lanes, ">i2" if bits == 16 else np.int8)
    out = np.empty(wire.size, np.float32)
    how = Narrowing(bits, levels(world, bits), False, 0)
    library().nf_widen_all(
        C.byref(how), wire.ctypes.data, wire.size, agreed.ctypes.data, divisor, out.ctypes.data
    )
    return out


def quantise(x: Flat, agreed: Scales, world: int) -> NDArray[np.int32]:
    """The 32-bit lanes of ``x``, padded to whole blocks, in this machine's byte order."""
    wire = np.zeros(-(-x.size // 256) * 256, ">i4")
    library().nf_quantise_all(x.ctypes.data, x.size, agreed.ctypes.data, world, wire.ctypes.data)
    return wire.astype(np.int32)


def dequantise(
    lanes: NDArray[Any], size: int, agreed: Scales, world: int, divisor: float = 1.0
) -> NDArray[np.float32]:
    """The first ``size`` values of sums of 32-bit lanes."""
    wire = np.ascontiguousarray(lanes, ">i4")
    out = np.empty(size, np.float32)
    library().nf_dequantise_all(wire.ctypes.data, size, agreed.ctypes.data, world, divisor, out.ctypes.data)
    return out

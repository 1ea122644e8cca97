# SPDX-License-Identifier: Apache-2.0
"""The structures and codes that Python exchanges with the fold engine, as native/fold.h and io.h lay them out, and
names for them."""

from __future__ import annotations

import ctypes as C
import struct
import zlib
from collections.abc import Sequence

from netfold.host.native.library import RUN_PACKETS

FIELDS = (
    "operation number", "collective", "root", "dtype", "operation", "lane bits", "elements", "elements / 2^31",
    "digest of rows", "world size", "trees", "guessed scales", "packets of a message",
)
"""Fields of an operation's signature, in the order of ``nf_field``."""
AGREEMENT, DATA = 0, 1
"""Kinds of streams: ``nf_kind``."""
DTYPE_CODES = {"float32": 0, "int32": 1, "bytes": 2}
COLLECTIVES = ("allreduce", "reduce_scatter", "reduce", "all_gather", "broadcast", "barrier", "exchange")
"""Names of the collectives that fold, in the order of ``nf_collective``."""
REDUCTIONS = ("sum", "average", "saturating sum", "max", "min")
"""Names of reductions, in the order of ``nf_reduction``."""
HELD = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bool", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
"""Names of dtypes that moved bytes may hold.  Their signature has ``MOVED`` and the place of the name instead of a
reduction."""
MOVED = 16
CALLED = 256
"""Factor of ``called`` in the field of the dtype."""
OTHERS = 1 << 30
"""First number for names that are not in ``HELD``."""
SIGNATURES_DIFFER, HEADERS_DIFFER = 1, 2


class StreamPlan(C.Structure):
    """``nf_stream_plan``: the addresses, queue pairs and window of one stream."""

    _fields_ = [(name, C.c_uint32) for name in (
        "peer", "peer_port", "peer_qp", "qp", "source_port", "psn", "window", "slots", "predecessor",
        "predecessor_port", "message",
    )]


class TreePlan(C.Structure):
    """``nf_tree_plan``: a tree's weight, its two streams, by kind, and whether they go on as they are."""

    _fields_ = [("weight", C.c_double), ("streams", StreamPlan * 2), ("stays", C.c_bool)]


class Row(C.Structure):
    """``nf_row``: a rank's part of a tensor."""

    _fields_ = [("first", C.c_uint64), ("count", C.c_uint64)]


class FoldOperation(C.Structure):
    """``nf_operation``: the parameters of one operation."""

    _fields_ = [
        ("source", C.c_void_p), ("out", C.c_void_p), ("residual", C.c_void_p), ("count", C.c_uint64),
        ("number", C.c_uint32), ("collective", C.c_int32), ("rank", C.c_uint32), ("root", C.c_uint32),
        ("dtype", C.c_int32), ("reduction", C.c_int32), ("called", C.c_uint32), ("lane_bits", C.c_uint32),
        ("stochastic", C.c_uint32), ("key", C.c_uint32), ("divisor", C.c_float),
        ("rows", C.POINTER(Row)), ("out_first", C.c_uint64),
        ("gathered", C.c_void_p), ("gathered_bytes", C.c_uint64), ("gathered_rows", C.POINTER(Row)),
    ]


ARRAYS = struct.Struct("PPPQI")
"""The first five fields of a ``FoldOperation``, with which each operation differs from the one before: written in one
step, since beside a short tensor each one counts."""


class Narrowing(C.Structure):
    """``nf_narrowing``: how float32 values become narrow lanes."""

    _fields_ = [("bits", C.c_uint32), ("levels", C.c_uint32), ("stochastic", C.c_bool), ("key", C.c_uint32)]


class Failure(C.Structure):
    """``nf_failure``: why an operation failed, with what was expected and what came."""

    error: int
    tree: int
    kind: int
    psn: int
    expected_opcode: int
    got_opcode: int
    expected_length: int
    got_length: int
    expected_address: int
    got_address: int
    low: Sequence[int]
    high: Sequence[int]
    _fields_ = [
        ("error", C.c_int32), ("tree", C.c_uint32), ("kind", C.c_uint32),
        ("low", C.c_uint32 * len(FIELDS)), ("high", C.c_uint32 * len(FIELDS)),
        ("psn", C.c_uint32), ("expected_opcode", C.c_uint32), ("got_opcode", C.c_uint32),
        ("expected_length", C.c_uint32), ("got_length", C.c_uint32),
        ("expected_address", C.c_uint64), ("got_address", C.c_uint64),
    ]


COUNTERS = ("sent", "received", "retransmitted", "timeouts", "duplicates", "marks", "asks", "naks")
STATE_FIELDS = ("sent_ahead", "results", "packets", "una_psn", "window", "rto", "srtt", "waits_since")


class Counters(C.Structure):
    """``nf_counters``: packets of one stream since the fold was opened; ``asks`` are NAKs sent, ``naks`` NAKs
    received."""

    sent: int
    received: int
    retransmitted: int
    timeouts: int
    duplicates: int
    marks: int
    asks: int
    naks: int
    _fields_ = [(name, C.c_uint64) for name in COUNTERS]


class StreamState(C.Structure):
    """``nf_stream_state``: the state of one stream in the current operation.  Times are in nanoseconds."""

    sent_ahead: int
    results: int
    packets: int
    una_psn: int
    window: int
    rto: int
    srtt: int
    waits_since: int
    counters: Counters
    _fields_ = [*((name, C.c_int64) for name in STATE_FIELDS), ("counters", Counters)]


class StreamRoute(C.Structure):
    """``nf_route``: source and destination address and UDP ports of a run."""

    _fields_ = [
        ("source", C.c_uint32), ("destination", C.c_uint32), ("source_port", C.c_uint16),
        ("destination_port", C.c_uint16),
    ]


class IoVec(C.Structure):
    """``struct iovec``: bytes that stand together."""

    _fields_ = [("base", C.c_void_p), ("length", C.c_size_t)]


class FoldRunStruct(C.Structure):
    """``nf_run``: packets of equal length to one destination, sent as one super-packet, whose bytes lie in pieces."""

    n_pieces: int
    _fields_ = [
        ("pieces", IoVec * (2 * RUN_PACKETS)), ("n_pieces", C.c_uint32),
        ("length", C.c_uint32), ("segment", C.c_uint32), ("packets", C.c_uint32), ("asks", C.c_uint32),
        ("route", StreamRoute), ("tree", C.c_uint32), ("kind", C.c_uint32), ("data", C.c_uint32),
        ("seqs", C.c_uint64 * RUN_PACKETS),
    ]

    def joined(self) -> bytes:
        """The bytes of all packets, one behind the other."""
        return b"".join(C.string_at(piece.base, piece.length) for piece in self.pieces[: self.n_pieces])


class RunTotals(C.Structure):
    """``nf_totals``: what a rank looks at after each run, in the engine's own memory."""

    progress: int
    retransmitted: int
    dropped: int
    saturated: int
    _fields_ = [("progress", C.c_int64), *((name, C.c_uint64) for name in ("retransmitted", "dropped", "saturated"))]


def show(field: str, value: int) -> str:
    """The value of a signature's field in words."""
    if field == "dtype" and value >= CALLED:
        name = HELD[value // CALLED - 1] if value // CALLED <= len(HELD) else f"elements of code {value // CALLED}"
        return f"{name} as {show(field, value % CALLED)}"
    if field == "dtype":
        return next((name for name, code in DTYPE_CODES.items() if code == value), f"code {value}")
    if field == "collective":
        return COLLECTIVES[value] if value < len(COLLECTIVES) else f"code {value}"
    if field == "operation" and value >= MOVED:
        return f"moving {HELD[value - MOVED]}" if value < MOVED + len(HELD) else f"moving elements of code {value}"
    if field == "operation":
        return REDUCTIONS[value] if value < len(REDUCTIONS) else f"code {value}"
    return str(value)


def code_of_called(name: str) -> int:
    """A signature's number for the dtype with which the ranks called a reduction, if another dtype is reduced; 0: the
    same."""
    return HELD.index(name) + 1 if name else 0


def code_of_held(name: str) -> int:
    """A signature's number for moved bytes, by the dtype that they hold: the same on all ranks, and at least
    ``MOVED``."""
    return MOVED + HELD.index(name) if name in HELD else OTHERS | (zlib.crc32(name.encode()) & (OTHERS - 1))

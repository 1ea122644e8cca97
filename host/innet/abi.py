# SPDX-License-Identifier: Apache-2.0
"""What crosses the border to the fold engine, as native/fold.h and io.h lay it out: structures, codes, their names."""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence

from netfold.host.native.library import RUN_PACKETS

FIELDS = (
    "operation number", "dtype", "operation", "lane bits", "elements", "elements / 2^31", "world size", "trees",
)
"""nf_field: what the signature of an operation holds."""
AGREEMENT, DATA = 0, 1
"""nf_kind."""
DTYPE_CODES = {"float32": 0, "int32": 1}
REDUCTIONS = ("sum", "average", "saturating sum", "max", "min")
"""nf_reduction."""
SIGNATURES_DIFFER, HEADERS_DIFFER = 1, 2


class StreamPlan(C.Structure):
    _fields_ = [(name, C.c_uint32) for name in ("peer", "peer_qp", "qp", "source_port", "psn", "window", "slots")]


class TreePlan(C.Structure):
    _fields_ = [("weight", C.c_double), ("streams", StreamPlan * 2)]


class FoldOperation(C.Structure):
    """nf_operation."""

    _fields_ = [
        ("number", C.c_uint32), ("dtype", C.c_int32), ("reduction", C.c_int32), ("lane_bits", C.c_uint32),
        ("stochastic", C.c_uint32), ("key", C.c_uint32), ("divisor", C.c_float), ("count", C.c_uint64),
        ("source", C.c_void_p), ("out", C.c_void_p), ("residual", C.c_void_p),
    ]


class Narrowing(C.Structure):
    """nf_narrowing."""

    _fields_ = [("bits", C.c_uint32), ("levels", C.c_uint32), ("stochastic", C.c_bool), ("key", C.c_uint32)]


class Failure(C.Structure):
    """nf_failure."""

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


COUNTERS = ("sent", "received", "retransmitted", "timeouts", "duplicates", "marks")
STATE_FIELDS = ("sent_ahead", "results", "packets", "una_psn", "window", "rto", "srtt")


class Counters(C.Structure):
    sent: int
    received: int
    retransmitted: int
    timeouts: int
    duplicates: int
    marks: int
    _fields_ = [(name, C.c_uint64) for name in COUNTERS]


class StreamState(C.Structure):
    """nf_standing: where one stream is in the current operation.  Times in nanoseconds."""

    sent_ahead: int
    results: int
    packets: int
    una_psn: int
    window: int
    rto: int
    srtt: int
    counters: Counters
    _fields_ = [*((name, C.c_int64) for name in STATE_FIELDS), ("counters", Counters)]


class StreamRoute(C.Structure):
    _fields_ = [("source", C.c_uint32), ("destination", C.c_uint32), ("source_port", C.c_uint16)]


class FoldRunStruct(C.Structure):
    _fields_ = [
        ("bytes", C.c_void_p), ("length", C.c_uint32), ("segment", C.c_uint32), ("packets", C.c_uint32),
        ("route", StreamRoute), ("tree", C.c_uint32), ("kind", C.c_uint32), ("seqs", C.c_uint64 * RUN_PACKETS),
    ]


def show(field: str, value: int) -> str:
    """A signature's value for people."""
    if field == "dtype":
        return next((name for name, code in DTYPE_CODES.items() if code == value), f"code {value}")
    if field == "operation":
        return REDUCTIONS[value] if value < len(REDUCTIONS) else f"code {value}"
    return str(value)

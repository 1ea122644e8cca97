# SPDX-License-Identifier: Apache-2.0
"""A time span that the native loop spent on one activity, in the layout of host/native/io.h."""

from __future__ import annotations

import ctypes as C


class Span(C.Structure):
    """``nf_span`` of io.h: times in nanoseconds of CLOCK_MONOTONIC, an index into ``SPANS``, and a number of
    packets."""

    begin: int
    end: int
    kind: int
    packets: int
    _fields_ = [("begin", C.c_int64), ("end", C.c_int64), ("kind", C.c_uint32), ("packets", C.c_uint32)]


SPANS = ("quantise", "send", "retransmit", "receive", "dequantise", "wait", "ask")
"""Names of the activities, in the order of ``nf_span_kind``."""

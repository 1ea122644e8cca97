# SPDX-License-Identifier: Apache-2.0
"""A stretch of time that the native loop spent on one thing, as host/native/io.h lays it out."""

from __future__ import annotations

import ctypes as C


class Span(C.Structure):
    """nf_span."""

    begin: int
    end: int
    kind: int
    packets: int
    _fields_ = [("begin", C.c_int64), ("end", C.c_int64), ("kind", C.c_uint32), ("packets", C.c_uint32)]


SPANS = ("quantise", "send", "retransmit", "receive", "dequantise", "wait")
"""nf_span_kind."""

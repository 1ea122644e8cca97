# SPDX-License-Identifier: Apache-2.0
"""The library of the fold engine (native/*.c): built on first use, and bound with ctypes, which releases the GIL.

``core`` has the fold itself, ``packet_link`` what runs it over sockets.
"""

from __future__ import annotations

import ctypes as C
import functools
from typing import Any

from netfold.host.innet.abi import Failure, FoldOperation, FoldRunStruct, Narrowing, RunTotals, StreamState, TreePlan
from netfold.host.native.library import Origin, Sender, load
from netfold.host.tracing.spans import Span

SOURCES = (
    "crc.c",
    "lanes.c",
    "quantise.c",
    "narrow.c",
    "congestion.c",
    "stream.c",
    "history.c",
    "fold_guess.c",
    "fold_operation.c",
    "fold_payload.c",
    "fold_send.c",
    "fold_receive.c",
    "udp.c",
    "io.c",
    "abi.c",
)
STRUCTURES = (TreePlan, Failure, StreamState, FoldRunStruct, Sender, Span, FoldOperation, Origin, RunTotals)
"""The structures whose sizes ``nf_abi_size`` returns."""
FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
"""Compiler flags: the first two let loops with rintf become vectors; results stay IEEE's."""


def functions() -> dict[str, tuple[Any, ...]]:
    """The engine's functions by name: types of their result and their arguments."""
    pointer, u32, u64, i64 = C.c_void_p, C.c_uint32, C.c_uint64, C.c_int64
    return {
        "nf_abi_size": (u32, u32),
        "nf_crc32": (u32, u32, C.c_char_p, C.c_size_t),
        "nf_headroom": (C.c_uint, u32),
        "nf_levels": (u32, u32, u32),
        "nf_key": (u32, u32, u32, u32),
        "nf_scales_of": (None, pointer, pointer, u64, u32, pointer),
        "nf_quantise_all": (None, pointer, u64, pointer, u32, pointer),
        "nf_dequantise_all": (None, pointer, u64, pointer, u32, C.c_float, pointer),
        "nf_narrow_all": (None, C.POINTER(Narrowing), pointer, pointer, u64, pointer, pointer),
        "nf_widen_all": (None, C.POINTER(Narrowing), pointer, u64, pointer, C.c_float, pointer),
        "nf_saturating_sum": (None, pointer, pointer, C.c_size_t, pointer),
        "nf_fold_open": (pointer, u32, C.c_uint16, u32, u32, u32, C.POINTER(TreePlan), u32, C.POINTER(C.c_char_p)),
        "nf_fold_close": (None, pointer),
        "nf_fold_messages": (C.c_bool, pointer, u32, u32),
        "nf_fold_no_presence": (None, pointer),
        "nf_fold_start": (C.c_bool, pointer, C.POINTER(FoldOperation), i64, C.POINTER(C.c_char_p)),
        "nf_fold_resume": (C.c_bool, pointer, C.POINTER(TreePlan), i64, C.POINTER(C.c_char_p)),
        "nf_fold_missing": (u32, pointer, u32, C.c_int),
        "nf_fold_send": (C.c_bool, pointer, i64, C.POINTER(FoldRunStruct)),
        "nf_fold_unsent": (None, pointer, C.POINTER(FoldRunStruct), u32),
        "nf_fold_no_runs": (None, pointer),
        "nf_fold_receive": (None, pointer, C.c_char_p, C.c_size_t, C.c_size_t, C.POINTER(Origin), C.c_bool, i64),
        "nf_fold_tick": (None, pointer, i64),
        "nf_fold_deadline": (i64, pointer),
        "nf_fold_totals": (C.POINTER(RunTotals), pointer),
        "nf_fold_finished": (C.c_bool, pointer),
        "nf_fold_failure": (C.POINTER(Failure), pointer),
        "nf_fold_progress": (i64, pointer),
        "nf_fold_foreign": (u64, pointer),
        "nf_fold_refused": (u64, pointer, C.POINTER(Origin)),
        "nf_fold_unfolded": (u64, pointer),
        "nf_fold_corrupt": (u64, pointer),
        "nf_fold_elements": (u64, pointer, u32),
        "nf_fold_carried": (u64, pointer, u32),
        "nf_fold_retransmitted": (u64, pointer),
        "nf_fold_saturated": (u64, pointer),
        "nf_fold_stream_state": (None, pointer, u32, C.c_int, C.POINTER(StreamState)),
        "nf_io_open": (pointer, pointer, C.c_int, u32, C.POINTER(Sender)),
        "nf_io_interrupt_by": (None, pointer, C.c_int),
        "nf_io_discard": (None, pointer),
        "nf_io_close": (None, pointer),
        "nf_io_run": (C.c_int, pointer, i64, C.POINTER(C.c_int32)),
        "nf_io_fold": (
            C.c_int, pointer, C.POINTER(FoldOperation), C.POINTER(C.c_char_p), C.POINTER(C.c_int32), i64, i64,
        ),
        "nf_io_transient_errors": (None, pointer, C.POINTER(u64), C.POINTER(C.c_int32)),
        "nf_io_trace": (None, pointer, C.POINTER(Span), u64),
        "nf_io_traced": (u64, pointer, C.POINTER(u64)),
        "nf_now": (i64,),
    }


@functools.cache
def library() -> C.CDLL:
    """The compiled engine, built for this CPU on first use.  Raises cbuild.cc.BuildError."""
    return load("netfold-host", SOURCES, functions(), sizes="nf_abi_size", structures=STRUCTURES, flags=FLAGS)

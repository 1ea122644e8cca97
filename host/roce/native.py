# SPDX-License-Identifier: Apache-2.0
"""The library of queue pairs (native/rc*.c): built on first use, and bound with ctypes, which releases the GIL.

``endpoint`` has what calls it.
"""

from __future__ import annotations

import ctypes as C
import functools
import select

from netfold.host.native.library import RUN_PACKETS, Origin, Sender, load

SOURCES = (
    "congestion.c",
    "crc.c",
    "rc_endpoint.c",
    "rc_send.c",
    "rc_requester.c",
    "rc_responder.c",
    "rc_paths.c",
    "rc_contexts.c",
    "rc_pairs.c",
    "rc_regions.c",
    "rc_events.c",
    "reps.c",
    "udp.c",
    "rc_io.c",
)
POLLIN = select.POLLIN
SENT, ARRIVED, BROKEN, STALLED, ANSWERED = 1, 2, 3, 4, 5
"""Kinds of events: ``nf_rc_what`` of native/rc.h."""
QUIET_SENT, QUIET_ARRIVED = 1, 2
"""Kinds of events that ``EndpointIo.run`` need not return for: SENT; ARRIVED of one message in a region
that is not yet full."""
UNTOLD = (1 << 64) - 1
"""NF_RC_UNTOLD: the id of a write that has no event SENT."""
EVENTS = 64
"""Most events that one call of ``EndpointIo.run`` returns; others wait for the next call."""
NO_MEMORY = -2
"""NF_RC_NO_MEMORY: the result of nf_rc_connect when memory is exhausted."""
SYNDROMES = {0x60: "PSN sequence error", 0x61: "invalid request", 0x62: "remote access error"}


class PairPlan(C.Structure):
    """``nf_rc_plan`` of native/rc.h: the addresses, numbers and first PSNs of a queue pair."""

    _fields_ = [
        (name, C.c_uint32) for name in ("peer", "peer_qp", "qp", "peer_port", "source_port", "psn", "peer_psn")
    ]


class EndpointEvent(C.Structure):
    """``nf_rc_event`` of native/rc.h."""

    what: int
    pair: int
    id: int
    offset: int
    key: int
    length: int
    syndrome: int
    by_peer: int
    source_port: int
    """UDP source port of the path that a STALLED or ANSWERED event refers to."""
    _fields_ = [
        ("what", C.c_uint32), ("pair", C.c_uint32), ("id", C.c_uint64), ("offset", C.c_uint64),
        ("key", C.c_uint32), ("length", C.c_uint32), ("syndrome", C.c_uint32), ("by_peer", C.c_uint32),
        ("source_port", C.c_uint32),
    ]


class RoceRunStruct(C.Structure):
    """``nf_rc_run`` of native/rc.h: packets of equal length to one destination, sent as one super-packet."""

    _fields_ = [
        ("bytes", C.c_void_p), ("length", C.c_uint32), ("segment", C.c_uint32), ("packets", C.c_uint32),
        ("source", C.c_uint32), ("destination", C.c_uint32), ("source_port", C.c_uint16),
        ("destination_port", C.c_uint16), ("pair", C.c_uint32), ("answers", C.c_uint32),
        ("seqs", C.c_uint64 * RUN_PACKETS),
    ]


class QueuePairState(C.Structure):
    """``nf_rc_pair_state`` of native/rc.h, the state of one queue pair.  Counts of packets, times in nanoseconds."""

    posted: int
    next: int
    acknowledged: int
    sent: int
    retransmitted: int
    timeouts: int
    naks: int
    marks: int
    expected: int
    received: int
    duplicates: int
    refused: int
    rto: int
    srtt: int
    allowed: float
    stalled: int
    """Longest time in which packets were in flight and none was acknowledged."""
    open: int
    """1 if the queue pair has memory for a window (``Endpoint.bound``), else 0."""
    _fields_ = [
        *((name, C.c_uint64) for name in (
            "posted", "next", "acknowledged", "sent", "retransmitted", "timeouts", "naks", "marks",
            "expected", "received", "duplicates", "refused",
        )),
        ("rto", C.c_int64), ("srtt", C.c_int64), ("allowed", C.c_double), ("stalled", C.c_int64),
        ("open", C.c_uint64),
    ]


class RunOutcome(C.Structure):
    """``nf_rc_outcome`` of native/rc_io.h: what a call of ``EndpointIo.run`` came to."""

    progress: int
    n_events: int
    error: int
    _fields_ = [("progress", C.c_uint64), ("n_events", C.c_uint32), ("error", C.c_int32)]


class Pollfd(C.Structure):
    """``struct pollfd`` of poll(2)."""

    fd: int
    events: int
    revents: int
    _fields_ = [("fd", C.c_int), ("events", C.c_short), ("revents", C.c_short)]


@functools.cache
def library() -> C.CDLL:
    """The compiled library, built for this CPU on first use.  Raises cbuild.cc.BuildError."""
    pointer, u32, u64, i64 = C.c_void_p, C.c_uint32, C.c_uint64, C.c_int64
    functions = {
        "nf_rc_abi_size": (u32, u32),
        "nf_rc_open": (pointer, u32, C.c_uint16, u32, u32, u32, u32),
        "nf_rc_close": (None, pointer),
        "nf_rc_connect": (C.c_int32, pointer, C.POINTER(PairPlan)),
        "nf_rc_limit_open": (None, pointer, u32),
        "nf_rc_open_now": (u32, pointer),
        "nf_rc_open_most": (u32, pointer),
        "nf_rc_move": (C.c_bool, pointer, u32, C.c_uint16, C.c_bool, i64),
        "nf_rc_set_group": (C.c_bool, pointer, u32, u32),
        "nf_rc_ports": (C.c_bool, pointer, C.POINTER(C.c_uint16), u32),
        "nf_rc_use_reps": (C.c_bool, pointer, u32, u64),
        "nf_rc_register": (i64, pointer, pointer, u64, C.c_bool),
        "nf_rc_unfilled": (u64, pointer, u32),
        "nf_rc_deregister": (None, pointer, u32),
        "nf_rc_write": (C.c_bool, pointer, u32, pointer, u32, u32, u64, u64),
        "nf_rc_send": (C.c_bool, pointer, i64, C.POINTER(RoceRunStruct)),
        "nf_rc_receive": (None, pointer, C.c_char_p, C.c_size_t, C.c_size_t, C.POINTER(Origin), C.c_bool, i64),
        "nf_rc_tick": (None, pointer, i64),
        "nf_rc_deadline": (i64, pointer),
        "nf_rc_event_next": (C.c_bool, pointer, C.POINTER(EndpointEvent)),
        "nf_rc_progress": (u64, pointer),
        "nf_rc_foreign": (u64, pointer),
        "nf_rc_corrupt": (u64, pointer),
        "nf_rc_refused": (u64, pointer, C.POINTER(Origin)),
        "nf_rc_reset_stalls": (None, pointer),
        "nf_rc_state_of": (C.c_bool, pointer, u32, C.POINTER(QueuePairState)),
        "nf_rc_io_open": (pointer, pointer, C.c_int, u32, C.POINTER(Sender)),
        "nf_rc_io_close": (None, pointer),
        "nf_rc_io_lock": (None, pointer),
        "nf_rc_io_unlock": (None, pointer),
        "nf_rc_io_run": (
            None, pointer, i64, C.POINTER(Pollfd), u32, u32, C.POINTER(EndpointEvent), u32, C.POINTER(RunOutcome),
        ),
        "nf_rc_io_write": (C.c_bool, pointer, u32, pointer, u32, u32, u64, u64),
        "nf_rc_io_register": (i64, pointer, pointer, u64, C.c_bool),
        "nf_rc_io_transient_errors": (None, pointer, C.POINTER(u64), C.POINTER(C.c_int32)),
        "nf_now": (i64,),
    }
    structures = (PairPlan, EndpointEvent, RoceRunStruct, QueuePairState, Sender, Origin, RunOutcome)
    return load("netfold-roce", SOURCES, functions, sizes="nf_rc_abi_size", structures=structures)

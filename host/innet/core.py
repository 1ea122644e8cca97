# SPDX-License-Identifier: Apache-2.0
"""The fold of one rank, sans I/O: packets in, packets out, next deadline.  native/fold.h describes the algorithm."""

from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from netfold.host.innet.abi import (
    AGREEMENT,
    ARRAYS,
    COLLECTIVES,
    DATA,
    DTYPE_CODES,
    REDUCTIONS,
    Failure,
    FoldOperation,
    FoldRunStruct,
    Row,
    RunTotals,
    StreamPlan,
    StreamState,
    TreePlan,
    code_of_called,
    code_of_held,
)
from netfold.host.innet.native import library
from netfold.host.native.library import RUN_PACKETS, Origin, Run, dotted, number
from netfold.host.operation.arrays import Array, address_of, held
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.half_precision import dtype_name
from netfold.host.operation.rail import Flat, Op
from netfold.host.operation.request import RowsRequest
from netfold.wire import roce
from netfold.wire.plan import RankStream, RankTree

MESSAGE_PACKETS = 4096
"""Packets of the longest message: NF_MESSAGE_PACKETS."""
CREDITS_VARIABLE = "NETFOLD_CREDITS"
"""Environment variable with the message-level credits of folds, as "2x170K" (``Credits``); the same on all ranks."""


@dataclass(frozen=True)
class Credits:
    """NetReduce's flow control: data is sent in messages of so many packets, and message i + ``messages`` is sent once
    each packet of message i has its result or was found lost.  All ranks of a job must use the same."""

    messages: int
    packets: int

    @classmethod
    def parse(cls, text: str, path_mtu: int = roce.PATH_MTU) -> Credits:
        """Parses "2x170" as two messages of 170 packets, and "2x170K" as two of 170 KiB, in packets of this path MTU.
        Raises ValueError."""
        messages, cross, length = text.partition("x")
        number = length.removesuffix("K")
        packets = int(number) if messages.isdecimal() and number.isdecimal() else 0
        if number != length:
            packets = -(-packets * 1024 // path_mtu)
        if not (cross and packets and int(messages) >= 1 and packets <= MESSAGE_PACKETS):
            raise ValueError(f"{CREDITS_VARIABLE}={text!r}: expected MESSAGESxPACKETS, as 2x170, or MESSAGESxLENGTHK, "
                             f"as 2x170K: at least one message, of 1 to {MESSAGE_PACKETS} packets")
        return cls(int(messages), packets)


def result_origin(stream: RankStream) -> Origin:
    """Where the results of a rank's stream come from, as its kernel says: what ``Core.receive`` takes for results."""
    return Origin.of(stream.predecessor, stream.predecessor_port, roce.RESULT_TTL)


class Core:
    """One rank's fold over a plan's trees, without sockets: times are nanoseconds that the caller passes.

    port     UDP port at which results arrive
    message  contributions are SENDs, in messages of so many packets, or of a quarter of a stream's slots where that is
             less, as in all jobs with RC queue pairs; 0: WRITEs
    presence  the switches take presence and lanes in one slot (``Plan.presence``)
    kept     how many times the slots' packets are kept for sending them again
    lib      the library that holds the engine; default: ``library()``
    """

    def __init__(
        self,
        address: str,
        world: int,
        trees: Sequence[RankTree],
        *,
        port: int = roce.UDP_PORT,
        path_mtu: int = roce.PATH_MTU,
        max_run: int = RUN_PACKETS,
        max_window: int = 1 << 19,
        credits: Credits | None = None,
        message: int = 0,
        presence: bool = True,
        kept: int = 1,
        lib: C.CDLL | None = None,
    ) -> None:
        self._lib = lib or library()
        # A new epoch begins where a message does, up to a message below what the slowest rank lacks (docs/protocol.md).
        self._kept, self._message = max(kept, 2 if message else 1), message
        self.trees = tuple(trees)
        self.address = address
        """The address at which results arrive, as text."""
        self.port = port
        self._max_window = max_window
        plans = self._plans(trees)
        why = C.c_char_p()
        self.handle = self._lib.nf_fold_open(
            number(address), port, world, path_mtu, len(trees), plans, max_run, C.byref(why)
        )
        if not self.handle:
            raise ValueError(f"fold engine: {(why.value or b'').decode()} (world {world}, {len(trees)} trees)")
        if credits is not None and not self._lib.nf_fold_messages(self.handle, credits.packets, credits.messages):
            self.close()
            raise ValueError(f"fold engine: messages of {credits.packets} packets: expected 1 .. {MESSAGE_PACKETS}")
        if not presence:
            self._lib.nf_fold_no_presence(self.handle)
        self._run = FoldRunStruct()
        self._operations: dict[tuple[object, ...], FoldOperation] = {}
        """Signature of an operation, without numbers and arrays -> its structure, which is used again."""
        self.totals: RunTotals = self._lib.nf_fold_totals(self.handle).contents
        """Progress and counters of the engine, in its own memory; updated at the end of ``PacketLink.run`` and by
        ``count``."""
        self.why = C.c_char_p()
        """The engine's reason for refusing the last operation that it refused."""
        self.arrays: list[Array | None] = [None, None, None]
        """Source, result, and residual or gathered rows of the last operation.  This list keeps them alive, since the
        engine accesses their memory until the operation has ended."""

    def _plans(self, trees: Sequence[RankTree]) -> C.Array[TreePlan]:
        def stream(plan: RankStream) -> StreamPlan:
            window = min(plan.slots // 2, 1 << (self._max_window.bit_length() - 1))
            return StreamPlan(
                number(plan.peer), plan.peer_port, plan.peer_qp, plan.qp, plan.source_port, plan.psn, window,
                self._kept * plan.slots, number(plan.predecessor), plan.predecessor_port,
                min(self._message, plan.slots // 4),
            )

        return (TreePlan * len(trees))(
            *(TreePlan(tree.weight, (StreamPlan * 2)(stream(tree.agreement), stream(tree.data)), tree.stays)
              for tree in trees)
        )

    def lowest(self, tree: int, kind: int) -> int:
        """The PSN of the lowest packet without a result of a stream; with messages, where its message begins."""
        return int(self._lib.nf_fold_missing(self.handle, tree, kind))

    def missing(self) -> dict[int, int]:
        """For each stream of this rank: its queue pair -> ``lowest``."""
        return {
            stream.qp: self.lowest(index, kind)
            for index, tree in enumerate(self.trees)
            for kind, stream in ((AGREEMENT, tree.agreement), (DATA, tree.data))
        }

    def resume(self, trees: Sequence[RankTree], now: int) -> None:
        """Goes on over these trees, as many as before, from the first PSN that each stream names, and where it is on
        those that stay; nothing may have been sent or received since ``missing``.  Raises ValueError where the data for
        that PSN is not kept any more, or a tree that stays is none of its own."""
        if len(trees) != len(self.trees):
            raise ValueError(f"fold engine: {len(self.trees)} trees cannot become {len(trees)}")
        why = C.c_char_p()
        if not self._lib.nf_fold_resume(self.handle, self._plans(trees), now, C.byref(why)):
            raise ValueError(f"fold engine: {(why.value or b'').decode()}")
        self.trees = tuple(trees)

    def start(
        self,
        number: int,
        source: Flat,
        out: Flat,
        divisor: float,
        now: int,
        *,
        op: Op = "sum",
        called: str = "",
        coding: Coding = PLAIN,
        feedback: Flat | None = None,
        rank: int = 0,
    ) -> None:
        """Begins an operation; its arrays stay in use until it is finished or the core is closed.

        divisor  by which float32 results are divided: 1 except for averages
        called   as of ``Reduction``
        rank     part of the seed of stochastic rounding, so that ranks round differently
        Raises ValueError for what lanes cannot do, MemoryError.
        """
        asked = source.dtype.char, op, called, coding.lane_bits, coding.rounding, coding.saturate, divisor
        operation = self._operations.get(asked)
        if operation is None:
            parameters = parameters_of(source.dtype, op, called, coding, divisor)
            operation = self._operations[asked] = FoldOperation(**parameters)
        self.arrays[:] = source, out, feedback
        at = address_of(source)
        residual = 0 if feedback is None else address_of(feedback)
        ARRAYS.pack_into(operation, 0, at, at if out is source else address_of(out), residual, source.size, number)
        if operation.stochastic:
            operation.key = self._lib.nf_key(coding.seed, number, rank)
        if not self._lib.nf_fold_start(self.handle, operation, now, self.why):
            what = f"{_named(op, coding, divisor)} of {source.dtype.name} in lanes of {coding.lane_bits} bits"
            raise self.refused_to_begin(source.size, what)

    def start_rows(self, request: RowsRequest, rank: int, now: int, *, divisor: float = 1.0) -> None:
        """Begins a collective of rows; its arrays stay in use until it is finished or the core is closed.

        rank   this one, among those that fold
        Raises ValueError for what cannot be, MemoryError.
        """
        source, out, reduction, coding = request.source, request.out, request.reduction, request.coding
        op = cast(Op, "sum" if reduction is None else reduction.op)
        moved = "bytes" if reduction is None and request.collective != "barrier" else "float32"
        what = held(source) if moved == "bytes" else ""
        called = "" if reduction is None else reduction.called
        asked = (
            request.collective, source.dtype.char, op, called, coding.lane_bits, coding.rounding, coding.saturate,
            divisor, request.gathered is None, what,
        )
        operation = self._operations.get(asked)
        if operation is None:
            operation = self._operations[asked] = FoldOperation(
                collective=COLLECTIVES.index(request.collective),
                dtype=DTYPE_CODES[moved if reduction is None else dtype_name(source.dtype)],
                reduction=REDUCTIONS.index(_named(op, coding, divisor)) if moved != "bytes" else code_of_held(what),
                called=code_of_called(called), lane_bits=coding.lane_bits,
                stochastic=coding.rounding == "stochastic", divisor=divisor,
            )
        operation.number, operation.count = request.number & 0xFFFFFFFF, source.size
        operation.rank, operation.root, operation.out_first = rank, request.root, request.out_first
        operation.source = address_of(source)
        operation.out = operation.source if out is source else address_of(out)
        if request.collective != "barrier":
            operation.rows = _rows(request.rows)
        if request.gathered is not None:
            operation.gathered, operation.gathered_bytes = address_of(request.gathered), request.gathered.size
            operation.gathered_rows = _rows(request.gathered_rows)
        if operation.stochastic:
            operation.key = self._lib.nf_key(coding.seed, operation.number, rank)
        self.arrays[:] = source, out, request.gathered
        if not self._lib.nf_fold_start(self.handle, operation, now, self.why):
            raise self.refused_to_begin(source.size, str(request))

    def refused_to_begin(self, elements: int, what: str) -> Exception:
        """The engine's reason for which it did not begin an operation: ValueError, MemoryError."""
        words = (self.why.value or b"").decode()
        if words.startswith("out of memory"):
            return MemoryError(f"{words} of {elements} elements")
        return ValueError(f"{what}: {words}")

    def send(self, now: int) -> Run | None:
        """The next run of packets to send, or None where there is nothing to send."""
        if not self._lib.nf_fold_send(self.handle, now, C.byref(self._run)):
            return None
        run = self._run
        route = run.route
        return Run(
            run.joined(), run.segment, route.source_port, dotted(route.destination), route.destination_port
        )

    def receive(self, data: bytes, now: int, origin: Origin, *, segment: int = 0, marked: bool = False) -> None:
        """Takes received UDP payloads, split every ``segment`` bytes (0: one packet); what came from anywhere but the
        stream's predecessor, with another TTL than a result's, or with a wrong ICRC, is no result and only counted."""
        segment = segment or max(1, len(data))
        self._lib.nf_fold_receive(self.handle, data, len(data), segment, C.byref(origin), marked, now)

    def now(self) -> int:
        """CLOCK_MONOTONIC in nanoseconds."""
        return int(self._lib.nf_now())

    def tick(self, now: int) -> None:
        """Runs the retransmission timers that are due at ``now``."""
        self._lib.nf_fold_tick(self.handle, now)

    def deadline(self) -> int:
        """Time in nanoseconds at which ``tick`` is due next; NEVER where nothing is in flight."""
        return int(self._lib.nf_fold_deadline(self.handle))

    def count(self) -> None:
        """Counts ``totals`` anew."""
        self._lib.nf_fold_totals(self.handle)

    def finished(self) -> bool:
        """True if all results have arrived."""
        return bool(self._lib.nf_fold_finished(self.handle))

    def failure(self) -> Failure:
        """Why the operation failed; its ``error`` is 0 where it did not."""
        failure: Failure = self._lib.nf_fold_failure(self.handle).contents
        return failure

    def progress(self) -> int:
        """Time in nanoseconds of the last new result, or of the operation's beginning."""
        return int(self._lib.nf_fold_progress(self.handle))

    def foreign(self) -> int:
        """Number of packets received that belong to none of this rank's streams."""
        return int(self._lib.nf_fold_foreign(self.handle))

    def refused(self) -> tuple[int, Origin]:
        """Number of packets received on this rank's queue pairs from where no result of theirs comes from, and the
        origin of the last one."""
        last = Origin()
        return int(self._lib.nf_fold_refused(self.handle, C.byref(last))), last

    def unfolded(self) -> int:
        """Number of packets that came unchanged from the rank before, because no switch folded them; they do not
        count."""
        return int(self._lib.nf_fold_unfolded(self.handle))

    def corrupt(self) -> int:
        """Number of results and NAKs that were dropped since their ICRC is wrong."""
        return int(self._lib.nf_fold_corrupt(self.handle))

    def retransmitted(self) -> int:
        """Number of packets sent again, on all streams."""
        return int(self._lib.nf_fold_retransmitted(self.handle))

    def elements(self, tree: int) -> int:
        """Number of elements of the current operation in a tree's stripe."""
        return int(self._lib.nf_fold_elements(self.handle, tree))

    def carried(self, tree: int) -> int:
        """Number of bytes of the current operation's arrays in a tree's stripe."""
        return int(self._lib.nf_fold_carried(self.handle, tree))

    def saturated(self) -> int:
        """Number of results of the current saturating sum that are at an end of the range."""
        return int(self._lib.nf_fold_saturated(self.handle))

    def state(self, tree: int, kind: int) -> StreamState:
        """The state of one stream of one tree."""
        state = StreamState()
        self._lib.nf_fold_stream_state(self.handle, tree, kind, C.byref(state))
        return state

    def close(self) -> None:
        """Frees the core; safe to call twice."""
        if self.handle:
            self.totals = RunTotals()  # the others are the engine's memory
            self._lib.nf_fold_close(self.handle)
            self.handle = None
        self.arrays[:] = None, None, None

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.close()


def _rows(rows: Sequence[slice]) -> C.Array[Row]:
    table = (Row * len(rows))()
    for rank, row in enumerate(rows):
        if row.stop:  # most rows of a broadcast have nothing; a structure costs half a microsecond
            table[rank] = Row(row.start, row.stop - row.start)
    return table


def _named(op: Op, coding: Coding, divisor: float) -> str:
    """The name of a reduction, as one of ``REDUCTIONS``."""
    return "saturating sum" if coding.saturate and op == "sum" else "average" if divisor != 1 else op


def parameters_of(dtype: np.dtype[Any], op: Op, called: str, coding: Coding, divisor: float) -> dict[str, Any]:
    """The fields of ``FoldOperation`` that all allreduces of a kind share: all but number, arrays and rounding's key.

    called   as of ``Reduction``
    divisor  by which float32 results are divided: 1 except for averages
    """
    return {
        "dtype": DTYPE_CODES[dtype_name(dtype)], "reduction": REDUCTIONS.index(_named(op, coding, divisor)),
        "called": code_of_called(called), "lane_bits": coding.lane_bits,
        "stochastic": coding.rounding == "stochastic", "divisor": divisor,
    }

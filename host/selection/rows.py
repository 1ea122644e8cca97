# SPDX-License-Identifier: Apache-2.0
"""Decides what carries a collective of rows or a barrier: the switches, where they can and it is cheaper, or an
algorithm between the hosts.

    reduce_scatter, reduce     switches fold what all send, and the rows' owners alone get sums
    all_gather, broadcast      switches copy to all what the rows' owners send
    barrier                    one packet of each rank, folded
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from netfold.host.operation.arrays import Flat, flat, flat_copy
from netfold.host.operation.coding import PLAIN, Coding, narrows
from netfold.host.operation.conversion import in_float32, round_to
from netfold.host.operation.rail import FoldingRail
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsCollective, RowsRequest
from netfold.host.selection.choice import INNET
from netfold.host.selection.peers import AUTO, Peers, named
from netfold.host.tracing.flight import Flight

NOTHING: Final = np.empty(0, np.float32)
"""The array of a barrier."""


class RowsDispatch:
    """Carries collectives of rows for one group of ranks.  All ranks call it alike, and get the same decisions.

    hosts     the ranks, over the mesh between the hosts
    switches  the rail that folds, where there is one
    always    fold what can be folded, whatever it costs
    why       reason for this set-up, for errors and ``explain``
    flight    records what carries an operation, and its retransmissions
    lost      called where the switches fold no longer, in the same operation on all ranks
    """

    def __init__(
        self, hosts: Peers, switches: FoldingRail | None, *, always: bool = False, why: str = "",
        flight: Flight | None = None, lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._lost = lost
        self._hosts = hosts
        self._switches = switches
        self._always = always
        self._why = why
        self._flight = flight

    @property
    def refusal(self) -> str:
        """Why the switches carry no rows in this job; empty where they do."""
        return self._why if self._switches is None else ""

    @property
    def joins_nothing(self) -> str:
        """Why ``exchange`` is not worth it in this job, over one rail; empty where it is."""
        return self._why if self._switches is None else self._switches.joins_nothing

    @property
    def joins(self) -> bool:
        """True if ``exchange`` may run both at once in this job."""
        return not self.joins_nothing or self._hosts.joins

    def check(
        self, algorithm: str | None, known: Collection[str], reduction: Reduction | None = None, coding: Coding = PLAIN
    ) -> None:
        """Raises ValueError for an algorithm that is neither one of ``known`` nor "innet", or where the switches cannot
        do what they are asked for."""
        if algorithm != INNET:
            named(algorithm, (*known, INNET))
        elif self.refusal:
            raise ValueError(
                f"algorithm='innet': the switches do not carry this: {self.refusal}; expected one of {', '.join(known)}"
            )
        elif reduction is not None and not self._takes(reduction, coding):
            raise ValueError(f"algorithm='innet': {reduction.op} of {reduction.element} does not fold")

    # ---- collectives -------------------------------------------------------------------------------------------------
    def reduce_scatter(self, request: AllreduceRequest, pieces: Sequence[slice]) -> bool:
        """Fills ``request.out`` with this rank's piece of the reduction, where the switches carry it.

        pieces  each rank's elements of the flat source
        """
        mine = pieces[self._hosts.rank]
        if not self._folds("reduce_scatter", request.nbytes, request.number, request.algorithm, request):
            return False
        self._reduce("reduce_scatter", request, pieces, mine)
        return True

    def exchange(
        self, request: AllreduceRequest, pieces: Sequence[slice], data: Flat, rows: Sequence[slice]
    ) -> bool:
        """A ``reduce_scatter``, and an ``all_gather`` of ``data`` and its ``rows`` at the same time, where the switches
        carry both."""
        if request.reduction.half:
            wide = in_float32(request)
            sums = wide.out.reshape(-1)[pieces[self._hosts.rank]]
            if not self.exchange(replace(wide, out=sums), pieces, data, rows):
                return False
            round_to(request, sums)
            return True
        if self._switches is None:
            own, mine = flat_copy(request.source), pieces[self._hosts.rank]
            if not self._hosts.exchange(own, pieces, request.reduction, data, rows, request.coding):
                return False
            request.out[...] = own[mine].reshape(request.out.shape)
            return True
        if not self._folds("exchange", request.nbytes + data.nbytes, request.number, request.algorithm, request):
            return False
        self._reduce("exchange", request, pieces, pieces[self._hosts.rank], gathered=data, gathered_rows=rows)
        return True

    def reduce(self, request: AllreduceRequest, root: int) -> None:
        """Fills the root's ``request.out`` with the reduction; the other ranks' is not touched."""
        if request.reduction.half:
            wide = in_float32(request)
            self.reduce(wide, root)
            if self._hosts.rank == root:
                round_to(request, wide.out)
            return
        if self._folds("reduce", request.nbytes, request.number, request.algorithm, request):
            rows = self._of_root(request.source.size, root)
            self._reduce("reduce", request, rows, rows[self._hosts.rank], root)
            return
        data, hosts = flat_copy(request.source), self._hosts
        algorithm = None if request.algorithm == INNET else request.algorithm
        hosts.reduce(data, request.reduction, root, algorithm=algorithm, coding=request.coding)
        if hosts.rank == root:
            request.out[...] = data.reshape(request.out.shape)

    def all_gather(self, data: Flat, pieces: Sequence[slice], number: int, algorithm: str | None = None) -> None:
        """Fills ``data``, bytes, with every rank's ``data[pieces[rank]]``."""
        if self._folds("all_gather", data.nbytes, number, algorithm):
            self._carry(RowsRequest("all_gather", data, data, pieces, number))
        else:
            self._hosts.all_gather(data, pieces, algorithm=None if algorithm == INNET else algorithm)

    def broadcast(self, data: Flat, root: int, number: int, algorithm: str | None = None) -> None:
        """Fills ``data``, bytes, with that of the root."""
        if self._folds("broadcast", data.nbytes, number, algorithm):
            self._carry(RowsRequest("broadcast", data, data, self._of_root(data.size, root), number, root))
        else:
            self._hosts.broadcast(data, root, algorithm=None if algorithm == INNET else algorithm)

    def barrier(self, number: int, algorithm: str | None = None) -> None:
        """Returns once every rank has called it."""
        if self._folds("barrier", 0, number, algorithm):
            self._carry(RowsRequest("barrier", NOTHING, NOTHING, (), number))
        else:
            self._hosts.barrier()

    def explain(
        self, collective: RowsCollective, nbytes: int, reduction: Reduction, algorithm: str | None, coding: Coding
    ) -> str:
        """The way that such a collective takes, and why.  Sends nothing."""
        hosts, refusal = self._hosts, self.refusal or ("" if self._switches is None else self._switches.fallback)
        between = hosts.how(collective, nbytes, reduction)
        if hosts.size == 1:
            return f"{nbytes} bytes stay on this rank"
        if refusal:
            return f"{between}; {refusal}"
        reduces = collective in ("reduce", "reduce_scatter")
        if reduces and not self._takes(reduction, coding):
            return f"{between}; {reduction.op} of {reduction.element} does not fold"
        inside = f"{collective} of {nbytes} bytes goes over the switches"
        if algorithm is not None:
            return f"{inside if algorithm == INNET else f'{between} by {algorithm}'}, as asked for; {self._why}"
        if self._always:
            return f"{inside}; {self._why}"
        if hosts.algorithm != AUTO:
            return f"{between}: allreduce is by {hosts.algorithm}, as asked for"
        if collective == "barrier":
            return f"{inside}; {self._why}"
        if reduces and coding.lane_bits != 32 and narrows(reduction.op, reduction.element):
            return f"{inside}, in lanes of {coding.lane_bits} bits; {self._why}"
        chosen = hosts.chooser.known(nbytes, folded=nbytes, collective=collective)
        if chosen is None:
            return f"{collective} of {nbytes} bytes goes the cheapest way, once an operation has measured the links"
        return f"{inside if chosen.algorithm == INNET else between}: {chosen}"

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _of_root(self, size: int, root: int) -> list[slice]:
        """All elements as the root's row."""
        rows = [slice(0, 0)] * self._hosts.size
        rows[root] = slice(0, size)
        return rows

    def _takes(self, reduction: Reduction, coding: Coding) -> bool:
        return self._switches is not None and not coding.saturate and self._switches.takes(reduction, coding)

    def _folds(
        self, collective: RowsCollective, nbytes: int, number: int, algorithm: str | None,
        request: AllreduceRequest | None = None,
    ) -> bool:
        """True if the switches carry it; the same on all ranks.  May measure."""
        switches, hosts = self._switches, self._hosts
        if switches is None or algorithm not in (None, INNET):
            return False
        if request is not None and not self._takes(request.reduction, request.coding):
            return False
        if algorithm is None and not self._always:
            if hosts.algorithm != AUTO:
                return False
            narrow_lanes = request is not None and request.coding.lane_bits != 32
            # A barrier measures nothing: it is as long as its latency, which the switches have the least of.
            if collective != "barrier" and not narrow_lanes and hosts.choice(
                nbytes, f"{collective} of {nbytes} bytes", folded=nbytes, collective=collective
            ).algorithm != INNET:
                return False
        if switches.begin(number):
            return True
        self._lost()
        return False

    def _reduce(
        self, collective: RowsCollective, request: AllreduceRequest, rows: Sequence[slice], mine: slice, root: int = 0,
        *, gathered: Flat | None = None, gathered_rows: Sequence[slice] = (),
    ) -> None:
        """Folds, and brings arrays into the form that lanes have, and back; ``mine``: what this rank gets."""
        out, gets = request.out, collective != "reduce" or self._hosts.rank == root
        source = flat(request.source)
        plain = gets and out.flags.carray and out.dtype == source.dtype
        plain = plain and not np.may_share_memory(out, source)
        into = out.reshape(-1) if plain else np.empty(mine.stop - mine.start, source.dtype)
        first = mine.start if gets else 0
        self._carry(RowsRequest(
            collective, source, into, rows, request.number, root, first, request.reduction, request.coding, gathered,
            gathered_rows,
        ))
        if gets and not plain:
            out[...] = into.reshape(out.shape)

    def _carry(self, request: RowsRequest) -> None:
        assert self._switches is not None
        switches, flight = self._switches, self._flight
        if flight is None:
            switches.collect(request)
            return
        before, fallback = switches.retransmissions, switches.fallback
        flight.note(switches.name)
        try:
            switches.collect(request)
            if switches.fallback != fallback:
                flight.note(f"{switches.name}, then TCP: {switches.fallback}")
        finally:
            if switches.retransmissions != before:
                flight.count_retransmissions(switches.retransmissions - before)

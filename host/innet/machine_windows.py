# SPDX-License-Identifier: Apache-2.0
"""How a collective is cut for machines of several ranks: into windows, each with an inner step, a fold, and another
inner step.

    allreduce        reduce_scatter inside       fold of the own piece        all_gather inside
    reduce_scatter   reduce_scatter inside       the machine's part of it     all_gather of that part inside
    all_gather       all_gather of own rows      the rows of all machines     all_gather inside
    broadcast        the root's machine gathers  from there to all machines   the others' gather
    barrier          barrier inside              barrier                      barrier inside

A reduce is a reduce_scatter whose only row is the root's; an exchange is a reduce_scatter and an all_gather side by
side.  The switches see one rank of each machine, and its row: all rows of the machine one after another.  So the rows
are taken machine by machine, whatever the order of ranks (``Order``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

import numpy as np
from msgspec import structs

from netfold.host.collectives.flow import Strand, length
from netfold.host.collectives.hierarchical import first_pieces
from netfold.host.collectives.inner_step import InnerStep
from netfold.host.innet.saturating import SaturatingSum
from netfold.host.operation.arrays import Flat
from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, Request, RowsRequest

NOTHING: Final = slice(0, 0)


class MachinePlace:
    """Where a rank is among the machines of its job, and what it folds.

    machines  ranks by machine (``Plan.machines``)
    """

    def __init__(self, machines: Sequence[Sequence[int]], rank: int) -> None:
        self.machines = machines
        self.index = next(at for at, ranks in enumerate(machines) if rank in ranks)
        self.ranks = machines[self.index]
        """The ranks of this rank's machine."""
        self.local = self.ranks.index(rank)
        self.folding = min(map(len, machines))
        """Number of ranks that fold on each machine: its first ones."""
        self.largest = max(map(len, machines))

    def pieces(self, count: int) -> list[slice]:
        """The part that each rank of the machine folds of a window of ``count`` elements."""
        return first_pieces(count, self.folding, len(self.ranks))

    def machine_of(self, rank: int) -> int:
        """The number of a rank's machine."""
        return next(at for at, ranks in enumerate(self.machines) if rank in ranks)

    def __str__(self) -> str:
        if self.folding == self.largest:
            return f"the {self.largest} ranks of each machine"
        return f"the {self.folding} to {self.largest} ranks of each machine"


@dataclass(frozen=True)
class Step:
    """One window: what is done inside the machine, what this rank folds (None: others of its machine do), and what is
    done inside after that."""

    before: Callable[[], Strand]
    fold: Request | None
    after: Callable[[], Strand]


def inside(reduction: Reduction, coding: Coding) -> Reduction:
    """How a machine reduces what is folded then: the sum of an average is divided once, by the fold."""
    if coding.saturate:
        return SaturatingSum("sum", reduction.element)
    return Reduction("sum", reduction.element) if reduction.op == "average" else reduction


def allreduce_steps(request: AllreduceRequest, place: MachinePlace, inner: InnerStep) -> Iterator[Step]:
    """The windows of an allreduce of flat arrays; an empty one has one, by which ranks check that they agree."""
    reduction = inside(request.reduction, request.coding)
    for cut in list(inner.windows(request.out.size, request.out.itemsize)) or [NOTHING]:
        window = request.part(cut)
        pieces = place.pieces(window.out.size)
        mine = pieces[place.local]

        def before(
            window: AllreduceRequest = window, mine: slice = mine, pieces: Sequence[slice] = pieces
        ) -> Strand:
            data = window.source
            if window.feedback is not None:
                if not window.in_place:
                    np.copyto(window.out, data)
                data = window.out
                _add_feedback(data, window.feedback, mine)
            yield from inner.reduce_scatter(data, window.out, reduction, pieces)

        def after(window: AllreduceRequest = window, pieces: Sequence[slice] = pieces) -> Strand:
            yield from inner.all_gather(window.out, pieces)

        part = structs.replace(window, source=window.out).part(mine)
        yield Step(before, part if place.local < place.folding else None, after)


def _add_feedback(data: Flat, feedback: Flat, mine: slice) -> None:
    """Adds what is left over of elements that other ranks fold, who keep what narrow lanes leave out from now on: the
    residual of an element is kept by the rank that folds it."""
    for rest in (slice(0, mine.start), slice(mine.stop, data.size)):
        data[rest] += feedback[rest]
        feedback[rest] = 0


class Order:
    """All ranks' rows one after another, machine by machine."""

    def __init__(self, rows: Sequence[slice], machines: Sequence[Sequence[int]]) -> None:
        self.of_rank = [NOTHING] * len(rows)
        """Each rank's row in this order."""
        self.of_machine: list[slice] = []
        """Each machine's row in this order."""
        self._rows = rows
        at = 0
        for ranks in machines:
            first = at
            for rank in ranks:
                self.of_rank[rank] = slice(at, at + length(rows[rank]))
                at += length(rows[rank])
            self.of_machine.append(slice(first, at))
        self.size = at
        shifts = {row.start - mine.start for row, mine in zip(rows, self.of_rank, strict=True) if length(row)}
        self.shift = shifts.pop() if len(shifts) == 1 else None
        """Offset of the array against this order, in elements; None if its rows are in another order."""

    def copies(self, cut: slice) -> Iterator[tuple[slice, slice]]:
        """Where the parts of a window lie in the array: pairs of slices, counted from the window's beginning and in the
        array."""
        for rank, mine in enumerate(self.of_rank):
            here = within(mine, cut)
            if length(here):
                yield here, self.in_array(rank, cut)

    def in_array(self, rank: int, cut: slice) -> slice:
        """The part of a rank's row that lies in a window, as elements of the array."""
        here, shift = within(self.of_rank[rank], cut), self._rows[rank].start - self.of_rank[rank].start
        return slice(cut.start + here.start + shift, cut.start + here.stop + shift)


def within(span: slice, window: slice) -> slice:
    """The part of a span that lies in a window, counted from the window's beginning."""
    first = min(max(span.start, window.start), window.stop)
    return slice(first - window.start, max(first, min(span.stop, window.stop)) - window.start)


@dataclass(frozen=True)
class Part:
    """One window of what is reduced, or moved, by rows.

    data    this rank's piece of the window, which it folds
    rows    each machine's row in it
    """

    before: Strand
    data: Flat
    rows: list[slice]
    after: Strand


class Rows:
    """The windows of one array's rows.

    request  the collective; ``rows`` of ``data`` are reduced where it has a ``reduction``
    """

    def __init__(self, data: Flat, rows: Sequence[slice], place: MachinePlace, inner: InnerStep) -> None:
        self._data = data
        self._place, self._inner = place, inner
        self._order = Order(rows, place.machines)
        self._scratch: list[Flat] = []
        """Memory of two windows: the window that is folded, and in turn the preceding and the following one."""

    def windows(self) -> list[slice]:
        """The windows, in the order of machines."""
        return list(self._inner.windows(self._order.size, self._data.itemsize))

    def _part(self, cut: slice, window: Flat, before: Strand, after: Strand) -> Part:
        mine = self._place.pieces(window.size)[self._place.local]
        piece = slice(cut.start + mine.start, cut.start + mine.stop)
        return Part(before, window[mine], [within(row, piece) for row in self._order.of_machine], after)

    def _memory(self, cut: slice) -> Flat:
        if not self._scratch:
            most = min(self._order.size, self._inner.row // self._data.itemsize)
            self._scratch = [np.empty(most, self._data.dtype) for _ in range(2)]
        self._scratch.reverse()
        return self._scratch[0][: length(cut)]


class MovedRows(Rows):
    """Rows that each rank has one of, and all ranks get: an all_gather; or a broadcast, which has one row."""

    def part(self, cut: slice) -> Part:
        """One window."""
        order, place, inner = self._order, self._place, self._inner
        shift = order.shift
        window = self._memory(cut) if shift is None else self._data[cut.start + shift : cut.stop + shift]
        own = within(order.of_machine[place.index], cut)

        def before() -> Strand:
            mine = within(order.of_rank[place.ranks[place.local]], cut)
            if shift is None:
                window[mine] = self._data[order.in_array(place.ranks[place.local], cut)]
            if length(own):
                yield from inner.all_gather(window, [within(order.of_rank[rank], cut) for rank in place.ranks])

        def after() -> Strand:
            if length(own) < length(cut) or not length(cut):
                yield from inner.all_gather(window, place.pieces(window.size))
            if shift is None:
                for here, there in order.copies(cut):
                    self._data[there] = window[here]

        return self._part(cut, window, before(), after())


class ReducedRows(Rows):
    """Rows that all ranks have, and each rank gets the reduction of one of: a reduce_scatter; or a reduce, which has
    one row.

    out, out_first, reduction  as of a ``RowsRequest``; ``reduction`` of the inner step
    """

    def __init__(
        self, data: Flat, rows: Sequence[slice], place: MachinePlace, inner: InnerStep, *, out: Flat, out_first: int,
        reduction: Reduction,
    ) -> None:
        super().__init__(data, rows, place, inner)
        self._out, self._first, self._reduction = out, out_first, reduction

    def part(self, cut: slice) -> Part:
        """One window."""
        order, place, inner, window = self._order, self._place, self._inner, self._memory(cut)
        own, me = within(order.of_machine[place.index], cut), place.ranks[place.local]
        pieces, shift = place.pieces(window.size), order.shift

        def before() -> Strand:
            data = window
            if shift is None:
                for here, there in order.copies(cut):
                    window[here] = self._data[there]
            else:
                data = self._data[cut.start + shift : cut.stop + shift]
            yield from inner.reduce_scatter(data, window, self._reduction, pieces)

        def after() -> Strand:
            if length(own):
                yield from inner.all_gather(window, [_common(piece, own) for piece in pieces])
            mine, there = within(order.of_rank[me], cut), order.in_array(me, cut)
            if length(mine):
                self._out[there.start - self._first : there.stop - self._first] = window[mine]

        return self._part(cut, window, before(), after())


def rows_steps(
    request: RowsRequest, place: MachinePlace, inner: InnerStep, barrier: Callable[[], Strand]
) -> Iterator[Step]:
    """The windows of a collective of rows, or of a barrier; one at least.

    barrier  of the machine's ranks
    """
    folds = place.local < place.folding
    if request.collective == "barrier":
        yield Step(barrier, request if folds else None, barrier)
        return
    root = place.machine_of(request.root)
    if request.reduction is None:
        moved = MovedRows(request.source, request.rows, place, inner)
        for cut in moved.windows() or [NOTHING]:
            part = moved.part(cut)
            fold = structs.replace(request, source=part.data, out=part.data, rows=part.rows, root=root)
            yield Step(_once(part.before), fold if folds else None, _once(part.after))
        return
    reduced = ReducedRows(
        request.source, request.rows, place, inner, out=request.out, out_first=request.out_first,
        reduction=inside(request.reduction, request.coding),
    )
    gathered = (
        None if request.gathered is None else MovedRows(request.gathered, request.gathered_rows, place, inner)
    )
    cuts = zip_longest(
        reduced.windows(), [] if gathered is None else gathered.windows(), fillvalue=NOTHING
    )
    for cut, other in list(cuts) or [(NOTHING, NOTHING)]:
        part = reduced.part(cut)
        own = part.rows[place.index]
        fold = structs.replace(
            request, source=part.data, out=part.data[own], rows=part.rows, root=root, out_first=own.start
        )
        befores, afters = [part.before], [part.after]
        if gathered is not None:
            beside = gathered.part(other)
            fold = structs.replace(fold, gathered=beside.data, gathered_rows=beside.rows)
            befores, afters = [*befores, beside.before], [*afters, beside.after]
        yield Step(_once(*befores), fold if folds else None, _once(*afters))


def _once(*strands: Strand) -> Callable[[], Strand]:
    """Runs these one after another, when it is called."""

    def run() -> Strand:
        for strand in strands:
            yield from strand

    return run


def _common(a: slice, b: slice) -> slice:
    """The intersection of two slices."""
    first = max(a.start, b.start)
    return slice(first, max(first, min(a.stop, b.stop)))

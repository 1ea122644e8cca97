# SPDX-License-Identifier: Apache-2.0
"""The ranks on all planes: each collective cut over the rails, complete even if one of them dies.

    short   a sum of int32 over the rails, in which each rank fills in what it gives and the others zeros: an allreduce
            like any other, that folds where a rail folds.  Beside the bytes each rank fills in a checksum of what it
            calls, so that calls that differ are told by name.  Reductions are sums anyway
    long    parts over all planes (``CutCollective``): of rows through the switches of the rails that carry those, and
            over the meshes of the others; of all else over the meshes

What some of the ranks do alone, and messages between two, go over the first rail's plane that is up.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import structs

from netfold.host.errors import RankMismatch
from netfold.host.operation.arrays import Flat, held
from netfold.host.operation.coding import PLAIN, Coding, narrows
from netfold.host.operation.rail import DTYPES, folds
from netfold.host.operation.reduction import FILLED_IN, Reduction
from netfold.host.operation.request import AllreduceRequest, RowsCollective, RowsRequest
from netfold.host.rails.cut import CutCollective, FoldedPart, Part, call_number, mismatch, reduced
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rail_set import WatchedRail
from netfold.host.selection.choice import Collective
from netfold.host.selection.peers import AUTO, Peers

NAMED_ROWS = 8
"""Most rows of unequal sizes that an error names."""
SHORT_BYTES = 64 << 10
"""Largest size in bytes of an operation that is done as a sum.  A sum of zeros and one rank's bytes takes at most twice
the bytes of links, and saves the exchange that ends a long operation."""


class RailPeers(Peers):
    """All ranks of a job, over all of its rails.

    first  the ranks on the plane of the first rail that is up
    """

    def __init__(self, first: Peers, rails: MultiRail) -> None:
        super().__init__(
            first.mesh, label=first.label, algorithm=first.algorithm, order=first.order, fabric=first.fabric,
            note=first.note, places=first.places,
        )
        self.rails = rails

    # ---- reductions --------------------------------------------------------------------------------------------------
    def allreduce(self, request: AllreduceRequest) -> int:
        return self.rails.allreduce(structs.replace(request, algorithm=request.algorithm or AUTO))

    def reduce(
        self, data: Flat, reduction: Reduction, root: int, *, algorithm: str | None = None, coding: Coding = PLAIN
    ) -> None:
        if algorithm is None and data.nbytes <= SHORT_BYTES:
            self._sum(data, reduction, coding)
            return
        whole = self._of_root(data.size, root)
        self._cut(
            _kind("reduce", reduction, coding), f"reduce to {root}, {reduced(data.size, reduction)}", data.nbytes,
            lambda peers, part: peers.reduce(data[part(_all(data))], reduction, root, algorithm=algorithm),
            lambda part: [data[part(_all(data))]],
            None if algorithm else self._folded("reduce", data, whole, reduction, coding, root),
            either=not _narrows(reduction, coding),
        )

    def reduce_scatter(
        self, data: Flat, pieces: Sequence[slice], reduction: Reduction, *, algorithm: str | None = None,
        coding: Coding = PLAIN,
    ) -> None:
        if algorithm is None and data.nbytes <= SHORT_BYTES:
            self._sum(data, reduction, coding)
            return
        self._cut(
            _kind("reduce_scatter", reduction, coding),
            f"reduce_scatter, {reduced(data.size, reduction)}, {_sizes(pieces, 'elements')}", data.nbytes,
            lambda peers, part: peers.reduce_scatter(data, [part(piece) for piece in pieces], reduction),
            lambda part: [data[part(piece)] for piece in pieces],
            None if algorithm else self._folded("reduce_scatter", data, pieces, reduction, coding),
            either=not _narrows(reduction, coding),
        )

    def how(self, collective: Collective, nbytes: int, reduction: Reduction) -> str:
        if collective == "barrier" or nbytes <= SHORT_BYTES:
            return f"{collective} of {nbytes} bytes is a sum: {self.rails.describe(nbytes)}"
        folded = folds(reduction.op, reduction.element) or collective not in ("reduce", "reduce_scatter")
        return f"{collective} of {nbytes} bytes: {self.rails.describe_cut(collective, nbytes, folded=folded)}"

    @property
    def joins(self) -> bool:
        return self.rails.carries_rows

    def exchange(
        self, data: Flat, pieces: Sequence[slice], reduction: Reduction, gathered: Flat, rows: Sequence[slice],
        coding: Coding = PLAIN,
    ) -> bool:
        fold = self._folded("exchange", data, pieces, reduction, coding, gathered=gathered, gathered_rows=rows)
        nbytes = data.nbytes + gathered.nbytes
        if fold is None or not self.joins:
            return False
        if nbytes <= SHORT_BYTES:
            self.reduce_scatter(data, pieces, reduction, coding=coding)
            self.all_gather(gathered, rows)
            return True

        def over(peers: Peers, part: Part) -> None:
            peers.reduce_scatter(data, [part(piece) for piece in pieces], reduction)
            peers.all_gather(gathered, [part(row) for row in rows])

        self._cut(
            _kind("together", reduction, coding),
            f"reduce_scatter, {reduced(data.size, reduction)}, {_sizes(pieces, 'elements')}, with all_gather of"
            f" {_sizes(rows)}, {held(gathered)}", nbytes, over, lambda part: [data[part(piece)] for piece in pieces],
            fold, either=not _narrows(reduction, coding),
        )
        return True

    def _sum(self, data: Flat, reduction: Reduction, coding: Coding) -> None:
        """An allreduce in place, by the rails' own ways where all can make it."""
        own = data.dtype in DTYPES and folds(reduction.op, reduction.element)
        self.rails.allreduce(
            AllreduceRequest(data, data, reduction, self.number, coding if own else PLAIN, None if own else AUTO)
        )

    # ---- moving arrays as they are -----------------------------------------------------------------------------------
    def all_gather(self, data: Flat, pieces: Sequence[slice], *, algorithm: str | None = None) -> None:
        what = f"all_gather of {_sizes(pieces)}, {held(data)}"
        if algorithm is None and data.nbytes <= SHORT_BYTES:
            self._fill(what, data, [pieces[self.rank]], pieces)
            return
        self._cut(
            "all_gather", what, data.nbytes,
            lambda peers, part: peers.all_gather(data, [part(piece) for piece in pieces]),
            folded=None if algorithm else self._copied("all_gather", data, pieces), either=True,
        )

    def broadcast(self, data: Flat, root: int, *, algorithm: str | None = None) -> None:
        what = f"broadcast of {data.nbytes} bytes from {root}, {held(data)}"
        if algorithm is None and data.nbytes <= SHORT_BYTES:
            everything = [_all(data)]
            self._fill(what, data, self._at(root, everything), everything)
            return
        self._cut(
            "broadcast", what, data.nbytes,
            lambda peers, part: peers.broadcast(data[part(_all(data))], root, algorithm=algorithm),
            folded=None if algorithm else self._copied("broadcast", data, self._of_root(data.size, root), root),
            either=True,
        )

    def gather(self, data: Flat, pieces: Sequence[slice], root: int) -> None:
        what = f"gather of {_sizes(pieces)} to {root}, {held(data)}"
        if data.nbytes <= SHORT_BYTES:
            self._fill(what, data, [pieces[self.rank]], self._at(root, pieces))
            return
        self._cut(
            "gather", what, data.nbytes,
            lambda peers, part: peers.gather(data, [part(piece) for piece in pieces], root),
        )

    def scatter(self, data: Flat, pieces: Sequence[slice], root: int) -> None:
        what = f"scatter of {_sizes(pieces)} from {root}, {held(data)}"
        if data.nbytes <= SHORT_BYTES:
            self._fill(what, data, self._at(root, pieces), [pieces[self.rank]])
            return
        self._cut(
            "scatter", what, data.nbytes,
            lambda peers, part: peers.scatter(data, [part(piece) for piece in pieces], root),
        )

    def all_to_all(self, source: Flat, given: Sequence[slice], out: Flat, taken: Sequence[slice]) -> None:
        # the ranks may give different numbers of rows: first all learn the size of the largest part
        sizes = np.zeros(self.size, np.int64)
        sizes[self.rank] = max(source.nbytes, out.nbytes)
        rows = [slice(8 * rank, 8 * rank + 8) for rank in range(self.size)]
        what = f"all_to_all, {held(out)}"
        self._fill(what, sizes.view(np.uint8), [rows[self.rank]], rows)
        self._cut(
            "all_to_all", what, int(sizes.max()),
            lambda peers, part: peers.all_to_all(
                source, [part(piece) for piece in given], out, [part(piece) for piece in taken]
            ),
        )

    def barrier(self) -> None:
        self._fill("barrier", np.empty(0, np.uint8), [], [])

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _at(self, root: int, pieces: Sequence[slice]) -> Sequence[slice]:
        return pieces if self.rank == root else ()

    def _fill(self, what: str, data: Flat, own: Sequence[slice], wanted: Sequence[slice]) -> None:
        """Makes a short operation as a sum of int32.

        what    as of ``CutOperation``
        own     what this rank gives of ``data``, which are bytes; no two ranks give the same
        wanted  what it takes
        """
        sums = np.zeros(self.size + -(-data.nbytes // 4), np.int32)
        said = call_number(what)
        sums[self.rank] = said
        moved = sums[self.size:].view(np.uint8)
        for piece in own:
            moved[piece] = data[piece]
        self.rails.allreduce(AllreduceRequest(sums, sums, FILLED_IN, self.number))
        if odd := np.flatnonzero(sums[: self.size] != said).tolist():
            raise RankMismatch(f"operation {self.number}: {mismatch(self.rank, what, odd)}")
        for piece in wanted:
            data[piece] = moved[piece]

    def _cut(
        self, kind: str, what: str, size: int, over: Callable[[Peers, Part], None],
        overwritten: Callable[[Part], Sequence[Flat]] = lambda part: (), folded: FoldedPart | None = None, *,
        either: bool = False,
    ) -> None:
        """Makes a long operation in parts over all rails (``CutCollective``)."""
        if size:
            either = either and folded is not None
            self.rails.carry(CutCollective(kind, what, size, over, overwritten, folded, either), self.number)

    def _of_root(self, size: int, root: int) -> list[slice]:
        """All elements as the root's row."""
        return [slice(0, size) if rank == root else slice(0, 0) for rank in range(self.size)]

    def _folded(
        self, collective: RowsCollective, data: Flat, rows: Sequence[slice], reduction: Reduction, coding: Coding,
        root: int = 0, *, gathered: Flat | None = None, gathered_rows: Sequence[slice] = (),
    ) -> FoldedPart | None:
        """A function that runs a part of a reduction of rows, each in its owner's ``data``, through a rail's switches;
        None if they cannot."""
        if data.dtype not in DTYPES or not folds(reduction.op, reduction.element):
            return None
        mine = rows[self.rank]
        into = np.empty(mine.stop - mine.start, data.dtype)  # sources stay whole while others may ask for them again

        def fold(rail: WatchedRail, part: Part, number: int) -> None:
            cut = [part(row) for row in rows]
            # all of the data: stochastic rounding draws by an element's place in it, another one in every part
            rail.collect(RowsRequest(
                collective, data, into, cut, number, root, mine.start, reduction, coding, gathered,
                [part(row) for row in gathered_rows],
            ))
            own = cut[self.rank]
            data[own] = into[own.start - mine.start : own.stop - mine.start]

        return fold

    def _copied(
        self, collective: RowsCollective, data: Flat, rows: Sequence[slice], root: int = 0
    ) -> FoldedPart:
        """A function that copies a part of each rank's row to all ranks through a rail's switches."""

        def copy(rail: WatchedRail, part: Part, number: int) -> None:
            rail.collect(RowsRequest(collective, data, data, [part(row) for row in rows], number, root))

        return copy


def _kind(name: str, reduction: Reduction, coding: Coding) -> str:
    """The kind of a reduction: what rails cost differs with the width of the lanes."""
    return f"{name} in lanes of {coding.lane_bits} bits" if _narrows(reduction, coding) else name


def _narrows(reduction: Reduction, coding: Coding) -> bool:
    """True if a call asks for narrow lanes, which switches have and meshes have not."""
    return coding.lane_bits != 32 and narrows(reduction.op, reduction.element)


def _sizes(pieces: Sequence[slice], unit: str = "bytes") -> str:
    """The rows of each rank in words: ranks that cut the same bytes in other places call different operations.  Of many
    unlike rows a checksum stands for those that are not named."""
    sizes = [piece.stop - piece.start for piece in pieces]
    if len(set(sizes)) == 1:
        return f"{sizes[0]} {unit} of each rank"
    named = " + ".join(map(str, sizes[:NAMED_ROWS]))
    if len(sizes) <= NAMED_ROWS:
        return f"{named} {unit}"
    rest = zlib.crc32(" ".join(map(str, sizes[NAMED_ROWS:])).encode())
    return f"{named} + ... {unit} ({len(sizes)} rows, checksum of the others {rest:08x})"


def _all(data: Flat) -> slice:
    return slice(0, data.size)

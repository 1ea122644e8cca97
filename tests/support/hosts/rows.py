# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows with their arrays, and what each rank must have afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from netfold.host.operation.coding import Coding
from netfold.host.operation.reduction import ReduceOp, Reduction
from netfold.host.operation.request import RowsCollective, RowsRequest

COLLECTIVES: tuple[RowsCollective, ...] = (
    "reduce_scatter", "reduce", "all_gather", "broadcast", "barrier", "exchange",
)
Rows = list[NDArray[Any]]
NOTHING = np.empty(0, np.float32)


def cut(counts: Sequence[int]) -> list[slice]:
    """Adjacent rows of these lengths."""
    ends = np.cumsum([0, *counts])
    return [slice(int(a), int(b)) for a, b in pairwise(ends)]


def tensors(world: int, size: int, dtype: str, seed: int) -> Rows:
    """Whole numbers, whose sums float32 holds exactly; int32 over its whole range."""
    rng = np.random.default_rng(seed)
    most = 2**31 if dtype == "int32" else 1000
    return [rng.integers(-most, most, size).astype(dtype) for _ in range(world)]


class Operation:
    """One collective of all ranks, and what each must have afterwards."""

    def __init__(
        self, kind: RowsCollective, counts: Sequence[int], *, root: int = 0, dtype: str = "int32",
        op: ReduceOp = "sum", number: int = 1, seed: int = 0, coding: Coding = Coding(), in_place: bool = False,  # noqa: B008
    ) -> None:
        world = len(counts)
        if kind in ("reduce", "broadcast"):
            counts = [sum(counts) if rank == root else 0 for rank in range(world)]
        rows, size = cut(counts), sum(counts)
        self.outs: Rows = []
        self.expected: Rows = []
        self.requests: list[RowsRequest] = []
        if kind == "barrier":
            self.requests = [RowsRequest(kind, NOTHING, NOTHING, (), number)] * world
        elif kind in ("reduce_scatter", "reduce", "exchange"):
            self.sources = tensors(world, size, dtype, seed)
            fold = {"sum": np.add, "average": np.add, "max": np.maximum, "min": np.minimum}[op]
            whole = fold.reduce(self.sources, dtype=dtype)
            for rank, row in enumerate(rows):
                mine = row if kind != "reduce" or rank == root else slice(0, 0)
                source = self.sources[rank].copy()
                out = source[mine] if in_place else np.full(mine.stop - mine.start, 99, dtype)
                self.outs.append(out)
                self.expected.append(whole[mine])
                self.requests.append(RowsRequest(
                    kind, source, out, rows, number, root if kind == "reduce" else 0, mine.start,
                    Reduction(op, dtype), coding,
                ))
        else:
            whole = np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)
            for row in rows:
                data = np.zeros(size, np.uint8)
                data[row] = whole[row]
                self.outs.append(data)
                self.expected.append(whole)
                self.requests.append(
                    RowsRequest(kind, data, data, rows, number, root if kind == "broadcast" else 0)
                )

        if kind == "exchange":  # what is gathered has rows of other lengths
            counts = [3 * count + rank for rank, count in enumerate(reversed(counts))]
            moved = Operation("all_gather", counts, number=number, seed=seed + 1)
            self.outs += moved.outs
            self.expected += moved.expected
            self.requests = [
                msgspec.structs.replace(one, gathered=other.out, gathered_rows=other.rows)
                for one, other in zip(self.requests, moved.requests, strict=True)
            ]

    def check(self) -> None:
        """Fails where a rank got something else."""
        for rank, (out, expected) in enumerate(zip(self.outs, self.expected, strict=True)):
            asked = self.requests[rank % len(self.requests)]
            assert (out == expected).all(), f"{asked}, rank {rank % len(self.requests)}"

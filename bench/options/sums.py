# SPDX-License-Identifier: Apache-2.0
"""The options of `netfold bench allreduce`, `collectives` and `growth`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from netfold.bench.options.shared import (
    Begin,
    End,
    Iterations,
    LinksOptions,
    LossyOptions,
    Out,
    RanksPerHost,
    Rounds,
    RoundsOptions,
    Sizes,
    Timeout,
    Topo,
    size,
)
from netfold.wire.jobs import LANE_BITS

if TYPE_CHECKING:  # what imports numpy is imported once there is something to measure
    from netfold.host.operation.reduction import ReduceOp, Reduction

BRIDGE: Final = "@bridge"
"""Behind an algorithm of TCP's: over a plain kernel bridge."""
TYPES: Final[Mapping[str, str]] = {
    "float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "int32": "int32",
    "int64": "int64", "uint8": "uint8",
}
"""nccl-tests' names of datatypes -> ours."""
OPERATIONS: Final[Mapping[str, ReduceOp]] = {
    "sum": "sum", "prod": "product", "min": "min", "max": "max", "avg": "average",
}
"""nccl-tests' names of operations -> ours."""
FACTOR: Final = 4
"""Default factor from one size to the next."""
COLLECTIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "barrier": ("innet", "dissemination"),
    "broadcast": ("innet", "flat", "binomial", "chain", "scatter_all_gather", "hierarchical"),
    "reduce": ("innet", "binomial", "reduce_scatter_gather"),
    "reduce_scatter": ("innet", "ring"),
    "all_gather": ("innet", "ring"),
    "together": ("innet", "ring"),
    "step": ("ring", "innet", "all serve", "half serve", "one serves"),
}
"""Collective -> what it is timed by, besides gloo, which makes no step."""
GROWTH: Final = ("ranks", "sizes", "credits", "path-mtu", "controller", "jobs", "programs")
"""The figures of `netfold bench growth`."""


@dataclass(frozen=True, kw_only=True)
class AllreduceOptions(LossyOptions, RoundsOptions):
    """Allreduce by several algorithms over links of one rate, in nccl-tests' manner.

    Everything runs in a sandbox on this machine: a fabric of P4 switches, and beside it a plain kernel
    bridge, the best case for algorithms that do not fold. Exit status 1 if a sum is wrong.
    """

    begin: Begin = "1M"
    end: End = "16M"
    increment: Annotated[str | None, typer.Option("-i", "--stepbytes", help="Bytes from one size to the next, where no "
                                                  "factor is given.")] = None
    factor: Annotated[int | None, typer.Option("-f", "--factor", "--stepfactor", help="From one size to the next; "
                                               f"default: {FACTOR}.")] = None
    datatype: Annotated[str, typer.Option("-d", "--datatype", help=f"{', '.join(TYPES)}.")] = "float"
    operation: Annotated[str, typer.Option("-o", "--op", help=f"{', '.join(OPERATIONS)}.")] = "sum"
    iterations: Iterations = 3
    warmup: Annotated[int, typer.Option("-w", "--warmup", "--warmup_iters", help="Operations before each round's timed "
                                        "ones.")] = 1
    check: Annotated[int, typer.Option("-c", "--check", help="1: compare results with the exact sum; 0: do not.")] = 1
    lane_bits: Annotated[int, typer.Option(help="Bits of a lane in what is folded: 32, 16 or 8.")] = 32
    algorithms: Annotated[
        str,
        typer.Option("--algorithms", "--algos",
                     help="By commas: innet, roce, auto, ring, halving_doubling, ... over the fabric, with @bridge "
                     "behind one of TCP's over a plain kernel bridge; gloo, always over the bridge."),
    ] = "innet,roce,ring,ring@bridge,halving_doubling@bridge,gloo"
    ranks_per_host: RanksPerHost = 1
    timeout: Timeout = 30.0
    credits: str = ""
    """Value of NETFOLD_CREDITS for the ranks on the fabric, such as "2x170K"; empty: they have the window alone."""
    sizes: tuple[int, ...] = ()
    """Sizes in the order in which they are measured; empty: as the options say."""

    def __post_init__(self) -> None:
        self.need(1, "ranks_per_host")
        super().__post_init__()
        self.need_one("datatype", TYPES)
        self.need_one("operation", OPERATIONS)
        try:
            reduction = self.reduction
        except TypeError as error:
            raise ValueError(f"-d {self.datatype} -o {self.operation}: {error}") from error
        self.need(1, "iterations")
        self.need(0, "warmup")
        self.need_one("lane_bits", LANE_BITS)
        self.need_positive("timeout")
        self.names("algorithms", _algorithms())
        if self.lane_bits != 32 and (reduction.op not in ("sum", "average") or reduction.element == "int32"):
            self.refuse("lane_bits", f"32 for -d {self.datatype} -o {self.operation}; narrow lanes are for sums and "
                        "averages of floats")
        self._set(sizes=self.sizes or self._sizes(max(4, reduction.dtype.itemsize)))

    def _sizes(self, width: int) -> tuple[int, ...]:
        """All sizes that -b, -e, -f and -i ask for, in whole elements of so many bytes."""
        first, last = self.bytes_of("begin", width), self.bytes_of("end", width)
        step = 0 if self.increment is None else size(self.increment)
        if self.increment is not None and step < width:
            self.refuse("increment", f"{width} bytes or more")
        factor = self.factor if self.factor is not None else 1 if step else FACTOR
        if factor < (1 if step else 2):
            self.refuse("factor", "1 or more" if step else "2 or more")
        if last < first:
            self.refuse("end", "the end not below the beginning")
        found = []
        while first <= last:
            found.append(first // width * width)
            first = first * factor if factor > 1 else first + step  # a factor goes before an increment, as there
        return tuple(found)

    @property
    def ways(self) -> tuple[str, ...]:
        """The algorithms, by name."""
        return self.names("algorithms", _algorithms())

    @property
    def reduction(self) -> Reduction:
        """The timed operation.  Raises TypeError for an operation that the type does not have."""
        from netfold.host.operation.reduction import Reduction

        return Reduction(OPERATIONS[self.operation], TYPES[self.datatype])


def _algorithms() -> list[str]:
    """All algorithms by name, also those over the bridge."""
    from netfold.host.collectives import ALLREDUCE
    from netfold.host.collectives.tidalmesh import TIDALMESH

    tcp = sorted({"auto", "hierarchical", *ALLREDUCE})
    return ["innet", "roce", "gloo", TIDALMESH, *tcp, *(name + BRIDGE for name in tcp)]


@dataclass(frozen=True, kw_only=True)
class CollectivesOptions(LossyOptions, RoundsOptions):
    """Barriers, broadcasts, reduces, scattered sums and gathers: through the switches, over TCP, and gloo's.

    A step is one of training without computing: an allreduce and Adam on every rank, or servers that hold the
    parameters and run Adam.
    """

    topo: Topo = "leafspine,2,2,8"
    collectives: Annotated[str, typer.Option(
        help="By commas: barrier, broadcast, reduce, reduce_scatter, all_gather, together, step."
    )] = "barrier,broadcast,reduce,reduce_scatter,all_gather,together"
    sizes: Sizes = "4K,4M"
    iterations: Iterations = 5
    out: Out = None

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = self.names("collectives", COLLECTIVES)
        self.sizes_of("sizes", 1024 if "step" in wanted else 4)
        self.need(1, "iterations")
        if len(set(Counter(self.fabric().leaf_of().values()).values())) > 1:
            self.refuse("topo", "the same number of hosts below each switch that has some")

    @property
    def leaf(self) -> int:
        """Hosts below each switch that has some."""
        return self.ranks // len({*self.fabric().leaf_of().values()})


@dataclass(frozen=True, kw_only=True)
class GrowthOptions(LinksOptions):
    """The growth of costs, a figure each: with ranks, sizes, packets in flight and path MTU, fabrics and programs."""

    what: Annotated[str, typer.Option(help=f"By commas: {', '.join(GROWTH)}.")] = ",".join(GROWTH)
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="For rows and figures.")] = Path(
        "build/bench-growth")
    rounds: Rounds = 3
    quick: Annotated[bool, typer.Option("--quick", help="Small points alone: see in seconds that it works.")] = False
    draw: Annotated[bool, typer.Option("--draw", help="Measure nothing, draw what was measured before.")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names("what", GROWTH)
        self.need(1, "rounds")

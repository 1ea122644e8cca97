# SPDX-License-Identifier: Apache-2.0
"""Measures an allreduce as ranks, sizes, packets in flight and path MTU grow, by runs of `netfold bench allreduce`.

Each point has a fabric of its own; the algorithms of a point take turns in each of its rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from netfold.bench.commands import allreduce
from netfold.bench.commands.allreduce import AllreduceRow
from netfold.bench.options.sums import AllreduceOptions, GrowthOptions
from netfold.fabric.generate import PATH_MTU
from netfold.plots.charts import LineChart

Axis = Literal["ranks", "sizes", "credits", "path-mtu"]
KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True)
class GrowthPoint:
    """One fabric and what is timed on it."""

    series: str
    """Name of the line that innet's figures belong to."""
    ranks: int = 8
    leaves: int = 2
    spines: int = 2
    sizes: tuple[int, ...] = (16 * MIB,)
    credits: str = ""
    path_mtu: int = PATH_MTU
    algorithms: tuple[str, ...] = ("innet", "gloo")


_SIZES: Final = tuple(4 * KIB << 2 * i for i in range(9))
"""4 KiB to 256 MiB."""
POINTS: Final[Mapping[Axis, Sequence[GrowthPoint]]] = {
    "ranks": [GrowthPoint(f"{leaves} x {spines}", ranks, leaves, spines,
                    algorithms=("innet", "gloo") if (leaves, spines) == (2, 2) else ("innet",))
              for leaves, spines in ((2, 1), (2, 2), (4, 2), (4, 4)) for ranks in (2, 4, 8, 16) if ranks >= leaves],
    "sizes": [GrowthPoint("innet", sizes=_SIZES, algorithms=("innet", "ring@bridge", "gloo"))],
    "credits": [GrowthPoint("innet", credits=credits)
                for credits in ("1x32K", "1x64K", "1x128K", "1x256K", "2x256K", "")],
    "path-mtu": [GrowthPoint(f"path MTU {mtu}", sizes=(64 * KIB, MIB, 16 * MIB, 64 * MIB), path_mtu=mtu)
                 for mtu in (1024, 4096)],
}
_SMALL: Final = GrowthPoint("innet", ranks=2, leaves=1, spines=0, sizes=(4 * KIB,), algorithms=("innet",))
QUICK: Final[Mapping[Axis, Sequence[GrowthPoint]]] = {
    "ranks": [dataclasses.replace(_SMALL, series="1 x 0")],
    "sizes": [dataclasses.replace(_SMALL, sizes=(4 * KIB, 64 * KIB))],
    "credits": [dataclasses.replace(_SMALL, credits="1x16")],
    "path-mtu": [dataclasses.replace(_SMALL, path_mtu=4096)],
}
"""Points that take seconds, to see that the command works."""
_X: Final[Mapping[Axis, tuple[str, Callable[[AllreduceRow], str]]]] = {
    "ranks": ("ranks", lambda row: str(row.ranks)),
    "sizes": ("bytes of the tensor", lambda row: in_units(row.nbytes)),
    "credits": ("messages x KiB in flight a tree (window: without credits)", lambda row: row.credits or "window"),
    "path-mtu": ("bytes of the tensor", lambda row: in_units(row.nbytes)),
}


class FabricRow(AllreduceRow, frozen=True):
    """A row with the line it belongs to."""

    series: str = ""


def measure(axis: Axis, options: GrowthOptions, echo: Callable[[str], None]) -> list[FabricRow]:
    """The rows of an axis.  Raises FabricFailed and ValueError."""
    rows = []
    for point in (QUICK if options.quick else POINTS)[axis]:
        each = AllreduceOptions(
            sizes=point.sizes, iterations=1 if options.quick else 3, rounds=1 if options.quick else options.rounds,
            topo=f"leafspine,{point.leaves},{point.spines},{point.ranks}", switch=options.switch, rate=options.rate,
            path_mtu=point.path_mtu, algorithms=",".join(point.algorithms), timeout=60.0, credits=point.credits,
        )
        for row in allreduce.run(each, echo):
            fields = {name: getattr(row, name) for name in row.__struct_fields__}
            rows.append(FabricRow(**fields, series=point.series if row.algorithm == "innet" else row.algorithm))
    return rows


def charts(axis: Axis, rows: Sequence[FabricRow]) -> tuple[list[list[LineChart]], str]:
    """The charts of time and of processor time, one below the other, and what their x axis has."""
    label, place = _X[axis]
    ticks = list(dict.fromkeys(map(place, rows)))
    limits: dict[str, list[str]] = {tick: [] for tick in ticks}
    for row in rows:
        if row.algorithm == "innet":
            limits[place(row)].append(row.limited_by)
    named = [f"{tick}\n{'/'.join(dict.fromkeys(limits[tick]))}" for tick in ticks]

    def lines(value: Callable[[FabricRow], float]) -> dict[str, list[float | None]]:
        series: dict[str, dict[str, float]] = {}
        for row in rows:
            series.setdefault(row.series, {})[place(row)] = value(row)
        return {name: [values.get(tick) for tick in ticks] for name, values in series.items()}

    return [
        [LineChart("How long an allreduce takes", named, lines(lambda row: row.seconds * 1e3),
                   y="time, ms")],
        [LineChart("What ranks and switches compute for it", named,
                   lines(lambda row: (row.cpu_seconds + row.switch_cpu_seconds) / row.nbytes * 1e9),
                   y="processor time, s/GB")],
    ], f"{label}; below it what limited innet"


def in_units(nbytes: int) -> str:
    """A number of bytes with the largest unit that divides it."""
    for unit, name in ((1 << 30, "G"), (MIB, "M"), (KIB, "K")):
        if nbytes % unit == 0:
            return f"{nbytes // unit}{name}"
    return str(nbytes)

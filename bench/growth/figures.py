# SPDX-License-Identifier: Apache-2.0
"""`netfold bench growth`: how cost grows, one figure for each of

    ranks       time and processor time with 2 to 16 ranks, on 2 to 4 leaves and 1 to 4 spines
    sizes       ... with tensors of 4 KiB to 256 MiB, beside a ring and gloo on the bridge
    credits     ... with the packets that may be in flight
    path-mtu    ... with payloads of 1024 and 4096 bytes, over sizes
    controller  time and memory of a controller of 4 to 1,280 switches without data plane, and planning anew
    jobs        ... of one fabric of 4,096 hosts, with a job of 64 to 4,096 ranks
    programs    compile time with the size of a program, softswitch's compiler beside p4c

Rows are written to growth-NAME.json, with the machine and what limited each figure, and drawn as growth-NAME.svg; they
can be drawn again without measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from netfold.bench.growth import controller, fabric, program
from netfold.bench.growth.controller import ControllerRow
from netfold.bench.growth.fabric import Axis, FabricRow
from netfold.bench.growth.program import ProgramRow
from netfold.bench.harness.stalls import LongTurn
from netfold.bench.options.sums import GROWTH, GrowthOptions
from netfold.disk import files
from netfold.plots.charts import LineChart, PlotsMissing, line_charts
from netfold.topo.network import sandbox

AXES: Final[Sequence[Axis]] = get_args(Axis)
_ROWS: Final[dict[str, Any]] = {"controller": ControllerRow, "jobs": ControllerRow, "programs": ProgramRow}


def run(options: GrowthOptions, echo: Callable[[str], None] = print) -> bool:
    """Measure (unless --draw) and draw each figure.  Returns whether all sums were right.

    Raises FabricFailed, ValueError, OSError and subprocess.SubprocessError.
    """
    names, out = options.names("what", GROWTH), options.out
    if not options.draw and set(names) & set(AXES):
        sandbox.enter()
        from mininet.log import setLogLevel

        setLogLevel("error")
    out.mkdir(parents=True, exist_ok=True)
    right = True
    for name in names:
        file = out / f"growth-{name}.json"
        if not options.draw:
            echo(f"# {name}")
            found = _measure(name, options, echo)
            right = right and not any(getattr(row, "wrong", 0) for row in found)
            files.replace(file, msgspec.json.format(msgspec.json.encode(found), indent=1))
        try:
            drawn = figure(name, file, out)
        except PlotsMissing as error:
            if options.draw:
                raise ValueError(str(error)) from error
            echo(f"# {file}; {error}")
        else:
            echo(f"# {file}, {', '.join(path.name for path in drawn)}")
    return right


def _measure(name: str, options: GrowthOptions, echo: Callable[[str], None]) -> Sequence[Any]:
    if name in ("controller", "jobs"):
        points = controller.FABRICS if name == "controller" else controller.JOBS
        return controller.measure(controller.QUICK if options.quick else points, echo)
    if name == "programs":
        return program.measure(program.QUICK if options.quick else program.TABLES, echo)
    return fabric.measure(_axis(name), options, echo)


def figure(name: str, file: Path, out: Path) -> list[Path]:
    """Draw the rows of a file, and return what was written.  Raises OSError, ValueError and PlotsMissing."""
    try:
        rows = msgspec.json.decode(file.read_bytes(), type=list[_ROWS.get(name, FabricRow)])  # type: ignore[misc]
    except (FileNotFoundError, msgspec.DecodeError) as error:
        raise ValueError(f"{file}: {error}; expected what `netfold bench growth --what {name}` writes") from error
    if not rows:
        raise ValueError(f"{file}: expected at least one row")
    if name == "controller":
        drawn, x = _of_controller(rows, [row.switches for row in rows]), "switches"
    elif name == "jobs":
        drawn, x = _of_controller(rows, [row.ranks for row in rows]), "ranks of the job"
    elif name == "programs":
        drawn, x = _of_programs(rows), "tables of the program"
    else:
        drawn, x = fabric.charts(_axis(name), rows)
    return line_charts(out / f"growth-{name}", f"{name}: {rows[0].machine}", drawn, x=x)


def _axis(name: str) -> Axis:
    return next(axis for axis in AXES if axis == name)


def _of_controller(rows: Sequence[ControllerRow], ticks: Sequence[int]) -> list[list[LineChart]]:
    times = {"start": "start", "a job's plan": "job", "anew after a spine's link": "link",
             "anew after a leaf's link": "leaf_link", "anew after a spine": "spine",
             "a look": "status", "a round of probes": "probes", "a restart": "restart"}
    return [
        [LineChart("What the controller computes", ticks, {
            label: [getattr(row, field)[1] for row in rows] for label, field in times.items()}, y="processor time, s")],
        [LineChart("For how long its loop stands still at most", ticks, {
            stage: [stalls.get(stage, LongTurn()).seconds for stalls in (row.stalls for row in rows)]
            for stage in controller.STAGES}, y="processor time, s")],
        [LineChart("What it holds", ticks, {"memory": [row.mebibytes for row in rows],
                                            "most memory": [row.peak_mebibytes for row in rows]}, y="memory, MiB")],
    ]


def _of_programs(rows: Sequence[ProgramRow]) -> list[list[LineChart]]:
    sizes = list(dict.fromkeys(row.tables for row in rows))
    by = {(row.compiler, row.tables): row for row in rows}
    compilers = list(dict.fromkeys(row.compiler for row in rows))

    def lines(field: str) -> dict[str, list[float | None]]:
        return {compiler: [getattr(by.get((compiler, size)), field, None) for size in sizes] for compiler in compilers}

    ticks = sizes
    return [[LineChart("What compiling takes", ticks, lines("cpu_seconds"), y="processor time, s")],
            [LineChart("What its largest process holds", ticks, lines("mebibytes"), y="memory, MiB")]]

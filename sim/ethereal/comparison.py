# SPDX-License-Identifier: Apache-2.0
"""Ethereal's comparison of load balancing, simulated again: `netfold sim ethereal`.

On the paper's fabrics, its collectives and steps of training its models, every scheme of `placement.SCHEMES`, in three
states:

    healthy        all links up
    link breaks    leaf 0 loses a spine at 1 us; routing learns of it after 100 ms, and until then hosts have
                   only their time-outs
                   (with ``links``, more cables between leaves and the tier above go too, drawn by the seed)
    link is out    the same link is down from the beginning, and planners and hashes avoid it

The results are completion times relative to packet spraying, numbers of queue pairs, loads of uplinks, and for each
claim of the paper (arXiv 2407.00550) whether it holds here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from netfold.plots.charts import PlotsMissing
from netfold.sim.engines.packet import Transport
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.ethereal.claims import STATES, Claim, ComparisonRow, State, claims, describe, identity
from netfold.sim.ethereal.figures import draw, draw_claims
from netfold.sim.ethereal.points import Point, broken, fabric, simulate_large, simulate_point
from netfold.sim.ethereal.results import RESULTS, ROWS, Journal, write_results, write_tables
from netfold.sim.sweeps.kept import Progress
from netfold.sim.sweeps.sweep import sweep
from netfold.sim.workloads.training import TRAINING
from netfold.sim.workloads.workload import COLLECTIVES


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The simulations to run: every combination of these, healthy fabrics once for all numbers of links.

    Raises ValueError for names that do not exist and combinations that cannot be simulated.
    """

    fabrics: Sequence[str] = ("leaf-spine",)
    """Names of `points.FABRICS`, or fabric files NAME.toml."""
    collectives: Sequence[str] = tuple(COLLECTIVES)
    models: Sequence[str] = tuple(TRAINING)
    sizes: Sequence[int] = (1, 4, 16, 64)
    """MB (2^20 bytes) on each rank."""
    schemes: Sequence[str] = tuple(SCHEMES)
    states: Sequence[State] = STATES
    links: Sequence[int] = (1,)
    """How many cables break or are out."""
    seeds: Sequence[int] = (1,)
    rto: float = 1e-3
    """Seconds of the time-out, for all schemes; the paper's authors have 1 ms."""

    def __post_init__(self) -> None:
        for name, given, known in (("collective", self.collectives, COLLECTIVES),
                                   ("model", self.models, TRAINING), ("scheme", self.schemes, SCHEMES),
                                   ("state", self.states, STATES)):
            if unknown := [one for one in given if one not in known]:
                raise ValueError(f"no {name} is called {unknown[0]}; there are {', '.join(known)}")
        for name, numbers, least in (("size", self.sizes, 1), ("number of links", self.links, 1),
                                     ("seed", self.seeds, 0)):
            if low := [number for number in numbers if number < least]:
                raise ValueError(f"a {name} of {low[0]}: expected {least} or more")
        Transport(rto=self.rto)  # raises ValueError for a time-out that cannot be
        for name in self.fabrics:
            broken(fabric(name), max(self.links), self.seeds[0])
        if len({Path(name).stem for name in self.fabrics}) < len(self.fabrics):
            raise ValueError(f"fabrics {', '.join(self.fabrics)}: figures are named after them, so they need different "
                             "names")
        if not (self.fabrics and (self.collectives or self.models) and self.states and self.schemes):
            raise ValueError("nothing to simulate: expected a fabric, a state, a scheme, and a collective or a model")

    @property
    def points(self) -> list[Point]:
        """All simulations; those that differ in scheme and seed alone stand side by side."""
        workloads = [*((name, mb << 20) for name in self.collectives for mb in self.sizes),
                     *((name, 0) for name in self.models)]
        return [Point(name, *workload, scheme, state, seed, self.rto, count)
                for name in self.fabrics for workload in workloads
                for state in self.states for count in (self.links if state != "healthy" else (1,))
                for scheme in self.schemes for seed in self.seeds]

    @property
    def group(self) -> int:
        """How many points side by side differ in scheme and seed alone."""
        return len(self.schemes) * len(self.seeds)


def run(
    comparison: Comparison,
    *,
    out: Path,
    scale: bool = False,
    jobs: int | None = None,
    resume: bool = False,
    echo: Callable[[str], None] = print,
) -> list[Claim]:
    """Simulate, write results.json, tables and figures into ``out``, and say which claims of the paper hold.

    scale    also simulate 16,384 hosts in the fluid simulator (minutes, 3 GB)
    jobs     processes; None: as joblib is configured, else all cores
    resume   take over what an interrupted run has left in ``out``
    echo     receives lines of progress and the verdicts
    Raises ValueError for rows of another run in ``out``, PathError where failures leave two leaves without a path,
    OSError where ``out`` cannot be written.  Without matplotlib no figures are drawn, and the last lines say so.
    """
    begin = time.perf_counter()
    rows = _simulate(comparison, out, jobs=jobs, resume=resume, echo=echo)
    large = simulate_large(seed=comparison.seeds[0], echo=echo) if scale else {}
    found = claims(rows)
    write_results(out, rows, {
        "seeds": list(comparison.seeds), "rto": comparison.rto, "transport": asdict(Transport(rto=comparison.rto)),
        "fabrics": {name: asdict(fabric(name)) for name in comparison.fabrics},
        "wall_seconds": time.perf_counter() - begin, "claims": [asdict(claim) for claim in found],
        "fluid_16384_hosts": large})
    for claim in found:
        echo(f"{'holds' if claim.holds else 'does NOT hold':14} {claim.says}: {claim.found}")
    written = [RESULTS, *(file.name for file in write_tables(out, rows, found))]
    try:
        written += [file.name for name in comparison.fabrics for drawn in (draw, draw_claims)
                    for file in drawn(rows, name, out)]
    except PlotsMissing as error:
        echo(f"no figures: {error}; then --resume draws them")
    echo(f"wrote {', '.join(written)} in {out}; seeds {', '.join(map(str, comparison.seeds))}")
    return found


def _simulate(comparison: Comparison, out: Path, *, jobs: int | None, resume: bool,
              echo: Callable[[str], None]) -> list[ComparisonRow]:
    """Simulate the points that the journal in ``out`` does not have yet, and return the rows of all, in order."""
    points = comparison.points
    places = {point: place for place, point in enumerate(points)}
    out.mkdir(parents=True, exist_ok=True)
    with Journal(out, comparison.rto, resume=resume) as journal:
        todo = [point for point in points if identity(point) not in journal.rows]
        seeds = ", ".join(map(str, comparison.seeds))
        progress = Progress(len(points), len(points) - len(todo))
        echo(f"{progress.total} simulations, {progress.done} of them done, seeds {seeds}")
        with progress.kept_in(out / ROWS, echo):
            for point, row in zip(todo, sweep(simulate_point, todo, jobs=jobs, echo=echo), strict=True):
                journal.add(row)
                said = progress.step()
                first = places[point] // comparison.group * comparison.group
                group = [journal.rows.get(identity(other)) for other in points[first:first + comparison.group]]
                if all(group):
                    echo(f"{said}: {_line([one for one in group if one])}")
    return [journal.rows[identity(point)] for point in points]


def _line(rows: Sequence[ComparisonRow]) -> str:
    """One line of progress: the median time over seeds of each scheme, for rows that differ in nothing else."""
    times = {r.scheme: statistics.median(o.time for o in rows if o.scheme == r.scheme) for r in rows}
    said = (f"{scheme} {took * 1e6:.0f}" if isfinite(took) else f"{scheme} -" for scheme, took in times.items())
    return f"{describe(rows[0].key):48} us: {'  '.join(said)}"

# SPDX-License-Identifier: Apache-2.0
"""Ethereal's comparison, drawn again: `netfold sim ethereal`.

On the paper's fabrics, its collectives and a layer of its models, every scheme of `placement.SCHEMES`, in three states:

    healthy        all links up
    link breaks    leaf 0 loses a spine at 1 us; nobody is told for 100 ms, hosts have their time-outs alone
                   (with ``links``, more cables between leaves and the tier above go too, drawn by the seed)
    link is out    the same link has been out since before, and everybody plans and hashes around it

What comes out are completion times beside those of packet spraying, queue pairs, loads of uplinks, and for each claim
of the paper whether it holds here.  Published: arXiv 2407.00550.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path

import numpy as np

from netfold.sim import fluid
from netfold.sim.claims import GIVE_UP, STATES, Claim, Key, Row, State, claims, describe, relative
from netfold.sim.figures import Panel, small_multiples
from netfold.sim.packet import Fault, Transport, simulate
from netfold.sim.placement import SCHEMES, place
from netfold.sim.sweep import sweep
from netfold.sim.topology import Cable, Topology, large_fat_tree, leaf_spine, paper_fat_tree
from netfold.sim.workload import COLLECTIVES, MODELS, Workload, training_step

FABRICS: dict[str, Callable[[], Topology]] = {"leaf-spine": leaf_spine, "fat-tree": paper_fat_tree}
BROKEN = Cable("leaf", 0, 0)
ROWS = "rows.jsonl"


@dataclass(frozen=True)
class Point:
    """One simulation."""

    fabric: str
    workload: str
    """A collective, or a model of which two layers' training is simulated."""
    size: int
    """Bytes on each rank; 0 for a model."""
    scheme: str
    state: State
    seed: int
    rto: float
    links: int = 1
    """Cables that break or are out; 1 where none is."""


def run(
    *,
    out: Path = Path("ethereal"),
    fabrics: Sequence[str] = ("leaf-spine",),
    collectives: Sequence[str] = tuple(COLLECTIVES),
    models: Sequence[str] = tuple(MODELS),
    sizes: Sequence[int] = (1, 4, 16, 64),
    schemes: Sequence[str] = tuple(SCHEMES),
    states: Sequence[State] = STATES,
    links: Sequence[int] = (1,),
    seeds: Sequence[int] = (1,),
    rto: float = 1e-3,
    scale: bool = False,
    jobs: int | None = None,
    resume: bool = False,
    echo: Callable[[str], None] = print,
) -> list[Claim]:
    """Simulate, write ``results.json`` and ``*.svg`` into ``out``, say what holds.

    sizes    MB (2^20 bytes) on each rank
    links    how many cables break or are out
    rto      seconds of the time-out, for all schemes; the paper's authors have 1 ms
    scale    also 16,384 hosts in the fluid simulator (minutes, 3 GB)
    jobs     processes; None: as joblib is configured, else all cores
    resume   keep what a run that was ended has left in ``out``: rows.jsonl has every simulation as soon as it is done
    Raises ValueError for names that do not exist and what cannot be simulated (PlanError where failures leave two
    leaves without a path), OSError where ``out`` cannot be written.
    """
    for name, given, known in (("fabric", fabrics, FABRICS), ("collective", collectives, COLLECTIVES),
                               ("model", models, MODELS), ("scheme", schemes, SCHEMES), ("state", states, STATES)):
        if unknown := [one for one in given if one not in known]:
            raise ValueError(f"no {name} is called {unknown[0]}; there are {', '.join(known)}")
    for name, numbers, least in (("size", sizes, 1), ("number of links", links, 1), ("seed", seeds, 0)):
        if low := [number for number in numbers if number < least]:
            raise ValueError(f"a {name} of {low[0]}: expected {least} or more")
    Transport(rto=rto)  # refuses what cannot be, as do the fabrics, before anything is simulated
    for fabric in fabrics:
        broken(FABRICS[fabric](), max(links), seeds[0])
    if not (fabrics and (collectives or models) and states and schemes):
        raise ValueError("nothing to simulate: expected a fabric, a state, a scheme, and a collective or a model")
    points = [Point(fabric, *work, scheme, state, seed, rto, count)
              for fabric in fabrics
              for work in [*((c, mb << 20) for c in collectives for mb in sizes), *((m, 0) for m in models)]
              for state in states for count in (links if state != "healthy" else (1,))
              for scheme in schemes for seed in seeds]
    out.mkdir(parents=True, exist_ok=True)
    kept = _kept(out / ROWS, rto) if resume else {}
    todo = [point for point in points if _key(point) not in kept]
    places = {point: place for place, point in enumerate(points)}
    echo(f"{len(points)} simulations, {len(points) - len(todo)} of them done, seeds {', '.join(map(str, seeds))}")
    begin = time.perf_counter()
    with (out / ROWS).open("a" if resume else "w") as file:
        together = len(schemes) * len(seeds)  # so many points in a row differ in nothing else
        for point, row in zip(todo, sweep(simulate_point, todo, jobs=jobs, echo=echo), strict=True):
            kept[_key(row)] = row
            file.write(json.dumps({"rto": rto, **_jsonable(row)}) + "\n")
            file.flush()
            first = places[point] // together * together
            alike = [kept.get(_key(other)) for other in points[first:first + together]]
            if all(alike):
                echo(f"{first + together:4}/{len(points)} {_line([one for one in alike if one])}")
    rows = [kept[_key(point)] for point in points]
    large = simulate_large(seed=seeds[0], echo=echo) if scale else {}
    found = claims(rows)

    document = {"seeds": list(seeds), "rto": rto, "transport": asdict(Transport(rto=rto)),
                "fabrics": {name: asdict(FABRICS[name]()) for name in fabrics},
                "wall_seconds": time.perf_counter() - begin,
                "claims": [asdict(claim) for claim in found], "rows": [_jsonable(row) for row in rows],
                "fluid_16384_hosts": large}
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n")
    for fabric in fabrics:
        (out / f"{fabric}.svg").write_text(draw(rows, fabric))
    for claim in found:
        echo(f"{'holds' if claim.holds else 'does NOT hold':14} {claim.says}: {claim.found}")
    echo(f"wrote {out}/results.json and {', '.join(f'{f}.svg' for f in fabrics)}; seeds {', '.join(map(str, seeds))}")
    return found


def simulate_point(point: Point) -> Row:
    """One simulation; of a model the first two layers, since all are alike."""
    topology = FABRICS[point.fabric]()
    workload = _workload(topology, point)
    scheme = SCHEMES[point.scheme]
    cables = [] if point.state == "healthy" else broken(topology, point.links, point.seed)
    known = point.state == "link is out"
    faults = [Fault(cable, 0.0, 0.0) if known else Fault(cable, 1e-6) for cable in cables]
    dead = topology.dead(cables) if known else frozenset()
    transport = Transport(rto=point.rto)
    outcome = simulate(topology, workload, scheme, transport=transport, faults=faults, seed=point.seed,
                       deadline=GIVE_UP + float(workload.gap.sum()))
    uplinks = outcome.link_bytes[2 * topology.size:2 * topology.size + topology.blocks[2]].reshape(-1, topology.aggs)
    uplinks = uplinks[uplinks.any(axis=1)]
    placed = place(topology, workload, scheme, dead=dead, seed=point.seed, mtu=transport.mtu)
    ends = np.stack([column[placed.task] for column in (workload.step, workload.source, workload.destination)])
    pairs = np.unique(np.vstack([ends, placed.path]), axis=1)  # segments of a flow on one path share a queue pair
    return Row(point.fabric, point.workload, point.size, point.scheme, point.state, point.seed,
               inf if outcome.unfinished else outcome.time, outcome.unfinished,
               int(np.unique(pairs[:2], axis=1, return_counts=True)[1].max()),
               float((uplinks.max(axis=1) / uplinks.mean(axis=1)).max(initial=1.0)),
               outcome.counts["timeouts"], outcome.counts["dropped"], point.links)


def broken(topology: Topology, number: int, seed: int) -> list[Cable]:
    """So many cables of leaves; the first is always the paper's.  Raises ValueError for more than there are."""
    rest = [Cable("leaf", leaf, agg) for leaf in range(topology.leaves * topology.pods) for agg in range(topology.aggs)]
    rest.remove(BROKEN)
    if number > len(rest) + 1:
        raise ValueError(f"{number} links out: the fabric has {len(rest) + 1} between leaves and the tier above")
    return [BROKEN, *random.Random(seed).sample(rest, number - 1)]


def _workload(topology: Topology, point: Point) -> Workload:
    hosts = range(topology.size)
    if point.workload in MODELS:
        return training_step(hosts, MODELS[point.workload], layers=2)
    return COLLECTIVES[point.workload](hosts, point.size)


def simulate_large(*, seed: int, size: int = 64 << 20, echo: Callable[[str], None] = print) -> dict[str, float]:
    """Halving-doubling among 16,384 hosts, fluid: seconds for each scheme."""
    topology = large_fat_tree()
    workload = COLLECTIVES["halving-doubling"](range(topology.size), size)
    times: dict[str, float] = {}
    for name in ("netfold", "spray", "ecmp"):
        outcome = fluid.simulate(topology, workload, SCHEMES[name], seed=seed, resolution=2e-5)
        times[name] = outcome.time
        echo(f"16,384 hosts, halving-doubling {size >> 20} MB, {name}: {outcome.time * 1e3:.2f} ms "
             f"({outcome.wall:.0f} s to simulate)")
    return times


def _line(rows: Sequence[Row]) -> str:
    """What differs in schemes and seeds alone: medians."""
    times = {r.scheme: statistics.median(o.time for o in rows if o.scheme == r.scheme) for r in rows}
    said = (f"{scheme} {took * 1e6:.0f}" if isfinite(took) else f"{scheme} -" for scheme, took in times.items())
    return f"{describe(rows[0].key):48} us: {'  '.join(said)}"


def _key(one: Point | Row) -> Key:
    return one.fabric, one.workload, one.size, one.scheme, one.state, one.links, one.seed


def _kept(file: Path, rto: float) -> dict[Key, Row]:
    """Rows of an earlier run with the same time-out.  Raises ValueError where the file is none of ours."""
    rows: dict[Key, Row] = {}
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else (), 1):
        try:
            fields = json.loads(line)
            if fields.pop("rto") != rto:
                raise ValueError("another time-out")
            row = Row(**{**fields, "time": inf if fields["time"] is None else fields["time"]})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}:{number}: no row of a run like this one ({error}); run without resume, or give "
                             "another folder") from error
        rows[_key(row)] = row
    return rows


def _jsonable(row: Row) -> dict[str, object]:
    """JSON has no infinity: a run that did not finish has no time."""
    return {**asdict(row), "time": row.time if isfinite(row.time) else None}


def draw(rows: Sequence[Row], fabric: str) -> str:
    """Completion time relative to spraying: a line of charts for each state, a chart for each workload."""
    mine = [r for r in rows if r.fabric == fabric]
    base = "spray" if any(r.scheme == "spray" for r in mine) else mine[0].scheme
    names = list(dict.fromkeys(r.workload for r in mine if r.size))
    models = list(dict.fromkeys(r.workload for r in mine if not r.size))
    schemes = list(dict.fromkeys(r.scheme for r in mine))
    lines: list[list[Panel]] = []
    for state, links in dict.fromkeys((r.state, r.links) for r in mine):
        such = [r for r in mine if (r.state, r.links) == (state, links)]
        ratios = {scheme: relative(such, scheme, base) for scheme in schemes}
        empty = f"{base} never finished"
        title = state if links == 1 else f"{state} ({links})"

        def value(scheme: str, work: str, size: int, ratios: dict[str, dict[Key, float]] = ratios
                  ) -> float | None:
            of = [ratio for key, ratio in ratios[scheme].items() if key[1:3] == (work, size)]
            return statistics.median(of) if of else None

        line = []
        for name in names:
            sizes = sorted({r.size for r in mine if r.workload == name})
            line.append(Panel(f"{name}, {title}", [str(size >> 20) for size in sizes],
                              {scheme: [value(scheme, name, size) for size in sizes] for scheme in schemes}, empty))
        if models:
            line.append(Panel(f"two layers' training, {title}", models,
                              {scheme: [value(scheme, model, 0) for model in models] for scheme in schemes}, empty))
        lines.append(line)
    seeds = ", ".join(map(str, sorted({r.seed for r in mine})))
    return small_multiples(f"{fabric}: completion time over that of {base} (seeds {seeds})", lines,
                           x="MB on each rank, or model", y=f"time / {base}")

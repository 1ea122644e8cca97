# SPDX-License-Identifier: Apache-2.0
"""`netfold sim`: the planners at the scale of a data centre."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from netfold.cli.common import CANNOT, FAILED, fail, refuse
from netfold.cli.options import TOPO_FORM

simulations = typer.Typer(no_args_is_help=True, help="The same planners at the scale of thousands of hosts.")


@simulations.callback()
def group() -> None:
    """The same planners at the scale of thousands of hosts."""


@simulations.command()
def ethereal(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the results and figures.")] = Path("build/sim"),
    fabrics: Annotated[str, typer.Option(help="leaf-spine (256 hosts), unequal-spines, unequal-leaves (uplinks of "
                                                "unequal rates), each also with -64, fat-tree (512), or fabric files "
                                                "NAME.toml, by commas.")] = "leaf-spine",
    collectives: Annotated[str, typer.Option(help="all, none, or names, by commas.")] = "all",
    schemes: Annotated[str, typer.Option(help="all, or names, by commas.")] = "all",
    models: Annotated[str, typer.Option(help="all, none, or names, by commas.")] = "all",
    sizes: Annotated[str, typer.Option(help="MB on each rank, by commas.")] = "1,4,16,64",
    states: Annotated[str, typer.Option(help="all, or by commas: healthy, link breaks, link is out.")] = "all",
    links: Annotated[str, typer.Option(help="How many cables break or are out, by commas.")] = "1",
    rto: Annotated[float, typer.Option(help="Time-out of all schemes, in seconds; the authors use 1 ms.")] = 1e-3,
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "1",
    scale: Annotated[bool, typer.Option("--scale", help="Also 16,384 hosts in the fluid simulator (minutes, 3 GB).")]
    = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: joblib's, or all cores.")] = None,
    engine: Annotated[str, typer.Option(help="Backend of the processes: loky, threading, dask=HOST:PORT, ray or "
                                             "ray=ADDRESS.")] = "loky",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run with the same --out.")] = False,
    short: Annotated[bool, typer.Option("--short", help="64 hosts, 1 MB and one model: half a minute.")] = False,
) -> None:
    """Draw Ethereal's comparison again: split, pinned flows against spraying, REPS and ECMP, also when links fail."""
    from netfold.sim.ethereal import comparison as paper
    from netfold.sim.sweeps import sweep

    if collectives == "none":
        refuse(context, ["sizes"], "goes with collectives; models have sizes of their own")
    if states == "healthy":
        refuse(context, ["links"], "goes with the states in which links break or are out")
    if short:
        refuse(context, ["fabrics", "models", "sizes"], "goes without --short, which has its own")
        fabrics, models, sizes = "leaf-spine-64", "GPT-117M-3d", "1"
    named = {"fabrics": fabrics, "collectives": collectives, "schemes": schemes, "models": models, "states": states}
    chosen: dict[str, Any] = {name: [] if given == "none" else given.split(",") for name, given in named.items()
                              if given != "all"}
    try:
        for name, given in (("sizes", sizes), ("links", links), ("seeds", seeds)):
            if not all(number.strip().isdecimal() for number in given.split(",")):
                raise ValueError(f"--{name}: expected whole numbers by commas, got {given!r}")
            chosen[name] = [int(number) for number in given.split(",")]
        with sweep.engine(engine) if engine != "loky" else contextlib.nullcontext():
            paper.run(paper.Comparison(rto=rto, **chosen), out=out, scale=scale, jobs=jobs, resume=resume)
    except (ValueError, ModuleNotFoundError) as error:
        fail(CANNOT, f"sim ethereal: {error}")
    except OSError as error:
        fail(FAILED, f"sim ethereal: cannot write {error.filename or out}: {error.strerror}")
    except sweep.EngineError as error:
        fail(FAILED, f"sim ethereal: {error}")


@simulations.command()
def smp(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of smp.csv and a figure of each cluster.")]
    = Path("build/sim-smp"),
    clusters: Annotated[str, typer.Option(help="By commas: gigabit, infiniband, racks.")] = "gigabit,infiniband,racks",
    machines: Annotated[str, typer.Option(help="Numbers of machines, powers of two, by commas.")] = "4,8,16,32",
    cores: Annotated[int, typer.Option(help="Ranks of a machine, a power of two.")] = 4,
    sizes: Annotated[str, typer.Option(help="KiB of the tensor, by commas.")] = "4,16,64,256,1024,4096",
    seeds: Annotated[str, typer.Option(help="Seeds of the ring's random order, separated by commas.")] = "1,2,3",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run with this --out was ended.")] = False,
) -> None:
    """Draw Patarasuk and Yuan's comparison again: SMP-binomial, SMP-butterfly, butterfly and rings in order and not."""
    from netfold.sim.collectives import smp as paper

    try:
        numbers = {}
        for name, given in (("machines", machines), ("sizes", sizes), ("seeds", seeds)):
            if not all(number.strip().isdecimal() for number in given.split(",")):
                raise ValueError(f"--{name}: expected whole numbers by commas, got {given!r}")
            numbers[name] = [int(number) for number in given.split(",")]
        paper.run(paper.SmpSweep(clusters.split(","), numbers["machines"], cores,
                                 [kib << 10 for kib in numbers["sizes"]], seeds=numbers["seeds"]), out, print,
                  resume=resume)
    except ValueError as error:
        fail(CANNOT, f"sim smp: {error}")
    except OSError as error:
        fail(FAILED, f"sim smp: cannot write {error.filename or out}: {error.strerror}")


@simulations.command()
def mesh(
    context: typer.Context,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the tables and figures.")] = Path("build/mesh"),
    grids: Annotated[str, typer.Option(help="ROWSxCOLUMNS by commas; 4x4t: a torus.")] = "4x4,8x8,4x8,5x5,8x8t",
    sizes: Annotated[str, typer.Option(help="KiB on each place, by commas.")] = "16,256,4096,65536",
    rate: Annotated[str, typer.Option(help="Rate of each link, each way.")] = "400gbit",
    column_rate: Annotated[str, typer.Option(help="Rate of the links along columns, where that differs.")] = "",
    delay: Annotated[float, typer.Option(help="Seconds from one place to the next.")] = 500e-9,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run with this --out was ended.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Two small grids and one size: seconds.")] = False,
) -> None:
    """TidalMesh's allreduce on grids of hosts linked to their neighbours, against rings and trees; its schedule."""
    from netfold.fabric.graph import FabricError, bits_per_second
    from netfold.sim.collectives import mesh_figures
    from netfold.sim.collectives.mesh import Grid
    from netfold.sim.engines.packet import SimulationError

    if short:
        refuse(context, ["grids", "sizes"], "goes without --short, which has its own")
    chosen, kilobytes = ("3x4,3x3t", "1024") if short else (grids, sizes)
    try:
        if not all(size.strip().isdecimal() for size in kilobytes.split(",")):
            raise ValueError(f"--sizes: expected whole numbers by commas, got {kilobytes!r}")
        fast = bits_per_second(rate)
        along_columns = bits_per_second(column_rate) if column_rate else None
        places = []
        for grid in chosen.split(","):
            found = re.fullmatch(r"\s*(\d{1,3})x(\d{1,3})(t?)\s*", grid)
            if found is None:
                raise ValueError(f"--grids: expected 4x4, 4x8t and the like by commas, got {grid!r}")
            places.append(Grid(int(found[1]), int(found[2]), bool(found[3]), fast, along_columns, delay))
            if places[-1].size > 256:
                raise ValueError(f"--grids: {grid} has {places[-1].size} places; expected at most 256, such as 16x16")
        mesh_figures.run(places, [int(size) for size in kilobytes.split(",")], out=out,
                         schedule=(2, 3) if short else (4, 4), resume=resume, jobs=1 if short else None)
    except (ValueError, FabricError, SimulationError) as error:
        fail(CANNOT, f"sim mesh: {error}")
    except OSError as error:
        fail(FAILED, f"sim mesh: cannot write {error.filename or out}: {error.strerror}")


@simulations.command(name="fabric")
def fabric_(
    topo: Annotated[str, typer.Argument(metavar=TOPO_FORM, help="The fabric, with the syntax of `netfold up --topo`.")],
    collectives: Annotated[str, typer.Option(help="all, or names, by commas.")] = "all",
    schemes: Annotated[str, typer.Option(help="all, or by commas: netfold, ethereal, spray, ecmp.")] = "all",
    size: Annotated[int, typer.Option(min=1, help="KiB on each host.")] = 16 << 10,
    rate: Annotated[str, typer.Option(help="Rate of links without a rate in the topology.")] = "400gbit",
    delay: Annotated[float, typer.Option(min=0, help="Seconds over each link.")] = 500e-9,
    seeds: Annotated[str, typer.Option(help="Seeds of hashed flows, separated by commas.")] = "1,2,3",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for fabric.csv; default: none.")] = None,
) -> None:
    """Collectives on any fabric: planned paths against spraying and hashing, unequal links, meshes and tori too."""
    from netfold.fabric.generate import parse
    from netfold.fabric.graph import FabricError, bits_per_second
    from netfold.sim.engines import any_fabric
    from netfold.sim.engines.packet import SimulationError
    from netfold.sim.workloads.workload import COLLECTIVES

    try:
        if not all(seed.strip().isdecimal() for seed in seeds.split(",")):
            raise ValueError(f"--seeds: expected whole numbers by commas, got {seeds!r}")
        any_fabric.run(
            parse(topo, rate=rate), out=out, nbytes=size << 10, rate=bits_per_second(rate), delay=delay,
            collectives=[*COLLECTIVES] if collectives == "all" else collectives.split(","),
            schemes=any_fabric.SCHEMES if schemes == "all" else schemes.split(","),
            seeds=[int(seed) for seed in seeds.split(",")],
        )
    except (ValueError, FabricError, SimulationError) as error:
        fail(CANNOT, f"sim fabric: {error}")
    except OSError as error:
        fail(FAILED, f"sim fabric: cannot write {error.filename or out}: {error.strerror}")


@simulations.command()
def netreduce(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the figures and their data.")] = Path("build/sim"),
    only: Annotated[str, typer.Option(help="By commas: allreduce, training (steps of CNNs and transformers), beside (a "
                                           "fold beside flows); default: all.")] = "allreduce,training,beside",
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run with this --out was ended.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Up to 64 GPUs, 1 MiB: seconds.")] = False,
) -> None:
    """NetReduce's questions: sums in switches against rings, trees and hierarchies at 32 to 1,024 GPUs."""
    from netfold.sim.engines.packet import SimulationError
    from netfold.sim.netreduce import beside as fold_beside
    from netfold.sim.netreduce import points as paper
    from netfold.sim.netreduce import training as netreduce_training

    parts: dict[str, Callable[..., object]] = {"allreduce": paper.run, "training": netreduce_training.run,
                                               "beside": fold_beside.run}
    try:
        if unknown := [name for name in only.split(",") if name not in parts]:
            raise ValueError(f"--only: no part is called {unknown[0]!r}; there are {', '.join(parts)}")
        for name in only.split(","):
            try:
                parts[name](out=out, short=short, resume=resume)
            except paper.PlotsMissing as error:
                print(f"no figures of {name}: {error}; then --resume draws them")
    except (SimulationError, ValueError) as error:
        fail(CANNOT, f"sim netreduce: {error}")
    except OSError as error:
        fail(FAILED, f"sim netreduce: cannot write {error.filename or out}: {error.strerror}")


@simulations.command()
def goal(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The GOAL schedule, as LogGOPSim and ATLAHS read it.")],
    write: Annotated[str, typer.Option(metavar="COLLECTIVE", help="Write this collective's schedule to FILE "
                                       "instead.")] = "",
    ranks: Annotated[int, typer.Option(min=2, help="Ranks of the written schedule.")] = 16,
    size: Annotated[int, typer.Option(min=1, help="KiB on each of these ranks.")] = 1024,
    fabric: Annotated[str, typer.Option(help="A fabric of --fabrics of `netfold sim ethereal`; rank r is host r.")]
    = "leaf-spine-64",
    schemes: Annotated[str, typer.Option(help="By commas, as of `netfold sim ethereal`.")]
    = "netfold,spray-ideal,spray,ecmp",
    seed: Annotated[int, typer.Option(help="Seed of hashes and random numbers.")] = 1,
) -> None:
    """Simulate a GOAL schedule of other tools, or write a collective as one for them."""
    from netfold.sim.collectives import goal as schedules

    if write:
        refuse(context, ["fabric", "schemes", "seed"], "goes with the simulation of a schedule, without --write")
    else:
        refuse(context, ["ranks", "size"], "goes with --write; a schedule that is read has its own")
    try:
        if write:
            print(f"{file}: {schedules.save(file, write, ranks, size << 10)} messages of {ranks} ranks")
        else:
            schedules.run(file, on=fabric, schemes=schemes.split(","), seed=seed)
    except OSError as error:
        fail(FAILED, f"sim goal: {error.filename or file}: {error.strerror}")
    except ValueError as error:
        fail(CANNOT, f"sim goal: {error}")

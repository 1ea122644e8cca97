# SPDX-License-Identifier: Apache-2.0
"""`netfold bench ...`: a command for each benchmark, whose options are those of a structure of bench/options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

import typer

from netfold.bench.options import faults, paths, sums, training
from netfold.bench.options.shared import BenchOptions
from netfold.cli.common import CANNOT, FAILED, fail
from netfold.cli.generated import with_groups
from netfold.topo.processes.failures import FabricFailed


class Benchmark(NamedTuple):
    """A benchmark's command."""

    options: type[BenchOptions]
    """The structure of its options, whose docstring is its help."""
    place: str
    """The module and function below netfold.bench that run it: ValueError for what cannot be measured, FabricFailed
    where a fabric failed, and False where a result was wrong."""
    hidden: bool = False


BENCHMARKS: Final = {
    "allreduce": Benchmark(sums.AllreduceOptions, "commands.allreduce:main"),
    "growth": Benchmark(sums.GrowthOptions, "growth.figures:run", hidden=True),
    "collectives": Benchmark(sums.CollectivesOptions, "commands.collectives:run"),
    "simulator": Benchmark(paths.SimulatorOptions, "commands.simulator:run", hidden=True),
    "paths": Benchmark(paths.PathsOptions, "commands.paths:main"),
    "rails": Benchmark(paths.RailsOptions, "commands.rails:main"),
    "loss": Benchmark(faults.LossOptions, "commands.loss:run"),
    "recovery": Benchmark(faults.RecoveryOptions, "commands.recovery:run"),
    "soak": Benchmark(faults.SoakOptions, "commands.soak:main", hidden=True),
    "train": Benchmark(training.TrainOptions, "commands.train:run"),
}


def command(name: str, benchmark: Benchmark) -> Callable[..., None]:
    """A function for typer that runs a benchmark, and ends with its exit status."""

    def bench(options: BenchOptions) -> None:
        module, _, function = benchmark.place.partition(":")
        if getattr(import_module(f"netfold.bench.{module}"), function)(options) is False:
            raise typer.Exit(FAILED)

    bench.__annotations__ = {"options": benchmark.options, "return": None}
    bench.__doc__ = benchmark.options.__doc__
    grouped = with_groups(bench)

    @functools.wraps(grouped)
    def failing(**given: object) -> None:
        try:
            grouped(**given)
        except ValueError as error:
            fail(CANNOT, f"bench {name}: {error}")
        except FabricFailed as error:
            fail(FAILED, f"bench {name}: {error}")

    return failing


app = typer.Typer(no_args_is_help=True, help="Benchmarks: rounds are interleaved, figures are ratios within one run.")
for _name, _benchmark in BENCHMARKS.items():
    app.command(_name, hidden=_benchmark.hidden)(command(_name, _benchmark))

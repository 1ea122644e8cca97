# SPDX-License-Identifier: Apache-2.0
"""Errors of fabrics on this machine, and of simulators, figures and benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np

from netfold.bench.harness.schedule import FaultStep, StepFailed, StepRunner
from netfold.cli import shell
from netfold.fabric.generate import leafspine
from netfold.plots import charts
from netfold.sim.engines import fluid
from netfold.sim.engines.packet import SimulationError
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import leaf_spine
from netfold.sim.sweeps import sweep
from netfold.sim.whatif.program import TraceError, program_of
from netfold.sim.workloads.workload import all_to_all
from netfold.topo import run
from netfold.topo.faults.board import FaultBoard, FaultPlan, FaultRefused
from netfold.topo.machines.fleet import launcher_of
from netfold.topo.network import sandbox
from netfold.topo.network.mininet_path import MininetFinder, MininetMissing
from netfold.topo.network.switches import has_option
from netfold.topo.network.wiring import FabricLink
from netfold.topo.processes import failures
from netfold.topo.processes.rank_program import check_data
from netfold.topo.processes.ranks import Ranks
from netfold.topo.rxe import packages
from netfold.wire.faults import Inject
from netfold.wire.training_trace import FORMAT, RankTrace, TracedEvent, TracedStep
from support.handbook.scenes import scene
from support.sandboxes import no_namespaces


@scene(MininetMissing)
def mininet_is_not_installed() -> None:
    MininetFinder(["/usr/lib/python3/dist-packages.not"]).find_spec("mininet")


@scene(failures.FabricFailed)
def a_launcher_that_names_no_machine() -> None:
    launcher_of("rsh there")


@scene(failures.WiringError)
def an_interface_with_too_long_a_name() -> None:
    ends = [SimpleNamespace(name="leaf-of-rack-17"), SimpleNamespace(name="h1")]
    FabricLink(*ends, port1=1, port2=2)


@scene(failures.SwitchFailed)
def a_switch_program_cannot_be_run() -> None:
    has_option("./simple_switch_grpc", "--notifications-addr")


@scene(failures.RankFailed)
def a_rank_ends_with_an_error() -> None:
    ranks = Ranks("digits")
    log = Path("rank0.log")
    with log.open("w") as output:
        program = "raise SystemExit('ValueError: the data set is not there')"
        ranks.add(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=output), "h1", log)
    ranks.wait(60)


@scene(failures.WrongData)
def a_sum_is_wrong() -> None:
    check_data(np.array([3, 3, 4]), 3, rank=2, operation="allreduce 17")


@scene(run.CannotRun)
def a_run_without_ranks() -> None:
    run.hosts_of_ranks(leafspine(2, 2, 8), 0)


@scene(sandbox.SandboxError)
def the_kernel_forbids_namespaces() -> None:
    """The refusal is made up: whether this kernel refuses depends on the machine."""
    no_namespaces.ask_in_vain(1000)


@scene(FaultRefused)
def a_link_is_cut_twice() -> None:
    cut = FaultPlan("leaf1:3 is cut", lambda: None, lambda: None, frozenset({"link leaf1:3 up or down"}))
    board = FaultBoard(lambda request: cut, lambda: 0.0)
    for _ in range(2):
        board.inject(Inject("cut", "leaf1:3"))


@scene(packages.PackagesMissing)
def a_machine_without_apt() -> None:
    with mock.patch.dict("os.environ", PATH="/nowhere"):
        packages.versions(["linux-image-amd64"])


@scene(shell.NoShell)
def no_environment_for_the_shell() -> None:
    with mock.patch.dict("os.environ", {shell.PYTHON_VARIABLE: "/opt/p4runtime/bin/python"}):
        shell.python()


@scene(SimulationError)
def too_much_for_the_fluid_simulator() -> None:
    topology = leaf_spine(hosts=4, leaves=2, spines=2)
    with mock.patch.object(fluid, "MAX_ENTRIES", 10):
        fluid.simulate(topology, all_to_all(range(topology.size), 1 << 20), SCHEMES["ethereal"])


@scene(TraceError)
def two_recordings_of_three_ranks() -> None:
    steps: list[TracedEvent] = [TracedStep(0, 0), TracedStep(1, 1)]
    program_of([RankTrace(FORMAT, rank, 3, "gloo", [], steps) for rank in (0, 2)])


@scene(sweep.EngineError)
def ray_is_not_installed() -> None:
    with mock.patch("importlib.util.find_spec", lambda name: None if name == "ray" else mock.Mock()), \
            sweep.engine("ray"):
        pass


@scene(charts.PlotsMissing)
def matplotlib_is_not_installed() -> None:
    with mock.patch.dict("sys.modules", {"matplotlib": None, "matplotlib.figure": None}):
        charts.bar_charts(Path("times"), "times", [charts.BarChart("", {"a": {"a": 1.0}}, "s")])


@scene(StepFailed)
def a_step_of_the_schedule_fails() -> None:
    def kill() -> None:
        raise failures.SwitchFailed("spine1 did not end")

    done: list[str] = []
    runner = StepRunner([FaultStep(0.0, "kill spine1", kill)], done)
    runner.start()
    runner.join()
    runner.stop()

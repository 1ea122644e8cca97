# SPDX-License-Identifier: Apache-2.0
"""`netfold up --topo ... --machines hosts.txt`, and `netfold run` on such a fabric."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from netfold.fabric.graph import Fabric
from netfold.topo.machines.description import Description
from netfold.topo.machines.fleet import Fleet, Seat, launcher_of, seat_fabric
from netfold.topo.machines.fleet_faults import FleetFaults
from netfold.topo.machines.page import MachinesPage, listen
from netfold.topo.network.rundir import clear_abandoned, locked_folder
from netfold.topo.processes.console import Stopped, stopping
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.run import CannotRun, Place, RunRequest, hosts_of_ranks, paths_for, rails_for, run_at
from netfold.topo.run_report import RunReport

LOOK: Final = 0.5
"""Seconds between looks at the machines."""


@dataclass(frozen=True)
class Launch:
    """How the parts of a fabric are started.

    launcher  short name or command with {host} (`launcher_of`)
    python    Python with NetFold on all machines
    settings  options of the controller's `netfold up`
    metrics   ``host:port`` of the page on this machine; None: none
    """

    descriptions: Sequence[Description]
    launcher: str = "ssh"
    python: str = sys.executable
    settings: Sequence[str] = ()
    metrics: str | None = None


@contextlib.contextmanager
def running(launch: Launch) -> Iterator[Fleet]:
    """A fabric over machines, which runs during the block.  Raises FabricFailed."""
    words = launcher_of(launch.launcher)
    with contextlib.ExitStack() as ends:
        page: MachinesPage | None = None
        settings = list(launch.settings)
        if launch.metrics is not None:
            page = listen(launch.metrics)
            ends.enter_context(page.listener)
            settings += ["--metrics", f"127.0.0.1:{page.port}"]
        clear_abandoned()
        folder = ends.enter_context(locked_folder())
        fleet = Fleet(launch.descriptions, words, folder=folder, logs=folder / "logs", say=_say, python=launch.python,
                      settings=settings, page=page)
        ends.enter_context(FleetFaults(fleet, folder))
        yield ends.enter_context(fleet)


def up_over(launch: Launch) -> int:
    """Start a fabric over machines, watch it until Ctrl-C or SIGTERM, end it, and return an exit status."""
    try:
        with stopping(), running(launch) as fleet:
            fabric, file = fleet.fabric, fleet.file
            print(f"{fabric.name} is up on {len(launch.descriptions)} machines: {len(fabric.switches)} switches "
                  f"({fabric.engine}), {len(fabric.hosts)} hosts, controller on {launch.descriptions[0].machine}")
            for description in launch.descriptions:
                print(f"  {description.machine}: {', '.join(description.nodes)}")
            if fleet.page is not None:
                print(f"page and metrics at {fleet.page.url}")
            print(f"logs in {file.parent / 'logs'}\nTry, in another terminal:\n  netfold status {file}\n"
                  f"  netfold run --fabric {file} -- python train.py\n"
                  f"  netfold fault kill {fabric.switches[-1].name} --for 5s\nCtrl-C ends it", flush=True)
            while True:
                fleet.check()
                time.sleep(LOOK)
    except FabricFailed as error:
        _say(str(error))
        return 1
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def run_over(launch: Launch, request: RunRequest) -> int:
    """Start a fabric over machines, run a program on its hosts, end everything, and return an exit status.

    Raises CannotRun."""
    hosts = hosts_of_ranks(launch.descriptions[0].fabric, request.ranks)
    rails_for([launch.descriptions[0].fabric], request.rails, hosts)
    paths_for(request.paths)
    try:
        with stopping(), running(launch) as fleet:
            if fleet.page is not None:
                _say(f"{fleet.fabric.name}: page and metrics at {fleet.page.url}")
            fleet.ranks = {host.name: [rank for rank, other in enumerate(hosts) if other == host] for host in hosts}
            places = places_of(fleet.fabric, fleet.seats(), [host.name for host in hosts])
            return run_at(places, request, hosts, RunReport(request.job, quiet=request.quiet), check=fleet.check)
    except FabricFailed as error:
        _say(str(error))
        return 1
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def places_of(fabric: Fabric, seats: Mapping[str, Seat], hosts: Sequence[str]) -> list[Place]:
    """The place of each rank.  Raises CannotRun."""
    if missing := sorted(set(hosts) - set(seats)):
        raise CannotRun(f"{fabric.name} does not run any host called {', '.join(missing)}")
    return [Place(seats[host].enter, (seat_fabric(fabric, seats[host]),), elsewhere=True) for host in hosts]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"netfold: {text}\n".encode())

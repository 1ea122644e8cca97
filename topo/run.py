# SPDX-License-Identifier: Apache-2.0
"""`netfold run`: a program on the hosts of a fabric, one rank each, in the foreground of the terminal.

    netfold run -np 8 --topo leafspine,2,2,8 -- python train.py     a fabric for this run alone
    netfold run -np 4 --fabric lab.toml -- python train.py          Mininet hosts that run already
    netfold run --topo dual,leafspine,2,2,8 -- python train.py      two planes: hosts with two interfaces, two rails

`console.py` copies the output of the running ranks and ends them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from netfold.fabric.generate import PLANE_NAMES as NAMES
from netfold.fabric.graph import Fabric, Host
from netfold.host.opening.open_mesh import PATHS_VARIABLE, PathChoice
from netfold.host.opening.planes import RAILS_VARIABLE, Plane, parse_rails
from netfold.topo.network import host_processes, listeners, rundir, sandbox
from netfold.topo.network.host_processes import HostProcess
from netfold.topo.network.mininet_path import MininetMissing
from netfold.topo.processes.console import Console, Stopped, stopping
from netfold.topo.processes.failures import FabricFailed
from netfold.topo.processes.ranks import SETTINGS, Enter, environment, in_namespaces, prepare, start
from netfold.topo.run_report import RunReport
from netfold.wire.faults import KEY_VARIABLE

FABRIC_VARIABLE: Final = "NETFOLD_FABRIC"
"""Environment variable with the file of the fabric that `netfold up --topo` has started, or of each of its planes,
separated by colons."""


class CannotRun(ValueError):
    """The request cannot be served; the message says what was wrong, what was expected, and what to do.

    Remedy: correct the option that the message names, or start the fabric first.
    """


@dataclass(frozen=True)
class RunRequest:
    """The settings of one `netfold run`: the program, its ranks and the fabric under them.

    ranks    how many; default: one on every host
    rails    rails of the job in the form of NETFOLD_RAILS; default: that variable, or folding on every plane
    grace    seconds that the other ranks may run after one has failed
    timeout  seconds for the whole run; None: without a limit
    paths    how packets between hosts choose their paths, in the form of NETFOLD_PATHS; default: that variable
    quiet    to say nothing of the run's stages and what the network carried
    """

    command: Sequence[str]
    job: str
    ranks: int | None = None
    rails: str | None = None
    grace: float = 15.0
    timeout: float | None = None
    paths: str | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Place:
    """Where a rank runs.

    enter      a host, or the command that runs the one after it there, with these environment variables at least
    fabrics    as programs there see them, one a plane
    elsewhere  whether that is another machine, with a PATH of its own
    """

    enter: Callable[[Collection[str]], Enter]
    fabrics: Sequence[Fabric]
    elsewhere: bool = False


def _here(fabrics: Sequence[Fabric], enter: Callable[[], Enter]) -> Place:
    """A Mininet host of this machine."""
    return Place(lambda _: enter(), fabrics)


def run_in(fabrics: Sequence[Fabric], request: RunRequest) -> int:
    """Start fabrics with the same hosts in a sandbox, run on their hosts, end everything, and return an exit status.

    Raises CannotRun, and FabricError where a page's address cannot be had.
    """
    rails_for(fabrics, request.rails, hosts_of_ranks(fabrics[0], request.ranks))
    paths_for(request.paths)
    try:
        import mininet  # noqa: F401
    except MininetMissing as error:
        raise CannotRun(str(error)) from error
    report = RunReport(request.job, quiet=request.quiet)
    if not sandbox.inside():
        report.starting(fabrics)
    listeners.enter(fabrics)
    from mininet.log import setLogLevel

    from netfold.topo.fault_service import FaultService
    from netfold.topo.network.planes import Planes, side_by_side

    setLogLevel("error")
    prepare(request.command, _path() | SETTINGS)
    fabrics = side_by_side(fabrics, sandbox.rundir())
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=sandbox.rundir()))
    try:
        planes = Planes(fabrics, logs=logs, say=report.say)
        with stopping(), FaultService(planes.networks, sandbox.rundir()) as service, planes, service.while_up():
            for fabric in fabrics:
                if page := listeners.url(fabric):
                    print(f"netfold: {fabric.name}: page and metrics at {page}", file=sys.stderr, flush=True)
            hosts = hosts_of_ranks(fabrics[0], request.ranks)
            places = [_here(fabrics, functools.partial(in_namespaces, planes.mininet.get(host.name).pid))
                      for host in hosts]
            return run_at(places, request, hosts, report, check=planes.check)
    except FabricFailed as error:
        print(f"netfold: {error}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def run_on(fabrics: Sequence[Fabric], request: RunRequest, places: Sequence[Place] | None = None) -> int:
    """Run on the hosts of a fabric, or of several planes, that Mininet runs already, and return an exit status.

    places  of the ranks, where the fabric runs over several machines; None: Mininet hosts of this one
    Raises CannotRun.
    """
    hosts = hosts_of_ranks(fabrics[0], request.ranks)
    for fabric in fabrics:
        folder = Path(fabric.jobs.removeprefix("unix:")).parent
        if places is None and folder in rundir.in_use() and not (sandbox.inside() and folder == sandbox.rundir()):
            raise CannotRun(f"{fabric.name} runs in namespaces of its own: type `sh netfold run ...` at its prompt "
                            "(`netfold up --topo`), with `&` for several at once")
        if {host.name for host in fabric.hosts} != {host.name for host in fabrics[0].hosts}:
            raise CannotRun(f"{fabrics[0].name} and {fabric.name} have other hosts: expected planes of the same ones")
        if fabric.jobs.startswith(("127.", "localhost:")):
            raise CannotRun(
                f"fabric {fabric.name}: its job service is at {fabric.jobs}, which its hosts, in network namespaces of "
                'their own, do not reach: give it a unix socket, jobs = "unix:/run/netfold.sock"'
            )
    rails_for(fabrics, request.rails, hosts)
    paths_for(request.paths)
    try:
        with stopping(), contextlib.ExitStack() as held:
            if places is None:
                here = {name: held.enter_context(host)
                        for name, host in mininet_hosts({host.name for host in hosts}, fabrics[0].jobs).items()}
                places = [_here(fabrics, here[host.name].enter) for host in hosts]
            return run_at(places, request, hosts, RunReport(request.job, quiet=request.quiet))
    except Stopped as stopped:
        return 128 + int(stopped.args[0])


def rails_for(fabrics: Sequence[Fabric], rails: str | None, hosts: Sequence[Host]) -> dict[str, str]:
    """The environment variable that tells the ranks their rails, where they need one.

    hosts  of the ranks
    Raises CannotRun, also where ranks share hosts and rails need an address for each rank.
    """
    asked = rails or os.environ.get(RAILS_VARIABLE, "")
    names = NAMES[: len(fabrics)]
    if not asked and len(names) == 1:
        return {}
    asked = asked or "+".join(f"innet@{name}" for name in names)
    try:
        specs = parse_rails(asked, {name: Plane("", "") for name in names})
    except ValueError as error:
        raise CannotRun(f"rails {asked!r}: {error}") from error
    alone = [str(spec) for spec in specs if spec.kind != "tcp" and (spec.kind != "innet" or len(specs) > 1)]
    if alone and len({host.name for host in hosts}) < len(hosts):
        raise CannotRun(f"run -np {len(hosts)}, rails {asked!r}: {', '.join(alone)} can have one rank a host, and "
                        f"there are {len(fabrics[0].hosts)} hosts: expected -np {len(fabrics[0].hosts)} at "
                        "most, or --rails of tcp alone")
    return {RAILS_VARIABLE: asked}


def paths_for(paths: str | None) -> dict[str, str]:
    """The environment variable that tells the ranks how to choose paths, where that is asked for.  Raises CannotRun."""
    asked = paths or os.environ.get(PATHS_VARIABLE, "")
    if asked and asked not in get_args(PathChoice):
        raise CannotRun(f"paths {asked!r}: expected one of {', '.join(get_args(PathChoice))}")
    return {PATHS_VARIABLE: asked} if asked else {}


def hosts_of_ranks(fabric: Fabric, ranks: int | None) -> list[Host]:
    """The host of each rank: the first ``ranks`` hosts of a fabric, or all of them.

    Where there are more ranks than hosts, each host gets consecutive ranks, the first hosts one more where they do not
    divide.  Raises CannotRun for a number that is none.
    """
    hosts = len(fabric.hosts)
    count = hosts if ranks is None else ranks
    if count < 1:
        raise CannotRun(f"run -np {ranks}: expected 1 or more; {fabric.name} has {hosts} hosts")
    least, rest = divmod(count, hosts)
    return [host for place, host in enumerate(fabric.hosts) for _ in range(least + (place < rest))]


def mininet_hosts(names: Collection[str], jobs: str) -> dict[str, HostProcess]:
    """The running Mininet hosts of these names, by name, of those that are recorded (host_processes.py).

    jobs  address of the fabric's job service, which tells it from another one with hosts of the same names
    Raises CannotRun where a host is missing, and where it cannot be told which of several is meant.
    """
    found: dict[str, list[HostProcess]] = {name: [] for name in names}
    try:
        for record in host_processes.recorded():
            if record.name in found:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    found[record.name].append(HostProcess(record))
        if missing := [name for name, hosts in found.items() if not hosts]:
            raise CannotRun(
                f"no Mininet host here is called {', '.join(missing)}, with a record in "
                f"{' or '.join(map(str, host_processes.places())) or 'a folder of this user alone'}: "
                "bring the fabric up first (`netfold up --topo`) "
                "and run this at its prompt (`sh netfold run ...`), or as root beside `mn --custom topo/leafspine.py`; "
                "or let --topo make a fabric"
            )
        for name, several in found.items():
            if len(several) > 1 and (ours := [host for host in several if jobs in host.jobs]):
                for host in several:
                    if host not in ours:
                        host.close()
                found[name] = ours
        if twice := [name for name, hosts in found.items() if len(hosts) > 1]:
            raise CannotRun(
                f"{len(found[twice[0]])} Mininet hosts are called {twice[0]}, of different fabrics, and none, or "
                f"several, is on the one with its job service at {jobs}: run this at the prompt of the one that is "
                "meant (`sh netfold run ...`)"
            )
    except BaseException as error:
        for host in (host for hosts in found.values() for host in hosts):
            host.close()
        if isinstance(error, OSError):
            raise CannotRun(f"the records of running hosts cannot be used: {error}") from error
        raise
    return {name: hosts[0] for name, hosts in found.items()}


def _path() -> dict[str, str]:
    """PATH, with the programs of this environment first."""
    return {"PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"}


def run_at(
    places: Sequence[Place], request: RunRequest, hosts: Sequence[Host], report: RunReport,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Run the ranks, one at each place, and return an exit status; ``check`` raises where the fabric is gone."""
    fabrics, names = places[0].fabrics, [host.name for host in hosts]
    report.begins(fabrics, names)
    with started(places, request, hosts) as ranks:
        status = ranks.run(grace=request.grace, timeout=request.timeout, check=check)
    report.ended(fabrics, names)
    return status


@contextlib.contextmanager
def started(places: Sequence[Place], request: RunRequest, hosts: Sequence[Host]) -> Iterator[Console]:
    """Start the ranks, one at each place; those that still run at the end of the block are killed."""
    from netfold.topo.network.planes import planes_of

    ranks = Console(sys.stdout.buffer, sys.stderr.buffer)
    rails = rails_for(places[0].fabrics, request.rails, hosts) | paths_for(request.paths)
    forwarded = {name for name in os.environ if name.startswith("NETFOLD_")}
    forwarded -= {sandbox.INSIDE, sandbox.RUNDIR, KEY_VARIABLE}
    try:
        for rank, (host, place) in enumerate(zip(hosts, places, strict=True)):
            fabrics = place.fabrics
            ours: Mapping[str, str] = {
                **environment(fabrics[0], hosts, rank, job=request.job), **planes_of(fabrics, host.name), **rails,
            }
            enter = place.enter(sorted(forwarded | set(ours)))
            ours = ours if place.elsewhere else {**_path(), **ours}
            ranks.add(host.name, start(request.command, enter, ours, subprocess.PIPE))
        yield ranks
    finally:
        ranks.kill()

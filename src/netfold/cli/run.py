# SPDX-License-Identifier: Apache-2.0
"""The command `netfold run`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from netfold.cli.common import CANNOT, checked, fail, load
from netfold.cli.generated import DEFAULTS, Generated, with_groups, with_pages
from netfold.cli.local_fabric import file_of
from netfold.cli.machines import HERE, OverMachines
from netfold.cli.options import TOPO_FORM, Metrics, Quiet

if TYPE_CHECKING:
    from netfold.topo.run import RunRequest


@with_groups
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The program and its arguments.")],
    ranks: Annotated[int | None, typer.Option("-np", "--ranks", help="Number of ranks; default: one on every host. "
                                                                     "More ranks than hosts: several on each.")] = None,
    topo: Annotated[str | None, typer.Option("--topo", metavar=TOPO_FORM,
                                             help="Start this fabric for the run, with the syntax of `netfold up "
                                                  "--topo`; dual or triple before it: with planes.")] = None,
    fabric: Annotated[list[Path] | None, typer.Option(metavar="FABRIC.toml|NAME",
        help="A fabric that runs in Mininet; repeat for its other planes; default: the one of this prompt.")] = None,
    rails: Annotated[str | None, typer.Option(metavar="KIND@PLANE+...",
        help="With planes: the rails of an allreduce, innet@a+tcp@b; default: $NETFOLD_RAILS, or innet on every plane.")
                     ] = None,
    paths: Annotated[str | None, typer.Option(help="How packets between hosts choose their paths: planned, hashed, "
                                              "spray, reps; default: $NETFOLD_PATHS, or planned.")] = None,
    generated: Generated = DEFAULTS,
    over: OverMachines = HERE,
    metrics: Metrics = None,
    job: Annotated[str, typer.Option(help="The job's name.")] = "run",
    grace: Annotated[float, typer.Option(help="Seconds for the other ranks to end once one has failed.")] = 15.0,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole run; default: no limit.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run a program on the hosts of a fabric, one rank each, with the variables of netfold, torch and gloo.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME, NETFOLD_JOB, NETFOLD_ADDRESS,
    NETFOLD_CONTROLLER, NETFOLD_PLANES and, with planes, NETFOLD_RAILS are set, NETFOLD_PATHS by --paths; each line of
    output comes with its rank in front. The exit status is that of the first rank that failed; 124 where the time was
    up; 130 after Ctrl-C, which ends all ranks.
    """
    from netfold.topo import run as runner

    if grace < 0 or (timeout is not None and timeout <= 0):
        fail(CANNOT, f"run: --grace {grace:g}, --timeout {timeout}: expected seconds, 0 or more, above 0")
    if topo is not None and fabric:
        fail(CANNOT, "run: expected either --topo or --fabric, got both")
    request = runner.RunRequest(command, job, ranks, rails, grace, timeout, paths, quiet)
    try:
        if over != HERE and (topo is None or over.machines is None):
            fail(CANNOT, "run: --launcher, --python, --first-vni and --underlay-mtu go with --machines, and that with "
                         "--topo")
        if topo is not None and over.machines is not None:
            from netfold.topo.machines.up import run_over

            status = run_over(over.launch(over.single(generated.planes(topo)), metrics), request)
        elif topo is not None:
            planes = with_pages(generated.planes(topo), metrics)
            status = checked(lambda: runner.run_in(planes, request))
        else:
            if metrics is not None:
                fail(CANNOT, "run: --metrics goes with --topo; a fabric that is up has its page, or none, by now")
            if generated != DEFAULTS:
                fail(CANNOT, "run: --switch, --rate, --seed, --path-mtu, --loss and other faults go with --topo")
            here = os.environ.get(runner.FABRIC_VARIABLE, "")
            files = [file_of(said) for said in fabric or ()] or [Path(file) for file in here.split(os.pathsep) if file]
            if not files:
                fail(CANNOT, "run: on which hosts? Give --topo leafspine,LEAVES,SPINES,HOSTS, or --fabric FABRIC.toml "
                             "for one that is up; at the prompt of `netfold up --topo` it is known. Across machines "
                             "that have a fabric of their own start ranks by torchrun or a scheduler "
                             "(docs/machines.md)")
            status = _run_on(files, request)
    except runner.CannotRun as error:
        fail(CANNOT, str(error))
    raise typer.Exit(status)


def _run_on(files: list[Path], request: RunRequest) -> int:
    """Run on fabrics that are up, on this machine or over several.  Raises CannotRun."""
    from netfold.topo import run as runner
    from netfold.topo.machines.fleet import seats_beside
    from netfold.topo.machines.up import places_of

    fabrics, seats = [load(file) for file in files], seats_beside(files[0])
    if seats is None:
        return runner.run_on(fabrics, request)
    hosts = [host.name for host in runner.hosts_of_ranks(fabrics[0], request.ranks)]
    return runner.run_on(fabrics, request, places_of(fabrics[0], seats, hosts))

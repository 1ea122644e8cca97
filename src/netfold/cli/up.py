# SPDX-License-Identifier: Apache-2.0
"""`netfold up`: the controller of a fabric whose switches run already, or a whole fabric in Mininet."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec
import typer

from netfold.cli.common import CANNOT, awaited, checked, fail, load, log_to_stderr
from netfold.cli.generated import DEFAULTS, Generated, with_groups, with_pages
from netfold.cli.machines import HERE, OverMachines
from netfold.cli.options import FabricFile, Metrics, Misses, Probe, Steady, Topo, Verbose
from netfold.fabric import validity
from netfold.fabric.graph import Fabric
from netfold.fabric.routing import room

START_SECONDS: Final = 60.0
"""Seconds for all switches to start, unless --timeout says otherwise."""


@with_groups
def up(
    file: FabricFile = None,
    topo: Topo = None,
    generated: Generated = DEFAULTS,
    over: OverMachines = HERE,
    probe: Probe = None,
    misses: Misses = None,
    steady: Steady = None,
    metrics: Metrics = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow addresses that other machines can reach "
                                                              "without token and TLS, and P4Runtime without "
                                                              "encryption.")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for all switches of FABRIC.toml to start; default: "
                                                       f"{START_SECONDS:g}.")] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait until the controller of FABRIC.toml has died, then "
                                                            "take over, and serve jobs at its `standby` address.")
                       ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the writes to the switches of "
                                                            "FABRIC.toml.")] = False,
    verbose: Verbose = False,
) -> None:
    """Control the switches of FABRIC.toml until stopped; or bring up a whole fabric in Mininet with --topo.

    With a file, the switches must be running: this connects to them, loads the program, installs routes, and serves
    jobs. With --topo, switches and hosts are started as well, and Mininet's prompt comes up;
    with --machines they are started on several machines, and watched until Ctrl-C.
    """
    log_to_stderr(verbose)
    said = {"probe": probe, "misses": misses, "steady": steady, "metrics": metrics}
    settings = {name: value for name, value in said.items() if value is not None}
    if dry_run and file is None:
        fail(CANNOT, "up --dry-run: expected a FABRIC.toml, whose switches are read; `netfold plan --entries` shows "
                     "what an empty fabric would get")
    if standby and (file is None or dry_run):
        fail(CANNOT, "up --standby: expected a FABRIC.toml with `standby`, and no --dry-run or --topo")
    if topo is not None and insecure:
        fail(CANNOT, "up: --insecure goes with a FABRIC.toml; a fabric of --topo has unix sockets in a folder of its "
                     "own, and its page is for this machine: --metrics 127.0.0.1:PORT")
    if timeout is not None and (topo is not None or dry_run):
        fail(CANNOT, "up: --timeout goes with a FABRIC.toml, whose switches are awaited, not with --topo or --dry-run")
    if over != HERE and (topo is None or file is not None or over.machines is None):
        fail(CANNOT, "up: --launcher, --python, --first-vni and --underlay-mtu go with --machines, and that with "
                     "--topo")
    if topo is not None and over.machines is not None:
        from netfold.topo.machines.up import up_over

        inside = {name: value for name, value in settings.items() if name != "metrics"}
        fabric = _changed(over.single(_able(generated).planes(topo)), inside)
        raise typer.Exit(up_over(over.launch(fabric, metrics)))
    if topo is not None and file is None:
        settings.pop("metrics", None)
        planes = with_pages([_changed(fabric, settings) for fabric in _able(generated).planes(topo)], metrics)
        from netfold.topo.up import up as up_topo

        raise typer.Exit(checked(lambda: up_topo(planes)))
    if file is None or topo is not None:
        fail(CANNOT, "up: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier, "
                     "mesh, torus, file:PATH)")
    if generated != DEFAULTS:
        fail(CANNOT, "up: --switch, --rate, --seed, --path-mtu, --loss and other faults go with --topo; with a file, "
                     f"{file} says these things")
    fabric = _changed(load(file), settings)
    checked(lambda: room.check(fabric))
    if dry_run:
        from netfold.cli.diff import show
        from netfold.controller.operations.differences import dry_run as compare

        show(awaited(compare(fabric)))
        return
    awaited((_stand_by if standby else _serve)(fabric, START_SECONDS if timeout is None else timeout, insecure))


def _able(generated: Generated) -> Generated:
    """The same with a program that can lose packets by `netfold fault`, unless --no-faults was said."""
    return replace(generated, faults=generated.faults is not False)


def _changed(fabric: Fabric, settings: dict[str, Any]) -> Fabric:
    """The fabric with some settings replaced; an invalid one ends the command."""
    changed = msgspec.structs.replace(fabric, **settings)
    checked(lambda: validity.validate(changed))
    return changed


async def _serve(fabric: Fabric, timeout: float, insecure: bool) -> None:
    from netfold.controller import garbage
    from netfold.controller.controller import Controller
    from netfold.topo.processes.lifecycle import ending_signals

    async def start() -> None:
        with garbage.kept_out():
            await controller.start()

    stopped = asyncio.Event()
    for number in {*ending_signals()} - {signal.SIGHUP}:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    controller = Controller(fabric, start_timeout=timeout, insecure=insecure)
    starting = asyncio.create_task(start())
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            page = f", page and metrics at {controller.page}" if controller.page else ""
            with contextlib.suppress(OSError):  # a log on a full disk must not end the controller
                print(f"ready: fabric {fabric.name}, {len(fabric.switches)} switches ({fabric.engine}), jobs at "
                      f"{fabric.jobs}{page}", flush=True)
            running = asyncio.create_task(controller.run())
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            running.cancel()
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await controller.stop()


async def _stand_by(fabric: Fabric, timeout: float, insecure: bool) -> None:
    from netfold.controller.standby import Standby
    from netfold.topo.processes.lifecycle import ending_signals

    stopped = asyncio.Event()
    for number in {*ending_signals()} - {signal.SIGHUP}:
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk must not end the standby
            print(line, flush=True)

    running = asyncio.create_task(Standby(fabric, insecure=insecure, start_timeout=timeout).run(say))
    stopping = asyncio.create_task(stopped.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    stopping.cancel()
    for outcome in await asyncio.gather(running, stopping, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome

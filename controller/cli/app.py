# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from netfold.bench.cli import app as benchmarks
from netfold.controller.cli.common import (
    CANNOT,
    FAILED,
    address_of,
    awaited,
    checked,
    engine_of,
    fail,
    load,
    log_to_stderr,
    token_of,
)
from netfold.controller.cli.demo import demo
from netfold.controller.cli.diff import apply, diff
from netfold.controller.cli.drain import drain, undrain
from netfold.controller.cli.generated import DEFAULTS, Generated, with_groups
from netfold.controller.cli.links import links
from netfold.controller.cli.options import (
    Address,
    FabricFile,
    FabricOption,
    Json,
    Metrics,
    Misses,
    PathMtu,
    Probe,
    Steady,
    SwitchKind,
    Topo,
    Verbose,
)
from netfold.controller.cli.paths import paths
from netfold.controller.cli.run import run
from netfold.controller.cli.shell import shell
from netfold.controller.cli.sim import simulations
from netfold.controller.cli.top import top
from netfold.controller.cli.trace import flight, timeline
from netfold.controller.plan import fabric_file, validity
from netfold.controller.plan.fabric import Fabric
from netfold.wire.roce import PATH_MTU

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs are filled, not broken where the source's lines end
    pretty_exceptions_enable=False,
    add_completion=False,
    help="In-network allreduce on P4 switches: fabrics, their controller, and a demo of the whole.",
)


@app.command()
@with_groups
def up(
    file: FabricFile = None,
    topo: Topo = None,
    generated: Generated = DEFAULTS,
    probe: Probe = None,
    misses: Misses = None,
    steady: Steady = None,
    metrics: Metrics = None,
    timeout: Annotated[float, typer.Option(help="Seconds for all switches to come up.")] = 60.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written to the switches of "
                                                            "FABRIC.toml.")] = False,
    verbose: Verbose = False,
) -> None:
    """Control the switches of FABRIC.toml until stopped; or bring up a whole fabric in Mininet with --topo.

    With a file, the switches must be running: this connects to them, loads the program, installs routes, and serves
    jobs. With --topo, switches and hosts are started as well, and Mininet's prompt comes up.
    """
    log_to_stderr(verbose)
    said = {"probe": probe, "misses": misses, "steady": steady, "metrics": metrics}
    settings = {name: value for name, value in said.items() if value is not None}
    if dry_run and file is None:
        fail(CANNOT, "up --dry-run: expected a FABRIC.toml, whose switches are read; `netfold plan --entries` shows "
                     "what an empty fabric would get")
    if topo is not None and file is None:
        planes = [_changed(fabric, {**settings, **_own_page(metrics, number)})
                  for number, fabric in enumerate(generated.planes(topo))]
        from netfold.topo.up import up as up_topo

        raise typer.Exit(up_topo(planes))
    if file is None or topo is not None:
        fail(CANNOT, "up: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier,...)")
    if generated != DEFAULTS:
        fail(CANNOT, "up: --switch, --rate, --seed, --path-mtu, --loss and other faults go with --topo; with a file, "
                     f"{file} says these things")
    fabric = _changed(load(file), settings)
    if dry_run:
        from netfold.controller.cli.diff import show
        from netfold.controller.operations.differences import dry_run as compare

        show(awaited(compare(fabric)))
        return
    awaited(_serve(fabric, timeout))


def _own_page(metrics: str | None, plane: int) -> dict[str, str]:
    """Controllers of planes beside each other have ports beside each other."""
    host, _, port = (metrics or "").rpartition(":")
    return {"metrics": f"{host}:{int(port) + plane}"} if port.isdecimal() else {}


def _changed(fabric: Fabric, settings: dict[str, Any]) -> Fabric:
    """With some of [fabric]'s settings otherwise."""
    changed = msgspec.structs.replace(fabric, **settings)
    checked(lambda: validity.validate(changed))
    return changed


async def _serve(fabric: Fabric, timeout: float) -> None:
    from netfold.controller.controller import Controller

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    controller = Controller(fabric, start_timeout=timeout)
    starting = asyncio.create_task(controller.start())
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            page = f", page and metrics at {controller.page}" if controller.page else ""
            print(f"ready: fabric {fabric.name}, {len(fabric.switches)} switches ({fabric.engine}), jobs at "
                  f"{fabric.jobs}{page}", flush=True)
            await stopped.wait()
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await controller.stop()


@app.command()
def status(
    file: FabricFile = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show what a running controller sees: switches, links with their traffic, jobs with their trees."""
    from netfold.controller.operations import operator

    answer = awaited(operator.status(address_of(file, controller), token=token_of(file)))
    if json:
        print(msgspec.json.encode(answer).decode())
    else:
        from netfold.controller.cli.show import show

        show(answer)


@app.command()
def drop(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    file: FabricFile = None,
    controller: Address = None,
) -> None:
    """End a job whose ranks are dead, and free its slots."""
    from netfold.controller.operations import operator

    if not awaited(operator.drop(address_of(file, controller), job, token=token_of(file))):
        fail(FAILED, f"drop: there is no job {job}; `netfold status` lists them")


@app.command()
def slots(
    switch: Annotated[str, typer.Argument(help="The switch's name.")],
    job: Annotated[str | None, typer.Argument(help="The job's name; default: all.")] = None,
    fabric: FabricOption = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show the open slots of a switch: what has come, and from whom something is missing.

    Of every stream that is a slot whose result is not there. A job that runs has some at any moment; one that hangs has
    the same ones each time.
    """
    from netfold.controller.operations import operator

    answer = awaited(operator.slots(address_of(fabric, controller), switch, job, token=token_of(fabric)))
    if json:
        print(msgspec.json.encode(answer).decode())
    else:
        from netfold.controller.cli.show import show_slots

        show_slots(switch, answer)


@app.command()
def stall(
    job: Annotated[str, typer.Argument(help="The job's name.")],
    file: FabricFile = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Say whom a job waits for: the missing ranks, the switch, the slot and its bitmap."""
    from netfold.controller.operations import operator

    answer = awaited(operator.stall(address_of(file, controller), job, token=token_of(file)))
    print(msgspec.json.encode(answer).decode() if json else "\n".join(map(str, answer)))


@app.command()
def plan(
    file: FabricFile = None,
    topo: Topo = None,
    ranks: Annotated[str | None, typer.Option(help="Host names in order of ranks, with commas; default: all.")] = None,
    per_host: Annotated[int, typer.Option("--ranks-per-host", min=1, help="Ranks that share each host's link.")] = 1,
    entries: Annotated[bool, typer.Option("--entries", help="Every table entry, too.")] = False,
) -> None:
    """Show the trees that a job would get, and the writes that this means, without touching any switch."""
    from netfold.controller.cli import dryrun
    from netfold.controller.plan import slots, trees

    if (file is None) == (topo is None):
        fail(CANNOT, "plan: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier,...)")
    fabric = load(file) if file is not None else DEFAULTS.fabric(topo or "")
    names = ranks.split(",") if ranks else [host.name for host in fabric.hosts]
    unknown = [name for name in names if name not in {host.name for host in fabric.hosts}]
    if unknown or len(set(names)) != len(names):
        fail(CANNOT, f"plan --ranks: expected different hosts of {fabric.name}, got {', '.join(unknown or names)}")
    try:
        print(dryrun.plan(fabric, names, per_host=per_host, entries=entries), end="")
    except (trees.NoTree, slots.Refused) as error:
        fail(FAILED, f"plan: {error}")


@app.command("fabric")
@with_groups
def fabric_(
    topo: Annotated[str, typer.Argument(metavar="leafspine,LEAVES,SPINES,HOSTS|threetier,...")],
    generated: Generated = DEFAULTS,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")] = None,
) -> None:
    """Write a FABRIC.toml to start from."""
    text = fabric_file.dumps(generated.fabric(topo))
    if out is None:
        print(text, end="")
    else:
        try:
            out.write_text(text)
        except OSError as error:
            fail(FAILED, f"fabric: cannot write {out}: {error}")


@app.command("compile")
def compile_(
    switch: SwitchKind = "softswitch",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("build/p4"),
    path_mtu: PathMtu = PATH_MTU,
) -> None:
    """Compile the fold program: p4info, and what the switch loads."""
    from google.protobuf import text_format

    from netfold.controller.switch import pipeline

    engine = engine_of(switch)
    try:
        built = pipeline.build(engine, path_mtu=path_mtu)
        out.mkdir(parents=True, exist_ok=True)
        config = out / {"softswitch": "netfold.p4i", "bmv2": "netfold.json"}[engine]
        config.write_bytes(built.device_config)
        (out / "netfold.p4info.txtpb").write_text(text_format.MessageToString(built.p4info))
    except (pipeline.PipelineError, OSError) as error:
        fail(FAILED, f"compile: {error}")
    print(f"{config}\n{out / 'netfold.p4info.txtpb'}\ncookie {built.cookie:#x}")


@app.command()
def doctor() -> None:
    """Say what is missing on this machine, what it is needed for, and how to get it.

    Exit status 1 where `make demo` would fail.
    """
    from netfold.controller.cli import doctor

    if not doctor.show(doctor.examine(doctor.checks())):
        raise typer.Exit(FAILED)


app.command()(demo)
app.command()(run)
app.command()(top)
app.command()(diff)
app.command()(apply)
app.command()(links)
app.command()(drain)
app.command()(undrain)
app.command()(shell)
app.command()(flight)
app.add_typer(timeline, name="timeline")

app.add_typer(benchmarks, name="bench")
app.add_typer(simulations, name="sim")
app.add_typer(paths, name="paths")


def main() -> None:
    """Entry point."""
    app()

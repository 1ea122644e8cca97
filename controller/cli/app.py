# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`.  Errors are one clear paragraph and an exit status: 1 where something failed, 2 where what was
asked for cannot be."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, TypeVar, Unpack

import msgspec
import typer

from netfold.bench.cli import app as benchmarks
from netfold.controller.cli.demo import demo
from netfold.controller.cli.options import (
    CONTROLLER_VARIABLE,
    Address,
    Corrupt,
    Duplicate,
    FabricFile,
    Json,
    Loss,
    Misses,
    PathMtu,
    Probe,
    Rate,
    Reorder,
    Seed,
    Steady,
    SwitchKind,
    Topo,
    Verbose,
)
from netfold.controller.cli.paths import paths
from netfold.controller.cli.run import run
from netfold.controller.cli.sim import simulations
from netfold.controller.cli.top import top
from netfold.controller.cli.trace import flight, timeline
from netfold.controller.plan import fabric as fabrics
from netfold.controller.plan.fabric import Engine, Fabric, FabricError, Faults
from netfold.wire.roce import PATH_MTU

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs are filled, not broken where the source's lines end
    pretty_exceptions_enable=False,
    add_completion=False,
    help="In-network allreduce on P4 switches: fabrics, their controller, and a demo of the whole.",
)

T = TypeVar("T")

FAILED: Final = 1
CANNOT: Final = 2


@app.command()
def up(
    file: FabricFile = None,
    topo: Topo = None,
    switch: SwitchKind = "softswitch",
    rate: Rate = None,
    loss: Loss = 0.0,
    duplicate: Duplicate = 0.0,
    reorder: Reorder = 0.0,
    corrupt: Corrupt = 0.0,
    seed: Seed = 0,
    path_mtu: PathMtu = PATH_MTU,
    probe: Probe = None,
    misses: Misses = None,
    steady: Steady = None,
    timeout: Annotated[float, typer.Option(help="Seconds for all switches to come up.")] = 60.0,
    verbose: Verbose = False,
) -> None:
    """Control the switches of FABRIC.toml until stopped; or bring up a whole fabric in Mininet with --topo.

    With a file, the switches must be running: this connects to them, loads the program, installs routes, and serves
    jobs. With --topo, switches and hosts are started as well, and Mininet's prompt comes up.
    """
    _logging(verbose)
    if (file is None) == (topo is None):
        _fail(CANNOT, "up: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier,...)")
    faults: Faults = {"loss": loss, "duplicate": duplicate, "reorder": reorder, "corrupt": corrupt}
    said = {"probe": probe, "misses": misses, "steady": steady}
    settings = {name: value for name, value in said.items() if value is not None}
    if topo is not None:
        planes = [_changed(fabric, settings)
                  for fabric in _parse_planes(topo, switch, rate, seed, path_mtu, **faults)]
        from netfold.topo.up import up as up_topo

        raise typer.Exit(up_topo(planes))
    assert file is not None
    if (switch, rate, seed, path_mtu) != ("softswitch", None, 0, PATH_MTU) or any(faults.values()):
        _fail(CANNOT, "up: --switch, --rate, --seed, --path-mtu, --loss and other faults go with --topo; with a file, "
                      f"{file} says these things")
    _run(_serve(_changed(_load(file), settings), timeout))


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
            print(f"ready: fabric {fabric.name}, {len(fabric.switches)} switches ({fabric.engine}), jobs at "
                  f"{fabric.jobs}", flush=True)
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
    from netfold.controller import operator

    answer = _run(operator.status(_address(file, controller), token=_token(file)))
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
    from netfold.controller import operator

    if not _run(operator.drop(_address(file, controller), job, token=_token(file))):
        _fail(FAILED, f"drop: there is no job {job}; `netfold status` lists them")


@app.command()
def slots(
    switch: Annotated[str, typer.Argument(help="The switch's name.")],
    job: Annotated[str | None, typer.Argument(help="The job's name; default: all.")] = None,
    fabric: Annotated[Path | None, typer.Option(metavar="FABRIC.toml", help="Names the controller.")] = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Show the open slots of a switch: what has come, and from whom something is missing.

    Of every stream that is a slot whose result is not there. A job that runs has some at any moment; one that hangs has
    the same ones each time.
    """
    from netfold.controller import operator

    answer = _run(operator.slots(_address(fabric, controller), switch, job, token=_token(fabric)))
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
    from netfold.controller import operator

    answer = _run(operator.stall(_address(file, controller), job, token=_token(file)))
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
        _fail(CANNOT, "plan: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier,...)")
    fabric = _load(file) if file is not None else _parse_topo(topo or "", "softswitch", None, 0)
    names = ranks.split(",") if ranks else [host.name for host in fabric.hosts]
    unknown = [name for name in names if name not in {host.name for host in fabric.hosts}]
    if unknown or len(set(names)) != len(names):
        _fail(CANNOT, f"plan --ranks: expected different hosts of {fabric.name}, got {', '.join(unknown or names)}")
    try:
        print(dryrun.plan(fabric, names, per_host=per_host, entries=entries), end="")
    except (trees.NoTree, slots.Refused) as error:
        _fail(FAILED, f"plan: {error}")


@app.command("fabric")
def fabric_(
    topo: Annotated[str, typer.Argument(metavar="leafspine,LEAVES,SPINES,HOSTS|threetier,...")],
    switch: SwitchKind = "softswitch",
    rate: Rate = None,
    loss: Loss = 0.0,
    duplicate: Duplicate = 0.0,
    reorder: Reorder = 0.0,
    corrupt: Corrupt = 0.0,
    seed: Seed = 0,
    path_mtu: PathMtu = PATH_MTU,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")] = None,
) -> None:
    """Write a FABRIC.toml to start from."""
    text = _parse_topo(topo, switch, rate, seed, path_mtu, loss=loss, duplicate=duplicate, reorder=reorder,
                       corrupt=corrupt).dumps()
    if out is None:
        print(text, end="")
    else:
        try:
            out.write_text(text)
        except OSError as error:
            _fail(FAILED, f"fabric: cannot write {out}: {error}")


@app.command("compile")
def compile_(
    switch: SwitchKind = "softswitch",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("build/p4"),
    path_mtu: PathMtu = PATH_MTU,
) -> None:
    """Compile the fold program: p4info, and what the switch loads."""
    from google.protobuf import text_format

    from netfold.controller.switch import pipeline

    engine = _engine(switch)
    try:
        built = pipeline.build(engine, path_mtu=path_mtu)
        out.mkdir(parents=True, exist_ok=True)
        config = out / {"softswitch": "netfold.p4i", "bmv2": "netfold.json"}[engine]
        config.write_bytes(built.device_config)
        (out / "netfold.p4info.txtpb").write_text(text_format.MessageToString(built.p4info))
    except (pipeline.PipelineError, OSError) as error:
        _fail(FAILED, f"compile: {error}")
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
app.command()(flight)
app.add_typer(timeline, name="timeline")

app.add_typer(benchmarks, name="bench")
app.add_typer(simulations, name="sim")
app.add_typer(paths, name="paths")


def main() -> None:
    """Entry point."""
    app()


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _fail(code: int, message: str) -> NoReturn:
    print(f"netfold: {message}", file=sys.stderr)
    raise typer.Exit(code)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run to the end; what a person can do something about becomes a paragraph."""
    from netfold.controller.controller import StartError
    from netfold.controller.switch.pipeline import PipelineError
    from netfold.controller.switch.rpc import Unreachable

    try:
        return asyncio.run(work)
    except (StartError, PipelineError, Unreachable, FabricError) as error:
        _fail(FAILED, str(error))


def _checked(make: Callable[[], T]) -> T:
    try:
        return make()
    except FabricError as error:
        _fail(CANNOT, str(error))


def _load(file: Path) -> Fabric:
    return _checked(lambda: fabrics.load(file))


def _changed(fabric: Fabric, settings: dict[str, Any]) -> Fabric:
    """With some of [fabric]'s settings otherwise."""
    changed = msgspec.structs.replace(fabric, **settings)
    _checked(lambda: fabrics.validate(changed))
    return changed


def _engine(name: str) -> Engine:
    match name:
        case "softswitch" | "bmv2":
            return name
    _fail(CANNOT, f"--switch: expected softswitch or bmv2, got {name!r}")


def _parse_topo(
    topo: str, switch: str, rate: str | None, seed: int, path_mtu: int = PATH_MTU, **faults: Unpack[Faults]
) -> Fabric:
    from netfold.controller.plan import generate

    return _checked(lambda: generate.parse(
        topo, rate=rate, seed=seed, engine=_engine(switch), path_mtu=path_mtu, **faults
    ))


def _parse_planes(
    topo: str, switch: str, rate: str | None, seed: int, path_mtu: int = PATH_MTU, **faults: Unpack[Faults]
) -> list[Fabric]:
    from netfold.controller.plan import generate

    return _checked(lambda: generate.parse_planes(
        topo, rate=rate, seed=seed, engine=_engine(switch), path_mtu=path_mtu, **faults
    ))


def _address(file: Path | None, controller: str | None) -> str:
    if controller:
        return controller
    if file is not None:
        return _load(file).jobs
    if address := os.environ.get(CONTROLLER_VARIABLE):
        return address
    _fail(CANNOT, "which controller? Give its FABRIC.toml (slots, paths: --fabric FABRIC.toml), --controller ADDRESS, "
                  f"or set {CONTROLLER_VARIABLE}")


def _token(file: Path | None) -> str:
    from netfold.wire.tls import TOKEN_VARIABLE

    if file is not None:
        try:
            return _load(file).secret() or os.environ.get(TOKEN_VARIABLE, "")
        except FabricError as error:
            _fail(CANNOT, str(error))
    return os.environ.get(TOKEN_VARIABLE, "")


def _logging(verbose: bool) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(name)s: %(message)s")

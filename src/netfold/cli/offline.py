# SPDX-License-Identifier: Apache-2.0
"""The commands that need neither switch nor controller: `netfold fabric`, `plan`, `compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netfold import plain_text
from netfold.cli.common import CANNOT, FAILED, checked, engine_of, fail, load
from netfold.cli.generated import DEFAULTS, Generated, with_groups
from netfold.cli.machines import HERE, OverMachines
from netfold.cli.options import TOPO_FORM, FabricFile, Json, PathMtu, SwitchKind, Topo
from netfold.disk import files
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import PATH_MTU
from netfold.fabric.graph import Fabric


@with_groups
def fabric_(
    topo: Annotated[str, typer.Argument(metavar=TOPO_FORM)],
    generated: Generated = DEFAULTS,
    over: OverMachines = HERE,
    export: Annotated[str | None, typer.Option("--export", metavar="containerlab|netlab",
        help="Write a topology file for this tool, and the fabric file, into the folder --out.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write; default: standard output. With "
                                             "--machines or --export, a folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file with other contents.")] = False,
) -> None:
    """Write a FABRIC.toml to start from; with --machines, each machine's part of the fabric."""
    if export is not None:
        if out is None or over != HERE:
            fail(CANNOT, "fabric --export: expected --out FOLDER, and no --machines")
        _export(generated.fabric(topo), export, out, force=force)
        return
    if over.machines is not None:
        _describe(generated.fabric(topo), over, out, force=force)
        return
    if over != HERE:
        fail(CANNOT, "fabric: --launcher, --python, --first-vni and --underlay-mtu go with --machines")
    text = fabric_file.dumps(generated.fabric(topo))
    if out is None:
        print(text, end="")
    else:
        try:
            _refuse_to_lose(out, text, force=force)
            files.replace(out, text)
        except OSError as error:
            fail(FAILED, f"fabric: cannot write {out}: {error}")


def _refuse_to_lose(out: Path, text: str, *, force: bool) -> None:
    """End the command where a file holds something else, which somebody may have written by hand.  Raises OSError."""
    if not force and out.exists() and out.read_bytes() != text.encode():
        fail(CANNOT, f"fabric: {out} is there, and differs from what would be written: give another name, or --force "
                     "to replace it")


def _export(fabric: Fabric, form: str, out: Path, *, force: bool) -> None:
    """Write the topology file of another tool into a folder."""
    from netfold.fabric.generate import export

    try:
        for name, text in checked(lambda: export.texts(fabric, form)).items():
            _refuse_to_lose(out / name, text, force=force)
        written = checked(lambda: export.write(fabric, form, out))
    except OSError as error:
        fail(FAILED, f"fabric: cannot write {out}: {error}")
    print("\n".join(map(str, written)))


def _describe(fabric: Fabric, over: OverMachines, out: Path | None, *, force: bool) -> None:
    """Show what each machine runs, or write it into a folder: fabric.toml, and a file for each machine."""
    import msgspec

    descriptions = over.descriptions(fabric)
    inside = len(fabric.links) - sum(len(machine.cables) for machine in descriptions) // 2
    print(f"{fabric.name} on {len(descriptions)} machines: {inside} of {len(fabric.links)} cables inside machines, "
          f"links of MTU {descriptions[0].mtu}")
    for machine in descriptions:
        print(f"{machine.machine} ({machine.address}){', with the controller' if machine.controller else ''}")
        print(f"  switches {', '.join(machine.switches)}\n  hosts    {', '.join(machine.hosts) or 'none'}")
        for cable in machine.cables:
            print(f"  VXLAN {cable.vni}: {cable.switch}:{cable.port} - {cable.there} on {cable.machine} "
                  f"({cable.remote})")
    if out is not None:
        try:
            texts = {"fabric.toml": fabric_file.dumps(fabric)} | {
                f"{machine.machine}.json": msgspec.json.format(msgspec.json.encode(machine)).decode() + "\n"
                for machine in descriptions}
            for name, text in texts.items():
                _refuse_to_lose(out / name, text, force=force)
            out.mkdir(parents=True, exist_ok=True)
            for name, text in texts.items():
                files.replace(out / name, text)
        except OSError as error:
            fail(FAILED, f"fabric: cannot write {out}: {error}")


def plan(
    file: FabricFile = None,
    topo: Topo = None,
    ranks: Annotated[str | None, typer.Option(help="Host names in order of ranks, separated by commas; default: "
                                                   "all.")] = None,
    per_host: Annotated[int, typer.Option("--ranks-per-host", min=1, help="Ranks that share each host's link.")] = 1,
    entries: Annotated[bool, typer.Option("--entries", help="Also show every table entry.")] = False,
    json: Json = False,
) -> None:
    """Show the trees that a job would get, and the writes to the switches, without touching any switch."""
    from netfold.cli import dryrun
    from netfold.fabric.folding import trees
    from netfold.fabric.folding.pools import Exhausted

    if (file is None) == (topo is None):
        fail(CANNOT, "plan: expected either a FABRIC.toml or --topo leafspine,LEAVES,SPINES,HOSTS (or threetier, "
                     "mesh, torus, file:PATH)")
    fabric = load(file) if file is not None else DEFAULTS.fabric(topo or "")
    names = ranks.split(",") if ranks else [host.name for host in fabric.hosts]
    known = {host.name for host in fabric.hosts}
    unknown = [name for name in names if name not in known]
    if unknown or len(set(names)) != len(names):
        fail(CANNOT, f"plan --ranks: expected different hosts of {fabric.name}, got {', '.join(unknown or names)}")
    try:
        planned = checked(lambda: dryrun.plan(fabric, names, per_host=per_host, entries=entries))
    except (trees.NoTree, Exhausted) as error:
        fail(FAILED, f"plan: {error}")
    print(plain_text.json_line(planned) if json else str(planned))


def compile_(
    switch: SwitchKind = "softswitch",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")] = Path("build/p4"),
    path_mtu: PathMtu = PATH_MTU,
    faults: Annotated[bool, typer.Option("--faults", help="Compile fault injection into the program.")] = False,
) -> None:
    """Compile the fold program: p4info, and the file that the switch loads."""
    from google.protobuf import text_format

    from netfold.controller.switch import pipeline

    engine = engine_of(switch)
    try:
        built = pipeline.build(engine, path_mtu=path_mtu, faults=faults)
        out.mkdir(parents=True, exist_ok=True)
        config = out / {"softswitch": "netfold.p4i", "bmv2": "netfold.json"}[engine]
        files.replace(config, built.device_config)
        files.replace(out / "netfold.p4info.txtpb", text_format.MessageToString(built.p4info))
    except (pipeline.PipelineError, OSError) as error:
        fail(FAILED, f"compile: {error}")
    print(f"{config}\n{out / 'netfold.p4info.txtpb'}\ncookie {built.cookie:#x}")

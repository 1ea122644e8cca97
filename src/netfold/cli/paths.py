# SPDX-License-Identifier: Apache-2.0
"""The commands `netfold paths ...`: show and change which paths packets take while the fabric runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from netfold import plain_text, terminal
from netfold.cli.common import CANNOT, awaited, fail
from netfold.cli.controllers import controller_of
from netfold.cli.options import Address, FabricOption, Json

if TYPE_CHECKING:

    import msgspec

    from netfold.controller.paths import path_service

paths = typer.Typer(no_args_is_help=True, help="Show and change which paths packets take.")


@paths.command()
def show(
    fabric: FabricOption = None,
    controller: Address = None,
    pins: Annotated[bool, typer.Option("--pins", help="Also show every source port at every switch.")] = False,
    json: Json = False,
) -> None:
    """Show the mode of every leaf, and every uplink: up, drained, suspect."""
    from netfold.controller.paths.path_service import AskTable

    _ask("Table", AskTable(), fabric, controller, pins=pins, json=json)


@paths.command()
def mode(
    mode: Annotated[str, typer.Argument(help="pinned, ecmp, or spray.")],
    leaves: Annotated[list[str] | None, typer.Argument(metavar="LEAF", help="Names of leaves; default: all.")] = None,
    fabric: FabricOption = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Set how RoCE packets to these leaves choose their uplinks.

    pinned: by their source port, as planned; others are hashed, and counted. ecmp: by a hash of addresses and ports.
    spray: at random, packet by packet.
    """
    from netfold.controller.paths.path_service import SetMode
    from netfold.controller.switch import tables

    if mode not in get_args(tables.Mode):
        fail(CANNOT, f"paths mode: expected one of {', '.join(get_args(tables.Mode))}, got {mode!r}")
    _ask("SetMode", SetMode(mode, leaves or []), fabric, controller, json=json)  # type: ignore[arg-type]


@paths.command(hidden=True)
def planner(
    planner: Annotated[str, typer.Argument(help="fewest_pieces, or equal_split, the paper's.")],
    fabric: FabricOption = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Set how flows between hosts are split over paths, until the controller ends; the fabric file has the default.

    equal_split splits flows of one step into equal pieces; unequal flows, and flows around dead links, are still split
    into the fewest pieces.
    """
    from netfold.controller.paths.path_service import SetPlanner
    from netfold.fabric.graph import PlannerName

    if planner not in get_args(PlannerName):
        fail(CANNOT, f"paths planner: expected one of {', '.join(get_args(PlannerName))}, got {planner!r}")
    _ask("SetPlanner", SetPlanner(planner), fabric, controller, json=json)  # type: ignore[arg-type]


@paths.command("set")
def set_(
    switch: Annotated[str, typer.Argument(help="The switch at which the packets choose.")],
    leaf: Annotated[str, typer.Argument(help="The destination leaf.")],
    source_port: Annotated[int, typer.Argument(help="Source port, as `netfold paths show --pins` lists them.")],
    port: Annotated[int, typer.Argument(help="The outgoing port; 0: as planned.")],
    fabric: FabricOption = None,
    controller: Address = None,
    json: Json = False,
) -> None:
    """Send packets with one source port to a leaf over another uplink than planned.

    A leaf of three tiers sends all paths of that port's plane there.
    """
    from netfold.controller.paths.path_service import SetPin

    _ask("SetPin", SetPin(switch, leaf, source_port, port), fabric, controller, pins=True, json=json)


def _ask(
    method: str,
    request: msgspec.Struct,
    fabric: Path | None,
    controller: str | None,
    *,
    pins: bool = False,
    json: bool = False,
) -> None:

    from netfold.controller.paths import path_service
    from netfold.rpc import rpc

    asked = controller_of(fabric, controller)
    answer: path_service.Table = awaited(rpc.call(
        asked.address, f"{path_service.OPERATOR}/{method}", request, path_service.Table, path_service.TIMEOUT,
        token=asked.token,
    ))
    if json:
        print(plain_text.json_line(answer))
    else:
        show_table(answer, pins=pins)


def show_table(answer: path_service.Table, *, pins: bool) -> None:
    """Print what determines the paths of packets."""
    from rich.table import Table

    console = terminal.console()
    leaves = Table("to leaf", "mode", box=None)
    for leaf in answer.leaves:
        leaves.add_row(leaf.name, leaf.mode)
    console.print(leaves)
    strays = ", ".join(f"{switch} {count}" for switch, count in answer.unpinned.items())
    console.print(f"packets that no pin was for: {strays or 'none'}")
    console.print(f"flows are cut over paths by {answer.planner}")
    uplinks = Table("link", "state", "suspect for", box=None)
    for link in answer.uplinks:
        usable = ("drained", "yellow") if link.drained else ("up", "green")
        state = terminal.said(usable if link.up else ("down", "red"))
        uplinks.add_row(f"{link.a} - {link.b}", state, ", ".join(link.suspect_for) or "-")
    console.print(uplinks)
    if pins:
        table = Table("at", "to leaf", "source port", "leaves by", "towards", box=None)
        for pin in answer.pins:
            table.add_row(pin.switch, pin.leaf or "any", str(pin.source_port), str(pin.port) if pin.port else "hash",
                          pin.towards + (" (chosen)" if pin.chosen else ""))
        console.print(table)

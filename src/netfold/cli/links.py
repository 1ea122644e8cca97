# SPDX-License-Identifier: Apache-2.0
"""`netfold links`: every link of the fabric file, and where its cable really leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from netfold import plain_text, terminal
from netfold.cli.options import Address, Json, RunningFabric

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from netfold.controller.health.wiring import Cables


def links(file: RunningFabric = None, controller: Address = None, json: Json = False) -> None:
    """Probe every cable between switches and compare its ends with the fabric file.

    Exit status 1 if one is plugged into another port than in the file.
    """

    from netfold.cli.common import FAILED, awaited
    from netfold.cli.controllers import controller_of
    from netfold.controller import client
    from netfold.controller.health.wiring import AskWiring, Cables
    from netfold.rpc import rpc
    from netfold.wire import operator

    asked = controller_of(file, controller)
    found: Cables = awaited(rpc.call(asked.address, f"{operator.SERVICE}/Wiring", AskWiring(), Cables, client.TIMEOUT,
                                     token=asked.token))
    if json:
        print(plain_text.json_line(found))
    else:
        show(found)
    if any(cable.wrong for cable in found.cables):
        raise typer.Exit(FAILED)


def show(found: Cables, console: Console | None = None) -> None:
    """Print a line for each cable, then what is wrong."""
    from rich.table import Table

    from netfold.cli.show import words

    console = console or terminal.console()
    table = Table("link", "state", "there", "back", box=None)
    for cable in found.cables:
        state = words(cable.up, cable.drained, cable.why)
        there, back = (
            _seen(asked=cable.asked, expected=expected, found=seen)
            for expected, seen in ((cable.b, cable.from_a), (cable.a, cable.from_b))
        )
        table.add_row(f"{cable.a} - {cable.b}", state, there, back)
    console.print(table)
    wrong = [sentence for cable in found.cables for sentence in cable.wrong]
    for sentence in wrong:
        console.print(terminal.said(("miswired", "red"), f" {sentence}"))
    if wrong:
        console.print("Put the cables as the fabric's file has them, or correct the file.")


def _seen(*, asked: bool, expected: str, found: str) -> Text:
    if not asked:
        return terminal.said("-")
    if not found:
        return terminal.said(("nothing arrives", "red"))
    return terminal.said("as planned" if found == expected else (found, "red"))

# SPDX-License-Identifier: Apache-2.0
"""`netfold diff` and `netfold apply`: the difference between the desired and actual state of switches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from netfold import plain_text
from netfold.cli.options import Address, Json, RunningFabric

if TYPE_CHECKING:
    from netfold.controller.operations.differences import Differences


def diff(file: RunningFabric = None, controller: Address = None, json: Json = False) -> None:
    """Read every switch and show the writes that would bring it to its desired state; nothing is written.

    Exit status 1 if there are any, or if a switch cannot be read. For a controller that is not running yet, use
    `netfold up FABRIC.toml --dry-run`.
    """
    show(_ask(file, controller, apply=False), json=json)


def apply(file: RunningFabric = None, controller: Address = None, json: Json = False) -> None:
    """Read every switch, bring it to its desired state, and show the writes."""
    from netfold.cli.common import FAILED

    found = _ask(file, controller, apply=True)
    _print(found, "all switches hold what they should; nothing was written", json=json)
    if found.problems:
        raise typer.Exit(FAILED)


def show(found: Differences, *, json: bool = False) -> None:
    """Print differences; if there are any, end the command with status 1."""
    from netfold.cli.common import FAILED

    _print(found, "all switches hold what they should", json=json)
    if found.writes or found.problems:
        raise typer.Exit(FAILED)


def _ask(file: RunningFabric, controller: Address, *, apply: bool) -> Differences:
    from netfold.cli.common import awaited
    from netfold.cli.controllers import controller_of
    from netfold.controller import client
    from netfold.controller.operations.differences import AskDiff, Differences
    from netfold.rpc import rpc
    from netfold.wire import operator

    asked = controller_of(file, controller)
    found: Differences = awaited(rpc.call(
        asked.address, f"{operator.SERVICE}/Diff", AskDiff(apply), Differences, client.SLOTS_TIMEOUT, token=asked.token,
    ))
    return found


def _print(found: Differences, nothing: str, *, json: bool) -> None:
    import sys


    if json:
        print(plain_text.json_line(found))
        return
    for write in found.writes:
        print(plain_text.clean(str(write)))
    for problem in found.problems:
        print(plain_text.clean(problem), file=sys.stderr)
    if not found.writes and not found.problems:
        print(nothing)

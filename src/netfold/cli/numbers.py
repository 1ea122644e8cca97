# SPDX-License-Identifier: Apache-2.0
"""Numbers on the command line: every option that is a number refuses `nan` and `inf`, which Python reads as numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import typer

Command = Callable[..., Any]

_CHECKED: set[Command] = set()


def refuse_infinities(command: Command) -> Command:
    """The command, which refuses options that are no finite numbers: no comparison finds `nan`, and `inf` turns up as
    an error far from whoever typed it."""
    if command in _CHECKED:
        return command

    @functools.wraps(command)
    def checked(**options: Any) -> Any:
        for name, value in options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{name.replace('_', '-')} {value:g}: expected a finite number")
        return command(**options)

    _CHECKED.add(checked)
    return checked


def refuse_infinities_in(app: typer.Typer) -> None:
    """Lets all commands of an app do so."""
    for one in app.registered_commands:
        if one.callback is not None:
            one.callback = refuse_infinities(one.callback)

# SPDX-License-Identifier: Apache-2.0
"""Common parts of the commands: errors, and fabric files.

An error is one paragraph on standard error and an exit status: FAILED if something failed, CANNOT if the arguments are
invalid.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import typer

from netfold.fabric import file as fabric_file
from netfold.fabric.graph import Engine, Fabric, FabricError
from netfold.plain_text import LogFormatter, clean

FAILED: Final = 1
CANNOT: Final = 2

T = TypeVar("T")


def fail(code: int, message: str) -> NoReturn:
    """Print a paragraph on standard error and end the command with this exit status."""
    print(f"netfold: {clean(message)}", file=sys.stderr)
    raise typer.Exit(code)


def awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine and return its result; errors of controller and switches end the command with their message."""
    from netfold.rpc.rpc import CallRefused, Unreachable

    try:
        return asyncio.run(work)
    except CallRefused as error:
        fail(CANNOT if error.invalid else FAILED, str(error))
    except (Unreachable, FabricError) as error:
        fail(FAILED, str(error))
    except Exception as error:
        # whatever raises these has imported them: commands that only ask a controller need none of its modules
        from netfold.controller.serving import StartError
        from netfold.controller.switch.election import Superseded
        from netfold.controller.switch.pipeline import PipelineError

        if not isinstance(error, (StartError, Superseded, PipelineError)):
            raise
        fail(FAILED, str(error))


def checked(make: Callable[[], T]) -> T:
    """The value of ``make``; a FabricError ends the command with its message."""
    try:
        return make()
    except FabricError as error:
        fail(CANNOT, str(error))


def refuse(context: typer.Context, options: Sequence[str], why: str) -> None:
    """End the command where one of these options, which would have no effect, is on the command line."""
    for option in options:
        source = context.get_parameter_source(option)
        if source is not None and source.name != "DEFAULT":
            fail(CANNOT, f"{context.command_path.partition(' ')[2]}: --{option.replace('_', '-')} {why}")


def load(file: Path) -> Fabric:
    """Read a fabric file; an invalid one ends the command with its error."""
    return checked(lambda: fabric_file.load(file))


def engine_of(name: str) -> Engine:
    """The engine that --switch names; an unknown one ends the command."""
    match name:
        case "softswitch" | "bmv2":
            return name
    fail(CANNOT, f"--switch: expected softswitch or bmv2, got {name!r}")


def log_to_stderr(verbose: bool) -> None:
    """Log to standard error: warnings, or with ``verbose`` everything."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])

# SPDX-License-Identifier: Apache-2.0
"""What commands share: how they fail, which fabric and which controller they mean.

Errors are one clear paragraph and an exit status: FAILED where something failed, CANNOT where what was asked for cannot
be.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import typer

from netfold.cli.options import CONTROLLER_VARIABLE
from netfold.fabric import file as fabric_file
from netfold.fabric.graph import Engine, Fabric, FabricError

FAILED: Final = 1
CANNOT: Final = 2

T = TypeVar("T")


def fail(code: int, message: str) -> NoReturn:
    """End the command with this exit status, and a paragraph on standard error."""
    print(f"netfold: {message}", file=sys.stderr)
    raise typer.Exit(code)


def awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """Its result, at the end; what a person can do something about becomes a paragraph."""
    from netfold.controller.controller import StartError
    from netfold.controller.switch.pipeline import PipelineError
    from netfold.rpc.rpc import Unreachable

    try:
        return asyncio.run(work)
    except (StartError, PipelineError, Unreachable, FabricError) as error:
        fail(FAILED, str(error))


def checked(make: Callable[[], T]) -> T:
    """What ``make`` returns; a fabric that cannot be becomes a paragraph."""
    try:
        return make()
    except FabricError as error:
        fail(CANNOT, str(error))


def load(file: Path) -> Fabric:
    """The fabric in a file."""
    return checked(lambda: fabric_file.load(file))


def engine_of(name: str) -> Engine:
    """The engine that --switch names."""
    match name:
        case "softswitch" | "bmv2":
            return name
    fail(CANNOT, f"--switch: expected softswitch or bmv2, got {name!r}")


def address_of(file: Path | None, controller: str | None) -> str:
    """gRPC address of the controller: as said, or as the fabric's file or the environment says."""
    if controller:
        return controller
    if file is not None:
        return load(file).jobs
    if address := os.environ.get(CONTROLLER_VARIABLE):
        return address
    fail(CANNOT, "which controller? Give its FABRIC.toml (slots, paths: --fabric FABRIC.toml), --controller ADDRESS, "
                 f"or set {CONTROLLER_VARIABLE}")


def token_of(file: Path | None) -> str:
    """The token that goes with `address_of`; empty: none."""
    from netfold.rpc.channel import TOKEN_VARIABLE

    said = "" if file is None else checked(lambda: fabric_file.token(load(file)))
    return said or os.environ.get(TOKEN_VARIABLE, "")


def log_to_stderr(verbose: bool) -> None:
    """Warnings, or everything."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr,
                        format="%(asctime)s %(levelname)s %(name)s: %(message)s")

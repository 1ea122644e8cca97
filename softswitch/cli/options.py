# SPDX-License-Identifier: Apache-2.0
"""What the subcommands share: options of the same meaning, and how one ends with a message."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

Defines = Annotated[list[str] | None, typer.Option("-D", metavar="NAME[=VALUE]", help="Define a macro.")]
Includes = Annotated[list[Path] | None, typer.Option("-I", metavar="DIR", help="Look for #include files here.")]
Program = Annotated[Path, typer.Argument(metavar="PROGRAM.p4", help="A P4_16 program for v1model.")]


class TraceStyle(StrEnum):
    """How the packet trace is shown."""

    text = "text"
    json = "json"
    bmv2 = "bmv2"


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one clear message."""
    print(f"softswitch: {message}", file=sys.stderr)
    raise typer.Exit(status)


def readable(path: Path) -> None:
    try:
        with path.open():
            pass
    except OSError as error:
        fail(f"{path}: {error.strerror}")


def p4_text(path: Path) -> None:
    """Refuses what is no P4 text at a glance: a file that cannot be read, and a program as JSON."""
    readable(path)
    with path.open("rb") as file:
        if file.read(256).lstrip()[:1] == b"{":
            fail(f"{path}: this is JSON; expected P4 text (of JSON, `softswitch run` takes what "
                 "`softswitch compile --json` writes)")


def defines(define: list[str] | None) -> dict[str, str]:
    pairs = (text.partition("=") for text in define or [])
    return {name: value if equals else "1" for name, equals, value in pairs}

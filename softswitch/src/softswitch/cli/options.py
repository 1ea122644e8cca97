# SPDX-License-Identifier: Apache-2.0
"""Common parts of the subcommands: the declaration of options, shared options, and exits with a message.

Commands declare their parameters as for typer, but with the classes of this module: app.py makes typer's of them, and
start.py reads the options of a switch that starts without typer.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

if TYPE_CHECKING:
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import Program as CompiledProgram


class CliParameter:
    """A parameter of a command: `names` as on the command line, if they are not the function's ("--its-name"), and the
    keywords of typer's class: help, metavar, min, max."""

    def __init__(
        self, *names: str, help: str, metavar: str | None = None, min: int | None = None, max: int | None = None
    ) -> None:
        self.names, self.help, self.metavar, self.min, self.max = names, help, metavar, min, max


class CliOption(CliParameter):
    """An option, such as --seed 1."""


class CliArgument(CliParameter):
    """An argument, such as PROGRAM.p4."""


Defines = Annotated[list[str] | None, CliOption("-D", metavar="NAME[=VALUE]", help="Define a macro.")]
Includes = Annotated[list[Path] | None, CliOption("-I", metavar="DIR", help="Look for #include files here.")]
Program = Annotated[Path, CliArgument(metavar="PROGRAM.p4", help="A P4_16 program for v1model.")]


class TraceStyle(StrEnum):
    """How the packet trace is shown."""

    text = "text"
    json = "json"
    bmv2 = "bmv2"


def fail(message: str, status: int = 2) -> NoReturn:
    """Ends the program with one clear message."""
    print(f"softswitch: {message}", file=sys.stderr)
    sys.exit(status)


def refuse(error: CompileError) -> NoReturn:
    """Ends the program with a compiler's messages as they are, since editors find file and line at their beginning."""
    print(error, file=sys.stderr)
    sys.exit(1)


def warn(program: CompiledProgram) -> None:
    """Prints what the compiler warns of."""
    if program.warnings:
        print(program.warnings, file=sys.stderr)


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

# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`: all its commands, in the order in which people come to need them."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Annotated, Any, Final

import typer

from netfold.cli.bench import app as bench
from netfold.cli.common import FAILED
from netfold.cli.demo import demo
from netfold.cli.diff import apply, diff
from netfold.cli.doctor import doctor
from netfold.cli.drain import drain, undrain
from netfold.cli.fault import app as fault
from netfold.cli.links import links
from netfold.cli.offline import compile_, fabric_, plan
from netfold.cli.paths import paths
from netfold.cli.pcap import pcap
from netfold.cli.run import run
from netfold.cli.shell import shell
from netfold.cli.sim import simulations as sim
from netfold.cli.status import drop, slots, stall, status
from netfold.cli.top import top
from netfold.cli.trace import flight, timeline
from netfold.cli.up import up
from netfold.terminal import help_settings

PANELS: Final[dict[str, dict[str, Callable[..., None] | typer.Typer]]] = {
    "Begin": {"demo": demo, "run": run, "up": up, "doctor": doctor},
    "Describe a fabric": {"fabric": fabric_, "plan": plan, "compile": compile_},
    "Look at a running one": {"status": status, "top": top, "links": links, "paths": paths, "pcap": pcap},
    "Change it": {"drain": drain, "undrain": undrain, "diff": diff, "apply": apply, "drop": drop,
                  "fault": fault},
    "Find out what is wrong": {"stall": stall, "slots": slots, "flight": flight, "timeline": timeline, "shell": shell},
    "Measure": {"bench": bench, "sim": sim},
}
"""Every command, by its heading in --help."""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs are filled, not broken where the source's lines end
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"netfold {metadata.version('netfold')}")
        raise typer.Exit


@app.callback()
def netfold(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """In-network allreduce on P4 switches: fabrics, their controller, and a demo of the whole."""


def _register(commands: dict[str, Any], panel: str) -> None:
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(command)


for _panel, _commands in PANELS.items():
    _register(_commands, _panel)


STORAGE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Errors of a file system that is full, read-only or broken: the user's to mend, and no bug of ours."""


def main() -> None:
    """Entry point of the command."""
    try:
        app(**help_settings())
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"netfold: {place}{error.strerror}. Make room there, or name another place; what was there is untouched",
              file=sys.stderr)
        sys.exit(FAILED)

# SPDX-License-Identifier: Apache-2.0
"""The command `netfold`: all its commands, in the order in which people come to need them."""

from __future__ import annotations

import errno
import os
import signal
import sys
from functools import cache
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from netfold.cli.common import FAILED
from netfold.cli.numbers import refuse_infinities, refuse_infinities_in
from netfold.terminal import help_settings

PANELS: Final = {
    "Begin": {"demo": "demo:demo", "run": "run:run", "up": "up:up", "doctor": "doctor:doctor"},
    "Describe a fabric": {"fabric": "offline:fabric_", "plan": "offline:plan", "compile": "offline:compile_"},
    "Look at a running one": {"status": "status:status", "top": "top:top", "links": "links:links",
                              "paths": "paths:paths", "pcap": "pcap:pcap"},
    "Change it": {"drain": "drain:drain", "undrain": "drain:undrain", "diff": "diff:diff", "apply": "diff:apply",
                  "drop": "status:drop", "fault": "fault:app"},
    "Find out what is wrong": {"stall": "status:stall", "slots": "status:slots", "flight": "trace:flight",
                               "timeline": "trace:timeline", "shell": "shell:shell"},
    "Measure": {"bench": "bench:app", "sim": "sim:simulations", "what-if": "whatif:what_if"},
}
"""Every command, by its heading in --help: its module here, and the name of its function or of typer's app there."""


COMPLETION: Final = "_NETFOLD_COMPLETE"
"""Environment variable by which typer's completion scripts ask for words."""


def application(only: str | None = None) -> typer.Typer:
    """The command with all its commands, or with one of them alone: the import of all takes longer than most of them.

    For `--version` there are none.  What ``only`` names may be no command; then all are there, so that the error can
    name the one that was meant."""
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="markdown",  # paragraphs are filled, not broken where the source's lines end
        pretty_exceptions_enable=False,
        add_completion=True,
    )
    app.callback()(netfold)
    alone = only == "--version" or any(only in commands for commands in PANELS.values())
    for panel, commands in PANELS.items():
        for name, place in commands.items():
            if not alone or name == only:
                _register(app, name, place, panel)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"netfold {metadata.version('netfold')}")
        raise typer.Exit


def netfold(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """In-network allreduce on P4 switches: fabrics, their controller, and a demo of the whole."""


def _register(app: typer.Typer, name: str, place: str, panel: str) -> None:
    module, _, called = place.partition(":")
    command = getattr(import_module(f"netfold.cli.{module}"), called)
    if isinstance(command, typer.Typer):
        refuse_infinities_in(command)
        app.add_typer(command, name=name, rich_help_panel=panel)
    else:
        app.command(name, rich_help_panel=panel)(refuse_infinities(command))


if TYPE_CHECKING:
    app: typer.Typer


@cache
def __getattr__(name: str) -> Any:
    """``app``: the command with all its commands."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return application()


STORAGE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})
"""Errors of a file system that is full, read-only or broken: the user's to mend, and no bug of ours."""


def main(on_interrupt: Any) -> None:
    """Entry point of the command; ``on_interrupt`` handles SIGINT once all is imported."""
    # a shell that completes asks by an environment variable, and may ask for all commands
    completes = COMPLETION in os.environ
    command = application(sys.argv[1] if sys.argv[1:] and not completes else None)
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        command(**help_settings())
    except OSError as error:
        if error.errno not in STORAGE:
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"netfold: {place}{error.strerror}. Make room there, or name another place; what was there is untouched",
              file=sys.stderr)
        sys.exit(FAILED)

# SPDX-License-Identifier: Apache-2.0
"""The commands for typer, which reads their arguments and has --help and usage errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_args

import typer

from softswitch.cli import compile as compiling
from softswitch.cli import examples, explain, run, stf, tools, trace
from softswitch.cli.options import CliArgument, CliParameter
from softswitch.cli.switch_options import SwitchOptions
from softswitch.runtime.version import VERSION

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A P4 switch for v1model programs, controlled by P4Runtime. "
    "`softswitch PROGRAM.p4 ...` is short for `softswitch run PROGRAM.p4 ...`.",
)


def _for_typer(command: Callable[..., None], options: type | None = None) -> Callable[..., None]:
    """The command with typer's declarations in its signature.

    options  the class whose fields are the command's parameters, where it takes an instance of one
    """

    @functools.wraps(command)
    def called(**values: Any) -> None:
        if options is None:
            command(**values)
        else:
            command(options(**values))

    signature = inspect.signature(options or command, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=_declared(*get_args(parameter.annotation)))
        for parameter in signature.parameters.values()
    ]
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _declared(kind: Any, ours: CliParameter) -> Any:
    make = typer.Argument if isinstance(ours, CliArgument) else typer.Option
    return Annotated[kind, make(*ours.names, help=ours.help, metavar=ours.metavar, min=ours.min, max=ours.max)]


app.command("run")(_for_typer(run.run, SwitchOptions))
app.command("compile")(_for_typer(compiling.compile_command))
app.command("stf")(_for_typer(stf.stf))
app.command("tools")(_for_typer(tools.tools))
app.command("examples")(_for_typer(examples.examples))
app.command("trace")(_for_typer(trace.trace))
app.command("explain")(_for_typer(explain.explain))


@app.command()
def version() -> None:
    """Print the version."""
    print(f"softswitch {VERSION}")

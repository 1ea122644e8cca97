# SPDX-License-Identifier: Apache-2.0
"""The `softswitch` command: run a switch in BMv2's manner, compile programs, run packet tests.

    softswitch prog.p4 -i 1@eth1 -i 2@eth2 --grpc-server-addr 127.0.0.1:9559 --cpu-port 510 --device-id 1
    softswitch compile prog.p4 --p4info prog.p4info.txtpb
    softswitch stf prog.p4 test.stf
    softswitch trace packets.trace
    softswitch explain prog.p4 --packet HEX --entries s1-runtime.json
    softswitch tools DIR
    softswitch examples DIR

Exit status: 0 done; 1 a test or a compilation failed; 2 cannot start: the message says what to change.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from softswitch.cli import compile as compiling
from softswitch.cli import examples, explain, run, stf, tools, trace
from softswitch.runtime.version import VERSION

HELP_COLUMNS = 120
"""Columns of --help in a pipe or file."""

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A P4 switch for v1model programs, controlled by P4Runtime. "
    "`softswitch PROGRAM.p4 ...` is short for `softswitch run PROGRAM.p4 ...`.",
)
app.command("run")(run.run)
app.command("compile")(compiling.compile_command)
app.command("stf")(stf.stf)
app.command("tools")(tools.tools)
app.command("examples")(examples.examples)
app.command("trace")(trace.trace)
app.command("explain")(explain.explain)


@app.command()
def version() -> None:
    """Print the version."""
    print(f"softswitch {VERSION}")


def main(arguments: list[str] | None = None) -> None:
    """The entry point. A first argument that is no command starts a switch, as simple_switch does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the error of a port in use is clearer than gRPC's own log
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["--version"]:
        arguments[0] = "version"
    if arguments and arguments[0] not in (*commands, "--help", "-h"):
        first = Path(arguments[0])
        if not arguments[0].startswith("-") and not first.suffix and not first.exists():
            expected = f"expected PROGRAM.p4 or one of {', '.join(commands)}"
            print(f"softswitch: {first}: there is no such file, and no such command; {expected}", file=sys.stderr)
            sys.exit(2)
        arguments.insert(0, "run")
    # a pipe or file has no width: --help and usage errors are the same there whatever COLUMNS says
    app(arguments, terminal_width=None if sys.stdout.isatty() else HELP_COLUMNS)

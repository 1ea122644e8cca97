# SPDX-License-Identifier: Apache-2.0
"""The `softswitch` command: run a switch in BMv2's manner, compile programs, run packet tests.

    softswitch prog.p4 -i 1@eth1 -i 2@eth2 --grpc-server-addr 127.0.0.1:9559 --cpu-port 510 --device-id 1
    softswitch compile prog.p4 --p4info prog.p4info.txtpb
    softswitch stf prog.p4 test.stf
    softswitch trace packets.trace
    softswitch explain prog.p4 --packet HEX --entries s1-runtime.json
    softswitch tools DIR
    softswitch examples DIR

Each command is a module. options.py has what they share; app.py makes them commands of typer, which has the help and
the usage errors; start.py reads the options of a switch that just starts.

Exit status: 0 done; 1 a test or a compilation failed; 2 cannot start: the message says what to change.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

HELP_COLUMNS = 120
"""Width of --help, in columns, in a pipe or file."""

COMMANDS = ("run", "compile", "stf", "tools", "examples", "trace", "explain", "version")
"""The commands of app.py."""


def main(arguments: list[str] | None = None) -> None:
    """The entry point. A first argument that is no command starts a switch, as simple_switch does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the error of a port in use is clearer than gRPC's own log
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["--version"]:
        arguments[0] = "version"
    if arguments[:1] == ["-h"]:
        arguments[0] = "--help"
    if arguments and arguments[0] not in (*COMMANDS, "--help"):
        first = Path(arguments[0])
        if not arguments[0].startswith("-") and not first.suffix and not first.exists():
            expected = f"expected PROGRAM.p4 or one of {', '.join(COMMANDS)}"
            print(f"softswitch: {first}: there is no such file, and no such command; {expected}", file=sys.stderr)
            sys.exit(2)
        arguments.insert(0, "run")
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # while modules are imported there is nothing to say, or to clean up
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if arguments[:1] == ["run"]:
        from softswitch.cli import start

        signal.signal(signal.SIGINT, handler)
        if (given := start.read(arguments[1:])) is not None:
            start.run(given)
            return
    from softswitch.cli.app import app

    signal.signal(signal.SIGINT, handler)
    # a pipe or file has no width: --help and usage errors are the same there whatever COLUMNS says
    app(arguments, terminal_width=None if sys.stdout.isatty() else HELP_COLUMNS)

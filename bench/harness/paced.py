# SPDX-License-Identifier: Apache-2.0
"""`netfold bench allreduce` of any checkout, in turns that another process asks for (bench/scripts/versus.py).

    python .../paced.py ROUNDS OPTION...

Everything is started once.  The sizes that the options name are then measured one by one, ROUNDS times.  A line
``@turn LEFT`` on standard output says that so many turns are left; the next one begins when a line arrives on standard
input.  What the checkout prints goes to
standard error, and its rows to the file of --rows.  The checkout is what this interpreter imports; this file imports
nothing of it but its command, so that an older checkout can run it.  `--rate none` leaves the links unshaped.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import itertools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLACES = (("netfold.bench.commands.allreduce", "netfold.cli.app"),
          ("netfold.bench.allreduce", "netfold.controller.cli.app"))
"""Where the benchmark and the command line are, the newest first."""
NONE = "none"
"""The rate of links that are not shaped."""


def in_turns(run: Callable[..., Any], rounds: int, unshaped: bool) -> Callable[..., Any]:
    """The benchmark's ``run`` with all sizes ``rounds`` times, which waits for a line before each of them."""

    def wait() -> None:
        if not sys.stdin.readline():
            sys.exit("paced: nobody asks for turns any more")

    def paced(spec: Any, json: Path | None, *_: object) -> Any:
        spec = dataclasses.replace(spec, sizes=spec.sizes * rounds, rounds=1, **({"rate": None} if unshaped else {}))
        rows = 0

        def echo(line: str) -> None:
            nonlocal rows
            print(line, file=sys.stderr, flush=True)
            heading = line.startswith("#")
            if heading and not (rows == 0 and "algorithm" in line):  # the first line, and what `auto` took
                return
            rows += not heading
            taken, more = divmod(rows, len(spec.algorithms))
            if not more:
                print("@turn", len(spec.sizes) - taken, flush=True)
                if taken < len(spec.sizes):
                    wait()

        return run(spec, json, echo)

    return paced


def _known(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def main() -> None:
    """Run the command of this interpreter's checkout."""
    place, command = next((pair for pair in PLACES if _known(pair[0])), PLACES[0])
    bench: Any = importlib.import_module(place)
    rounds, options = int(sys.argv[1]), sys.argv[2:]
    unshaped = any(pair == ("--rate", NONE) for pair in itertools.pairwise(options))
    if unshaped:  # older checkouts know the rate of every link
        options[options.index("--rate") + 1] = "1tbit"
        known = bench.bits_per_second
        bench.bits_per_second = lambda rate: float("inf") if rate is None else known(rate)
    bench.run = in_turns(bench.run, rounds, unshaped)
    command_line = importlib.import_module(command).main
    handlers = [signal.default_int_handler] * len(inspect.signature(command_line).parameters)
    if not handlers:  # older checkouts handle Ctrl-C themselves, and call the file of rows otherwise
        options = ["--json" if option == "--rows" else option for option in options]
    sys.argv = ["netfold", "bench", "allreduce", *options]
    command_line(*handlers)


if __name__ == "__main__":
    main()

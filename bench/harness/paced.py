# SPDX-License-Identifier: Apache-2.0
"""`netfold bench allreduce` of any checkout, in turns that another process asks for (bench/scripts/versus.py).

    python .../paced.py ROUNDS OPTION...

Everything is started once.  The sizes that the options name are then measured one by one, ROUNDS times.  A line
``@turn LEFT`` on standard output says that so many turns are left; the next one begins when a line arrives on standard
input.  What the checkout prints goes to standard error, and its rows to the file of --rows.  The checkout is what this
interpreter imports; this file imports nothing of it but its command, so that an older checkout can run it.
"""

from __future__ import annotations

import dataclasses
import importlib
import signal
import sys
from collections.abc import Callable
from typing import Any


def in_turns(run: Callable[..., Any], rounds: int) -> Callable[..., Any]:
    """The benchmark's ``run`` with all sizes ``rounds`` times, which waits for a line before each of them."""

    def wait() -> None:
        if not sys.stdin.readline():
            sys.exit("paced: nobody asks for turns any more")

    def paced(options: Any, *rest: object) -> Any:  # an older checkout's run has the file of --rows next
        options = dataclasses.replace(options, sizes=options.sizes * rounds, rounds=1)
        algorithms = getattr(options, "ways", options.algorithms)
        rows = 0

        def echo(line: str) -> None:
            nonlocal rows
            print(line, file=sys.stderr, flush=True)
            heading = line.startswith("#")
            if heading and not (rows == 0 and "algorithm" in line):  # the first line, and what `auto` took
                return
            rows += not heading
            taken, more = divmod(rows, len(algorithms))
            if not more:
                print("@turn", len(options.sizes) - taken, flush=True)
                if taken < len(options.sizes):
                    wait()

        return run(options, *rest, echo=echo)

    return paced


def main() -> None:
    """Run the command of this interpreter's checkout."""
    bench: Any = importlib.import_module("netfold.bench.commands.allreduce")
    bench.run = in_turns(bench.run, int(sys.argv[1]))
    sys.argv = ["netfold", "bench", "allreduce", *sys.argv[2:]]
    importlib.import_module("netfold.cli.app").main(signal.default_int_handler)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""``python -m netfold.host.capi FOLDER``: build the library of the C interface there, and say how to use it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cbuild.cc import BuildError
from netfold.host.capi.library import install, options


def main(arguments: list[str]) -> int:
    """0: what a C compiler needs is in the folder, and its options are printed; else 2 for the command line, and 1."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m netfold.host.capi FOLDER    writes libnetfold.so and netfold.h there, and prints the "
              "options for a C compiler", file=sys.stderr)
        return 2 if arguments not in (["-h"], ["--help"]) else 0
    folder = Path(arguments[0]).absolute()
    try:
        install(folder)
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(shlex.join(options(folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

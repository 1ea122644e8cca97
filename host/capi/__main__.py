# SPDX-License-Identifier: Apache-2.0
"""``python -m netfold.host.capi FOLDER`` builds the library of the C interface and NCCL's plug-in there, and prints the
compiler options."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cbuild.cc import BuildError
from netfold.host.capi.library import install, options


def main(arguments: list[str]) -> int:
    """Status 0: the folder has the files that a C compiler needs, and the options are printed; 2: invalid command line;
    1: the build failed."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m netfold.host.capi FOLDER    writes libnetfold.so, netfold.h and NCCL's plug-in there, "
              "and prints the options for a C compiler", file=sys.stderr)
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

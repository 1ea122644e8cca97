# SPDX-License-Identifier: Apache-2.0
"""Prints this machine's support for the rail "verbs", and ends with status 1 if something is missing:

    python -m netfold.host.verbs             # both
    python -m netfold.host.verbs library     # libibverbs and its headers: compiles the engine with them
    python -m netfold.host.verbs devices     # RDMA devices and their addresses
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cbuild.cc import BuildError
from netfold.host.errors import TransportError
from netfold.host.verbs import native
from netfold.host.verbs.devices import described


def _library() -> str:
    native.library()
    return "libibverbs: the engine compiles with it"


PARTS: dict[str, Callable[[], str]] = {"library": _library, "devices": described}


def main(wanted: Sequence[str]) -> int:
    """Prints the state of these parts.  Returns the process's exit status."""
    if unknown := set(wanted) - PARTS.keys():
        print(f"{', '.join(sorted(unknown))}: expected {' or '.join(PARTS)}", file=sys.stderr)
        return 2
    missing = 0
    for name in wanted or PARTS:
        try:
            print(PARTS[name]())
        except (TransportError, BuildError) as error:
            print(error)
            missing = 1
    return missing


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

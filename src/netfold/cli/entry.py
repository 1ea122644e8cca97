# SPDX-License-Identifier: Apache-2.0
"""The console script: it starts the command, or says in one line what it needs and how to get it."""

from __future__ import annotations

import signal
import sys

CANNOT_START = 2
"""Exit status of a command whose packages are not installed."""


def netfold() -> None:
    """The command `netfold`; ends the process where packages of the extra `control` are missing."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # while modules are imported there is nothing to say, or to clean up
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from netfold.cli.extras import CONTROL

    if missing := CONTROL.missing():
        print(f"netfold: not installed: {', '.join(missing)}; type: {CONTROL.remedy}", file=sys.stderr)
        sys.exit(CANNOT_START)
    from netfold.cli.app import main

    main(handler)

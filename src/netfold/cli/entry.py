# SPDX-License-Identifier: Apache-2.0
"""The console script: it starts the command, or says in one line what it needs and how to get it."""

from __future__ import annotations

import sys

from netfold.cli.extras import CONTROL

CANNOT_START = 2
"""Exit status of a command whose packages are not installed."""


def netfold() -> None:
    """The command `netfold`; ends the process where packages of the extra `control` are missing."""
    if missing := CONTROL.missing():
        print(f"netfold: not installed: {', '.join(missing)}; type: {CONTROL.remedy}", file=sys.stderr)
        sys.exit(CANNOT_START)
    from netfold.cli.app import main

    main()

# SPDX-License-Identifier: Apache-2.0
"""The console scripts: they start a command, or say in one line which extra the command needs."""

from __future__ import annotations

import sys

from netfold.cli.extras import CONTROL, SOFTSWITCH, Extra

CANNOT_START = 2
"""Exit status of a command whose packages are not installed."""


def netfold() -> None:
    """The command `netfold`."""
    _need(CONTROL, "netfold")
    from netfold.cli.app import main

    main()


def softswitch() -> None:
    """The command `softswitch`."""
    _need(SOFTSWITCH, "softswitch")
    from softswitch.cli import main

    main()


def _need(extra: Extra, command: str) -> None:
    """End the process unless the extra's packages are there."""
    if missing := extra.missing():
        print(f"{command}: not installed: {', '.join(missing)}; type: {extra.remedy}", file=sys.stderr)
        sys.exit(CANNOT_START)

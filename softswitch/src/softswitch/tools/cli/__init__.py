# SPDX-License-Identifier: Apache-2.0
"""simple_switch_CLI: BMv2's commands, with its words, for a switch that serves Thrift (ours or BMv2's own).

    simple_switch_CLI [--thrift-port 9090] [--thrift-ip localhost] [--json program.json] < commands.txt
"""

from __future__ import annotations

import sys


def simple_switch_cli() -> int:
    """The program; where the package thrift is missing, it says so and ends with status 1."""
    try:
        from softswitch.tools.cli.main import main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "thrift":
            raise
        print("simple_switch_CLI needs Apache's package thrift, which is missing: pip install thrift", file=sys.stderr)
        return 1
    return main()

# SPDX-License-Identifier: Apache-2.0
"""softswitch tools: stand-ins for p4c's and BMv2's programs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

from softswitch.cli.options import CliArgument, CliOption, fail


def tools(
    folder: Annotated[Path, CliArgument(metavar="DIR", help="Directory for the programs; created if absent.")],
    force: Annotated[bool, CliOption("--force", help="Replace existing files of these names.")] = False,
) -> None:
    """Write p4c-bm2-ss, p4c, simple_switch, simple_switch_grpc and simple_switch_CLI, which run softswitch, into DIR.

    Prints what a shell needs to find them first: eval "$(softswitch tools DIR)".
    """
    from softswitch.tools import install

    try:
        made = install.install(folder, force=force)
    except (install.ForeignFileError, install.UnsafeError) as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}; expected a folder that can be written")
    print(made.exports())
    print(f"softswitch: {', '.join(install.COMMANDS)} are in {made.programs}; the lines above make a shell find them",
          file=sys.stderr)
    if importlib.util.find_spec("thrift") is None:
        print("softswitch: simple_switch and simple_switch_CLI need Apache's package thrift, which is missing: "
              "pip install thrift", file=sys.stderr)

# SPDX-License-Identifier: Apache-2.0
"""The commands that read what ranks wrote: `netfold flight`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def flight(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="What NETFOLD_FLIGHT named when the ranks ran.")],
) -> None:
    """Put all ranks' flight recorders beside each other: where each one is, who is behind, who wrote nothing."""
    from netfold.controller.flights import compare, read

    try:
        dumps = read(folder)
    except ValueError as error:
        print(f"netfold: flight: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if not dumps:
        print(f"netfold: flight: no files in {folder}: expected JOB.rankN.json, which ranks with "
              f"NETFOLD_FLIGHT={folder} write when an operation fails, or when they get SIGUSR2", file=sys.stderr)
        raise typer.Exit(1)
    print("\n".join(compare(dumps)))

# SPDX-License-Identifier: Apache-2.0
"""The commands that read files of ranks: `netfold flight` and `netfold timeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from netfold.cli.common import FAILED, fail
from netfold.disk.files import replace
from netfold.plain_text import clean


def flight(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that NETFOLD_FLIGHT named when the ranks "
                                                                  "ran.")],
) -> None:
    """Compare the flight recorders of all ranks: where each one is, which are behind, which wrote no file."""
    from netfold.cli.flights import compare, read

    try:
        dumps = read(folder)
    except ValueError as error:
        fail(FAILED, f"flight: {error}")
    if not dumps:
        fail(FAILED, f"flight: no files in {folder}: expected JOB.rankN.json, which ranks with NETFOLD_FLIGHT={folder} "
                     "write when an operation fails, or when they get SIGUSR2")
    print(clean("\n".join(compare(dumps))))


timeline = typer.Typer(no_args_is_help=True, help="Timelines that ranks wrote (NETFOLD_TIMELINE).")


@timeline.command()
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="trace.JOB.rankN.json of each rank.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("trace.json"),
) -> None:
    """Merge the ranks' timelines into one file, for ui.perfetto.dev or chrome://tracing."""
    import json

    from netfold.cli import timelines

    try:
        trace = timelines.merge(files)
        replace(out, json.dumps(trace))
    except (OSError, ValueError) as error:
        fail(FAILED, f"timeline: {error}")
    print(f"{out}: {trace['otherData']['ranks']} ranks, {len(trace['traceEvents'])} events; open it in "
          "https://ui.perfetto.dev")

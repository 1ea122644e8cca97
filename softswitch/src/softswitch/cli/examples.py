# SPDX-License-Identifier: Apache-2.0
"""softswitch examples: the examples that come with the switch, as files of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from softswitch.cli.options import CliArgument, fail

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def examples(
    folder: Annotated[
        Path, CliArgument(metavar="DIR", help="Target directory; created if absent.")
    ] = Path("examples"),
) -> None:
    """Copy the examples: P4 programs, their controllers, and a script that makes hosts around them."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        fail(f"{folder}: expected a folder that is empty or not there; nothing was copied")
    try:
        shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    except OSError as error:
        fail(f"{folder}: {error.strerror or error}")
    for file in sorted(folder.iterdir()):
        print(file)

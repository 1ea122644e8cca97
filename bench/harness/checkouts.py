# SPDX-License-Identifier: Apache-2.0
"""How a script of another checkout of this project is run: by which Python, and with which modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parents[2]
"""This checkout."""


def python(folder: Path) -> str:
    """The Python of a checkout: that of its .venv where it has one, else this one."""
    own = folder / ".venv" / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def environment(folder: Path) -> dict[str, str]:
    """The environment variables with which a checkout's own modules are imported; those of old checkouts, which have no
    folder that can be put on the path, are found by their .venv alone."""
    source = folder / "src" if (folder / "src").is_dir() else folder
    if not (source / "netfold" / "bench").is_dir():
        return {**os.environ, "PYTHONPATH": ""}
    projects = (folder / "cbuild" / "src", folder / "softswitch" / "src")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in (source, *projects) if path.is_dir())}


def script(folder: Path, places: Sequence[str]) -> Path:
    """The first of these files that a checkout has.  Raises FileNotFoundError."""
    for place in places:
        if (folder / place).exists():
            return folder / place
    raise FileNotFoundError(f"{folder}: expected a checkout of this project with {' or '.join(places)}")

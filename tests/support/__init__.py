# SPDX-License-Identifier: Apache-2.0
"""What tests of several rooms share: references, stand-ins, fabrics, and programs that run as ranks (``ranks/``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent.parent
ROOT: Final = TESTS.parent
RANKS: Final = TESTS / "support" / "ranks"
"""Programs that tests start as processes."""


def environment() -> dict[str, str]:
    """The environment of a process that imports ``support``."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))}

# SPDX-License-Identifier: Apache-2.0
"""Common parts of the tests of several rooms: references, stand-ins, fabrics, and programs that run as ranks
(``ranks/``)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent.parent
ROOT: Final = TESTS.parent
SWITCH: Final = ROOT / "softswitch"
"""The folder of the project softswitch."""
RANKS: Final = TESTS / "support" / "ranks"
"""Programs that tests start as processes."""
TORCH: Final = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.run",
                "torch.distributed.tensor.parallel", "netfold.torch")
"""Modules that fork servers of programs with torch import (conftest.py, `torch_in_forks`; hosts/torch.py)."""


def environment() -> dict[str, str]:
    """The environment of a process that imports ``support`` and ``switch_support``."""
    path = [str(TESTS), str(SWITCH / "tests"), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}

# SPDX-License-Identifier: Apache-2.0
"""Runs a script whose default process group is NetFold's, without a change to it: ``python -m netfold.torch SCRIPT``.

For frameworks that take the group that is there, as Accelerate and Lightning do; a script that makes its own group
names the backend itself.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

USAGE = "usage: torchrun --nproc-per-node N -m netfold.torch SCRIPT [ARGUMENT ...]"


def run(arguments: Sequence[str]) -> None:
    """Makes the default process group of backend "netfold", configured by the environment, and runs a script as Python
    would.

    arguments  the script's file and what it gets
    Raises SystemExit for a missing script, what joining raises, and what the script raises.
    """
    if not arguments or not Path(arguments[0]).is_file():
        got = f"no file {arguments[0]!r}" if arguments else "no script"
        raise SystemExit(f"{USAGE}\n{got}: expected a Python file")
    dist.init_process_group("netfold")
    script = Path(arguments[0])
    sys.argv, sys.path[0] = [*arguments], str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
    if dist.is_initialized():
        dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""Runs a script with NetFold's process groups, without a change to it: ``python -m netfold.torch SCRIPT``.

Without options the default process group exists before the script begins, for frameworks that use an existing one, as
Accelerate and Lightning do.  With ``--as gloo`` the script creates its groups itself, and gets NetFold's groups in
place of gloo's (``renamed``).
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist

from netfold.host.torch import renamed

USAGE = "usage: torchrun --nproc-per-node N -m netfold.torch [--as gloo] {SCRIPT | -m MODULE} [ARGUMENT ...]"


def run(arguments: Sequence[str]) -> None:
    """Runs a script or module as Python would, in processes whose groups are configured by the environment.

    arguments  options, the script's file or -m and the module's name, and its arguments
    Raises SystemExit for a missing script, the errors of joining, and the script's exceptions.
    """
    left = list(arguments)
    named = left[:1] == ["--as"] or left[:1] == [f"--as={renamed.THEIRS}"]
    if named:
        option = left.pop(0)
        if option == "--as" and (not left or left.pop(0) != renamed.THEIRS):
            raise SystemExit(f"{USAGE}\n--as {' '.join(arguments[1:2])}: expected gloo")
    module = left[:1] == ["-m"]
    kind, target = ("module", left[1:2]) if module else ("file", left[:1])
    if not target or not (_is_module(target[0]) if module else Path(target[0]).is_file()):
        got = f"no {kind} {target[0]!r}" if target else "no module" if module else "no script"
        raise SystemExit(f"{USAGE}\n{got}: expected a Python {kind}")
    if named:
        renamed.rename()
    else:
        dist.init_process_group("netfold")
    sys.argv = left[module:]
    if module:
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)  # which puts its file into sys.argv[0]
    else:
        sys.path[0] = str(Path(target[0]).resolve().parent)
        runpy.run_path(target[0], run_name="__main__")
    if not named and dist.is_initialized():
        dist.destroy_process_group()


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False

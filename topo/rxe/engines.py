# SPDX-License-Identifier: Apache-2.0
"""The C engines of ranks in guests, compiled on this machine: in a guest, whose processor is emulated, it takes long.

They are compiled for a processor that both are, into the cache of this user, which guests see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from netfold.host.native.library import PROCESSOR_VARIABLE
from netfold.topo.failures import FabricFailed

ENVIRONMENT: Final[Mapping[str, str]] = {PROCESSOR_VARIABLE: "x86-64-v2"}
"""What ranks in guests have in their environment, too: the engines are found by it."""
SECONDS: Final = 300.0
_PROGRAM: Final = """
from netfold.host.innet import native
from netfold.host.verbs import native as verbs
native.library()
verbs.library()
"""


class EnginesFailed(FabricFailed):
    """The engines cannot be compiled; the message has what the compiler says."""


def compile_for_guests(userland: Path) -> None:
    """Compile the engines, where they are not in the cache.  Raises EnginesFailed.

    userland  tree with libibverbs and its headers (packages.userland)
    """
    libraries = str(userland / "usr/lib/x86_64-linux-gnu")
    found = {"CPATH": str(userland / "usr/include"), "LIBRARY_PATH": libraries, "LD_LIBRARY_PATH": libraries}
    joined = {name: os.pathsep.join(filter(None, [path, os.environ.get(name)])) for name, path in found.items()}
    try:
        done = subprocess.run([sys.executable, "-c", _PROGRAM], env={**os.environ, **ENVIRONMENT, **joined},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnginesFailed(f"the engines for virtual machines are not compiled within {SECONDS:g} s") from error
    if done.returncode != 0:
        raise EnginesFailed(f"compiling the engines for virtual machines failed:\n{done.stderr.strip()}")

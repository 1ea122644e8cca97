# SPDX-License-Identifier: Apache-2.0
"""The C engines of ranks in guests, compiled on this machine: in a guest, whose processor is emulated, it takes long.

They are compiled for a processor that both are, into the cache of this user, which guests see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from netfold.host.native.library import PROCESSOR_VARIABLE
from netfold.topo.processes.failures import FabricFailed

PROCESSOR: Final = "x86-64-v2"
"""The processor of both, as gcc's -march names it."""
SECONDS: Final = 300.0
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"
_PROGRAM: Final = """
from netfold.host.innet import native
from netfold.host.verbs import native as verbs
native.library()
verbs.library()
"""


class EnginesFailed(FabricFailed):
    """The engines cannot be compiled; the message has what the compiler says."""


def environment(userland: Path) -> dict[str, str]:
    """The environment variables that ranks in guests share with the compiler here.  All of them are part of the name of
    a compiled engine; a guest that does not find the engine compiles it, which takes minutes.

    userland  tree with libibverbs and its headers (packages.userland)
    """
    places = {"CPATH": str(userland / "usr/include"), "LIBRARY_PATH": str(userland / _LIBRARIES)}
    return {PROCESSOR_VARIABLE: PROCESSOR, **{name: _first(path, name) for name, path in places.items()}}


def _first(path: str, variable: str) -> str:
    """A list of paths: this one, and those that a variable of the environment has."""
    return os.pathsep.join(filter(None, [path, os.environ.get(variable)]))


def compile_for_guests(userland: Path) -> None:
    """Compile the engines, where they are not in the cache.  Raises EnginesFailed.

    userland  tree with libibverbs and its headers (packages.userland)
    """
    found = environment(userland) | {"LD_LIBRARY_PATH": _first(str(userland / _LIBRARIES), "LD_LIBRARY_PATH")}
    try:
        done = subprocess.run([sys.executable, "-c", _PROGRAM], env=os.environ | found, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise EnginesFailed(f"the engines for virtual machines are not compiled within {SECONDS:g} s") from error
    if done.returncode != 0:
        raise EnginesFailed(f"compiling the engines for virtual machines failed:\n{done.stderr.strip()}")

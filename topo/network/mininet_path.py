# SPDX-License-Identifier: Apache-2.0
"""Lets ``import mininet`` find Mininet from within a virtual environment.

Mininet is in no Python registry: distributions install it for their own interpreter, where a virtual environment does
not look.  A finder at the end of ``sys.meta_path`` loads this one package from there, and no other package of the
distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from netfold.topo.processes.failures import FabricFailed

PLACES: Final = (
    "/usr/lib/python3/dist-packages",
    *sorted(str(p) for p in Path("/usr/local/lib").glob("python3*/dist-packages")),
    *sorted(str(p) for p in Path("/usr/lib").glob("python3.*/site-packages")),
)
"""Folders of the distribution's Python where packages of ``apt`` and of Mininet's own installer lie."""


class MininetMissing(ModuleNotFoundError, FabricFailed):
    """Mininet is not installed on this machine.

    Remedy: `sudo apt install mininet`; it is in no Python registry.
    """


class MininetFinder:
    """Finds the package ``mininet``, and no other, in the given folders."""

    def __init__(self, places: Sequence[str] = PLACES) -> None:
        self._places = list(places)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of ``mininet``; None for other names.  Raises MininetMissing."""
        if fullname != "mininet":
            return None
        spec = PathFinder.find_spec(fullname, self._places)
        if spec is None:
            raise MininetMissing(
                f"Mininet is not installed (looked in {', '.join(self._places)}): sudo apt install mininet",
                name=fullname,
            )
        if sys.version_info >= (3, 12) and find_spec("distutils") is None:
            raise MininetMissing(
                f"Mininet imports distutils, which Python {sys.version_info.major}.{sys.version_info.minor} no longer "
                "has; setuptools brings it back: pip install setuptools",
                name=fullname,
            )
        return spec


def install() -> None:
    """Make ``import mininet`` work; does nothing where it already does."""
    if not any(isinstance(finder, MininetFinder) for finder in sys.meta_path):
        sys.meta_path.append(MininetFinder())

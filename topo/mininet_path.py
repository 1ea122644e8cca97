# SPDX-License-Identifier: Apache-2.0
"""Where ``import mininet`` finds Mininet.

Mininet is in no Python registry: distributions install it for their own interpreter, out of a virtual environment's
sight.  A finder at the end of ``sys.meta_path`` loads that one package from there, so that the distribution's other
packages stay out of sight.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Final

from netfold.topo.failures import FabricFailed

PLACES: Final = (
    "/usr/lib/python3/dist-packages",
    *sorted(str(p) for p in Path("/usr/local/lib").glob("python3*/dist-packages")),
    *sorted(str(p) for p in Path("/usr/lib").glob("python3.*/site-packages")),
)
"""Folders of the distribution's Python where packages of ``apt`` and of Mininet's own installer lie."""


class MininetMissing(ModuleNotFoundError, FabricFailed):
    """Mininet is not installed on this machine."""


class MininetFinder(MetaPathFinder):
    """Finds the package ``mininet``, and nothing else, in the folders given."""

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
    """Let ``import mininet`` work; where it works already, nothing changes."""
    if not any(isinstance(finder, MininetFinder) for finder in sys.meta_path):
        sys.meta_path.append(MininetFinder())

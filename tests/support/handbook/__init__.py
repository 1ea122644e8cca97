# SPDX-License-Identifier: Apache-2.0
"""The failure handbook, docs/failures.md: each error's message as the code makes it, its meaning, its remedy.

Meaning and remedy stand in the error's own docstring, whose last paragraph begins with "Remedy:".  The message comes
from a scene of this package, which makes the error happen.  `.venv/bin/python tests/support/handbook` writes the page,
and tests/test_handbook.py holds it to the code.
"""

from __future__ import annotations

import importlib


def all_scenes() -> None:
    """Registers the scenes of all modules of this package; they need Mininet's Python package."""
    from netfold.topo.network import mininet_path

    mininet_path.install()
    for name in ("ranks", "control", "fabrics", "switch"):
        importlib.import_module(f"support.handbook.{name}")

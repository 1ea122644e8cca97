# SPDX-License-Identifier: Apache-2.0
"""C programs on the C interface, which tests compile as a user does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from cbuild import cc
from netfold.host.capi import library


def compiled(folder: Path, source: str) -> Path:
    """A C program on the library, built as the documentation says."""
    library.install(folder / "lib")
    (folder / "program.c").write_text(source)
    compiler = cc.find_compiler()
    command = [*compiler.command, str(folder / "program.c"), "-o", str(folder / "program"), "-Wall", "-Werror",
               *library.options(folder / "lib")]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, **compiler.environment(folder)})
    return folder / "program"

# SPDX-License-Identifier: Apache-2.0
"""A page as headless Chromium renders it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
"""Names that the browser has on different systems."""


def program() -> str | None:
    """The browser's program, or None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def dump(url: str, *, within: float = 120, size: tuple[int, int] = (1280, 900)) -> str:
    """The page's document after its scripts have run for three seconds of the browser's own clock.

    size  of the window, in pixels
    """
    browser = program()
    assert browser is not None
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--window-size={size[0]},{size[1]}",
             f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--dump-dom", url],
            capture_output=True, text=True, timeout=within,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(document: str) -> list[tuple[str, str]]:
    """(classes, line) of the source lines in a page of softswitch's packets."""
    return re.findall(r'<div class="(row[^"]*)" data-file="[^"]*" data-line="(\d+)"', document)

# SPDX-License-Identifier: Apache-2.0
"""Writes docs/failures.md: `.venv/bin/python tests/support/handbook`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "softswitch" / "tests")]

from support.handbook import all_scenes, page

all_scenes()
page.PAGE.write_text(page.text())

# SPDX-License-Identifier: Apache-2.0
"""Writes docs/failures.md: `.venv/bin/python tests/support/handbook`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "softswitch" / "tests"))

from support.handbook import all_scenes, page

all_scenes()
page.PAGE.write_text(page.text())

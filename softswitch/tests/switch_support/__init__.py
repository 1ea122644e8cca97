# SPDX-License-Identifier: Apache-2.0
"""Common parts of the tests of the switch: references, stand-ins, P4Runtime clients, hosts on veth pairs.  NetFold's
tests use it, too; nothing here knows NetFold."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent.parent
ROOT: Final = TESTS.parent
"""The folder of the project softswitch."""
NATIVE: Final = TESTS / "switch_support" / "native"
"""Programs in P4 and C for tests."""

# SPDX-License-Identifier: Apache-2.0
"""Lines of logs have no characters that a terminal obeys, whoever brings them."""

from __future__ import annotations

import logging

import pytest

from softswitch.runtime.log_lines import Lines
from softswitch.tools.switch_output import Words


@pytest.mark.parametrize("formatter", [Lines("%(message)s"), Words()])
def test_what_a_terminal_would_obey_is_written_out(formatter: logging.Formatter) -> None:
    """Escapes and marks of direction; lines and words of other languages stay."""
    record = logging.LogRecord("any", logging.INFO, "", 0, "%s", ("\x1b[31mrot\u202e\r\nné",), None)
    assert formatter.format(record).endswith("\\x1b[31mrot\\u202e\\r\nné")

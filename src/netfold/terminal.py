# SPDX-License-Identifier: Apache-2.0
"""Where tables and sentences for people are printed: a terminal has a width, a pipe or a file has none.

rich takes a pipe for a terminal of 80 columns, or of COLUMNS: it wraps sentences and cuts the cells of tables there.
Whoever searches or parses such output would find other lines in another shell.

Reasons, names and messages come from other machines.  A `Terminal` (plain_console.py) takes them as they are: brackets
in them are no markup of rich, and control characters are printed as escapes (plain_text.py).  Colours are given beside
the text, by `said`.

rich is imported by what prints with it, and not by commands that print a line or JSON.
"""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING, Any, Final

from netfold.plain_text import clean

if TYPE_CHECKING:
    from rich.text import Text

    from netfold.plain_console import Terminal

UNLIMITED: Final = 1 << 20
"""Columns of a pipe or file: more than any line has."""
HELP_COLUMNS: Final = 120
"""Columns of --help and of usage errors in a pipe or file: these are paragraphs in boxes, which need some width."""


def said(*parts: str | tuple[str, str]) -> Text:
    """A text of parts, each plain or with a style such as "red"; cleaned."""
    from rich.text import Text

    return Text.assemble(*((clean(part), "") if isinstance(part, str) else (clean(part[0]), part[1]) for part in parts))


def console(file: IO[str] | None = None) -> Terminal:
    """A console on ``file`` (default: standard output): as wide as the terminal, if it is one; otherwise lines and
    cells come whole and without colours, whatever COLUMNS, TERM and FORCE_COLOR say."""
    from netfold.plain_console import Terminal

    if (file or sys.stdout).isatty():
        return Terminal(file=file)
    return Terminal(file=file, width=UNLIMITED, height=UNLIMITED, force_terminal=False, soft_wrap=True)


def help_settings() -> dict[str, Any]:
    """Settings of a typer app's first context that give --help and usage errors a fixed width, if they do not go to a
    terminal.  Call it before the command starts: typer reads TERMINAL_WIDTH once."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        return {}
    os.environ.setdefault("TERMINAL_WIDTH", str(HELP_COLUMNS))
    return {"terminal_width": HELP_COLUMNS}

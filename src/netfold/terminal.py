# SPDX-License-Identifier: Apache-2.0
"""Where tables and sentences for people are printed: a terminal has a width, a pipe or a file has none.

rich takes a pipe for a terminal of 80 columns, or of COLUMNS: it wraps sentences and cuts the cells of tables there.
Whoever searches or parses such output would find other lines in another shell.

Reasons, names and messages come from other machines.  A `Terminal` (plain_console.py) takes them as they are: brackets
in them are no markup of rich, and control characters, which could move the cursor, retitle the window or answer in the
user's name, are printed as escapes.  Colours are given beside the text, by `said`.

rich is imported by what prints with it, and not by commands that print a line or JSON.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from rich.text import Text

    from netfold.plain_console import Terminal

UNLIMITED: Final = 1 << 20
"""Columns of a pipe or file: more than any line has."""
HELP_COLUMNS: Final = 120
"""Columns of --help and of usage errors in a pipe or file: these are paragraphs in boxes, which need some width."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls but for tab and newline; marks that change the direction of text; halves of characters, which no
encoding can print."""


def clean(text: str) -> str:
    """Text from outside with its control characters as escapes, such as \\x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def said(*parts: str | tuple[str, str]) -> Text:
    """A text of parts, each plain or with a style such as "red"; cleaned."""
    from rich.text import Text

    return Text.assemble(*((clean(part), "") if isinstance(part, str) else (clean(part[0]), part[1]) for part in parts))


def json_line(message: msgspec.Struct) -> str:
    """A message in JSON, for programs and terminals alike: control characters stand there as JSON's own escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(message).decode())


class LogFormatter(logging.Formatter):
    """A log's lines, with control characters of what others said as escapes.  The further lines of a record are
    indented, so that nobody's reason can begin a line that looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        return clean(super().format(record)).replace("\n", "\n    ")


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

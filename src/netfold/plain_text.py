# SPDX-License-Identifier: Apache-2.0
"""Text from other machines as it may be printed: control characters, which could move the cursor, retitle the window or
answer in the user's name, stand there as escapes."""

from __future__ import annotations

import logging
import re
from typing import Final

import msgspec

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 and C1 controls but for tab and newline; marks that change the direction of text; halves of characters, which no
encoding can print."""


def clean(text: str) -> str:
    """Text from outside with its control characters as escapes, such as \\x1b."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def json_line(message: object) -> str:
    """A message as JSON by msgspec, for programs and terminals alike: control characters are JSON's own escapes."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", msgspec.json.encode(message).decode())


class LogFormatter(logging.Formatter):
    """A log's lines, with control characters of what others said as escapes.  The further lines of a record are
    indented, so that nobody's reason can begin a line that looks like a record."""

    def format(self, record: logging.LogRecord) -> str:
        """The lines of one record."""
        return clean(super().format(record)).replace("\n", "\n    ")

# SPDX-License-Identifier: Apache-2.0
"""Text for terminals and logs: programs, files and clients of strangers may contain anything."""

from __future__ import annotations


def clean(text: str, *, keep: str = "") -> str:
    """The text without what a terminal would obey or hide (ESC, marks of direction...), but for the characters in
    `keep`."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)

# SPDX-License-Identifier: Apache-2.0
"""rich's console for text that others have written."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from netfold.plain_text import clean


class Terminal(Console):
    """A console that takes strings as they are: no markup, no emoji codes, no control characters."""

    def render_str(self, text: str, **settings: Any) -> Text:
        """The text of a string that is printed, by itself or in a table's cell."""
        return super().render_str(clean(text), **{**settings, "markup": False, "emoji": False})

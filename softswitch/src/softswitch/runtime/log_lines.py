# SPDX-License-Identifier: Apache-2.0
"""Lines of logs in which programs and clients may have a say: messages of log_msg, names, errors."""

from __future__ import annotations

import logging

from softswitch.runtime.printable import clean


class Lines(logging.Formatter):
    """Log lines without such characters; what has several lines keeps them."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        text = super().format(record)
        return text if text.isprintable() else clean(text, keep="\n\t")

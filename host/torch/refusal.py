# SPDX-License-Identifier: Apache-2.0
"""A program whose group is refused ends with a message of one line, without a traceback, which would not show the
cause."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from netfold.host.errors import JoinRefused

VARIABLE = "NETFOLD_TRACEBACK"
"""Environment variable; 1: errors end programs with their traceback too."""


def without_traceback(refused: JoinRefused) -> None:
    """Makes the interpreter print this error without its traceback, if the program does not handle it."""
    if os.environ.get(VARIABLE) == "1":
        return
    before = sys.excepthook

    def said(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is refused:
            print(f"{kind.__module__}.{kind.__qualname__}: {error} ({VARIABLE}=1 shows the traceback)", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = said

# SPDX-License-Identifier: Apache-2.0
"""A rank's wait for the end of operations for which another rank, which wants to leave, may still be needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.02
"""Seconds between two looks at what has begun, while an operation is under way."""


def settle(begun: Callable[[], int], turn: threading.Lock, number: int, done: Callable[[], None]) -> None:
    """Calls ``done``, on a thread of its own, once operations up to ``number`` are finished.  Returns at once.

    begun  returns the highest number of an operation that has begun.  Where it is a later one, those are finished,
           since a rank makes one operation at a time
    turn   held while an operation is under way
    """

    def wait() -> None:
        while begun() <= number:
            if turn.acquire(timeout=LOOK_SECONDS):
                turn.release()
                break
        done()

    threading.Thread(target=wait, name="netfold-settle", daemon=True).start()

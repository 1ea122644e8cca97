# SPDX-License-Identifier: Apache-2.0
"""The election ids by which the controllers of a fabric claim its switches, and tell each other from strangers.

P4Runtime (specification, section 5) makes the client with the highest election id of 128 bits primary.  Ours are

    high 64 bits   milliseconds since 1970 when the controller started, or more where somebody else had more
    low 64 bits    HMAC-SHA256(fabric key, "election", high), cut to 64 bits

so that of two controllers the one that started last is primary, and each sees whether the one that took a switch from
it has the fabric's key.  A controller of the same fabric is a successor, to which it yields.  Anyone else is a
stranger: the controller claims the switch again with a higher id.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Final

from netfold.controller.switch.switch import SwitchError

_HALF: Final = 64
HIGHEST: Final = (1 << 2 * _HALF) - 1
"""The highest election id there is; above a stranger that has it there is nothing."""


class Superseded(SwitchError):
    """A later controller of the same fabric has taken a switch: this one yields.

    Remedy: nothing, if the newer controller was meant: this one yields to it. Else stop one of the two, or run one as
    standby (`netfold up --standby`).
    """


class Elections:
    """The election ids of one fabric.

    key  the fabric's key, which its controllers share
    now  milliseconds since 1970
    """

    def __init__(self, key: bytes, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._key = key
        self._now = now

    def first(self) -> int:
        """The id of a controller that starts now."""
        return self._sealed(self._now())

    def above(self, other: int) -> int:
        """An id of ours that is higher than another one; HIGHEST where there is none."""
        high = max(self._now(), (other >> _HALF) + 1)
        return self._sealed(high) if high < 1 << _HALF else HIGHEST

    def is_ours(self, number: int) -> bool:
        """Whether a controller with the fabric's key has made this id."""
        return hmac.compare_digest(number.to_bytes(16, "big"), self._sealed(number >> _HALF).to_bytes(16, "big"))

    def _sealed(self, high: int) -> int:
        seal = hmac.digest(self._key, b"election\0" + high.to_bytes(8, "big"), "sha256")[:8]
        return high << _HALF | int.from_bytes(seal, "big")


class Candidacy:
    """One controller's candidacy for one switch."""

    def __init__(self, elections: Elections) -> None:
        self._elections = elections
        self._was_primary = False
        self.number = elections.first()
        """The election id to arbitrate with."""
        self.others: set[int] = set()
        """Election ids of other clients that were primary since this controller has pushed the program."""
        self.trusts = elections.is_ours

    def won(self) -> None:
        """The switch has made this controller primary."""
        self._was_primary = True

    def lost(self, other: int, why: str) -> None:
        """Another client is primary, or has been with a higher id: the next attempt takes an id above it.  Raises
        Superseded where that is a later controller of this fabric and this one has had the switch before."""
        if self._was_primary and other > self.number and self._elections.is_ours(other):
            raise Superseded(f"{why}; it is a later controller of this fabric, to which this one yields")
        self.number = self._elections.above(max(other, self.number))

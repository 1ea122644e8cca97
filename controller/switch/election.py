# SPDX-License-Identifier: Apache-2.0
"""The election ids by which the controllers of a fabric claim its switches, and tell each other from strangers.

P4Runtime (specification, section 5) makes the client with the highest election id of 128 bits primary, and tells that
id to everybody.  Ours are

    44 bits  clock       milliseconds since 1970 when it was drawn, or more where somebody else had more
    42 bits  seal        HMAC-SHA256(fabric key, "seal", device id, clock), cut
    42 bits  succession  HMAC-SHA256(fabric key, "succession", device id, clock, the id that it outbids), cut

The seal tells the fabric's controllers from strangers.  It does not tell who uses an id, since a stranger can repeat
one that was told.  So a controller first looks which id is a switch's highest, and draws one above it, whose succession
covers it.  The controller that has the switch yields only to an id that covers one of its own: nobody without the key
can make it, it was made after this controller drew that id, and for this switch.  Anyone else is a stranger, whoever
made the id: the controller claims the switch again with a higher one.

With 42 bits, a stranger that tries 20,000 ids a second takes three years to find one.

A client that only looks, as a standby does, has an id of 63 bits, below any controller's: a number and its seal.  BMv2
makes it primary while there is no controller.  The next controller must not take it for a stranger.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from netfold.controller.switch.switch import SwitchError

_CLOCK_BITS: Final = 44
_SEAL_BITS: Final = 42
_LOW_BITS: Final = 2 * _SEAL_BITS
_LOOKING_BITS: Final = 21
HIGHEST: Final = (1 << _CLOCK_BITS + _LOW_BITS) - 1
"""The highest election id; a foreign client that holds it cannot be outbid."""
REMEMBERED: Final = 64
"""Own election ids for one switch that a successor may cover: a foreign client may outbid this controller between a
successor's look and its claim."""


class Superseded(SwitchError):
    """A later controller of the same fabric has taken a switch: this one yields.

    Remedy: nothing, if the newer controller was intended: this one yields to it.  Otherwise stop one of the two, or run
    one as standby (`netfold up --standby`).
    """


class Elections:
    """The election ids of one fabric for one switch.

    key        the fabric's key, which its controllers share
    device_id  of the switch
    now        milliseconds since 1970
    """

    def __init__(
        self, key: bytes, device_id: int, now: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._key = key
        self._device = device_id.to_bytes(8, "big")
        self._now = now

    def above(self, other: int) -> int:
        """An id of ours that is higher than another one and covers it; HIGHEST where there is none."""
        clock = max(self._now(), (other >> _LOW_BITS) + 1)
        if clock >= 1 << _CLOCK_BITS:
            return HIGHEST
        return clock << _LOW_BITS | self._seal(clock) << _SEAL_BITS | self._succession(clock, other)

    def is_ours(self, number: int) -> bool:
        """True if a holder of the fabric's key has made this id for this switch; a foreign client may repeat it."""
        return _same(number >> _SEAL_BITS & (1 << _SEAL_BITS) - 1, self._seal(number >> _LOW_BITS))

    def succeeds(self, number: int, other: int) -> bool:
        """True if a holder of the fabric's key has made an id for this switch after seeing the other one."""
        covers = self._succession(number >> _LOW_BITS, other)
        return self.is_ours(number) and _same(number & (1 << _SEAL_BITS) - 1, covers)

    def looking(self) -> int:
        """An id of a client that only looks."""
        number = 1 + secrets.randbelow((1 << _LOOKING_BITS) - 1)
        return number << _SEAL_BITS | self._cut(b"looking\0", number)

    def is_looking(self, number: int) -> bool:
        """True if a holder of the fabric's key has made this id to look at this switch."""
        high = number >> _SEAL_BITS
        seal = number & (1 << _SEAL_BITS) - 1
        return 0 < high < 1 << _LOOKING_BITS and _same(seal, self._cut(b"looking\0", high))

    def is_trusted(self, number: int) -> bool:
        """True if a holder of the fabric's key has made this id for this switch, to control it or to look."""
        return self.is_ours(number) or self.is_looking(number)

    def _seal(self, clock: int) -> int:
        return self._cut(b"seal\0", clock)

    def _succession(self, clock: int, other: int) -> int:
        return self._cut(b"succession\0", clock, other.to_bytes(16, "big"))

    def _cut(self, purpose: bytes, clock: int, other: bytes = b"") -> int:
        said = b"election\0" + purpose + self._device + clock.to_bytes(8, "big") + other
        return int.from_bytes(hmac.digest(self._key, said, "sha256")[:8], "big") >> 64 - _SEAL_BITS


def _same(one: int, other: int) -> bool:
    return hmac.compare_digest(one.to_bytes(8, "big"), other.to_bytes(8, "big"))


class Candidacy:
    """One controller's candidacy for one switch.

    seen  the election id of the switch's last primary, where somebody watched it: some switches forget it
    """

    def __init__(self, elections: Elections, seen: int = 0) -> None:
        self._elections = elections
        self._seen = seen
        self._mine: deque[int] = deque(maxlen=REMEMBERED)
        self.others: set[int] = set()
        """Election ids of foreign clients that were primary since this controller has pushed the program."""

        self.looking = elections.looking

    @property
    def number(self) -> int:
        """The election id to arbitrate with; 0 before `claim`."""
        return self._mine[-1] if self._mine else 0

    def claim(self, highest: int) -> int:
        """An election id above the highest one that the switch has had, which the switch tells; 0: it has had none."""
        if highest and not self._elections.is_trusted(highest):
            self.others.add(highest)
        self._mine.append(self._elections.above(max(highest, self._seen)))
        return self.number

    def trusts(self, other: int) -> bool:
        """True if another client's id belongs to another controller or standby of this fabric.  If another client holds
        one of this controller's own ids, that client is foreign."""
        return other not in self._mine and self._elections.is_trusted(other)

    def yields_to(self, other: int) -> bool:
        """True if another client's id proves that it is a later controller of this fabric."""
        return other not in self._mine and any(self._elections.succeeds(other, mine) for mine in self._mine)

    def lost(self, other: int, why: str) -> None:
        """Another client is primary, or has been with a higher id: the next attempt takes an id above it.  Raises
        Superseded where that is a later controller of this fabric."""
        if self.yields_to(other):
            raise Superseded(f"{why}; it is a later controller of this fabric, to which this one yields")
        self._mine.append(self._elections.above(max(other, self.number)))

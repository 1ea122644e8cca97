# SPDX-License-Identifier: Apache-2.0
"""ClearToSend-to-send: how a receiver tells a sender where its next messages may go, and how both match them.

    receiver                                              sender
    receive(): registers the memory,
               WRITEs a clear-to-send (96 bytes) ------->  into its inbox, one ring of slots for each peer
                                                           send(): takes the oldest one of the same tag
               memory is filled          <---------------  WRITEs the data, in one piece for each queue pair
    done: all pieces are whole                             done: all pieces are acknowledged

So data never arrives where no memory waits for it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from netfold.host.errors import RankMismatch
from netfold.host.mesh.connected import SAME_ORDER_HINT
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.operation.arrays import Flat

SLOTS: Final = 64
"""Receives that one rank may have posted at another before the next waits for one to be done."""
_CLEAR: Final = struct.Struct("!QQIIHH68s")
TEXT: Final = 68
"""Bytes of a call's text that fit."""
NBYTES: Final = _CLEAR.size


class ClearToSend(NamedTuple):
    """What the 96 bytes say."""

    number: int
    """Of the call."""
    nbytes: int
    tag: int
    key: int
    """Of the memory."""
    path_mtu: int
    queue_pairs: int
    text: bytes
    """Of the call, cut."""

    def pack(self) -> Flat:
        """As it is written."""
        return np.frombuffer(_CLEAR.pack(*self), np.uint8)

    @classmethod
    def unpack(cls, data: bytes) -> ClearToSend:
        """As it was written."""
        clear = cls._make(_CLEAR.unpack(data))
        return clear._replace(text=clear.text.rstrip(b"\0"))


class Message(Pending):
    """One posted end of a message.  ``left``: pieces (of a send) or bytes (of a receive) that are still to come."""

    __slots__ = ("array", "call", "key", "left", "tag")

    def __init__(self, array: Flat, tag: int, call: tuple[int, bytes], left: int = 0) -> None:
        super().__init__()
        self.array = array
        self.tag = tag
        self.call = call
        self.key = -1
        self.left = left


@dataclass(eq=False)
class PeerTransfers:
    """Our end of what goes on with one peer."""

    rank: int
    inbox: Flat = field(default_factory=lambda: np.zeros(SLOTS * NBYTES, np.uint8))
    """Where the peer writes its clears."""
    sends: list[Message] = field(default_factory=list)
    """Posted and not done."""
    unmatched: deque[Message] = field(default_factory=deque)
    """Those of them without a clear-to-send."""
    clear_to_sends: list[ClearToSend] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    """Posted and not done."""
    ungranted: deque[Message] = field(default_factory=deque)
    """Those of them that the peer does not know of yet."""
    _granted: int = 0

    @property
    def busy(self) -> bool:
        """Something is posted."""
        return bool(self.sends or self.receives)

    def clear_at(self, offset: int) -> ClearToSend:
        """What the peer has written there."""
        return ClearToSend.unpack(bytes(self.inbox[offset : offset + NBYTES]))

    def grant(self) -> Iterator[tuple[Message, int]]:
        """Receives that the peer may learn of now, and the offsets in its inbox where."""
        while self.ungranted and len(self.receives) - len(self.ungranted) < SLOTS:
            message = self.ungranted.popleft()
            slot = self._granted % SLOTS
            self._granted += 1
            yield message, slot * NBYTES

    def match(self, call: Call) -> Iterator[tuple[Message, int]]:
        """Sends that the peer is ready for, and the keys of the memory.  Raises RankMismatch."""
        for message in list(self.unmatched):
            stray = next((clear for clear in self.clear_to_sends if (clear.number, clear.text) != message.call), None)
            if stray is not None:
                theirs = Call(stray.number, stray.text.decode(errors="replace"))
                raise RankMismatch(f"rank {self.rank} is at {theirs}; expected {call}; {SAME_ORDER_HINT}")
            clear = next((clear for clear in self.clear_to_sends if clear.tag == message.tag), None)
            if clear is None:
                continue
            if clear.nbytes != message.array.nbytes:
                raise RankMismatch(
                    f"rank {self.rank} expects {clear.nbytes} bytes where this rank sends {message.array.nbytes} "
                    f"(tag {message.tag}); {SAME_ORDER_HINT}"
                )
            self.clear_to_sends.remove(clear)
            self.unmatched.remove(message)
            yield message, clear.key

    def drop(self) -> None:
        """Forgets everything that is posted."""
        for posted in (self.sends, self.unmatched, self.receives, self.ungranted):
            posted.clear()

    def describe_missing(self) -> str:
        """What is missing, for people."""
        parts = []
        if self.receives:
            parts.append(f"has not sent {sum(message.left for message in self.receives)} bytes")
        if self.sends:
            unready, rest = len(self.unmatched), len(self.sends) - len(self.unmatched)
            parts.append(f"is not ready for {unready} messages and has not acknowledged {rest}")
        return " and ".join(parts) or "has nothing to send or acknowledge"

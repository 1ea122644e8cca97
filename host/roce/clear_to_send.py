# SPDX-License-Identifier: Apache-2.0
"""Clear-to-send: how a receiver tells a sender where its next messages may be written, and how both are matched.

    receiver                                              sender
    receive(): registers the memory,
               WRITEs a clear-to-send (96 bytes) ------->  into its inbox, one ring of entries for each peer
                                                           send(): takes the oldest one of the same tag
               memory is filled          <---------------  WRITEs the data, in one piece for each queue pair
    done: all pieces have arrived                          done: all pieces are acknowledged

So data never arrives where no memory is ready for it.
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

INBOX_ENTRIES: Final = 64
"""Receives that one rank may have announced to another at a time; further ones wait until one of them is done."""
_CLEAR: Final = struct.Struct("!QQIIHH68s")
TEXT_BYTES: Final = 68
"""Bytes of the call's text that a clear-to-send has room for."""
ENTRY_BYTES: Final = _CLEAR.size


class ClearToSend(NamedTuple):
    """The content of a clear-to-send, 96 bytes."""

    number: int
    """Number of the call."""
    nbytes: int
    tag: int
    key: int
    """Remote key of the receiver's memory."""
    path_mtu: int
    queue_pairs: int
    text: bytes
    """Text of the call, cut to ``TEXT_BYTES`` bytes."""

    def pack_into(self, memory: Flat, offset: int) -> None:
        """Writes the bytes of the clear-to-send to this place in an array of bytes."""
        _CLEAR.pack_into(memory, offset, *self)  # type: ignore[arg-type]

    @classmethod
    def unpack(cls, data: bytes) -> ClearToSend:
        """The clear-to-send with these bytes."""
        clear = cls._make(_CLEAR.unpack(data))
        return clear._replace(text=clear.text.rstrip(b"\0"))


class Message(Pending):
    """A posted send, or receive; ``left`` are pieces of a send that the peer has not acknowledged yet."""

    __slots__ = ("array", "call", "key", "left", "sends", "tag")

    def __init__(self, array: Flat, tag: int, call: tuple[int, bytes], *, sends: bool) -> None:
        super().__init__()
        self.array = array
        self.tag = tag
        self.call = call
        self.key = -1
        self.sends = sends
        self.left = 0

    def registered(self, key: int) -> None:
        """Records the key with which the peer may write to its memory."""
        self.key = key

    def cut(self, pieces: int) -> None:
        """Records into how many pieces the send is split."""
        self.left = pieces

    def progress(self, count: int) -> bool:
        """Counts more pieces as done.  Returns whether all are; then the send is finished."""
        self.left -= count
        if not self.left:
            self.finish()
        return self.done


@dataclass(eq=False)
class PeerTransfers:
    """All transfers with one peer that are posted on this rank, and the peer's clear-to-sends."""

    rank: int
    inbox: Flat = field(default_factory=lambda: np.zeros(INBOX_ENTRIES * ENTRY_BYTES, np.uint8))
    """Memory into which the peer writes its clear-to-sends."""
    _outbox: Flat = field(default_factory=lambda: np.zeros(INBOX_ENTRIES * ENTRY_BYTES, np.uint8))
    """The same for ours, which leave from here.  A place is free once its receive is done: then the peer has read what
    stood there, and drops what comes of it again."""
    sends: list[Message] = field(default_factory=list)
    """Sends that are posted and not done."""
    unmatched: deque[Message] = field(default_factory=deque)
    """Posted sends for which no clear-to-send has arrived."""
    clear_to_sends: list[ClearToSend] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    """Receives that are posted and not done."""
    ungranted: deque[Message] = field(default_factory=deque)
    """Posted receives for which no clear-to-send has been sent."""
    _granted: int = 0

    def __post_init__(self) -> None:
        self._outbox_address = self._outbox.ctypes.data

    @property
    def busy(self) -> bool:
        """Whether anything is posted and not done."""
        return bool(self.sends or self.receives)

    def clear_at(self, offset: int) -> ClearToSend:
        """The clear-to-send that the peer has written at this offset of the inbox."""
        return ClearToSend.unpack(bytes(self.inbox[offset : offset + ENTRY_BYTES]))

    def put_clear_to_send(self, clear: ClearToSend, offset: int) -> int:
        """Puts a clear-to-send for this offset of the peer's inbox where it can leave from; returns its address."""
        clear.pack_into(self._outbox, offset)
        return self._outbox_address + offset

    def grant(self) -> Iterator[tuple[Message, int]]:
        """Yields receives that the peer may be told of now, each with the offset in the peer's inbox for its
        clear-to-send."""
        while self.ungranted and len(self.receives) - len(self.ungranted) < INBOX_ENTRIES:
            message = self.ungranted.popleft()
            slot = self._granted % INBOX_ENTRIES
            self._granted += 1
            yield message, slot * ENTRY_BYTES

    def match(self, call: Call) -> Iterator[tuple[Message, int]]:
        """Yields sends for which a clear-to-send has arrived, each with the key of the receiver's memory.  Raises
        RankMismatch."""
        if not self.clear_to_sends:
            return
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

    def describe_missing(self, unfilled: int) -> str:
        """What the peer has not sent, granted or acknowledged yet, in words.  ``unfilled``: bytes that the receives
        lack."""
        parts = []
        if self.receives:
            parts.append(f"has not sent {unfilled} bytes")
        if self.sends:
            unready, rest = len(self.unmatched), len(self.sends) - len(self.unmatched)
            parts.append(f"is not ready for {unready} messages and has not acknowledged {rest}")
        return " and ".join(parts) or "has nothing to send or acknowledge"

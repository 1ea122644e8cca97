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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np

from netfold.host.errors import RankMismatch
from netfold.host.mesh.mesh import Call, Pending
from netfold.host.mesh.operations import SAME_ORDER_HINT
from netfold.host.operation.arrays import Flat

INBOX_ENTRIES: Final = 64
"""Most receives that one rank may have announced to another at a time; further ones wait until one of them is done."""
_CLEAR: Final = struct.Struct("!QQIIHH68s")
TEXT_BYTES: Final = 68
"""Most bytes of the call's text in a clear-to-send."""
ENTRY_BYTES: Final = _CLEAR.size


Label = tuple[int, bytes, int]
"""The number of a call, its text (``call_text``), and a message's tag.  A send is written to the memory of the oldest
receive with the same label."""


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
    """Text of the call, cut and padded with zeros to ``TEXT_BYTES`` bytes."""

    @property
    def label(self) -> Label:
        """The label of the receive that it announces."""
        return self.number, self.text, self.tag

    def pack_into(self, memory: Flat, offset: int) -> None:
        """Writes the bytes of the clear-to-send to this place in an array of bytes."""
        _CLEAR.pack_into(memory, offset, *self)  # type: ignore[arg-type]

    @classmethod
    def unpack_from(cls, memory: Flat, offset: int) -> ClearToSend:
        """The clear-to-send whose bytes are at this place in an array of bytes."""
        return cls._make(_CLEAR.unpack_from(memory, offset))  # type: ignore[arg-type]


def call_text(call: Call) -> bytes:
    """The text of a call as a clear-to-send has it."""
    return call.text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0")


class Message(Pending):
    """A posted send, or receive.

    array   its memory; ``address`` and ``nbytes`` are that memory's
    label   number and text of the call, as ``call_text`` has it, and tag
    left    pieces of a send that the peer has not acknowledged yet
    """

    __slots__ = ("address", "array", "key", "label", "left", "nbytes", "sends")

    def __init__(self, array: Flat, label: Label, *, sends: bool) -> None:
        super().__init__()
        self.array = array
        self.address = int(array.__array_interface__["data"][0])
        self.nbytes = array.nbytes
        self.label = label
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
    """The same for our clear-to-sends, which are sent from here.  A place is free once its receive is done: then the
    peer has read the clear-to-send, and drops repetitions of it."""
    sends: list[Message] = field(default_factory=list)
    """Sends that are posted and not done."""
    _unmatched: dict[Label, deque[Message]] = field(default_factory=dict)
    """Label -> posted sends for which no clear-to-send has arrived, in the order posted; labels without any are
    absent."""
    _unused: dict[Label, deque[ClearToSend]] = field(default_factory=dict)
    """Label -> clear-to-sends for which no send is posted, in the order of arrival; labels without any are absent."""
    receives: list[Message] = field(default_factory=list)
    """Receives that are posted and not done."""
    ungranted: deque[Message] = field(default_factory=deque)
    """Posted receives for which no clear-to-send has been sent."""
    _granted: int = 0

    def __post_init__(self) -> None:
        self._outbox_address = self._outbox.ctypes.data

    @property
    def busy(self) -> bool:
        """True if anything is posted and not done."""
        return bool(self.sends or self.receives)

    def clear_at(self, offset: int) -> ClearToSend:
        """The clear-to-send that the peer has written at this offset of the inbox."""
        return ClearToSend.unpack_from(self.inbox, offset)

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

    def post_send(self, message: Message) -> ClearToSend | None:
        """Adds a send.  Returns the clear-to-send that it goes with, or None where none has arrived yet.  Raises
        RankMismatch."""
        self.sends.append(message)
        clear = _take_oldest(self._unused, message.label)
        if clear is None:
            self._check_calls(message.label, self._unused)
            self._unmatched.setdefault(message.label, deque()).append(message)
        else:
            self._check_size(clear, message)
        return clear

    def take_clear_to_send(self, clear: ClearToSend) -> Message | None:
        """Takes a clear-to-send that has arrived.  Returns the send that it goes with, or None where none is posted
        yet.  Raises RankMismatch."""
        message = _take_oldest(self._unmatched, clear.label)
        if message is None:
            self._unused.setdefault(clear.label, deque()).append(clear)
            for label in self._unmatched:
                self._check_calls(label, self._unused)
        else:
            self._check_size(clear, message)
        return message

    def _check_calls(self, label: Label, unused: Iterable[Label]) -> None:
        """Raises RankMismatch where a clear-to-send is of another call than a send with this label."""
        for number, text, _ in unused:
            if (number, text) != label[:2]:
                theirs, expected = _call(number, text), _call(*label[:2])
                raise RankMismatch(f"rank {self.rank} is at {theirs}; expected {expected}; {SAME_ORDER_HINT}")

    def _check_size(self, clear: ClearToSend, message: Message) -> None:
        if clear.nbytes != message.nbytes:
            raise RankMismatch(
                f"rank {self.rank} expects {clear.nbytes} bytes where this rank sends {message.nbytes} "
                f"(tag {clear.tag}); {SAME_ORDER_HINT}"
            )

    def drop(self) -> None:
        """Forgets everything that is posted."""
        for posted in (self.sends, self._unmatched, self.receives, self.ungranted):
            posted.clear()

    def describe_missing(self, unfilled: int) -> str:
        """The data that the peer has not sent, granted or acknowledged yet, in words.  ``unfilled``: bytes that the
        receives lack."""
        parts = []
        if self.receives:
            parts.append(f"has not sent {unfilled} bytes")
        if self.sends:
            unready = sum(map(len, self._unmatched.values()))
            rest = len(self.sends) - unready
            parts.append(f"is not ready for {unready} messages and has not acknowledged {rest}")
        return " and ".join(parts) or "has nothing to send or acknowledge"


_Queued = TypeVar("_Queued")


def _take_oldest(queues: dict[Label, deque[_Queued]], label: Label) -> _Queued | None:
    """Removes what was queued first with this label, if anything was."""
    queue = queues.get(label)
    if queue is None:
        return None
    oldest = queue.popleft()
    if not queue:
        del queues[label]
    return oldest


def _call(number: int, text: bytes) -> Call:
    return Call(number, text.rstrip(b"\0").decode(errors="replace"))

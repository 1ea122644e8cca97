# SPDX-License-Identifier: Apache-2.0
"""Pinned memory in buffers of a few sizes, which are used again and again, since to pin memory takes long."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Final, Protocol

import torch

LEAST: Final = 1 << 16
"""Bytes of the smallest buffer."""
AHEAD: Final = 256 << 20
"""Bytes of buffers up to which copies are made before their turn, and most bytes of unused buffers that are kept."""


class LastUse(Protocol):
    """The end of the copies that use a buffer (``device.DeviceEvent``)."""

    def query(self) -> bool:
        """True once they are done."""


class Pool:
    """Buffers whose sizes are powers of two, for all threads.

    make  returns so many bytes of pinned memory, uint8
    """

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[torch.Tensor]] = defaultdict(list)
        self._returning: deque[tuple[LastUse, torch.Tensor]] = deque()
        """Returned buffers, with the event after which copies no longer use them."""
        self.taken = 0
        """Bytes of buffers in use, including those that copies still use."""
        self.lost: list[object] = []
        """What holds memory that a device which has failed may still use, and which is therefore never used again."""
        self._kept = 0

    def take(self, nbytes: int, *, if_room: bool = False) -> torch.Tensor | None:
        """A buffer of so many bytes or more.

        if_room  return None where more than ``AHEAD`` bytes would be in use
        """
        size = max(LEAST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._reclaim()
            if if_room and self.taken + size > AHEAD:
                return None
            self.taken += size
            if self._free[size]:
                self._kept -= size
                return self._free[size].pop()
        try:
            return self._make(size)
        except BaseException:
            with self._lock:
                self.taken -= size
            raise

    @property
    def full(self) -> bool:
        """True if more than ``AHEAD`` bytes are in use."""
        with self._lock:
            self._reclaim()
            return self.taken > AHEAD

    def give(self, buffer: torch.Tensor, after: LastUse) -> None:
        """Takes a buffer back, which is used again after this event.  It never waits: another thread may ask a driver
        for events meanwhile."""
        self._returning.append((after, buffer))

    def forget(self, buffer: torch.Tensor) -> None:
        """A buffer does not come back: its memory lives as long as somebody has it."""
        with self._lock:
            self.taken -= buffer.numel()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _reclaim(self) -> None:
        for _ in range(len(self._returning)):
            event, buffer = self._returning.popleft()
            if event.query():
                self._keep(buffer)
            else:
                self._returning.append((event, buffer))

    def _keep(self, buffer: torch.Tensor) -> None:
        size = buffer.numel()
        self.taken -= size
        if self._kept + size <= AHEAD:
            self._kept += size
            self._free[size].append(buffer)

# SPDX-License-Identifier: Apache-2.0
"""Leases that end when a test says so: a machine that stands still does not end them before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

LEASE: Final = 997.0
"""The lease of a fabric whose leases a test ends, in seconds: no other wait is as long."""


class Leases:
    """All waits of LEASE seconds that begin on the running loop from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        self._waits: list[tuple[asyncio.TimerHandle, Callable[[], None]]] = []
        self._call_later = loop.call_later
        monkeypatch.setattr(loop, "call_later", self._later)

    def end(self) -> None:
        """Let what waits for the end of a lease go on at once, as after LEASE seconds."""
        waits = [(handle, call) for handle, call in self._waits if not handle.cancelled()]
        assert waits, "nobody waits for the end of a lease"
        self._waits.clear()
        for handle, call in waits:
            handle.cancel()
            call()

    def _later(self, delay: float, callback: Callable[..., object], *args: Any, **named: Any) -> asyncio.TimerHandle:
        handle = self._call_later(delay, callback, *args, **named)
        if delay == LEASE:
            self._waits.append((handle, lambda: (callback(*args), None)[1]))
        return handle

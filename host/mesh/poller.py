# SPDX-License-Identifier: Apache-2.0
"""A poller with one file descriptor that stands for all that it watches, so that native code can wait for them."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable
from typing import Protocol


class HasFileno(Protocol):
    """An object with a file descriptor, such as a socket."""

    def fileno(self) -> int:
        """The descriptor."""


class Poller:
    """The methods of ``select.poll``, by epoll.  Its own descriptor is readable while any watched one is ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: set[int] = set()

    def fileno(self) -> int:
        """The descriptor that stands for all."""
        return self._epoll.fileno()

    def register(self, fd: int | HasFileno, events: int) -> None:
        """Watches a descriptor for these events of poll(2), whose numbers are those of epoll(7)."""
        number = number_of(fd)
        if number in self._watched:
            self._epoll.modify(number, events)
        else:
            self._epoll.register(number, events)
            self._watched.add(number)

    def modify(self, fd: int | HasFileno, events: int) -> None:
        """Watches a descriptor for other events from now on."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int | HasFileno) -> None:
        """Stops watching a descriptor.  Raises KeyError where it is not watched."""
        number = number_of(fd)
        self._watched.remove(number)
        with contextlib.suppress(OSError):  # it was closed before, which ends the watch as well
            self._epoll.unregister(number)

    def poll(self, milliseconds: float) -> Iterable[tuple[int, int]]:
        """The descriptors that are ready, each with its events, once any is or this time has passed."""
        return self._epoll.poll(milliseconds / 1000, max(1, len(self._watched)))


class Registered:
    """Descriptors with the events of poll(2) that each is registered for, changed only where they differ."""

    def __init__(self, poller: select.poll | Poller) -> None:
        self._poller = poller
        self._events: dict[int, int] = {}

    def watch(self, fd: int | HasFileno, events: int) -> None:
        """Registers for these events, from now on.  Without any it is not registered at all: poll reports a hang-up
        even then, and whoever polls would spin on it."""
        number = number_of(fd)
        before = self._events.get(number, 0)
        if events == before:
            return
        self._events[number] = events
        if not before:
            self._poller.register(number, events)
        elif events:
            self._poller.modify(number, events)
        else:
            self._poller.unregister(number)

    def forget(self, fd: int | HasFileno) -> None:
        """Is told that a descriptor is going to be closed."""
        if self._events.pop(number_of(fd), 0):
            self._poller.unregister(fd)


def number_of(fd: int | HasFileno) -> int:
    """A descriptor's number."""
    return fd if isinstance(fd, int) else fd.fileno()

# SPDX-License-Identifier: Apache-2.0
"""Streams that wait for the host: for a word in pinned memory, which the host raises.

NVIDIA's driver has ``cuStreamWaitValue32`` for this, AMD's ``hipStreamWaitValue32``.  They may deadlock: a driver may
put the work of several streams into one queue of the hardware, in the order in which it is given, and does not know
what a raised word depends on.  So whatever the host does before it raises a word may only need work that the device was
given before that wait (``chain``).

None of this has run on a device yet.  ``device.tried`` therefore asks each device once for what the rest relies on.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Word = NDArray[np.uint32]
"""One element in pinned memory."""
WORD_BYTES: Final = 4
ORDERED: Final = ("x86_64", "amd64")
"""Processors whose stores others see in the order of the program, so that a result comes before the word that tells of
it."""


class StreamFlags(Protocol):
    """Waits of one device's streams for words."""

    def wait(self, stream: Any, word: Word, value: int) -> None:
        """Lets what this stream is given from now on begin once the word has come to the value.  Raises RuntimeError
        if the device refuses."""

    def raise_to(self, word: Word, value: int) -> None:
        """Sets a word, from any thread, after all that this thread has written."""


@dataclass(frozen=True)
class Driver:
    """A driver's function that lets a stream wait until a word is at least a value.

    libraries  names of its library, of which one is found
    names      of the function, the newest first; they take a stream, an address, a value, and ``rest``
    """

    name: str
    libraries: Sequence[str]
    names: Sequence[str]
    rest: Sequence[int]


CUDA: Final = Driver("CUDA's driver", ("libcuda.so.1",), ("cuStreamWaitValue32_v2", "cuStreamWaitValue32"), (0,))
HIP: Final = Driver(
    "HIP", ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"), ("hipStreamWaitValue32",), (0, 0xFFFFFFFF)
)


class DriverFlags:
    """Implements ``StreamFlags`` by a driver's library.

    on    a context in which the calling thread works on a stream's device
    load  opens a library by its name
    Raises ValueError where there is no such library or function, or the processor's stores have no order.
    """

    def __init__(
        self, driver: Driver, on: Callable[[Any], AbstractContextManager[object]],
        load: Callable[[str], Any] = ctypes.CDLL, machine: str = "",
    ) -> None:
        processor = machine or platform.machine()
        if processor.lower() not in ORDERED:
            raise ValueError(f"on {processor} others see the host's stores in any order: expected {ORDERED[0]}")
        self._driver, self._on = driver, on
        library = _first(driver.libraries, load, OSError)
        if library is None:
            raise ValueError(f"{driver.name}: none of {', '.join(driver.libraries)} can be loaded")
        self._wait = _first(driver.names, lambda name: getattr(library, name), AttributeError)
        if self._wait is None:
            raise ValueError(f"{driver.name} has no function {driver.names[0]}: install a newer driver")
        self._wait.argtypes = [
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, *(ctypes.c_uint32 for _ in driver.rest)
        ]
        self._wait.restype = ctypes.c_int

    def wait(self, stream: Any, word: Word, value: int) -> None:
        """See ``StreamFlags``.  Other threads run meanwhile, as the driver may wait for room in a queue."""
        with self._on(stream):
            status = self._wait(stream.cuda_stream, word.ctypes.data, value, *self._driver.rest)
        if status:
            raise RuntimeError(f"{self._driver.name} refuses that a stream waits for a word: error {status}")

    def raise_to(self, word: Word, value: int) -> None:
        """See ``StreamFlags``."""
        word[0] = value


class HostCopies:
    """The calls under way whose copies the host begins in their turn, of all groups, on one device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, call: object) -> None:
        """Adds a call."""
        with self._lock:
            self._calls.add(call)

    def discard(self, call: object) -> None:
        """The call is over, or is one of them no longer."""
        with self._lock:
            self._calls.discard(call)

    def others(self, call: object) -> int:
        """Number of them beside this one."""
        with self._lock:
            return len(self._calls) - (call in self._calls)


def flags_of(place: torch.device, on: Callable[[Any], AbstractContextManager[object]]) -> DriverFlags:
    """The waits of torch's accelerator.  Raises ValueError."""
    if place.type != "cuda":
        raise ValueError(f"no function of {place.type}'s driver is known by which a stream waits for the host")
    return DriverFlags(HIP if torch.version.hip else CUDA, on)


def word_of(buffer: torch.Tensor) -> Word:
    """The word at the beginning of pinned memory, set to 0."""
    word: Word = buffer[:WORD_BYTES].numpy().view(np.uint32)
    word[0] = 0
    return word


def _first(names: Sequence[str], find: Callable[[str], Any], missing: type[Exception]) -> Any:
    for name in names:
        try:
            return find(name)
        except missing:
            continue
    return None

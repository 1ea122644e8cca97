# SPDX-License-Identifier: Apache-2.0
"""Streams and the host that wait for each other by words in pinned memory, which the other side raises.

NVIDIA's driver has ``cuStreamWaitValue32`` and ``cuStreamWriteValue32`` for this, and AMD's has the same.  They may
deadlock: a driver may put the work of several streams into one queue of the hardware, in the order in which it is
given, and does not know what a raised word depends on.  So whatever the host does before it raises a word may only need
work that the device was given before that wait (``chain``).  And a thread for which the driver has no room in a queue
may hold the driver's locks.  So the thread that raises words does not call the driver, but reads the words that streams
write.  Python's cycle collector may yet free a program's tensors on it, which takes locks (``docs/torch.md``).

None of this has run on a device yet.  ``device.tried`` therefore asks each device once for what the rest relies on.
"""

from __future__ import annotations

import ctypes
import platform
import threading
import time
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
APART: Final = 256
"""Bytes between two words, which are written from two sides."""
PAIR_BYTES: Final = APART + WORD_BYTES
LOOK_SECONDS: Final = 1.0
"""Time between two questions whether anybody will raise the word that the host waits for."""
LONGEST_SLEEP: Final = 5e-4
"""Seconds between two looks at a word at the most."""
ORDERED: Final = ("x86_64", "amd64")
"""Processors whose stores others see in the order of the program, so that a result comes before the word that tells of
it."""


class StreamFlags(Protocol):
    """Waits of one device's streams for words."""

    def wait(self, stream: Any, word: Word, value: int) -> None:
        """Lets what this stream is given from now on begin once the word has come to the value.  Raises RuntimeError
        if the device refuses."""

    def tell(self, stream: Any, word: Word, value: int) -> None:
        """Lets the stream set a word after all that it was given so far.  Raises RuntimeError likewise."""

    def raise_to(self, word: Word, value: int) -> None:
        """Sets a word, from any thread, after all that this thread has written."""

    def told(self, word: Word, value: int, stops: Callable[[], bool], seconds: float) -> None:
        """Waits until a word has come to this value.  Other threads run meanwhile.  Raises TimeoutError.

        stops  called now and then: True if nobody will raise it.  It asks no driver
        """


@dataclass(frozen=True)
class Driver:
    """A driver's functions, which take a stream, an address, a value, and more.

    libraries    names of its library, of which one is found
    waits, rest  a stream waits until a word is at least a value: names, the newest first, and the further arguments
    writes       a stream writes a word: names, the newest first, of functions that take a zero as well
    """

    name: str
    libraries: Sequence[str]
    waits: Sequence[str]
    rest: Sequence[int]
    writes: Sequence[str]


CUDA: Final = Driver(
    "CUDA's driver", ("libcuda.so.1",), ("cuStreamWaitValue32_v2", "cuStreamWaitValue32"), (0,),
    ("cuStreamWriteValue32_v2", "cuStreamWriteValue32"),
)
HIP: Final = Driver(
    "HIP", ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"), ("hipStreamWaitValue32",), (0, 0xFFFFFFFF),
    ("hipStreamWriteValue32",),
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
        self._waits, self._writes = (self._function(library, names) for names in (driver.waits, driver.writes))

    def wait(self, stream: Any, word: Word, value: int) -> None:
        """See ``StreamFlags``."""
        self._call(self._waits, stream, word, value, self._driver.rest)

    def tell(self, stream: Any, word: Word, value: int) -> None:
        """See ``StreamFlags``: by default the driver's functions put a fence before the word."""
        self._call(self._writes, stream, word, value, (0,))

    def raise_to(self, word: Word, value: int) -> None:
        """See ``StreamFlags``."""
        word[0] = value

    def told(self, word: Word, value: int, stops: Callable[[], bool], seconds: float) -> None:
        """See ``StreamFlags``."""
        begun = time.monotonic()
        pause, next_look = 1e-5, begun + LOOK_SECONDS
        while word[0] < value:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
            if time.monotonic() >= next_look:
                if stops():
                    return
                next_look = time.monotonic() + LOOK_SECONDS
            if time.monotonic() - begun >= seconds:
                raise TimeoutError(late(seconds))

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _function(self, library: Any, names: Sequence[str]) -> Any:
        function = _first(names, lambda name: getattr(library, name), AttributeError)
        if function is None:
            raise ValueError(f"{self._driver.name} has no function {names[0]}: install a newer driver")
        function.restype = ctypes.c_int
        return function

    def _call(self, function: Any, stream: Any, word: Word, value: int, rest: Sequence[int]) -> None:
        """Calls a function.  Other threads run meanwhile, as the driver may wait for room in a queue."""
        numbers = [ctypes.c_uint32(number) for number in (value, *rest)]
        with self._on(stream):
            status = function(ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p(word.ctypes.data), *numbers)
        if status:
            raise RuntimeError(f"{self._driver.name} refuses a stream's wait or word: error {status}")


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


def late(seconds: float) -> str:
    """What is wrong with a device whose word the host has waited for in vain."""
    return f"the device has not copied out within {seconds:g} s: it is lost, or busy with what it was given before"


def words_of(buffer: torch.Tensor) -> tuple[Word, Word]:
    """Two words of pinned memory, far apart, set to 0: one that the host raises, and one that streams do."""
    found: list[Word] = [buffer[at : at + WORD_BYTES].numpy().view(np.uint32) for at in (0, APART)]
    for word in found:
        word[0] = 0
    return found[0], found[1]


def _first(names: Sequence[str], find: Callable[[str], Any], missing: type[Exception]) -> Any:
    for name in names:
        try:
            return find(name)
        except missing:
            continue
    return None

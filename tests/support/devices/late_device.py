# SPDX-License-Identifier: Apache-2.0
"""A device in Python whose work happens as late as streams and events allow, or, by chance, any time before.

Its tensors are the CPU's.  What a stream is given is done when somebody waits for an event behind it, so that whoever
reads a copy before its event finds what was there before it: pinned memory that has never been used is full of NaN, and
so is what is used again.  Streams are those of CUDA: work in order, and no order between two of them without an event.
Or, as a driver may also do it, all of them are one queue, in the order in which they were given their work (``queue``).
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.futures import Future

from netfold.host.staging.flags import HostCopies, StreamFlags, late
from netfold.host.staging.pool import Pool

PATIENCE: Final = 60.0
"""Seconds after which a stream that waits for the host is an error."""
POISON = 0xFF
"""Each byte of memory that nobody has filled: NaN as a float of any width, -1 as an integer."""


class Mark:
    """A place in a stream's order."""

    def __init__(self, stream: LateStream) -> None:
        self.stream = stream
        self.reached = False


@dataclass(frozen=True)
class Held:
    """A word of the host's memory, and the value that a stream waits for."""

    word: NDArray[np.uint32]
    value: int

    @property
    def free(self) -> bool:
        """True once the host has raised it."""
        return int(self.word[0]) >= self.value


Item = Callable[[], object] | Mark | Held


class LateStream:
    """Work in order."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.given: deque[Item] = deque()
        """Work, marks to be reached, words to be raised, and, of other streams, marks to be waited for."""

    def wait_event(self, event: LateEvent) -> None:
        if event.mark is not None:
            self.take(event.mark)

    def take(self, item: Item) -> None:
        """Puts something behind all that it was given."""
        with self.device.lock:
            self.given.append(item)
            if self.device.queue is not None:
                self.device.queue.append(self)
            if self is self.device.host:
                self.device.run(self)

    def step(self) -> None:
        """Does what comes first, or something of what that waits for; waits for the host where only that can go on."""
        if self.device.queue:
            self.device.queue[0].do_first()
        elif self.given:
            self.do_first()

    def do_first(self) -> None:
        """Does what comes first, unless that has to wait."""
        first = self.given[0]
        if isinstance(first, Held) and not first.free:
            if not self.device.raised.wait(PATIENCE):
                raise TimeoutError(f"a stream has waited {PATIENCE:g} s for a word")
            return
        if isinstance(first, Mark) and first.stream is not self and not first.reached:
            first.stream.step()
            return
        self.given.popleft()
        if self.device.queue is not None:
            self.device.queue.popleft()
        if isinstance(first, Mark):
            first.reached = first.reached or first.stream is self
        elif not isinstance(first, Held):
            first()

    def stuck(self) -> bool:
        """True if it cannot go on before the host has raised a word."""
        head = self.device.queue[0] if self.device.queue else self
        first = head.given[0] if head.given else None
        if isinstance(first, Mark) and first.stream is not head and not first.reached:
            return first.stream.stuck()
        return isinstance(first, Held) and not first.free


class LateEvent:
    """A place in a stream's order, once it was recorded."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.mark: Mark | None = None

    def record(self, stream: LateStream) -> None:
        with self.device.lock:
            self.mark = Mark(stream)
            stream.take(self.mark)

    def synchronize(self) -> None:
        with self.device.lock:
            if self.device.failure is not None:
                raise self.device.failure
            if self.mark is not None:
                self.device.hurry()
                self.device.come_to(self.mark)

    def query(self) -> bool:
        with self.device.lock:
            self.device.hurry()
            return self.mark is None or self.mark.reached


class LateFuture(Future[Any]):
    """A future of a device, as torch's: its callbacks work on a stream of their own, behind the one on which it was
    completed, also where it was done before it was given them."""

    def __init__(self, device: LateDevice) -> None:
        super().__init__()
        self.device = device
        self.completed = device.event()

    def set_result(self, result: Any) -> None:
        self.completed.record(self.device.current())
        super().set_result(result)

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        stream, after = self.device.stream(), LateFuture(self.device)

        def behind(future: Future[Any]) -> None:
            stream.wait_event(self.completed)
            with self.device.on(stream):
                try:
                    after.set_result(callback(future))
                except Exception as error:
                    after.set_exception(error)

        super().then(behind)
        return after


class LateFlags:
    """Implements ``staging.flags.StreamFlags``."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.marks: dict[tuple[int, int], Mark] = {}
        """The place at which a word comes to a value, by its address."""

    def wait(self, stream: LateStream, word: NDArray[np.uint32], value: int) -> None:
        stream.take(Held(word, value))

    def tell(self, stream: LateStream, word: NDArray[np.uint32], value: int) -> None:
        with self.device.lock:
            stream.take(lambda: self._set(word, value))
            mark = self.marks[word.ctypes.data, value] = Mark(stream)
            stream.take(mark)
            self.device.raised.notify_all()

    def told(self, word: NDArray[np.uint32], value: int, stops: Callable[[], bool], seconds: float) -> None:
        patience = min(seconds, PATIENCE)
        with self.device.lock:
            while int(word[0]) < value:
                mark = None if self.device.failure else self.marks.get((word.ctypes.data, value))
                if mark is not None and not mark.reached:
                    self.device.come_to(mark)
                elif stops():
                    return
                elif not self.device.raised.wait(patience):
                    raise TimeoutError(late(patience))

    def raise_to(self, word: NDArray[np.uint32], value: int) -> None:
        self._set(word, value)

    def _set(self, word: NDArray[np.uint32], value: int) -> None:
        with self.device.lock:
            word[0] = value
            self.device.raised.notify_all()


class LateDevice:
    """Implements ``staging.device.Device``.

    seed    of what happens earlier than it has to; None: nothing does
    queued  all streams are one queue, so that each may have to wait for what another was given before
    Threads work on ``host`` unless they say otherwise (``on``): a stream whose work is done at once, so that what a
    test reads there is what it has waited for.
    """

    def __init__(self, seed: int | None = None, place: str = "cpu", *, queued: bool = False) -> None:
        self.place = torch.device(place)
        self.lock = threading.RLock()
        self.raised = threading.Condition(self.lock)
        self.queue: deque[LateStream] | None = deque() if queued else None
        """The streams of all that is given and not done, in the order in which it was given."""
        self.flags: StreamFlags = LateFlags(self)
        self.by_host = HostCopies()
        self.failure: Exception | None = None
        """The error for waits on an event, as from a device that is lost."""
        self.held: set[tuple[int, LateStream]] = set()
        """Addresses of memory, and the streams for which it was held."""
        self.captures = False
        self._chance = None if seed is None else random.Random(seed)
        self._here = threading.local()
        self.streams: list[LateStream] = []
        self.host = self.stream()
        self.pool = Pool(lambda nbytes: torch.full((nbytes,), POISON, dtype=torch.uint8))
        given = self.pool._keep

        def keep(buffer: torch.Tensor) -> None:
            with torch.inference_mode():
                buffer.fill_(POISON)
            given(buffer)

        self.pool._keep = keep  # type: ignore[method-assign]

    def of(self, tensor: torch.Tensor) -> LateDevice:
        """All tensors are on this device."""
        return self

    # ---- as staging sees it ------------------------------------------------------------------------------------------
    def current(self) -> LateStream:
        return getattr(self._here, "stream", self.host)

    def stream(self) -> LateStream:
        self.streams.append(LateStream(self))
        return self.streams[-1]

    def event(self) -> LateEvent:
        return LateEvent(self)

    @contextmanager
    def on(self, stream: LateStream) -> Iterator[None]:
        before = self.current()
        self._here.stream = stream
        try:
            yield
        finally:
            self._here.stream = before

    def enqueue(self, stream: LateStream, work: Callable[[], object]) -> None:
        def inside() -> None:
            with self.on(stream), torch.inference_mode():
                work()

        stream.take(inside)

    def hold(self, tensor: torch.Tensor, stream: LateStream) -> None:
        self.held.add((tensor.untyped_storage().data_ptr(), stream))

    def future(self) -> Future[Any]:
        return LateFuture(self)

    def capturing(self) -> bool:
        return self.captures

    # ---- inside ------------------------------------------------------------------------------------------------------
    def run(self, stream: LateStream) -> None:
        """Does all that a stream was given."""
        with self.lock:
            while stream.given:
                stream.step()

    def come_to(self, mark: Mark) -> None:
        """Does what comes before a mark, and nothing else."""
        while not mark.reached:
            mark.stream.step()

    def hurry(self) -> None:
        """Does, by chance, some of what nobody waits for yet."""
        while self._chance is not None and self._chance.random() < 0.5:
            waiting = [stream for stream in self.streams if stream.given and not stream.stuck()]
            if not waiting:
                return
            self._chance.choice(waiting).step()

    def left(self) -> tuple[int, int]:
        """Bytes of pinned memory in use, and calls whose copies the host begins, once all given work is done."""
        for stream in self.streams:
            self.run(stream)
        assert not self.pool.full
        return self.pool.taken, self.by_host.others(None)

# SPDX-License-Identifier: Apache-2.0
"""A device in Python whose work happens as late as streams and events allow, or, by chance, any time before.

Its tensors are the CPU's.  What a stream is given is done when somebody waits for an event behind it, so that whoever
reads a copy before its event finds what was there before it: pinned memory that has never been used is full of NaN, and
so is what is used again.  Streams are those of CUDA: work in order, and no order between two of them without an event.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.futures import Future

from netfold.host.staging.pool import Pool

POISON = 0xFF
"""Each byte of memory that nobody has filled: NaN as a float of any width, -1 as an integer."""


class Mark:
    """A place in a stream's order."""

    def __init__(self, stream: LateStream) -> None:
        self.stream = stream
        self.reached = False


class LateStream:
    """Work in order."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.given: deque[Callable[[], object] | Mark] = deque()
        """Work, marks to be reached, and, of other streams, marks to be waited for."""

    def wait_event(self, event: LateEvent) -> None:
        with self.device.lock:
            if event.mark is not None:
                self.given.append(event.mark)
            if self is self.device.host:
                self.device.run(self)

    def step(self) -> None:
        """Does what comes first, and before it what that waits for."""
        first = self.given.popleft()
        if not isinstance(first, Mark):
            first()
        elif first.stream is self:
            first.reached = True
        else:
            self.device.come_to(first)


class LateEvent:
    """A place in a stream's order, once it was recorded."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.mark: Mark | None = None

    def record(self, stream: LateStream) -> None:
        with self.device.lock:
            self.mark = Mark(stream)
            stream.given.append(self.mark)
            if stream is self.device.host:
                self.device.run(stream)

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
        stream = self.device.stream()

        def behind(future: Future[Any]) -> Any:
            stream.wait_event(self.completed)
            with self.device.on(stream):
                return callback(future)

        return super().then(behind)


class LateDevice:
    """Implements ``staging.device.Device``.

    seed  of what happens earlier than it has to; None: nothing does
    Threads work on ``host`` unless they say otherwise (``on``): a stream whose work is done at once, so that what a
    test reads there is what it has waited for.
    """

    def __init__(self, seed: int | None = None, place: str = "cpu") -> None:
        self.place = torch.device(place)
        self.lock = threading.RLock()
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

        with self.lock:
            stream.given.append(inside)
            if stream is self.host:
                self.run(stream)

    def hold(self, tensor: torch.Tensor, stream: LateStream) -> None:
        self.held.add((tensor.untyped_storage().data_ptr(), stream))

    def future(self) -> Future[Any]:
        return LateFuture(self)

    def capturing(self) -> bool:
        return self.captures

    # ---- inside ------------------------------------------------------------------------------------------------------
    def run(self, stream: LateStream) -> None:
        """Does all that a stream was given."""
        while stream.given:
            stream.step()

    def come_to(self, mark: Mark) -> None:
        """Does what comes before a mark, and nothing else."""
        while not mark.reached:
            mark.stream.step()

    def hurry(self) -> None:
        """Does, by chance, some of what nobody waits for yet."""
        while self._chance is not None and self._chance.random() < 0.5:
            waiting = [stream for stream in self.streams if stream.given]
            if not waiting:
                return
            self._chance.choice(waiting).step()

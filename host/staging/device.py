# SPDX-License-Identifier: Apache-2.0
"""The functions of an accelerator that staging needs: streams, events, and pinned memory.

``Accelerator`` is whichever one torch has (CUDA, ROCm, XPU, a PrivateUse1 device), by the interfaces that all of them
share.  A PrivateUse1 device may have no events: ``Blocking``.  Tests have an accelerator whose copies happen as late as
events and streams allow (``tests/support/devices/late_device.py``), and a PrivateUse1 device without events
(``tests/support/devices/private_device.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import Any, Final, Protocol

import torch
from torch.futures import Future

from netfold.host.staging.flags import PAIR_BYTES, HostCopies, StreamFlags, flags_of, words_of
from netfold.host.staging.pool import Pool

TRIED_SECONDS: Final = 5.0
"""Most time within which a raised word has to let a stream go on."""


class DeviceEvent(Protocol):
    """A place in the order of a stream's work, as ``torch.Event``."""

    def record(self, stream: Any) -> None:
        """Puts it behind all that the stream has been given."""

    def synchronize(self) -> None:
        """Returns once the stream has come to it, and lets other threads run meanwhile."""

    def query(self) -> bool:
        """True if the stream has reached it."""


class DeviceStream(Protocol):
    """Work in order, as ``torch.Stream``."""

    def wait_event(self, event: Any) -> None:
        """Lets what this stream is given from now on begin after the event."""


class Device(Protocol):
    """One device, whose tensors are staged."""

    @property
    def place(self) -> torch.device:
        """The device, for futures and errors."""

    def current(self) -> DeviceStream:
        """The stream on which the calling thread works."""

    def stream(self) -> DeviceStream:
        """A new stream."""

    def event(self) -> DeviceEvent:
        """A new event."""

    def on(self, stream: DeviceStream) -> AbstractContextManager[object]:
        """A context in which the calling thread works on this stream."""

    def enqueue(self, stream: DeviceStream, work: Callable[[], object]) -> None:
        """Gives a stream work: calls of torch that return before the device has done them."""

    def hold(self, tensor: torch.Tensor, stream: DeviceStream) -> None:
        """Keeps the tensor's memory, should the program let go of it, until this stream is done with it."""

    @property
    def pool(self) -> Pool:
        """Memory of the host that the device copies from and to by itself."""

    def future(self) -> Future[Any]:
        """A future that may have tensors of this device as its value."""

    def capturing(self) -> bool:
        """True if the calling thread's operations are recorded for a graph, and not run."""

    @property
    def flags(self) -> StreamFlags:
        """The waits of its streams for the host.  Raises ValueError with the reason if it has none."""

    @property
    def by_host(self) -> HostCopies:
        """The calls under way whose copies the host begins."""


class Accelerator:
    """The accelerator that torch has.  Raises RuntimeError where torch has no module for such devices."""

    def __init__(self, place: torch.device) -> None:
        self._place = place
        self._module = torch.get_device_module(place)
        self._pool = Pool(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True))
        self._flags: StreamFlags | None = None
        self._trying = threading.Lock()
        self.by_host = HostCopies()

    @property
    def place(self) -> torch.device:
        return self._place

    def current(self) -> DeviceStream:
        current = getattr(self._module, "current_stream", torch.accelerator.current_stream)
        stream: DeviceStream = current(self._place)
        return stream

    def stream(self) -> DeviceStream:
        # CUDA's own class has the driver's handle, and lets other threads run while the driver waits for room
        kind = self._module.Stream if self._place.type == "cuda" else torch.Stream
        stream: DeviceStream = kind(device=self._place)
        return stream

    def event(self) -> DeviceEvent:
        # who waits sleeps: ranks that share a machine with switches have no processor to wait with
        if self._place.type == "cuda":  # torch.Event keeps all threads waiting where the driver waits for room
            event: DeviceEvent = self._events(blocking=True)
        else:
            event = torch.Event(device=self._place, blocking=True)
        return event

    @contextmanager
    def on(self, stream: DeviceStream) -> Iterator[None]:
        # a thread of ours begins on device 0: the stream's context alone would end by opening that on each rank
        if hasattr(self._module, "device") and hasattr(self._module, "stream"):
            with self._module.device(self._place), self._module.stream(stream):
                yield
            return
        here, there = torch.accelerator.current_stream(), torch.accelerator.current_stream(self._place)
        torch.accelerator.set_stream(stream)  # which sets the device, too
        try:
            yield
        finally:
            torch.accelerator.set_stream(there)
            torch.accelerator.set_stream(here)

    @cached_property
    def _events(self) -> Any:
        """CUDA's events, whose waits do not open device 0 on a thread that begins there either."""
        module, place = self._module, self._place

        class Event(module.Event):  # type: ignore[misc, name-defined]
            def synchronize(self) -> None:
                with module.device(place):
                    super().synchronize()

            def query(self) -> bool:
                with module.device(place):
                    return bool(super().query())

        return Event

    def enqueue(self, stream: DeviceStream, work: Callable[[], object]) -> None:
        with self.on(stream), torch.inference_mode():
            work()

    def hold(self, tensor: torch.Tensor, stream: DeviceStream) -> None:
        tensor.record_stream(stream)

    @property
    def pool(self) -> Pool:
        return self._pool

    def future(self) -> Future[Any]:
        return Future(devices=[self._place])

    def capturing(self) -> bool:
        asks = getattr(self._module, "is_current_stream_capturing", None)
        return bool(asks is not None and asks())

    @property
    def flags(self) -> StreamFlags:
        with self._trying:
            if self._flags is None:
                self._flags = tried(self, flags_of(self._place, self.on))
            return self._flags


class Cpu:
    """The CPU as a device, for tensors that are treated as those of accelerators: whatever it is given is done at once.
    It is its own stream, and its own event."""

    place = torch.device("cpu")

    def __init__(self) -> None:
        self.pool = Pool(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8, device="cpu"))
        self.by_host = HostCopies()

    def current(self) -> Cpu:
        return self

    stream = event = current

    def record(self, stream: object) -> None:
        """Nothing is left to do."""

    wait_event = record

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def query(self) -> bool:
        return True

    def on(self, stream: object) -> AbstractContextManager[object]:
        return nullcontext()

    def enqueue(self, stream: object, work: Callable[[], object]) -> None:
        with torch.inference_mode():
            work()

    def hold(self, tensor: torch.Tensor, stream: object) -> None:
        """Nothing outlives the call."""

    def future(self) -> Future[Any]:
        return Future()

    def capturing(self) -> bool:
        return False

    @property
    def flags(self) -> StreamFlags:
        raise ValueError("the CPU's work is done at once")


class Blocking(Cpu):
    """An accelerator without events.  Each piece of work is done when the call that gives it to the device ends."""

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place
        self._waits = supports(lambda: torch.accelerator.synchronize(place))

    def enqueue(self, stream: object, work: Callable[[], object]) -> None:
        super().enqueue(stream, work)
        if self._waits:
            torch.accelerator.synchronize(self.place)

    @property
    def flags(self) -> StreamFlags:
        raise ValueError("torch has no events of this device")


def supports(call: Callable[[], object]) -> bool:
    """False if torch says that the device does not support this call."""
    try:
        call()
    except RuntimeError as error:
        if "doesn't support" not in str(error):
            raise
        return False
    return True


def kind() -> str | None:
    """The type of devices that torch has beside the CPU, such as "cuda"; None: there is none, or torch is too old."""
    found = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return None if found is None else str(found.type)


def devices() -> list[str]:
    """The types of devices whose tensors collectives take."""
    return ["cpu", *filter(None, [kind()])]


def device_of(tensor: torch.Tensor) -> Device | None:
    """The accelerator that a tensor is on; None: the CPU.  Raises ValueError for devices whose tensors cannot be
    staged."""
    place = tensor.device
    if place.type == "cpu":
        return None
    if place.type != kind():
        raise ValueError(
            f"tensor of {tuple(tensor.shape)} on {place}: expected one on the CPU, or on torch's accelerator, which "
            f"here is {kind() or 'none'}; move it there{_too_old('; ')}"
        )
    return _accelerator(place)


def _too_old(before: str) -> str:
    """The reason of a refusal if torch is too old for accelerators; else nothing."""
    if hasattr(torch, "accelerator"):
        return ""
    return f"{before}tensors on an accelerator need torch 2.6 or newer, and this is {torch.__version__}"


def tried(device: Device, flags: StreamFlags, seconds: float = TRIED_SECONDS) -> StreamFlags:
    """The same waits, once a stream of the device has told the host, has waited for it, and has gone on.  Raises
    ValueError."""
    buffer = device.pool.take(PAIR_BYTES)
    assert buffer is not None
    (word, back), stream, before, after = words_of(buffer), device.stream(), device.event(), device.event()
    try:
        try:
            flags.tell(stream, back, 1)
            before.record(stream)
            flags.wait(stream, word, 1)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        after.record(stream)
        before.synchronize()
        if back[0] != 1:
            raise ValueError("a stream's word did not come to the host")
        if after.query():
            raise ValueError("a stream went on before its word was raised")
        flags.raise_to(word, 1)
        end = time.monotonic() + seconds
        while not after.query():
            if time.monotonic() >= end:
                raise ValueError(f"a stream had not gone on {seconds:g} s after its word was raised")
            time.sleep(1e-4)
    finally:  # whatever was found, the stream may still wait for its word, and write the other
        flags.raise_to(word, 1)
        try:
            after.record(stream)
            device.pool.give(buffer, after)
        except Exception:  # of a device that has failed
            device.pool.lost.append(buffer)
    return flags


def check_flags() -> None:
    """Raises ValueError unless streams of torch's current device can wait for the host."""
    name = kind()
    if name is None:
        raise ValueError(f"torch has no accelerator here{_too_old(': ')}")
    here: object = name
    try:
        here = torch.empty(0, device=name).device
        _ = _accelerator(here).flags
    except (ValueError, RuntimeError) as error:  # torch's own where it was built for a device that is not there
        raise ValueError(f"{here}: {error}") from error


@cache
def _accelerator(place: torch.device) -> Device:
    # an event of torch's own devices is waited for only where there is work: a graph may be captured now
    if place.type == torch._C._get_privateuse1_backend_name() and not supports(lambda: _wait(place)):
        return Blocking(place)
    return Accelerator(place)


def _wait(place: torch.device) -> None:
    """Waits for an event of a device's new stream."""
    event = torch.Event(device=place, blocking=True)
    event.record(torch.Stream(device=place))
    event.synchronize()

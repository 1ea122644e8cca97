# SPDX-License-Identifier: Apache-2.0
"""Threads of NetFold's own work on the device of the tensors, and open no other one."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging import device as devices  # noqa: E402
from netfold.host.staging.device import Accelerator, Blocking, check_flags, device_of  # noqa: E402


class Runtime:
    """What torch's module for CUDA asks of the runtime: each thread begins on device 0, and to set a device opens
    it."""

    def __init__(self) -> None:
        self._here = threading.local()
        self.opened: list[int] = []

    @property
    def device(self) -> int:
        """That of the calling thread."""
        return getattr(self._here, "device", 0)

    def choose(self, device: int, *, opens: bool = True) -> int:
        """Sets the calling thread's device; returns the one before."""
        before, self._here.device = self.device, device
        if opens and device != before:
            self.opened.append(device)
        return before

    def stream(self, place: Any = None) -> Any:
        """The current stream of a device; default: of the thread's."""
        at = self.device if place is None else torch.device(place).index
        return SimpleNamespace(device=torch.device("cuda", at), device_index=at, stream_id=0, device_type=1)

    def wait(self, *_: object, **__: object) -> bool:
        """Waits for an event, which opens the thread's device."""
        self.opened.append(self.device)
        return True


def on_new_thread(call: Any) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_thread_of_ours_opens_the_tensors_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work on a stream, and its waits for events, leave device 0 as it is, on which the thread begins."""
    runtime = Runtime()
    for name, call in {
        "_lazy_init": lambda: None,
        "_get_device_index": lambda d=None, *_, **__: runtime.device if d is None else torch.device(d).index,
        "current_stream": runtime.stream,
        "_exchange_device": runtime.choose,
        "_maybe_exchange_device": lambda device: runtime.choose(device, opens=False),
        "_set_stream_by_id": lambda stream_id, device_index, device_type: runtime.choose(device_index),
        "Event": type("Event", (), {"__init__": lambda self, blocking: None, "synchronize": runtime.wait,
                                    "query": runtime.wait}),
    }.items():
        monkeypatch.setattr(torch.cuda, name, call)
    device = Accelerator(torch.device("cuda:1"))
    worked: list[int] = []

    def work() -> None:
        device.enqueue(runtime.stream("cuda:1"), lambda: worked.append(runtime.device))
        device.event().synchronize()
        assert device.event().query()
        worked.append(runtime.device)

    on_new_thread(work)
    assert worked == [1, 0]
    assert set(runtime.opened) == {1}


def test_a_device_that_is_not_there_is_refused_as_one_that_cannot_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for CUDA names it on machines without a GPU, and raises an error of its own."""

    def empty(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("Found no NVIDIA driver on your system")

    monkeypatch.setattr(devices, "kind", lambda: "cuda")
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ValueError, match=r"^cuda: Found no NVIDIA driver"):
        check_flags()


def test_the_threads_own_device_and_streams_are_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.accelerator sets device and stream if the device's module has no contexts, and sets both back."""
    current, at = {0: "a", 1: "b"}, 0

    def choose(stream: Any) -> None:
        nonlocal at
        name, at = stream
        current[at] = name

    def stream(place: Any = None) -> tuple[str, int]:
        index = at if place is None else place.index
        return current[index], index

    monkeypatch.setattr(torch, "get_device_module", lambda place: SimpleNamespace())
    monkeypatch.setattr(torch.accelerator, "current_stream", stream)
    monkeypatch.setattr(torch.accelerator, "set_stream", choose)
    device: Any = Accelerator(torch.device("privateuseone:1"))
    assert device.current() == ("b", 1)
    with device.on(("ours", 1)):
        assert (at, device.current()) == (1, ("ours", 1))
    assert (at, current) == (0, {0: "a", 1: "b"})


@pytest.mark.parametrize(("error", "waits"), [("", 2), ("Backend doesn't support synchronizing all streams", 0)])
def test_work_of_a_device_without_events_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: str, waits: int
) -> None:
    """By torch.accelerator.synchronize, unless the device does not support that either; its other errors are
    raised."""
    place, waited = torch.device("privateuseone:0"), []

    def synchronize(of: object) -> None:
        if error:
            raise RuntimeError(error)
        waited.append(of)

    monkeypatch.setattr(torch.accelerator, "synchronize", synchronize)
    device = Blocking(place)
    device.enqueue(device.stream(), lambda: None)
    assert waited == [place] * waits
    error = "the device is lost"
    with pytest.raises(RuntimeError, match=error):
        Blocking(place)


def test_an_old_torch_is_named_where_it_cannot_take_a_devices_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before torch 2.6, which has torch.accelerator, tensors of a GPU are refused with the version to install."""
    monkeypatch.delattr(torch, "accelerator", raising=False)
    needed = r"tensors on an accelerator need torch 2\.6 or newer, and this is \d"
    assert devices.devices() == ["cpu"]
    with pytest.raises(ValueError, match=f"which here is none; move it there; {needed}"):
        device_of(torch.ones(2, device="meta"))
    with pytest.raises(ValueError, match=f"torch has no accelerator here: {needed}"):
        check_flags()

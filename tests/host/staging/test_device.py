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
from netfold.host.staging.device import Accelerator, check_flags  # noqa: E402


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

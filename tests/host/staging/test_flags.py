# SPDX-License-Identifier: Apache-2.0
"""Waits of streams for a word of the host: by a driver's function, and only where a trial has shown that it works."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.staging import device as devices  # noqa: E402
from netfold.host.staging import flags as module  # noqa: E402
from netfold.host.staging.device import Accelerator, tried  # noqa: E402
from netfold.host.staging.flags import CUDA, HIP, Driver, DriverFlags, flags_of  # noqa: E402
from netfold.host.staging.pool import LEAST  # noqa: E402
from support.devices.late_device import LateDevice, LateFlags, LateStream  # noqa: E402

X86 = "x86_64"


class Library:
    """A driver's library with some functions, which note what they are given and return a status."""

    def __init__(self, *names: str, status: int = 0) -> None:
        self.given: list[tuple[Any, ...]] = []
        for name in names:
            def wait(*args: Any, name: str = name) -> int:
                self.given.append((name, *(one.value for one in args)))
                return status

            setattr(self, name, wait)


BOTH = Library("cuStreamWaitValue32", "cuStreamWriteValue32")


def opened(driver: Driver, library: Library, machine: str = X86) -> DriverFlags:
    return DriverFlags(driver, lambda stream: nullcontext(), lambda name: library, machine)


@pytest.mark.parametrize(("driver", "has", "used", "rest"), [
    (CUDA, ("cuStream{}Value32_v2", "cuStream{}Value32"), "cuStream{}Value32_v2", (0,)),
    (CUDA, ("cuStream{}Value32",), "cuStream{}Value32", (0,)),
    (HIP, ("hipStream{}Value32",), "hipStream{}Value32", (0, 0xFFFFFFFF)),
])
def test_a_stream_waits_by_the_newest_function(
    driver: Driver, has: tuple[str, ...], used: str, rest: tuple[int, ...]
) -> None:
    """It gets the stream, the word's address, the value, and what stands for 'at least'; the one that writes, too."""
    library, word = Library(*(name.format(kind) for kind in ("Wait", "Write") for name in has)), np.zeros(1, np.uint32)
    flags, stream = opened(driver, library), SimpleNamespace(cuda_stream=77)
    flags.wait(stream, word, 5)
    flags.tell(stream, word, 6)
    assert library.given == [(used.format("Wait"), 77, word.ctypes.data, 5, *rest),
                             (used.format("Write"), 77, word.ctypes.data, 6, 0)]


def test_the_host_waits_for_a_word_or_its_device() -> None:
    """It goes on when the word has come to the value, when nobody will raise it, and when its time is over."""
    flags = opened(CUDA, BOTH)
    word, asked = np.zeros(1, np.uint32), []

    def stops() -> bool:
        asked.append(int(word[0]))
        return len(asked) == 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LOOK_SECONDS", 0.0)
        threading.Timer(0.0, flags.raise_to, (word, 5)).start()
        flags.told(word, 5, lambda: False, 20.0)
        assert word[0] == 5
        word[0] = 0
        flags.told(word, 1, stops, 20.0)
    assert asked == [0] * 2
    with pytest.raises(TimeoutError, match=r"has not copied out within 0\.01 s: it is lost, or busy with what it was"):
        flags.told(word, 1, lambda: False, 0.01)


def test_what_cannot_wait_is_refused_by_name() -> None:
    """A missing library, a missing function, a processor without order, another device, and a refused call."""
    def nothing(name: str) -> Any:
        raise OSError(name)

    with pytest.raises(ValueError, match=r"CUDA's driver: none of libcuda\.so\.1 can be loaded"):
        DriverFlags(CUDA, lambda stream: nullcontext(), nothing, X86)
    with pytest.raises(ValueError, match="CUDA's driver has no function cuStreamWaitValue32_v2"):
        opened(CUDA, Library())
    with pytest.raises(ValueError, match="CUDA's driver has no function cuStreamWriteValue32_v2"):
        opened(CUDA, Library("cuStreamWaitValue32"))
    with pytest.raises(ValueError, match="on aarch64 others see the host's stores in any order"):
        opened(CUDA, BOTH, "aarch64")
    with pytest.raises(ValueError, match="no function of xpu's driver is known"):
        flags_of(torch.device("xpu:0"), lambda stream: nullcontext())
    refusing = opened(CUDA, Library("cuStreamWaitValue32", "cuStreamWriteValue32", status=801))
    with pytest.raises(RuntimeError, match="CUDA's driver refuses a stream's wait or word: error 801"):
        refusing.wait(SimpleNamespace(cuda_stream=1), np.zeros(1, np.uint32), 1)


class Careless(LateFlags):
    """A device whose streams do not wait."""

    def wait(self, stream: LateStream, word: Any, value: int) -> None:
        return


class Deaf(LateFlags):
    """A device that never sees what the host writes."""

    def wait(self, stream: LateStream, word: Any, value: int) -> None:
        super().wait(stream, np.zeros_like(word), value)


class Refusing(LateFlags):
    """A device that has no such waits."""

    def wait(self, stream: LateStream, word: Any, value: int) -> None:
        raise RuntimeError("error 801")


class Silent(LateFlags):
    """A device whose words do not come to the host."""

    def tell(self, stream: LateStream, word: Any, value: int) -> None:
        super().tell(stream, np.zeros_like(word), value)


def test_a_device_is_tried_before_it_is_relied_on() -> None:
    """One that waits until the host writes is taken; one that does not wait, never goes on, or refuses is not."""
    device = LateDevice(1)
    assert tried(device, device.flags) is device.flags
    for kind, why in ((Careless, "went on before its word was raised"), (Refusing, "error 801"),
                      (Silent, "a stream's word did not come"),
                      (Deaf, r"had not gone on 0\.01 s after its word was raised")):
        device = LateDevice(1)
        with pytest.raises(ValueError, match=why):
            tried(device, kind(device), 0.01)
        for stream in () if kind is Deaf else device.streams:
            device.run(stream)
        assert not device.pool.full
        assert device.pool.taken == (LEAST if kind is Deaf else 0), "a stream that waits for ever may write it"


def test_an_accelerator_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its flags are kept; one that fails the trial is refused each time it is asked for."""
    late, asked = LateDevice(1), []

    class Tried(Accelerator):
        pool = late.pool  # type: ignore[assignment]
        stream, event = late.stream, late.event  # type: ignore[assignment]

    def flags(place: torch.device, on: Any) -> Any:
        asked.append(str(place))
        return late.flags if len(asked) > 1 else Careless(late)

    monkeypatch.setattr(torch, "get_device_module", lambda place: None)
    monkeypatch.setattr(devices, "flags_of", flags)
    accelerator = Tried(torch.device("cuda:3"))
    with pytest.raises(ValueError, match="went on before"):
        _ = accelerator.flags
    assert accelerator.flags is accelerator.flags is late.flags
    assert asked == ["cuda:3"] * 2

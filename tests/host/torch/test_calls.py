# SPDX-License-Identifier: Apache-2.0
"""The events of calls in torch's profiler."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))
from netfold.host.torch.calls import started  # noqa: E402
from netfold.host.torch.completion import MarkedOperation  # noqa: E402
from netfold.host.torch.work import TorchWork  # noqa: E402


class Keeping(MarkedOperation):
    """An operation that keeps its callbacks."""

    def __init__(self) -> None:
        super().__init__([])
        self.kept: list[Callable[[], None]] = []

    def await_end(self, timeout: float | None) -> None:
        self._done.wait(timeout)

    def carried(self) -> bool:
        return self._done.is_set()

    def when_done(self, call: Callable[[], None]) -> None:
        self.kept.append(call)
        super().when_done(call)


class Group:
    """A group with one operation."""

    sequence_number = 0

    def __init__(self, pending: MarkedOperation) -> None:
        self._pending = pending

    def check(self) -> None:
        """Nothing is wrong with it."""

    @started("sum")
    def sum(self, tensors: Any) -> TorchWork:
        return TorchWork(self._pending)


def test_an_event_is_asynchronous_whoever_frees_the_operation_last() -> None:
    """Torch ends it when its record is freed, and takes for asynchronous what the caller's thread has not ended."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        pending = Keeping()
        work = Group(pending).sum([torch.zeros(3)])
        ending = threading.Thread(target=pending.mark, args=(None,))
        ending.start()
        ending.join()
        work.wait()
        pending.kept.clear()
    (event,) = [event for event in profile.function_events if event.name == "netfold:sum"]
    assert event.is_async
    assert event.input_shapes == [[3]]

# SPDX-License-Identifier: Apache-2.0
"""A process group as NCCL's: its collectives are work of the calling thread's stream of a ``LateDevice``, done as late
as that allows.  Gloo does them then."""

from __future__ import annotations

from typing import Any

import torch

from support.devices.late_device import LateDevice


class LateWork:
    """A collective that was put on a stream."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._event = device, device.event()
        self._event.record(device.current())

    def is_completed(self) -> bool:
        """True: whoever asks has waited long enough for the stream to come to it."""
        self._event.synchronize()
        return True

    def wait(self) -> None:
        """Orders the calling thread's stream behind it."""
        self._device.current().wait_event(self._event)


class LateGroup:
    """The collectives of a group that ``gloo`` is in place of."""

    def __init__(self, gloo: Any, device: LateDevice) -> None:
        self._gloo, self._device = gloo, device
        self.abort, self.shutdown = gloo.abort, gloo.shutdown

    def _reduce_scatter_base(self, out: torch.Tensor, data: torch.Tensor) -> LateWork:
        return self._late(lambda: self._gloo._reduce_scatter_base(out, data).wait())

    def _allgather_base(self, out: torch.Tensor, mine: torch.Tensor) -> LateWork:
        return self._late(lambda: self._gloo._allgather_base(out, mine).wait())

    def _late(self, work: Any) -> LateWork:
        self._device.enqueue(self._device.current(), work)
        return LateWork(self._device)

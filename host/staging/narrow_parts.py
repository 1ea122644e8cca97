# SPDX-License-Identifier: Apache-2.0
"""Allreduce in narrow lanes that the device makes: a quarter or half of the bytes cross, and the processor touches no
value.

    device  scales of all blocks -> lanes of a part, packed      -> values
    host    -> largest of all ranks ->         -> sum of all ranks ->

Both reductions are of int32, which every path carries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import torch

from netfold.host.staging import copies
from netfold.host.staging.bundles import Lane, Spread
from netfold.host.staging.copies import Staged
from netfold.host.staging.device import DeviceEvent, DeviceStream
from netfold.host.staging.lanes import BLOCK, NarrowLanes, blocks_of, scales_of

Reduce = Callable[[torch.Tensor, Literal["max", "sum"]], object]
"""Reduces int32 of the host in place."""
NARROW_AHEAD: Final = 3
"""Parts whose lanes are made before their turn."""


class Words:
    """int32 that cross from a device to pinned memory and back."""

    def __init__(self, lane: Lane, count: int) -> None:
        self._lane = lane
        self._arrived = lane.device.event()
        buffer = lane.device.pool.take(4 * count)
        assert buffer is not None
        self._buffer: torch.Tensor | None = buffer
        self.host = buffer[: 4 * count].view(torch.int32)

    def out(self, stream: DeviceStream, make: Callable[[], torch.Tensor]) -> None:
        """Begins to copy out what ``make`` makes on this stream."""
        self._lane.device.enqueue(stream, lambda: self.host.copy_(make(), non_blocking=True))
        self._arrived.record(stream)

    def arrive(self) -> None:
        """Waits until they are on the host."""
        self._arrived.synchronize()

    def back(self, stream: DeviceStream, like: torch.Tensor, take: Callable[[torch.Tensor], object]) -> None:
        """Begins to copy them back on this stream, and gives them to ``take`` there; then gives up the buffer."""
        self._lane.device.enqueue(stream, lambda: take(self.host.to(like.device, non_blocking=True, copy=True)))
        self.release(stream)

    def release(self, stream: DeviceStream) -> None:
        """Gives up the buffer once this stream, and the copy out, are done with it."""
        if self._buffer is not None:
            stream.wait_event(self._arrived)
            end: DeviceEvent = self._lane.device.event()
            end.record(stream)
            self._lane.device.pool.give(self._buffer, end)
        self._buffer = None


class NarrowParts(Staged):
    """A tensor of floats that is reduced in place.

    residual  what lanes left out so far, float32 on the same device, as many as the tensor has; it is added first, and
              replaced.  None: nothing is
    """

    def __init__(self, lane: Lane, tensor: torch.Tensor, residual: torch.Tensor | None) -> None:
        spread, kept = (None if one is None else Spread(lane.device, one) for one in (tensor, residual))
        assert spread is not None
        super().__init__(lane, [], spread, kept)
        self._flat = spread.dense.view(-1)
        self._residual = None if kept is None else kept.dense.view(-1)
        self._blocks = -(-self._flat.numel() // BLOCK)
        self._words: list[Words] = []
        """Words that hold a buffer."""
        self._scales = torch.empty(0, device="cpu")
        for used in (self._flat, self._residual):
            for stream in () if used is None else (lane.out, lane.late, lane.back):
                lane.device.hold(used, stream)
        try:
            self._tops = Words(lane, self._blocks)
            self._words.append(self._tops)
            lane.out.wait_event(self._ready)
            self._tops.out(lane.out, lambda: scales_of(self._values(slice(None))))
        except BaseException:
            self.drop()
            raise

    @property
    def keeps_residual(self) -> bool:
        """True if the parts of values that lanes drop are kept as a residual."""
        return self._residual is not None

    def run(self, lanes: Callable[[], NarrowLanes], divisor: float, reduce: Reduce) -> None:
        """Reduces it on the communicator's thread, and begins the copies back.

        lanes    how values become lanes; asked once the scales are agreed on
        divisor  of the values
        """
        try:
            self._tops.arrive()
            reduce(self._tops.host, "max")
            self._run(lanes(), divisor, reduce)
        except BaseException:
            self.drop()
            raise
        self._end()

    def drop(self) -> None:
        """The call has ended: nothing more is copied back."""
        self.lane.device.by_host.discard(self)
        words, self._words = self._words, []
        try:
            for one in words:
                one.release(self.lane.back)
        except Exception:  # of a device that has failed: what the call ends with says more
            self.lane.device.pool.lost.extend(words)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _steps(self) -> str:
        return "the device makes its lanes, by scales that the host finds"

    def _run(self, lanes: NarrowLanes, divisor: float, reduce: Reduce) -> None:
        late, back, device = self.lane.late, self.lane.back, self.lane.device

        def take_scales(agreed: torch.Tensor) -> None:
            self._scales = agreed
            device.hold(agreed, back)

        late.wait_event(self._ready)
        self._tops.back(late, self._flat, take_scales)
        self._words.remove(self._tops)
        each = max(1, copies.PART // (4 * BLOCK))
        places = [slice(at, min(at + each, self._blocks)) for at in range(0, self._blocks, each)]
        begun = 0
        for at, place in enumerate(places):
            while begun < min(at + NARROW_AHEAD, len(places)):
                self._begin(lanes, places[begun])
                begun += 1
            words = self._words[0]
            words.arrive()
            reduce(words.host, "sum")
            words.back(back, self._flat, self._widen(lanes, divisor, place))
            del self._words[0]

    def _begin(self, lanes: NarrowLanes, place: slice) -> None:
        """Begins to make and copy out the lanes of these blocks."""

        def make() -> torch.Tensor:
            values, scales = self._values(place), self._scales[place]
            integers = lanes.integers(values, scales, place.start * BLOCK)
            if self._residual is not None:
                kept = self._residual[self._elements(place)]
                kept.copy_(lanes.left_out(values, integers, scales).view(-1)[: kept.numel()])
            return lanes.packed(integers)

        self._words.append(Words(self.lane, (place.stop - place.start) * BLOCK * lanes.bits // 32))
        self._words[-1].out(self.lane.late, make)

    def _widen(self, lanes: NarrowLanes, divisor: float, place: slice) -> Callable[[torch.Tensor], object]:
        def take(words: torch.Tensor) -> None:
            into = self._flat[self._elements(place)]
            into.copy_(lanes.widened(words, self._scales[place], divisor).view(-1)[: into.numel()])

        return take

    def _values(self, place: slice) -> torch.Tensor:
        """The values of some blocks, as they are to be sent."""
        values = self._flat[self._elements(place)].to(torch.float32)
        if self._residual is not None:
            values = values + self._residual[self._elements(place)]
        return blocks_of(values)

    @staticmethod
    def _elements(place: slice) -> slice:
        return slice(*(None if end is None else end * BLOCK for end in (place.start, place.stop)))

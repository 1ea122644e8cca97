# SPDX-License-Identifier: Apache-2.0
"""Hierarchical NetReduce of tensors on a device: the ranks of a machine reduce there, and each folds its own piece.

    device   reduce_scatter of window k+1 | piece -> host           host -> piece | all_gather of window k
    host                                             fold of window k+1

A rank copies 1/n of the tensor out and back, instead of all of it, and the processor adds nothing.  The collectives on
the device are those of a process group of the machine's ranks (``MachineGroup``).

Ranks meet over the mesh as well, so that errors have names and come in time: a step begins once all of them have ended
the one before, and while it runs, the mesh tells of a rank that is lost (``MachineGroup.carry``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch

from netfold.host.collectives.barrier import SplitBarrier
from netfold.host.collectives.flow import Strand, length
from netfold.host.collectives.inner_step import windows_of
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Array, Flat
from netfold.host.operation.reduction import Reduction
from netfold.host.staging.bundles import Bundle, Lane
from netfold.host.staging.copies import TensorParts
from netfold.host.staging.device import Device, DeviceEvent, DeviceStream


class MachineGroup(Protocol):
    """A process group of the ranks of one machine; its collectives add, and have equal pieces."""

    kind: str
    """Name of its backend, such as "nccl"."""
    row: int
    """Bytes of the longest window."""
    local: Mesh
    """The same ranks."""

    def reduce_scatter(self, device: Device, stream: DeviceStream, out: torch.Tensor, data: torch.Tensor) -> None:
        """Fills ``out``, which may be this rank's piece of ``data``, with the sum of it.  It begins behind what the
        stream was given, and what the stream is given from now on comes after it.  Raises the errors of ``Mesh.wait``;
        then the group is of no use any more."""

    def all_gather(self, device: Device, stream: DeviceStream, out: torch.Tensor, mine: torch.Tensor) -> None:
        """Fills ``out`` with all ranks' ``mine``, likewise."""


class DeviceStep:
    """Implements ``InnerStep`` for a part of a tensor.

    values  the part, contiguous, on the lane's device
    ready   the end of the work that fills it
    """

    def __init__(self, lane: Lane, values: torch.Tensor, ready: DeviceEvent, group: MachineGroup) -> None:
        self._lane, self._values, self._ready, self._group = lane, values, ready, group
        self.kind, self.row = group.kind, group.row
        self.bundle = Bundle(lane, [values])
        self.bundle.take()
        self.array: Array = self.bundle.copies[0].numpy()
        """Memory of the host in place of the part: of it this rank's pieces alone are filled, unless it is staged."""
        self._host = self.bundle.copies[0]
        self._staged = False
        self._steps = SplitBarrier(group.local)
        self._scratch: torch.Tensor | None = None
        lane.device.hold(values, lane.back)

    def windows(self, count: int, itemsize: int) -> Iterator[slice]:
        """See ``InnerStep``."""
        return windows_of(self.row, count, itemsize)

    def reduce_scatter(self, data: Flat, out: Flat, reduction: Reduction, pieces: Sequence[slice]) -> Strand:
        """See ``InnerStep``: of ``out``, memory of ``array``, this rank's piece."""
        yield from self._steps.begin()
        if (window := self._values[self._place(out)]).numel():
            rows = self._rows(window, pieces)
            if rows is not None:
                self._enqueue(lambda: [rows[at, : length(piece)].copy_(window[piece])
                                       for at, piece in enumerate(pieces)])
            mine = self._mine(window, rows, pieces)
            whole = window if rows is None else rows.view(-1)
            self._group.reduce_scatter(self._lane.device, self._lane.back, mine, whole)
            piece = pieces[self._group.local.rank]
            here = self._host[self._place(out)][piece]
            self._enqueue(lambda: here.copy_(mine[: length(piece)], non_blocking=True))
            arrived = self._lane.device.event()
            arrived.record(self._lane.back)
            arrived.synchronize()
        self._steps.end()

    def all_gather(self, data: Flat, pieces: Sequence[slice]) -> Strand:
        """See ``InnerStep``: fills the window of the tensor itself; of ``data`` it reads this rank's piece."""
        yield from self._steps.begin()
        if (window := self._values[self._place(data)]).numel():
            rows = self._rows(window, pieces)
            mine, piece = self._mine(window, rows, pieces), pieces[self._group.local.rank]
            here = self._host[self._place(data)][piece]
            self._enqueue(lambda: mine[: length(piece)].copy_(here, non_blocking=True))
            whole = window if rows is None else rows.view(-1)
            self._group.all_gather(self._lane.device, self._lane.back, whole, mine)
            if rows is not None:
                self._enqueue(lambda: [window[piece].copy_(rows[at, : length(piece)])
                                       for at, piece in enumerate(pieces)])
        self._steps.end()

    def stage(self) -> None:
        """Fills ``array`` with the part, which goes another way: through the memory of the host as a whole."""
        self.bundle.out(self._lane.back, self._ready)
        self.bundle.arrive()
        self._staged = True

    def finish(self) -> None:
        """Begins what is left to do on the device once the part is reduced, and gives up the memory of the host."""
        if self._staged:
            self.bundle.fill([0])
        copied = self._lane.device.event()
        copied.record(self._lane.back)
        self.bundle.release(copied)

    def close(self) -> None:
        """Nothing is left to release."""

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _place(self, window: Flat) -> slice:
        """The elements of ``array`` that a window of it has."""
        first = (window.ctypes.data - self.array.ctypes.data) // self.array.itemsize
        return slice(first, first + window.size)

    def _rows(self, window: torch.Tensor, pieces: Sequence[slice]) -> torch.Tensor | None:
        """Rows of equal length on the device, one for each piece; None where the pieces are equal as they lie."""
        longest = max(map(length, pieces))
        if all(length(piece) == longest for piece in pieces):
            return None
        count = longest * len(pieces)
        if self._scratch is None or self._scratch.numel() < count:
            with self._lane.device.on(self._lane.back):  # whose memory may be given to others once that is done
                self._scratch = torch.zeros(count, dtype=window.dtype, device=window.device)
        return self._scratch[:count].view(len(pieces), longest)

    def _mine(self, window: torch.Tensor, rows: torch.Tensor | None, pieces: Sequence[slice]) -> torch.Tensor:
        rank = self._group.local.rank
        return window[pieces[rank]] if rows is None else rows[rank]

    def _enqueue(self, work: Callable[[], object]) -> None:
        self._lane.device.enqueue(self._lane.back, work)


class InsideParts(TensorParts):
    """A tensor that is reduced in place, part by part, on devices inside each machine where that can be, which the
    communicator's thread finds out; until then nothing is copied."""

    def __init__(self, lane: Lane, tensor: torch.Tensor) -> None:
        super().__init__(lane, tensor, ahead=False)
        self.dtype = tensor.dtype

    def run_inside(self, group: MachineGroup, reduce: Callable[[DeviceStep], object]) -> None:
        """Reduces it with a machine's group, on the communicator's thread.

        reduce  reduces the part of a step, whose values are float32 where those of the tensor are halves
        """
        lane = self.lane
        try:
            lane.back.wait_event(self._ready)
            for at, place in enumerate(self._places):
                part = self._flat[place]
                values = part
                if part.dtype in (torch.float16, torch.bfloat16):
                    with lane.device.on(lane.back):
                        values = torch.empty(part.shape, dtype=torch.float32, device=part.device)
                    self._convert(values, part)
                step = DeviceStep(lane, values, self._ready, group)
                self.bundles[at] = step.bundle
                reduce(step)
                step.finish()
                if values is not part:
                    self._convert(part, values)
        except BaseException:
            self.drop()
            raise
        self._end()

    def _steps(self) -> str:
        return "the ranks of the machine reduce it on their devices"

    def _convert(self, into: torch.Tensor, values: torch.Tensor) -> None:
        for held in (into, values):
            self.lane.device.hold(held, self.lane.back)
        self.lane.device.enqueue(self.lane.back, lambda: into.copy_(values))



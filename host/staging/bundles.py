# SPDX-License-Identifier: Apache-2.0
"""The two ends of a copy: tensors on a device, and pinned memory of the host with streams between them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import torch

from netfold.host.staging.device import Device, DeviceEvent, DeviceStream

PLAIN: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Bytes of an element -> a dtype that every operation of torch copies on every device."""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that all operations of torch copy: on CUDA some of them lack uint16, say."""
    return tensor.view(PLAIN.get(tensor.element_size(), tensor.dtype))


def dense(tensor: torch.Tensor) -> bool:
    """True if the elements are contiguous in memory."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def refuse_capture(device: Device) -> None:
    """Raises ValueError while the calling thread's operations are recorded for a graph."""
    if device.capturing():
        raise ValueError(
            f"a collective on {device.place} while a graph is captured: backend 'netfold' sends from the host, which "
            "no graph can repeat; call it outside of the capture"
        )


class Lane:
    """The streams on which one group copies from and to one device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.silent = False
        """True once ``give_up`` was called."""
        self.out, self.late, self.back = device.stream(), device.stream(), device.stream()
        """Streams for copies out at the call; for copies out in their turn, which must not wait behind later calls'
        copies; for copies back."""

    def give_up(self) -> None:
        """The device has not told of copies out in time: the host waits for no others."""
        self.silent = True

    def order(self) -> None:
        """Orders the calling thread's stream behind all copies back that the device was given, such as NaN of calls
        that have failed."""
        with contextlib.suppress(Exception):  # of a device that has failed
            event = self.device.event()
            event.record(self.back)
            self.device.current().wait_event(event)

    def ready(self) -> DeviceEvent:
        """The end of what the caller's stream has been given.  Raises ValueError where that is being captured."""
        refuse_capture(self.device)
        event = self.device.event()
        event.record(self.device.current())
        return event


class Bundle:
    """Tensors of one dtype on a device, and their copies in one pinned buffer."""

    def __init__(self, lane: Lane, tensors: Sequence[torch.Tensor]) -> None:
        self._lane, self._tensors = lane, tensors
        self._buffer: torch.Tensor | None = None
        self._arrived: DeviceEvent | None = None
        self.copies: list[torch.Tensor] = []
        """Dense tensors on the CPU, once there is a buffer."""

    def take(self, *, if_room: bool = False) -> bool:
        """Takes a buffer; with ``if_room`` only where there is room for copies that are made ahead."""
        if self._buffer is None:
            nbytes = sum(tensor.numel() * tensor.element_size() for tensor in self._tensors)
            self._buffer = self._lane.device.pool.take(nbytes, if_room=if_room)
            if self._buffer is None:
                return False
            self._whole = self._buffer[:nbytes].view(self._tensors[0].dtype)
            parts = self._whole.split([tensor.numel() for tensor in self._tensors])
            self.copies = [part.view(like.shape) for part, like in zip(parts, self._tensors, strict=True)]
        return True

    def out(self, stream: DeviceStream, ready: DeviceEvent) -> None:
        """Begins to copy out on this stream, behind ``ready``."""
        device, several, whole = self._lane.device, self._tensors, self._whole
        for tensor in several:
            device.hold(tensor, stream)

        def copy() -> None:
            # on the device, as a copy that does not wait may convert nothing
            parts = [plain(tensor.detach().resolve_conj().resolve_neg()).reshape(-1) for tensor in several]
            plain(whole).copy_(parts[0].contiguous() if len(parts) == 1 else torch.cat(parts), non_blocking=True)

        stream.wait_event(ready)
        device.enqueue(stream, copy)
        self._arrived = device.event()
        self._arrived.record(stream)

    @property
    def begun(self) -> bool:
        """True if its copy out has begun or is done."""
        return self._arrived is not None

    def arrive(self) -> None:
        """Waits until it has been copied out."""
        assert self._arrived is not None
        self._arrived.synchronize()

    def fill(self, which: Sequence[int]) -> None:
        """Begins to copy these of the copies back, on the lane's stream for that."""
        lane, whole = self._lane, self._whole
        several = [tensor.detach() for tensor in self._tensors]
        for place in which:
            lane.device.hold(several[place], lane.back)

        def copy() -> None:
            if len(several) == 1 and dense(several[0]):
                several[0].view(-1).copy_(whole, non_blocking=True)
                return
            there = torch.empty_like(whole, device=several[0].device)
            there.copy_(whole, non_blocking=True)
            parts = there.split([tensor.numel() for tensor in several])
            pairs = [(several[place], parts[place].view(several[place].shape)) for place in which]
            as_they_are = [pair for pair in pairs if not (pair[0].is_neg() or pair[0].is_conj())]
            if as_they_are:
                torch._foreach_copy_(*([plain(one) for one in ones] for ones in zip(*as_they_are, strict=True)))
            for into, part in pairs if len(as_they_are) < len(pairs) else ():
                into.copy_(part)

        lane.device.enqueue(lane.back, copy)

    def precede(self, stream: DeviceStream) -> None:
        """Lets what this stream is given from now on begin after the copy out."""
        if self._arrived is not None:
            stream.wait_event(self._arrived)

    def release(self, after: DeviceEvent) -> None:
        """Gives the buffer back, which is used again after this event, and lets go of the tensors."""
        self.give_back(after)
        self._tensors = []

    def give_back(self, after: DeviceEvent) -> None:
        """Gives the buffer back alone."""
        if self._buffer is not None:
            self._lane.device.pool.give(self._buffer, after)
        self._buffer, self.copies = None, []


class SparseBundle(Bundle):
    """A sparse tensor on a device, whose copy is made at the call: its size is known there alone."""

    def take(self, *, if_room: bool = False) -> bool:
        self.copies = [self._tensors[0].detach().to("cpu", copy=True)]
        return True

    def out(self, stream: DeviceStream, ready: DeviceEvent) -> None:
        """It has arrived."""

    def fill(self, which: Sequence[int]) -> None:
        tensor, copy = self._tensors[0], self.copies[0]  # a detached one would get other places and values alone
        self._lane.device.enqueue(self._lane.back, lambda: tensor.copy_(copy))


class Spread:
    """A tensor on a device whose elements may lie anywhere in its memory, and what is reduced in its place.

    dense  the tensor itself, or a copy on the device
    """

    def __init__(self, device: Device, tensor: torch.Tensor) -> None:
        self.dense = self._tensor = tensor.detach()
        if not dense(tensor):
            self.dense = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            device.enqueue(device.current(), lambda: self.dense.copy_(self._tensor))

    def back(self, lane: Lane) -> None:
        """Begins to fill the tensor, behind the copies back."""
        if self.dense is not self._tensor:
            for held in (self.dense, self._tensor):
                lane.device.hold(held, lane.back)
            lane.device.enqueue(lane.back, lambda: self._tensor.copy_(self.dense))

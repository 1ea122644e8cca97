# SPDX-License-Identifier: Apache-2.0
"""Asynchronous collectives, as torch futures.

The communicator's own thread does them in the order of the calls.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.api.work import Work
from netfold.host.errors import Closed
from netfold.host.operation.coding import LaneBits, narrows
from netfold.host.operation.rail import FOLDED
from netfold.host.operation.reduction import ReduceOp
from netfold.host.staging.bundles import Lane
from netfold.host.staging.copies import Staged, Staging, TensorParts
from netfold.host.staging.device import Cpu
from netfold.host.staging.device_step import InsideParts
from netfold.host.staging.lanes import NarrowLanes
from netfold.host.staging.narrow_parts import NarrowParts
from netfold.host.torch.ahead import RunAhead
from netfold.host.torch.beside import Following, JoiningScatter
from netfold.host.torch.completion import Call, StartedOperation, on_our_thread
from netfold.host.torch.inside_group import Inside, Opener, inside_from_environment, kind_of
from netfold.host.torch.parts import allreduce
from netfold.host.torch.tensors import as_array, dtype_name

Tensors = list[torch.Tensor]


@dataclass
class PendingCollective(StartedOperation):
    """A started asynchronous collective."""

    tensors: Tensors
    works: list[Work[Any]]
    awaited: Call = lambda: None
    """Called when the program waits for it."""
    staged: Staged | None = None

    def __post_init__(self) -> None:
        self.begun = time.monotonic()

    @property
    def ended(self) -> float:
        return self.works[-1].ended if self.works else self.begun

    def await_end(self, timeout: float | None) -> None:
        self.awaited()
        end = None if timeout is None else time.monotonic() + timeout
        for work in self.works:
            work.wait(None if end is None else max(0.0, end - time.monotonic()))

    def carried(self) -> bool:
        return all(work.done() for work in self.works)

    def failed(self) -> bool:
        return any(work.failed() for work in self.works)

    def when_done(self, call: Call) -> None:
        if self.works:
            self.works[-1].add_done_callback(lambda _: call())  # they run in this order
        else:
            call()


class Reducer:
    """Starts collectives on tensors through a communicator that it does not own.

    staging  of tensors on devices
    inside   what reduces them inside a machine; default: what the environment says
    ahead    waits for tensors on devices block their stream, where that can be
    """

    def __init__(
        self, comm: Communicator, staging: Staging | None = None, inside: Inside | None = None, *, ahead: bool = False
    ) -> None:
        self.comm = comm
        self.ahead = RunAhead(comm, on=ahead)
        self.staging = staging or Staging()
        self._inside = inside_from_environment(inside)
        self._cpu = Lane(Cpu())
        self.last: PendingCollective | None = None
        """The operation that was begun last; None before the first, and once this is closed."""
        self._lock = threading.Lock()
        self._closed = False
        self._following = Following()
        """Information for the last all-gather on the call after it."""

    def allreduce(
        self,
        tensor: torch.Tensor,
        op: ReduceOp,
        name: str = "allreduce",
        *,
        lane_bits: LaneBits | None = None,
        feedback: torch.Tensor | None = None,
        reproducible: bool | None = None,
    ) -> PendingCollective:
        """Starts to reduce a tensor in place, in parts.  ``lane_bits``, ``feedback`` and ``reproducible`` are those of
        ``Communicator.allreduce``.

        feedback  float32 of the tensor's shape, on its device; on the CPU for a communicator that goes on when a rank
                  is lost, which makes its lanes on the CPU

        Raises ValueError for sparse tensors, Closed, and the errors of a device, which end the communicator.
        """
        how: dict[str, Any] = {"op": op, "name": name, "lane_bits": lane_bits, "reproducible": reproducible}
        what = _named(name, op, tensor)
        with ending_with(tensor.device, self.comm, self.ahead.refuse):
            lane = self.staging.lane(name, [tensor])
        kind = self._kind_inside(lane, tensor, op, lane_bits, feedback, reproducible)
        if lane is None and kind is None:
            array, dtype = as_array(tensor)
            left = None if feedback is None else feedback.numpy()
            call = partial(allreduce, self.comm, array, feedback=left, dtype=dtype, **how)
            return self._begin([tensor], lambda: [self.comm.later(call, what)])
        if tensor.layout != torch.strided:
            raise ValueError(f"{what}: the tensor is {tensor.layout}: expected a dense one")
        beside = lane or self._cpu
        with ending_with(beside.device.place, self.comm, self.ahead.refuse):  # which may have no memory left for copies
            if kind is not None:
                inside, opener = InsideParts(beside, tensor), Opener(kind, beside, forced=self._inside == "group")
                return self._run(tensor, what, inside, lambda: self._reduce_inside(inside, opener, how))
            bits = self._lanes_of(tensor, op, lane_bits, reproducible)
            if bits != 32:
                narrow = NarrowParts(beside, tensor, feedback)
                return self._run(tensor, what, narrow, lambda: self._narrow(narrow, bits, op, name))
            parts = TensorParts(beside, tensor, whole=self.comm.repeats_losses)
            return self._run(tensor, what, parts, lambda: self._reduce_staged(parts, feedback, how))

    def _reduce_staged(self, parts: TensorParts, feedback: torch.Tensor | None, how: dict[str, Any]) -> None:
        """Reduces a tensor on a device by copies of all of it, on the communicator's thread."""
        whole = None if feedback is None else feedback.numpy()
        residual = None if whole is None else whole.reshape(-1)

        def reduce(part: torch.Tensor, place: slice) -> None:
            array, dtype = as_array(part)
            left = None if residual is None else residual[place]
            self.comm.allreduce(array, out=array, dtype=dtype, feedback=left, **how)

        parts.run(reduce)
        if whole is not None and residual is not None and not whole.flags.c_contiguous:
            whole[...] = residual.reshape(whole.shape)  # of strided memory the flat one is a copy

    def _kind_inside(
        self, lane: Lane | None, tensor: torch.Tensor, op: ReduceOp, lane_bits: LaneBits | None,
        feedback: torch.Tensor | None, reproducible: bool | None,
    ) -> str | None:
        """The backend by which the ranks of a machine are to reduce this tensor, if they turn out to fold; None: the
        whole tensor goes through the memory of the host.  The same on all ranks of a machine whose tensors are on
        devices, so it asks for nothing that changes while calls are under way."""
        comm, name = self.comm, dtype_name(tensor.dtype)
        kind = kind_of(torch.device("cpu") if lane is None else lane.device.place, self._inside)
        exact = "float" in name and (comm.reproducible if reproducible is None else reproducible)
        if (
            kind is None or name not in FOLDED or op not in ("sum", "average") or feedback is not None or exact
            or comm.repeats_losses or not comm.may_reduce_inside
            or self._lanes_of(tensor, op, lane_bits, reproducible) != 32
        ):
            return None
        return kind

    def _reduce_inside(self, parts: InsideParts, opener: Opener, how: dict[str, Any]) -> None:
        """Reduces a tensor by the ranks of each machine and the switches, on the communicator's thread."""
        group, element = self.comm.machine_group(opener), dtype_name(parts.dtype)
        if group is None:
            self._reduce_staged(parts, None, how)
        else:
            parts.run_inside(
                group, lambda step: self.comm.allreduce_inside(step, how["op"], element, name=how["name"])
            )

    def _lanes_of(
        self, tensor: torch.Tensor, op: ReduceOp, lane_bits: LaneBits | None, reproducible: bool | None
    ) -> LaneBits:
        """Width in bits of the lanes that the device makes; 32 if it makes none."""
        if self.comm.repeats_losses or not narrows(op, dtype_name(tensor.dtype)):
            return 32
        return self.comm.lanes(lane_bits, reproducible=reproducible)

    def _narrow(self, parts: NarrowParts, bits: LaneBits, op: ReduceOp, name: str) -> None:
        """Reduces a tensor in lanes that the device makes, on the communicator's thread."""
        comm = self.comm

        def reduce(words: torch.Tensor, how: ReduceOp) -> None:
            array = words.numpy()
            comm.allreduce(array, array, how, name=f"{name}, scales" if how == "max" else name)

        def lanes() -> NarrowLanes:
            return NarrowLanes(bits, comm.size, None if parts.keeps_residual else comm.rounding_key())

        parts.run(lanes, float(comm.size) if op == "average" else 1.0, reduce)

    def _run(
        self, tensor: torch.Tensor, what: str, staged: TensorParts | NarrowParts, call: Callable[[], object]
    ) -> PendingCollective:
        """Starts the reduction of a tensor on a device."""
        def carry() -> None:
            with ending_with(staged.place, self.comm):
                call()

        pending = None
        try:
            self.ahead.prepare(what.partition(",")[0], staged, [tensor])
            pending = self._begin([tensor], lambda: [self.comm.later(carry, what)], staged=staged)
            if staged.chain is None:
                pending.when_done(staged.drop)  # where it has not begun to run, since the ranks have changed
            else:
                self.ahead.begun(what, pending)
        except BaseException as error:
            staged.end_call(error, begun=pending is not None)
            raise
        return pending

    def later(
        self, tensors: Sequence[torch.Tensor], calls: Sequence[Callable[[], object]], what: str, *,
        following: Following | None = None, joins: JoiningScatter | None = None,
    ) -> PendingCollective:
        """Starts other collectives of the communicator, which fill these tensors.  Raises Closed.

        following  of an all-gather: receives the next call
        joins      of a reduce-scatter: the call that the preceding all-gather learns of
        """
        return self._begin(
            tensors, lambda: [self.comm.later(on_our_thread(call), what) for call in calls], following, joins
        )

    def _begin(
        self, tensors: Sequence[torch.Tensor], begin: Callable[[], list[Work[Any]]],
        following: Following | None = None, joins: JoiningScatter | None = None, staged: Staged | None = None,
    ) -> PendingCollective:
        with self._lock:
            if self._closed:
                raise Closed(f"{self.comm!r}: its process group or hook was closed")
            works = begin()
            self._following.follow(joins)
            self._following = following or Following()
            self.last = pending = PendingCollective(list(tensors), works, self._following.awaited, staged)
        return pending

    def close(self) -> None:
        """Waits for operations under way, at most for the communicator's timeout; what the calling thread's streams are
        given next comes after their copies back."""
        with self._lock:
            self._closed = True
            last, self.last = self.last, None
        if last is not None:
            over = threading.Event()
            last.when_done(over.set)
            over.wait()
        self.staging.order()


def _named(name: str, op: ReduceOp, tensor: torch.Tensor) -> str:
    return f"{name}, {op} of {tensor.numel()} x {dtype_name(tensor.dtype)}"

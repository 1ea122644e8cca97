# SPDX-License-Identifier: Apache-2.0
"""Gradients by priority, first layers first, with a next forward pass that waits only for the updates it needs.

DistributedDataParallel ends backward when every gradient is reduced, so the order of buckets makes no difference to
it.  Here ``step`` returns at once, as in BytePS and ByteScheduler (Peng et al. 2019): backward computes gradients from
the last layer to the first, the next forward needs updates from the first to the last, and whenever the network is
free, the bucket that is needed first goes first.

    backward   bucket 3 ready   2 ready   1 ready   0 ready | step | forward: layer 0 waits for bucket 0, ...
    network              [ 3 ][ 0 ][ 1 ][ 2 ]                        which came before 1 and 2

Ranks must reduce the same buckets in the same order although different buckets are ready on each.  So before each
bucket they vote by summing flags, one int32 a bucket, one packet in the network: a bucket is ready where the sum is the
number of ranks, and the first of those is next.  After a vote without result a rank votes again as soon as it has
further buckets ready.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.errors import Closed
from netfold.host.operation.coding import LaneBits, narrows
from netfold.host.staging.copies import Staging, TensorParts, places_of_parts
from netfold.host.staging.device import device_of
from netfold.host.torch.feedback import Residual, as_residual, as_tensor
from netfold.host.torch.tensors import as_array, dtype_name, reduces
from netfold.host.torch.verbs import broadcast_parameters

Order = Literal["priority", "arrival"]
MOST_BUCKETS = 1 << 16

log = logging.getLogger("netfold")


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients are reduced together."""

    index: int
    """Place in the forward pass: buckets with smaller indices are needed earlier."""
    parameters: list[nn.Parameter]
    flat: torch.Tensor
    """The gradients one after another; after the reduction, the reduced ones."""
    views: list[torch.Tensor]
    here: set[int] = field(default_factory=set)
    """Indices of the parameters whose gradients of this step are in ``flat``."""
    reduced: threading.Event = field(default_factory=threading.Event)
    residual: Residual | None = None
    """The parts of the gradients that narrow lanes have dropped so far, float32[flat.shape]; None without error
    feedback."""
    parts: TensorParts | None = None
    """The copies of ``flat``, if it is on a device, once all of its gradients are in it."""
    due: bool = False
    """True between ``step`` and the update of the parameters."""


class PriorityOptimizer:
    """An optimizer of a model whose gradients are averaged over a communicator's ranks.

        optimizer = PriorityOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3), model, comm)
        for x, y in data:
            loss_of(model(x), y).backward()
            optimizer.step()
        optimizer.synchronize()

    optimizer   any of torch's that leaves parameters without a gradient alone (all in torch.optim do)
    communicator  for this object's exclusive use until ``synchronize`` or ``close``; not closed by it
    bucket_mb   MiB of gradients in a bucket at most; a larger parameter has one of its own
    lane_bits, error_feedback  as for NetfoldState
    order       "arrival": last layers first, as backward makes them, for comparison
    All ranks start with rank 0's parameters.  Evaluating (model.eval(), or without gradients) and state_dict() see all
    updates; other code that reads parameters must call ``synchronize`` first.  Buffers (batch norm's) stay each rank's
    own. Raises ValueError for a model without parameters or with some that are not dense.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        communicator: Communicator,
        *,
        bucket_mb: float = 4.0,
        lane_bits: LaneBits | None = None,
        error_feedback: bool = True,
        order: Order = "priority",
    ) -> None:
        if order not in ("priority", "arrival"):
            raise ValueError(f"order={order!r}: expected 'priority' or 'arrival'")
        self.optimizer = optimizer
        self._comm = communicator
        self._pick = min if order == "priority" else max
        self._buckets = _cut([p for p in model.parameters() if p.requires_grad], int(bucket_mb * (1 << 20)))
        self._lane_bits = lane_bits
        for bucket in self._buckets:
            if error_feedback and communicator.lanes(lane_bits) != 32 and _narrows(bucket):
                bucket.residual = np.zeros(bucket.flat.shape, np.float32)
        self._place = {p: (bucket, i) for bucket in self._buckets for i, p in enumerate(bucket.parameters)}
        self._staging = Staging()
        self._settings: list[dict[str, Any]] = []
        self._held = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._ready: set[int] = set()
        self._left = len(self._buckets)
        """Number of buckets of this step that are not reduced yet."""
        self._closed = self._over = False
        """True once it was closed, and once its thread has ended, which runs no further bucket."""
        broadcast_parameters(model.state_dict(), communicator=communicator)
        self._hooks = [p.register_post_accumulate_grad_hook(self._accumulated) for p in self._place]
        for module in model.modules():
            if needs := self._needs(module):
                self._hooks.append(module.register_forward_pre_hook(lambda _m, _x, needs=needs: self._update(needs)))
        self._hooks.append(model.register_forward_pre_hook(self._evaluating))
        self._hooks.append(model.register_state_dict_pre_hook(lambda *_: self.synchronize()))
        self._thread = threading.Thread(target=self._serve, name="netfold-priority", daemon=True)
        self._thread.start()

    # ---- what a training loop calls ----------------------------------------------------------------------------------
    def step(self) -> None:
        """Schedules the update of this step with the present hyperparameters; it happens when the next forward needs
        it.

        Missing gradients count as zero.  Raises the errors of the reductions, and Closed.
        """
        if self._closed:
            raise Closed(f"{self._comm!r}: its PriorityOptimizer was closed")
        self._update(self._buckets)  # those that the last forward had no need of
        self.optimizer._opt_called = True  # else a learning rate schedule warns that step() was not called
        self._settings = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        for bucket in self._buckets:
            missing = len(bucket.here) < len(bucket.parameters)
            for place in set(range(len(bucket.parameters))) - bucket.here:
                bucket.views[place].zero_()
            bucket.due = True
            bucket.here.clear()
            if missing:
                self._offer(bucket)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: a gradient is removed as soon as it has been copied to its bucket."""

    def synchronize(self) -> None:
        """Returns once every update is done; the communicator is free for other use then."""
        self._update(self._buckets)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which gradients of backward passes are added up, to be reduced with those of the next one
        outside."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def state_dict(self) -> dict[str, Any]:
        """The state for checkpoints, after all updates: the optimizer's own, and this rank's residuals of narrow lanes
        by index in ``model.parameters()``, which every rank has to save for itself."""
        self.synchronize()
        return {
            "optimizer": self.optimizer.state_dict(),
            "residual": {
                at: as_tensor(residual, parameter)
                for at, (parameter, residual) in enumerate(self._residuals())
                if residual is not None
            },
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Loads a state that ``state_dict`` of the same rank returned, in version 0.1 ("owed") too.  Raises ValueError
        for another model's state."""
        self.synchronize()
        given = saved["residual"] if "residual" in saved else saved["owed"]
        places = dict(enumerate(self._residuals()))
        residual = {
            at: as_residual(tensor, places[at][0], f"parameter {at}")
            for at, tensor in given.items()
            if at in places
        }
        if len(residual) < len(given):
            raise ValueError(
                f"the residuals are of {max(given) + 1} parameters: this model has {len(places)}"
            )
        self.optimizer.load_state_dict(saved["optimizer"])
        for at, (_, mine) in places.items():
            if mine is not None:
                mine[:] = residual.get(at, 0)
            elif at in residual:
                log.warning("%r: lanes are whole here: what narrow ones left out of parameter %d's gradients is "
                            "forgotten", self._comm, at)

    def close(self) -> None:
        """Does all updates, removes the hooks and ends the thread; safe to call twice."""
        if self._closed:
            return
        try:
            self.synchronize()
        finally:
            for hook in self._hooks:
                hook.remove()
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            self._thread.join()  # bounded: every operation is

    # ---- hooks -------------------------------------------------------------------------------------------------------
    def _needs(self, module: nn.Module) -> list[_Bucket]:
        """Buckets that a module's own forward reads. A module with parameters may also read its children's parameters
        without calling them (MultiheadAttention does)."""
        own = list(module.parameters(recurse=False))
        if not own:
            return []
        found = {self._place[p][0] for p in module.parameters() if p in self._place}
        return sorted(found, key=lambda bucket: bucket.index)

    def _evaluating(self, module: nn.Module, _: Any) -> None:
        if not module.training or not torch.is_grad_enabled():
            self.synchronize()  # fused kernels for inference read everything at once

    def _accumulated(self, parameter: nn.Parameter) -> None:
        """Called by torch when a parameter's gradient has been accumulated."""
        if self._held:
            return
        bucket, place = self._place[parameter]
        if bucket.due:
            raise RuntimeError(
                f"{self._comm!r}: a parameter of shape {tuple(parameter.shape)} has a new gradient before its last "
                "update: some module reads it without that its own forward is called; call synchronize() before forward"
            )
        if place in bucket.here:
            raise RuntimeError(
                f"{self._comm!r}: a parameter of shape {tuple(parameter.shape)} has a second gradient in one step: "
                "wrap all backward passes but the last in no_sync()"
            )
        assert parameter.grad is not None
        if parameter.grad.layout != torch.strided:
            raise ValueError(f"{self._comm!r}: the gradient of a parameter of shape {tuple(parameter.shape)} is "
                             f"{parameter.grad.layout}: expected a dense one (sparse=False)")
        with ending_with(bucket.flat.device, self._comm):
            bucket.views[place].copy_(parameter.grad)
        parameter.grad = None
        bucket.here.add(place)
        if len(bucket.here) == len(bucket.parameters):
            self._offer(bucket)

    def _residuals(self) -> Iterator[tuple[nn.Parameter, Residual | None]]:
        """Parameters in their order, each with its part of the residual."""
        for bucket in self._buckets:
            at = 0
            for parameter in bucket.parameters:
                yield parameter, None if bucket.residual is None else bucket.residual[at : at + parameter.numel()]
                at += parameter.numel()

    def _offer(self, bucket: _Bucket) -> None:
        try:
            with ending_with(bucket.flat.device, self._comm):
                lane = self._staging.lane("PriorityOptimizer", [bucket.flat])
                bucket.parts = None if lane is None else TensorParts(lane, bucket.flat, whole=self._comm.repeats_losses)
        except Exception as error:
            with self._changed:
                self._error = error  # the thread ends with it: it would wait for this bucket in vain
                self._changed.notify_all()
            raise
        with self._changed:
            if self._over and bucket.parts is not None:
                bucket.parts.drop()
            self._ready.add(bucket.index)
            self._changed.notify_all()

    def _update(self, buckets: list[_Bucket]) -> None:
        """Does the pending updates of these buckets.  The wait is bounded, since the thread ends each bucket with a
        result or an error."""
        for bucket in buckets:
            if not bucket.due:
                continue
            bucket.reduced.wait()
            if self._error is not None:
                raise self._error
            if bucket.parts is not None:
                bucket.parts.order()
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view
            groups = self.optimizer.param_groups
            now = [{k: v for k, v in g.items() if k != "params"} for g in groups]
            for group, setting in zip(groups, self._settings, strict=True):
                group.update(setting)
            self.optimizer.step()
            for group, setting in zip(groups, now, strict=True):
                group.update(setting)
            for parameter in bucket.parameters:
                parameter.grad = None
            bucket.reduced.clear()
            bucket.due = False

    # ---- the thread --------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        try:
            while (index := self._next()) is not None:
                bucket = self._buckets[index]
                if bucket.parts is None:
                    flat, whole = bucket.flat, self._comm.repeats_losses
                    for place in places_of_parts(flat.numel(), flat.element_size(), whole=whole):
                        self._reduce(bucket, flat[place], place)
                else:
                    with ending_with(bucket.parts.place, self._comm):
                        bucket.parts.run(partial(self._reduce, bucket))
                with self._changed:
                    self._ready.discard(index)
                    self._left = self._left - 1 or len(self._buckets)
                bucket.reduced.set()
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._over = True
                for bucket in self._buckets:
                    if bucket.parts is not None:
                        bucket.parts.drop()  # where it has not run
            if self._error is not None:
                for bucket in self._buckets:
                    bucket.reduced.set()

    def _reduce(self, bucket: _Bucket, part: torch.Tensor, place: slice) -> None:
        array, dtype = as_array(part)
        self._comm.allreduce(
            array, array, "average", dtype=dtype, name=f"bucket {bucket.index}",
            lane_bits=self._lane_bits if _narrows(bucket) else None,
            feedback=None if bucket.residual is None else bucket.residual[place],
        )

    def _next(self) -> int | None:
        """Index of the bucket that all ranks reduce next; None if this object is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._closed or self._error)
                if self._error is not None:
                    raise self._error
                if self._closed:
                    return None
                offered = frozenset(self._ready)
                all_of_it = len(offered) == self._left
            flags = np.zeros(len(self._buckets), np.int32)
            flags[list(offered)] = 1
            common = np.flatnonzero(self._comm.allreduce(flags, name="which bucket") == self._comm.size)
            if len(common):
                return int(self._pick(common))
            if not all_of_it:  # with all offered, the next vote can simply wait for the other ranks
                with self._changed:
                    self._changed.wait_for(lambda: self._ready != offered or self._closed or self._error)  # noqa: B023


def _narrows(bucket: _Bucket) -> bool:
    return narrows("average", dtype_name(bucket.flat.dtype))


def _kind(parameter: nn.Parameter) -> tuple[torch.dtype, torch.device]:
    """The properties that the parameters of a bucket share."""
    return parameter.dtype, parameter.device


def _cut(parameters: list[nn.Parameter], limit: int) -> list[_Bucket]:
    """Buckets of adjacent parameters of one dtype on one device, each of at most ``limit`` bytes."""
    if not parameters:
        raise ValueError("PriorityOptimizer of a model without parameters that want gradients")
    groups: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        if device_of(parameter) is None:
            as_array(parameter)  # refuses what cannot be reduced
        elif not reduces(parameter, "average"):
            raise ValueError(f"parameter of {tuple(parameter.shape)} is {parameter.dtype}, {parameter.layout}: "
                             "expected dense floats")
        nbytes = parameter.numel() * parameter.element_size()
        if not groups or _kind(groups[-1][0]) != _kind(parameter) or size + nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(parameter)
        size += nbytes
    if len(groups) > MOST_BUCKETS:
        raise ValueError(f"{len(groups)} buckets of {limit} bytes: expected at most {MOST_BUCKETS}; raise bucket_mb")
    buckets = []
    for index, group in enumerate(groups):
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
        pieces = flat.split([p.numel() for p in group])
        views = [piece.view(p.shape) for piece, p in zip(pieces, group, strict=True)]
        buckets.append(_Bucket(index, group, flat, views))
    return buckets

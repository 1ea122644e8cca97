# SPDX-License-Identifier: Apache-2.0
"""Horovod's ``DistributedOptimizer``: an optimizer whose gradients are averaged over ranks while backward makes them.

    netfold.init()
    optimizer = netfold.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                                   named_parameters=model.named_parameters())
    netfold.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    for x, y in data:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

Arguments and behaviour are those of horovod.torch 0.28; unsupported arguments are refused by name.  Ranks must reduce
in one order, and here they do not negotiate it: gradients travel in buckets, from the last parameters to the first,
each once all of its gradients and the buckets before are there.  Missing gradients of a rank count as zeros.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from netfold.host.api import verbs
from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.operation.coding import LaneBits, narrows
from netfold.host.operation.reduction import ReduceOp
from netfold.host.staging.device import device_of
from netfold.host.torch.reducer import PendingCollective, Reducer
from netfold.host.torch.tensors import FLOATS, dtype_name

BUCKET_BYTES: Final = 4 << 20
"""Most bytes of gradients in a bucket; a larger parameter has one of its own."""


@dataclass(frozen=True)
class Compressor:
    """A form in which gradients travel: ``Compression.none`` or ``Compression.fp16``."""

    lane_bits: LaneBits | None


class Compression:
    """Horovod's names for the forms in which gradients travel.

    none  the communicator's lanes
    fp16  lanes of 16 bits if the switches fold: half the bytes, with the error bounds in docs/host.md, which are not
          those of float16
    """

    none: Final = Compressor(None)
    fp16: Final = Compressor(16)


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients are reduced together, in this order."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    """The gradients one after another; after the reduction, the reduced ones."""
    ready: set[int] = field(default_factory=set)
    """Places of the parameters whose gradients of this step are complete."""
    work: PendingCollective | None = None
    """The reduction, once it has begun."""


class _Gradients:
    """The gradients of one optimizer's parameters: collects them in buckets, reduces them, and copies them back."""

    def __init__(
        self, comm: Communicator, groups: Sequence[Sequence[nn.Parameter]], op: ReduceOp, lane_bits: LaneBits | None,
        predivide: float, passes: int, dense: bool,
    ) -> None:
        self._comm, self._op, self._lane_bits = comm, op, lane_bits
        self._predivide, self._dense = predivide, dense
        self.reducer = Reducer(comm)
        self._buckets = [
            _Bucket([*group], group[0].new_zeros(sum(p.numel() for p in group), requires_grad=False))
            for group in groups
        ]
        self._place = {p: (bucket, i) for bucket in self._buckets for i, p in enumerate(bucket.parameters)}
        self.passes = passes
        self._made = dict.fromkeys(self._place, 0)
        """Parameter -> number of backward passes of this step that have added to its gradient."""
        self.begun = 0
        """Number of buckets whose reduction has begun, always the first ones."""
        self._lock = threading.Lock()
        """Held while buckets begin: autograd has a thread for each device, and each calls ``_accumulated``."""
        for parameter in self._place:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def zeroed(self) -> None:
        """Records that gradients start from zero.  Raises RuntimeError while reductions are under way."""
        if self.begun:
            raise RuntimeError(
                "zero_grad() after backward() and before step() or synchronize(): reductions of these gradients are "
                "under way; call step() first"
            )
        self._made = dict.fromkeys(self._place, 0)
        for bucket in self._buckets:
            bucket.ready.clear()

    def finish(self) -> None:
        """Reduces the remaining buckets, and copies all results to the parameters' gradients.  Raises the
        communicator's errors."""
        with self._lock:
            self._begin(len(self._buckets))
        for bucket in self._buckets:
            assert bucket.work is not None
            bucket.work.wait()
            if self._predivide != 1:
                bucket.flat.mul_(self._predivide / self._comm.size)
            for parameter, part in self._parts(bucket):
                if parameter.grad is None or parameter.grad.is_sparse:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(part)
            bucket.work = None
            bucket.ready.clear()
        self.begun = 0
        self._made = dict.fromkeys(self._place, 0)

    def _accumulated(self, parameter: nn.Parameter) -> None:
        """Called when a backward pass has added to this parameter's gradient."""
        self._made[parameter] += 1
        if self._made[parameter] > self.passes:
            raise RuntimeError(
                f"gradients were made more than {self.passes} times before step(): give a larger "
                "backward_passes_per_step to accumulate them, or call step() or zero_grad()"
            )
        if self._made[parameter] == self.passes:
            bucket, place = self._place[parameter]
            with self._lock:
                bucket.ready.add(place)
                end = self.begun
                while end < len(self._buckets) and len(self._buckets[end].ready) == len(self._buckets[end].parameters):
                    end += 1
                self._begin(end)

    def _begin(self, end: int) -> None:
        """Begins to reduce the buckets before this one."""
        while self.begun < end:
            bucket = self._buckets[self.begun]
            with ending_with(bucket.flat.device, self._comm):
                for parameter, part in self._parts(bucket):
                    gradient = parameter.grad
                    if gradient is None:
                        part.zero_()  # other ranks may have one
                    else:
                        part.copy_(self._whole(gradient))
                if self._predivide != 1:
                    bucket.flat.div_(self._predivide)
            bits = self._lane_bits if narrows(self._op, dtype_name(bucket.flat.dtype)) else None
            bucket.work = self.reducer.allreduce(bucket.flat, self._op, f"gradients {self.begun}", lane_bits=bits)
            self.begun += 1

    def _whole(self, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.is_sparse and not self._dense:
            raise ValueError(
                f"gradient of {tuple(gradient.shape)} is sparse: expected a dense one; give sparse_as_dense=True, or a "
                "layer without sparse=True"
            )
        return gradient.to_dense() if gradient.is_sparse else gradient

    @staticmethod
    def _parts(bucket: _Bucket) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        at = 0
        for parameter in bucket.parameters:
            yield parameter, bucket.flat[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()


class DistributedStep(torch.optim.Optimizer):
    """The methods that ``DistributedOptimizer`` adds to an optimizer's class."""

    _gradients: _Gradients
    _synchronized: bool
    _synchronizes: bool

    def synchronize(self) -> None:
        """Waits until all gradients are reduced, so that they can be read or clipped; ``step`` then goes inside
        ``skip_synchronize``."""
        self._gradients.finish()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which ``step`` uses the gradients as they are, after a ``synchronize``."""
        self._synchronizes = False
        try:
            yield
        finally:
            self._synchronizes = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes of a step, from the next ``zero_grad`` or ``step`` on.  Raises
        ValueError."""
        self._gradients.passes = _positive(passes)
        self._gradients.zeroed()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduces the remaining gradients, and runs the optimizer's step with the reduced ones.

        closure  as for the optimizer; it must not make gradients, which would not be reduced
        """
        if self._synchronizes:
            if self._synchronized:
                warnings.warn(
                    "step() after synchronize() reduces the gradients once more: put it inside skip_synchronize()",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._gradients.finish()
        self._synchronized = False
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's.  Raises RuntimeError between ``backward`` and ``step``, where gradients are under way."""
        self._gradients.zeroed()
        super().zero_grad(set_to_none)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = verbs.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Sequence[Sequence[nn.Parameter]] | int | None = None,
    sparse_as_dense: bool = False,
    process_set: object = None,
    *,
    communicator: Communicator | None = None,
) -> Any:
    """The optimizer with ``DistributedStep``, of a subclass of its own class, with the same parameters and state.  Do
    not use the original any more.

    named_parameters   model.named_parameters(): checked, names must be distinct and cover all parameters
    compression        ``Compression.none`` or ``Compression.fp16``
    backward_passes_per_step  number of passes whose gradients are summed before the reduction (not divided by it)
    op                 ``netfold.Average`` or ``netfold.Sum``
    gradient_predivide_factor  divides gradients before the sum; the rest of the average's division follows the sum
    groups             parameters that are reduced together, or the number of groups; default: up to 4 MiB each
    sparse_as_dense    sparse gradients are reduced, and become, dense; otherwise they are a ValueError of backward
    communicator       default: the process's own (``netfold.init``)
    Raises ValueError for unsupported arguments: Adasum, process sets, ``num_groups`` (give ``groups``), and parameters
    that are not dense floats.
    """
    if process_set is not None:
        raise ValueError(f"process_set={process_set!r}: there are none here; give communicator=")
    if num_groups:
        raise ValueError(f"num_groups={num_groups}: give groups={num_groups}")
    if op not in (verbs.Average, verbs.Sum):
        raise ValueError(f"op={op!r}: expected netfold.Average or netfold.Sum; Adasum and others are not made here")
    if gradient_predivide_factor <= 0 or (op != verbs.Average and gradient_predivide_factor != 1):
        raise ValueError(f"gradient_predivide_factor={gradient_predivide_factor}, op={op!r}: expected more than 0, and "
                         "1 but for an average")
    if not isinstance(compression, Compressor):
        raise ValueError(f"compression={compression!r}: expected Compression.none or Compression.fp16")
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    _check_parameters(parameters, named_parameters)
    predivided = gradient_predivide_factor != 1
    gradients = _Gradients(
        communicator or verbs.communicator(), _grouped(parameters, groups),
        "average" if op == verbs.Average and not predivided else "sum", compression.lane_bits,
        gradient_predivide_factor, _positive(backward_passes_per_step), sparse_as_dense,
    )
    kind = optimizer.__class__
    distributed: Any = object.__new__(type(kind.__name__, (DistributedStep, kind), {}))
    # A scheduler's wrapper of ``step`` belongs to the old object, whose groups of parameters are the same ones.
    distributed.__dict__.update({name: value for name, value in optimizer.__dict__.items() if name != "step"})
    distributed._gradients, distributed._synchronized, distributed._synchronizes = gradients, False, True
    return distributed


def _positive(passes: int) -> int:
    if passes < 1:
        raise ValueError(f"backward_passes_per_step={passes}: expected 1 or more")
    return passes


def _check_parameters(
    parameters: Sequence[nn.Parameter], named: Iterable[tuple[str, nn.Parameter]] | None
) -> None:
    for p in parameters:
        device_of(p)  # refuses other devices than the CPU and the accelerator
        if p.layout != torch.strided or p.dtype not in FLOATS:
            raise ValueError(f"parameter of {tuple(p.shape)} is {p.dtype}, {p.layout}: expected dense floats")
    if named is None:
        return
    pairs = list(named)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError("named_parameters: expected pairs of name and parameter, as of model.named_parameters()")
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"named_parameters: {', '.join(twice)} stand there more than once: expected distinct names")
    known = {id(p) for _, p in pairs}
    if missing := [tuple(p.shape) for p in parameters if id(p) not in known]:
        raise ValueError(f"named_parameters: {len(missing)} of the optimizer's parameters have no name, of shapes "
                         f"{missing[:5]}: expected all of them")


def _grouped(
    parameters: Sequence[nn.Parameter], groups: Sequence[Sequence[nn.Parameter]] | int | None
) -> list[list[nn.Parameter]]:
    """Buckets in the order in which backward computes their gradients; each holds one dtype on one device."""
    backwards = [*reversed(parameters)]
    if isinstance(groups, int):
        if groups < 1:
            raise ValueError(f"groups={groups}: expected 1 or more, or lists of parameters")
        together = [[*backwards[i * len(backwards) // groups : (i + 1) * len(backwards) // groups]]
                    for i in range(groups)]
        most = 1 << 62
    elif groups is not None:
        place = {id(p): i for i, group in enumerate(groups) for p in group}
        if sum(map(len, groups)) != len(place) or not place.keys() <= {id(p) for p in parameters}:
            raise ValueError("groups: expected parameters of the optimizer, each in one group")
        together = [[p for p in backwards if place.get(id(p)) == i] for i in reversed(range(len(groups)))]
        together += [[p] for p in backwards if id(p) not in place]
        most = 1 << 62
    else:
        together, most = [backwards], BUCKET_BYTES
    found: list[list[nn.Parameter]] = []
    for group in together:
        nbytes, kind = most, (None, None)
        for p in group:
            size = p.numel() * p.element_size()
            if (p.dtype, p.device) != kind or nbytes + size > most:
                found.append([])
                nbytes, kind = 0, (p.dtype, p.device)
            found[-1].append(p)
            nbytes += size
    return found

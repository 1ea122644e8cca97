# SPDX-License-Identifier: Apache-2.0
"""Backend "netfold": what DistributedDataParallel and FSDP reduce and gather goes through the communicator, everything
else through gloo.

Allreduce and reduce-scatter of what the communicator reduces (``tensors.OPERATIONS``) fold in the switches or go
between the hosts, as it decides; all-gather goes between the hosts.  The rest, other dtypes, bitwise operations, sparse
tensors and all other collectives, is handed to an inner gloo group over the same store.  The first use of each kind is
logged with the path that it takes.  gloo is also this group's registered backend for CPU tensors, so that C++ code
which goes past the Python methods finds it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from netfold.host.api.communicator import Communicator
from netfold.host.operation.reduction import ReduceOp
from netfold.host.torch import pieces
from netfold.host.torch.join import JOB_VARIABLE, STORE, Options, join
from netfold.host.torch.reducer import PendingCollective, Reducer
from netfold.host.torch.tensors import check_device, dtype_name, flattened, reduces

OPS: list[tuple[Any, ReduceOp]] = [
    (dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "average"), (dist.ReduceOp.MAX, "max"), (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.PRODUCT, "product"),
]
DELEGATED = (
    "allgather_coalesced", "alltoall", "alltoall_base", "all_to_all_single", "barrier", "broadcast", "gather",
    "monitored_barrier", "recv", "recv_anysource", "reduce", "scatter", "send",
)
GATHERS = (
    "allgather", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
)
SCATTERS = (
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)
"""Methods of ProcessGroup that go to gloo (``DELEGATED``), that gather, and that reduce and scatter, under the names of
torch 2.5 to 2.13; those that the installed torch has are used."""

log = logging.getLogger("netfold")

_not_compiled: Callable[..., Any] = torch._disable_dynamo
"""Decorator for methods that torch calls from C++: inside torch.compile'd code Dynamo would trace into them, and
fail."""


class TorchWork(dist._Work):
    """A started collective, as torch.distributed expects it."""

    def __init__(self, pending: PendingCollective) -> None:
        super().__init__()
        self._pending = pending

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Returns once the tensors hold the result; raises the communicator's error.

        timeout  0 (torch's default): the communicator's own.  Raises CollectiveTimeout when it is over; the operation
                 itself goes on
        """
        self._pending.wait(timeout.total_seconds() or None)
        return True

    def synchronize(self) -> None:
        """The same as ``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether ``wait`` would return or raise at once."""
        return self._pending.done()

    def is_success(self) -> bool:
        """Whether it is done, without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error that it ended with, or None."""
        if self.is_completed():
            try:
                self._pending.wait()
            except Exception as error:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors, once they hold the result."""
        self.wait()
        return self._pending.tensors

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future whose value is the tensors."""
        return self._pending.future


class NetfoldGroup(dist.ProcessGroup):
    """A process group of backend "netfold".  Owns the communicator."""

    def __init__(self, store: dist.Store, communicator: Communicator, timeout: timedelta) -> None:
        rank, size = communicator.rank, communicator.size
        super().__init__(rank, size)
        self.communicator = communicator
        self._reducer = Reducer(communicator)
        self._said: set[str] = set()
        # The epoch tells this group's addresses from those that an earlier one has left in the same store.
        prefix = f"gloo/{communicator.plan.epoch}"
        gloo = _gloo(dist.PrefixStore(prefix, store), communicator, timeout)
        self._inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self._inner):
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:
        """The backend's name, "netfold"."""
        return "netfold"

    @_not_compiled
    def allreduce(self, tensors: Any, opts: Any = dist.ReduceOp.SUM, timeout: timedelta | None = None) -> dist._Work:
        """Reduces by the communicator what it can reduce, and all else by gloo.

        opts  AllreduceOptions, or a ReduceOp
        """
        return self._reduce("allreduce", tensors, opts, timeout)

    @_not_compiled
    def allreduce_coalesced(self, tensors: Any, opts: Any = dist.ReduceOp.SUM) -> dist._Work:
        """Reduces several tensors, each as ``allreduce`` does."""
        return self._reduce("allreduce_coalesced", tensors, opts, None)

    def shutdown(self) -> None:
        """Waits for what is under way, and leaves the job; ``destroy_process_group`` calls it."""
        self._reducer.close()
        self.communicator.close()
        self._inner.shutdown()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _reduce(self, kind: str, tensors: Any, opts: Any, timeout: timedelta | None) -> dist._Work:
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        check_device(kind, several)
        asked = getattr(opts, "reduceOp", opts)
        op = _op(asked)
        dtypes = sorted({dtype_name(tensor.dtype) for tensor in several})
        if op is not None and all(reduces(tensor, op) for tensor in several):
            for dtype in dtypes:
                self._say(f"{kind}, {op} of {dtype}", f"goes over {self.communicator.path(op, dtype)}")
            return TorchWork(self._reducer.allreduce(several, op))
        sparse = "sparse " if all(tensor.layout != torch.strided for tensor in several) else ""
        self._say(f"{kind}, {op or _name(asked)} of {sparse}{', '.join(dtypes)}")
        if timeout is not None:
            return getattr(self._inner, kind)(several, asked, timeout)
        if kind == "allreduce" or not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            return getattr(self._inner, kind)(several, opts)
        wanted = dist.AllreduceCoalescedOptions()
        wanted.reduceOp = asked
        return self._inner.allreduce_coalesced(several, wanted)

    def _delegate(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        """Hands the collective to gloo."""
        check_device(kind, [args, list(kwargs.values())])
        self._say(kind)
        return getattr(self._inner, kind)(*args, **kwargs)

    def _gather(self, kind: str, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gathers by the communicator, or sparse tensors by gloo.  For each input there is a list of tensors, or one
        for all of it."""
        check_device(kind, [outputs, inputs])
        pairs = _pairs(outputs, inputs)
        if any(tensor.layout != torch.strided for tensor in flattened([outputs, inputs])):
            self._say(f"{kind} of sparse tensors")
            return getattr(self._inner, kind)(outputs, inputs, *(() if opts is None else (opts,)))
        calls = [pieces.all_gather(self.communicator, output, mine) for output, mine in pairs]
        return self._later(kind, kind, flattened([outputs]), calls)

    def _scatter(
        self, kind: str, outputs: Any, inputs: Any, opts: Any = dist.ReduceOp.SUM, timeout: timedelta | None = None
    ) -> Any:
        """Reduces and scatters by the communicator what it can reduce, and all else by gloo.  For each output there is
        a list of tensors, or one to split."""
        check_device(kind, [outputs, inputs])
        asked = getattr(opts, "reduceOp", opts)
        op = _op(asked)
        dtypes = ", ".join(sorted({dtype_name(tensor.dtype) for tensor in flattened([inputs])}))
        if op is None or not all(reduces(tensor, op) for tensor in flattened([outputs, inputs])):
            self._say(f"{kind}, {op or _name(asked)} of {dtypes}")
            return getattr(self._inner, kind)(outputs, inputs, opts)
        calls = [pieces.reduce_scatter(self.communicator, mine, whole, op) for mine, whole in _pairs(outputs, inputs)]
        return self._later(kind, f"{kind}, {op} of {dtypes}", flattened([outputs]), calls)

    def _later(self, name: str, kind: str, tensors: list[torch.Tensor], calls: list[pieces.Call]) -> TorchWork:
        """Starts these calls in this order, and logs what has carried the first of their kind."""

        def last() -> None:
            calls[-1]()
            if kind not in self._said:
                self._say(kind, f"goes over {self.communicator.flight()[-1].path or self.communicator.rail}")

        return TorchWork(self._reducer.later(tensors, [*calls[:-1], last], name))

    def _say(self, kind: str, path: str = "has no path through NetFold: gloo does it") -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.info("%r: %s %s", self.communicator, kind, path)


def _gloo(store: dist.Store, communicator: Communicator, timeout: timedelta) -> dist.ProcessGroupGloo:
    """A gloo group on the communicator's address; by itself gloo takes that of the host's name, which may lead
    elsewhere."""
    rank, size = communicator.rank, communicator.size
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return dist.ProcessGroupGloo(store, rank, size, timeout)
    address = next(peer.address for peer in communicator.plan.peers if peer.rank == rank)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _method(name: str, how: Callable[..., Any]) -> Any:
    def call(self: NetfoldGroup, *args: Any, **kwargs: Any) -> Any:
        return how(self, name, *args, **kwargs)

    call.__name__, call.__doc__ = name, how.__doc__
    return _not_compiled(call)


for _how, _names in (
    (NetfoldGroup._delegate, DELEGATED),
    (NetfoldGroup._gather, GATHERS),
    (NetfoldGroup._scatter, SCATTERS),
):
    for _name_of in _names:
        if hasattr(dist.ProcessGroup, _name_of):
            setattr(NetfoldGroup, _name_of, _method(_name_of, _how))


def _pairs(outputs: Any, inputs: Any) -> list[tuple[Any, Any]]:
    """Pairs of outputs and inputs, which torch passes as one tensor and one, or as a list and a list."""
    if isinstance(outputs, torch.Tensor) or isinstance(inputs, torch.Tensor):
        return [(outputs, inputs)]
    if len(outputs) != len(inputs) or not outputs:
        raise ValueError(f"{len(outputs)} outputs and {len(inputs)} inputs: expected as many, one or more")
    return list(zip(outputs, inputs, strict=True))


def _op(asked: Any) -> ReduceOp | None:
    return next((name for known, name in OPS if asked == known), None)


def create(opts: Any, options: Options | None) -> NetfoldGroup:
    """Makes a group; torch calls it.

    opts     torch's _DistributedBackendOptions
    options  pg_options= of init_process_group or new_group
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: expected netfold.torch.Options")
    options = options or Options()
    if dist.is_initialized():
        options = _of_a_subgroup(options, opts.group_id)
    communicator = join(
        options,
        rank=opts.group_rank,
        world=opts.group_size,
        store=opts.store,
        timeout=opts.timeout.total_seconds(),
    )
    try:
        return NetfoldGroup(opts.store, communicator, opts.timeout)
    except BaseException:
        communicator.close()
        raise


def _of_a_subgroup(options: Options, group: str) -> Options:
    """The options of a group beside the default one, which becomes a job of its own name.  A host's address folds for
    one job at a time, so where the default group is of this backend, others ask for no trees unless they are told to.
    """
    job = options.job or f"{os.environ.get(JOB_VARIABLE) or 'default'}.{group}"
    controller = options.controller
    if controller is None and dist.get_backend() == "netfold":
        controller = STORE
    return replace(options, job=job, controller=controller)


def _name(op: Any) -> str:
    known = dist.ReduceOp.RedOpType.__members__
    return next((name.lower() for name, value in known.items() if op == value), str(op))

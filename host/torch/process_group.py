# SPDX-License-Identifier: Apache-2.0
"""Backend "netfold": every collective of torch.distributed, and its messages between two ranks, through NetFold.

Reductions of what the communicator reduces (``tensors.OPERATIONS``), and all that only moves tensors, fold in the
switches or go between the hosts, as it decides; they run in the order of the calls.  Messages (send, recv) have
connections of their own (``messenger``).  Operations that the communicator lacks go to an inner gloo group on the same
store: reductions of other dtypes, bitwise operations, sparse tensors, monitored_barrier.  The first use of each kind is
logged with the path that it takes. gloo is also this group's registered backend for CPU tensors, so that C++ code which
bypasses the Python methods finds it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from netfold.host import shared_log
from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.errors import Closed, NetFoldError
from netfold.host.operation.reduction import ReduceOp
from netfold.host.staging.device import devices
from netfold.host.torch import flat, movement, pieces
from netfold.host.torch.arguments import factor_of, known_operation, only_tensor, operation_name, pairs_of, root_of
from netfold.host.torch.beside import Following, JoiningScatter, joinable_gather, warn_where_nothing_joins
from netfold.host.torch.calls import started
from netfold.host.torch.forked import leave_to_parent
from netfold.host.torch.group_log import PathLog, warn_of_timeout
from netfold.host.torch.inner_gloo import open_gloo
from netfold.host.torch.inside_group import Inside
from netfold.host.torch.messenger import Messenger, open_messenger
from netfold.host.torch.reducer import Reducer
from netfold.host.torch.staged import arrive, by_rows, staged
from netfold.host.torch.tensors import Factor, as_reals, check_gloo, dtype_name, flattened, reduced_as, reduces
from netfold.host.torch.work import TorchWork

GATHERS = (
    "allgather", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
)
SCATTERS = (
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
)
EXCHANGES = ("alltoall_base", "all_to_all_single")
"""Methods of ProcessGroup that gather, that reduce and scatter, and that exchange rows, under the names of torch 2.5 to
2.13; those that the installed torch has are used."""

HELD = ("communicator", "_reducer", "_messenger", "_inner", "_say")
"""Attributes that a group holds until it is shut down."""


class NetfoldGroup(dist.ProcessGroup):
    """A process group of backend "netfold".  Owns the communicator, whose time-out is that of all operations.

    timeout   to wait for the other ranks while the group is made
    together  reduce-scatters may join the all-gather before them (``beside``)
    inside    as in ``Options``
    ahead     waits for tensors on devices block their stream and not the host, where that can be (``ahead``)
    """

    def __init__(
        self, store: dist.Store, communicator: Communicator, timeout: timedelta, *, together: bool = False,
        inside: Inside | None = None, ahead: bool = False,
    ) -> None:
        rank, size = communicator.rank, communicator.size
        super().__init__(rank, size)
        self.communicator = communicator
        self._reducer = Reducer(communicator, inside=inside, ahead=ahead)
        self.together = together
        if together:
            warn_where_nothing_joins(communicator)
        self._say = PathLog(communicator)
        self._ending = threading.RLock()
        """The lock held by the thread that shuts the group down."""
        self.sequence_number = 0
        """Number of collectives called so far."""
        self._messenger = open_messenger(
            store, communicator.plan, repr(communicator), timeout, communicator.timeout, communicator.inform
        ) if size > 1 else None
        # The epoch tells this group's addresses from those that an earlier one has left in the same store.
        prefix = f"gloo/{communicator.plan.epoch}"
        gloo = open_gloo(dist.PrefixStore(prefix, store), communicator, timeout)
        self._inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self._inner):
            for kind in devices():
                group._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        leave_to_parent(self)

    def getBackendName(self) -> str:
        """The backend's name, "netfold"."""
        return "netfold"

    @started("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = dist.ReduceOp.SUM, timeout: timedelta | None = None) -> dist._Work:
        """Reduces through the communicator if it supports the reduction, otherwise through gloo.

        opts  AllreduceOptions, or a ReduceOp
        """
        return self._reduce("allreduce", tensors, opts, timeout)

    @started("all_reduce")
    def allreduce_coalesced(self, tensors: Any, opts: Any = dist.ReduceOp.SUM) -> dist._Work:
        """Reduces several tensors, each as ``allreduce`` does."""
        return self._reduce("allreduce_coalesced", tensors, opts, None)

    @started("broadcast")
    @staged("in place")
    def broadcast(
        self, tensors: Any, opts: Any = 0, timeout: timedelta | None = None, *, root: int | None = None
    ) -> dist._Work:
        """Fills every rank's tensor with the root's: one tensor and the root's rank, or a list and BroadcastOptions."""
        del timeout  # ``started`` has read it, here and below
        mine, sender = only_tensor("broadcast", tensors, opts), root_of(opts, root)
        if mine.layout != torch.strided:
            return self._delegate("broadcast", tensors, opts, why="sparse")
        return self._move("broadcast", [mine], movement.broadcast(self.communicator, mine, sender))

    @started("reduce")
    @staged("in place")
    def reduce(
        self, tensors: Any, opts: Any = 0, op: Any = dist.ReduceOp.SUM, timeout: timedelta | None = None, *,
        root: int | None = None,
    ) -> dist._Work:
        """Reduces to the root through the communicator if it supports the reduction, otherwise through gloo."""
        given, asked = only_tensor("reduce", tensors, opts), getattr(opts, "reduceOp", op)
        known, to, factor = known_operation(asked), root_of(opts, root), factor_of(asked)
        mine = as_reals("reduce", known, given)
        dtype = dtype_name(mine.dtype)
        if known is None or not reduces(mine, known, factor):
            check_gloo("reduce", mine, operation_name(asked), mine)
            wanted = dist.ReduceOptions()
            wanted.rootRank, wanted.reduceOp = to, asked
            wanted.timeout = timeout or getattr(opts, "timeout", wanted.timeout)
            why = f"{known or operation_name(asked)} of {'sparse ' if mine.layout != torch.strided else ''}{dtype}"
            return self._delegate_rows("reduce", [mine], wanted, why=why)
        call = (
            movement.reduce(self.communicator, mine, known, to) if flat.plain(mine, factor)
            else flat.reduce(self.communicator, mine, known, to, factor)
        )
        return self._move("reduce", [given], call, f"{known} of {dtype}")

    @started("gather", 1)
    @staged("outputs, inputs")
    def gather(
        self, outputs: Any, inputs: Any, opts: Any = 0, timeout: timedelta | None = None, *, root: int | None = None
    ) -> dist._Work:
        """Puts every rank's tensor into the root's list of outputs."""
        del timeout
        mine = only_tensor("gather", inputs, opts)
        several = flattened([outputs])
        if any(tensor.layout != torch.strided for tensor in [mine, *several]):
            return self._delegate("gather", outputs, inputs, opts, why="sparse")
        call = movement.gather(self.communicator, several, mine, root_of(opts, root))
        return self._move("gather", several or [mine], call)

    @started("scatter", 1)
    @staged("outputs, inputs")
    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = 0, timeout: timedelta | None = None, *, root: int | None = None
    ) -> dist._Work:
        """Fills every rank's output with its tensor of the root's list."""
        del timeout
        mine = only_tensor("scatter", outputs, opts)
        several = flattened([inputs])
        if any(tensor.layout != torch.strided for tensor in [mine, *several]):
            return self._delegate("scatter", outputs, inputs, opts, why="sparse")
        call = movement.scatter(self.communicator, mine, several, root_of(opts, root))
        return self._move("scatter", [mine], call)

    @started("all_to_all", 1)
    @staged("outputs, inputs")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist._Work:
        """Sends each rank its tensor of the inputs, and fills the outputs with the tensors from each rank."""
        del opts
        return self._move("alltoall", list(outputs), movement.all_to_all(self.communicator, outputs, inputs))

    @started("all_gather", 1)
    @staged("outputs, inputs")
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist._Work:
        """Gathers several tensors: ``outputs[r][i]`` becomes rank r's ``inputs[i]``."""
        lists = [[whole[place] for whole in outputs] for place in range(len(inputs))]
        return self._gather("allgather_coalesced", lists, inputs, opts)

    @started("barrier")
    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist._Work:
        """Done once every rank has called it, after all operations that were started before."""
        del opts, timeout
        self._refuse_capture()
        return self._move("barrier", [], self.communicator.barrier)

    @started("monitored_barrier")
    def monitored_barrier(self, *args: Any, **kwargs: Any) -> None:
        """gloo's monitored_barrier: rank 0 names ranks that do not come."""
        self._refuse_capture()
        self._delegate("monitored_barrier", *args, **kwargs)

    def _refuse_capture(self) -> None:
        with ending_with("the accelerator", self.communicator, self._reducer.ahead.refuse):
            self._reducer.staging.refuse_capture()

    # ---- messages ----------------------------------------------------------------------------------------------------
    @started("send", counted=False)
    @staged("input")
    def send(self, tensors: Any, peer: int, tag: int = 0) -> dist._Work:
        """Sends a tensor, whose bytes must stay until the work is done, to a rank that calls ``recv``."""
        mine = self._message("send", tensors)
        arrive()
        return TorchWork(self._messages().send(pieces.as_bytes(mine), peer, tag, [mine]))

    @started("recv", counted=False)
    @staged("output")
    def recv(self, tensors: Any, peer: int, tag: int = 0) -> dist._Work:
        """Fills a tensor with the peer's next ``send`` with this tag, which must have its size."""
        return self._receive("recv", tensors, peer, tag)

    @started("recvAnySource", counted=False)
    @staged("output")
    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist._Work:
        """Fills a tensor with the next ``send`` with this tag from any rank; the work tells the sender."""
        return self._receive("recv_anysource", tensors, None, tag)

    def shutdown(self) -> None:
        """Waits for operations under way, leaves the job, and releases everything; ``destroy_process_group`` calls it.
        Posted messages are sent; those that cannot be sent end with an error, and their number is logged.  Receives
        that nobody has waited for end with an error. A second call waits for the first, and does nothing.

        Raises the error of an operation that the program has gone on without, if it has not heard of it."""
        if "communicator" not in self.__dict__:  # as in a forked child, where another thread may have held the lock
            return
        with self._ending:
            if "communicator" not in self.__dict__:
                return
            with contextlib.ExitStack() as ends:  # the last one first, and each whatever another raises
                ends.callback(self._reducer.ahead.tell)
                ends.callback(self.let_go, "its process group was destroyed")
                ends.callback(self._inner.shutdown)
                ends.callback(self.communicator.close)
                if self._messenger is not None:
                    ends.callback(self._messenger.close)
                ends.callback(self._reducer.close)

    def check(self) -> None:
        """Raises the error of an operation that the program has gone on without, whose tensors are NaN by then."""
        try:
            self._reducer.ahead.check()
        except NetFoldError:
            self._reducer.staging.order()
            raise

    def let_go(self, why: str) -> None:
        """Drops all it has; later calls are refused for this reason.

        An error of one of the dropped objects would keep the stack frames that it passed through, and these keep this
        group.
        """
        self._gone = why
        for name in HELD:
            self.__dict__.pop(name, None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Changes no time-out, neither the communicator's nor gloo's, and says so: it is fixed when the group is made.

        Programs shorten it after their first step (torchtitan) or lengthen it for a debugger (``dist.breakpoint``): an
        error would end them.
        """
        kept, asked = self.communicator.timeout, timeout.total_seconds()
        if kept != asked:
            warn_of_timeout(shared_log.level(self.rank()), kept, asked)

    def _get_sequence_number_for_group(self) -> int:
        return self.sequence_number

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing: every group counts from 0."""

    def __getattr__(self, name: str) -> Any:
        if name in HELD:
            raise Closed(f"rank {self.rank()} of {self.size()}: {self._gone}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def abort(self) -> None:
        """Ends operations under way, and a ``shutdown`` on another thread, with an error, and leaves the job.  Does
        nothing after the group has left.  What gloo does cannot be ended: a wait for it lasts until its time-out."""
        communicator, reducer, messenger = (
            self.__dict__.get(name) for name in ("communicator", "_reducer", "_messenger")
        )
        try:
            if reducer is not None:
                reducer.ahead.give_up()
            if communicator is not None:
                communicator.abort("its process group was aborted")
        finally:
            try:
                if messenger is not None:
                    messenger.close(flush=0.0)
            finally:
                self.shutdown()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _reduce(self, kind: str, tensors: Any, opts: Any, timeout: timedelta | None) -> dist._Work:
        several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        asked = getattr(opts, "reduceOp", opts)
        op, factor = known_operation(asked), factor_of(asked)
        several = [as_reals(kind, op, tensor) if tensor.is_complex() else tensor for tensor in several]
        if op is None or not all(reduces(tensor, op, factor) for tensor in several):
            return self._reduce_by_gloo(several, kind, opts, timeout)
        for dtype in {reduced_as(tensor.dtype) for tensor in several}:
            name = dtype_name(dtype)
            self._say(f"{kind}, {op} of {name}", f"goes over {self.communicator.path(op, name)}")
        if len(several) == 1 and flat.plain(several[0], factor):
            return TorchWork(self._reducer.allreduce(several[0], op))
        return self._reduce_flat(several, kind, op, factor)

    @staged("in place")
    def _reduce_flat(self, tensors: list[torch.Tensor], kind: str, op: ReduceOp, factor: Factor) -> TorchWork:
        calls = flat.allreduce(self.communicator, tensors, op, factor)
        return TorchWork(self._reducer.later(tensors, calls, kind))

    @staged("in place")
    def _reduce_by_gloo(
        self, tensors: list[torch.Tensor], kind: str, opts: Any, timeout: timedelta | None
    ) -> dist._Work:
        asked = getattr(opts, "reduceOp", opts)
        op = known_operation(asked) or operation_name(asked)
        check_gloo(kind, tensors, operation_name(asked), tensors)
        sparse = "sparse " if all(tensor.layout != torch.strided for tensor in tensors) else ""
        dtypes = ", ".join(sorted({dtype_name(tensor.dtype) for tensor in tensors}))
        if timeout is not None:
            given: tuple[Any, ...] = (asked, timeout)
        elif kind == "allreduce" or not isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
            given = (opts,)
        else:
            wanted = dist.AllreduceCoalescedOptions()
            wanted.reduceOp = asked
            given = (wanted,)
        return self._delegate_rows(kind, tensors, *given, why=f"{op} of {sparse}{dtypes}")

    def _delegate(self, kind: str, *args: Any, why: str = "", **kwargs: Any) -> Any:
        """Passes the collective to gloo, which reads its inputs at once."""
        arrive()
        self._say(", ".join(filter(None, (kind, why))))
        return getattr(self._inner, kind)(*args, **kwargs)

    def _delegate_rows(self, kind: str, fills: Any, *args: Any, why: str) -> Any:
        """Passes a reduction of tensors of any strides to gloo."""
        return by_rows(partial(self._delegate, kind, why=why), fills, *args)

    def _move(self, kind: str, tensors: list[torch.Tensor], call: pieces.Call, what: str = "") -> TorchWork:
        return self._later(kind, f"{kind}, {what}" if what else kind, tensors, [call])

    def _exchange(
        self, kind: str, output: torch.Tensor, tensor: torch.Tensor, out_rows: Any = (), rows: Any = (), *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Sends each rank its rows of the input, and puts the rows from each into the output."""
        del args, kwargs  # options: a timeout, which ``started`` has read
        call = movement.all_to_all_rows(self.communicator, output, tensor, list(out_rows or ()), list(rows or ()))
        return self._move(kind, [output], call)

    def _message(self, kind: str, tensors: Any) -> torch.Tensor:
        """The one tensor of a message.  Raises ValueError for a tensor that cannot be sent as bytes."""
        mine = only_tensor(kind, tensors, None)
        if mine.layout != torch.strided:
            raise ValueError(f"{kind} of a sparse tensor of {tuple(mine.shape)}: expected a dense one, as gloo does")
        self._say(kind, "goes over TCP, by connections of its own")
        return mine

    def _messages(self) -> Messenger:
        if self._messenger is None:
            raise ValueError(f"{self.communicator!r}: there is no other rank to send to or receive from")
        return self._messenger

    def _receive(self, kind: str, tensors: Any, peer: int | None, tag: int) -> TorchWork:
        mine = self._message(kind, tensors).detach()
        if torch._debug_has_internal_overlap(mine) == 1:
            raise ValueError(f"{kind} into a tensor of {tuple(mine.shape)} with strides {mine.stride()}, whose "
                             "elements share memory: expected one with memory for each; receive into its clone()")
        into = pieces.as_bytes(mine)
        away = not mine.is_contiguous() or mine.is_conj() or mine.is_neg()

        def finish() -> None:
            if away:
                mine.copy_(pieces.as_tensor(into, mine))

        return TorchWork(self._messages().receive(into, peer, tag, [mine], finish))

    def _gather(self, kind: str, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> Any:
        """Gathers through the communicator; sparse tensors through gloo.  Each input has a list of tensors, or one for
        all of it."""
        pairs = pairs_of(outputs, inputs)
        if any(tensor.layout != torch.strided for tensor in flattened([outputs, inputs])):
            return self._delegate(kind, outputs, inputs, *(() if opts is None else (opts,)), why="sparse")
        calls = [pieces.all_gather(self.communicator, output, mine) for output, mine in pairs]
        calls = flat.all_gather(self.communicator, pairs, calls)
        following, (output, mine) = None, pairs[0]
        if self.together and len(pairs) == 1 and isinstance(output, torch.Tensor):
            following = Following()
            if not getattr(opts, "asyncOp", True):
                following.awaited()
            calls = [joinable_gather(self.communicator, output, mine, following)]
        return self._later(kind, kind, flattened([outputs]), calls, following=following)

    def _scatter(
        self, kind: str, outputs: Any, inputs: Any, opts: Any = dist.ReduceOp.SUM, timeout: timedelta | None = None
    ) -> Any:
        """Reduces and scatters through the communicator if it supports the reduction, otherwise through gloo.  Each
        output has a list of tensors, or one to split."""
        asked = getattr(opts, "reduceOp", opts)
        op, factor = known_operation(asked), factor_of(asked)
        pairs = [as_reals(kind, op, pair) for pair in pairs_of(outputs, inputs)]
        dtypes = ", ".join(sorted({dtype_name(tensor.dtype) for tensor in flattened([whole for _, whole in pairs])}))
        if op is None or not all(reduces(tensor, op, factor) for tensor in flattened(pairs)):
            check_gloo(kind, pairs, operation_name(asked), outputs)
            return self._delegate_rows(kind, outputs, inputs, opts, why=f"{op or operation_name(asked)} of {dtypes}")
        alone = [pieces.reduce_scatter(self.communicator, mine, whole, op) for mine, whole in pairs]
        calls = flat.reduce_scatter(self.communicator, [(whole, mine) for mine, whole in pairs], alone, op, factor)
        joins, (mine, whole) = None, pairs[0]
        if self.together and calls == alone and len(pairs) == 1:
            arrive()  # the all-gather before it may read it
            joins = JoiningScatter(self.communicator, calls[0], mine.detach(), whole, op)
            calls = [joins]
        return self._later(kind, f"{kind}, {op} of {dtypes}", flattened([outputs]), calls, joins=joins)

    def _later(
        self, name: str, kind: str, tensors: list[torch.Tensor], calls: list[pieces.Call], *,
        following: Following | None = None, joins: JoiningScatter | None = None,
    ) -> TorchWork:
        """Starts these calls in this order, and logs the path of the first of their kind; the other arguments are those
        of ``Reducer.later``."""

        comm, say = self.communicator, self._say  # nothing that the communicator keeps may keep this group

        def last() -> None:
            calls[-1]()
            if say.is_new(kind):
                say(kind, f"goes over {comm.flight()[-1].path or comm.rail}")

        pending = self._reducer.later(tensors, [*calls[:-1], last], name, following=following, joins=joins)
        return TorchWork(pending)


def _method(name: str, how: Callable[..., Any], event: str) -> Any:
    def call(self: NetfoldGroup, *args: Any, **kwargs: Any) -> Any:
        return how(self, name, *args, **kwargs)

    call.__name__, call.__doc__ = name, how.__doc__
    return started(event, 1)(staged("outputs, inputs")(call))


for _how, _names, _event in (
    (NetfoldGroup._gather, GATHERS, "all_gather"),
    (NetfoldGroup._scatter, SCATTERS, "reduce_scatter"),
    (NetfoldGroup._exchange, EXCHANGES, "all_to_all"),
):
    for _name_of in _names:
        if hasattr(dist.ProcessGroup, _name_of):
            setattr(NetfoldGroup, _name_of, _method(_name_of, _how, _event))

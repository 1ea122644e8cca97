# SPDX-License-Identifier: Apache-2.0
"""Records a training on one rank for `netfold what-if`: collectives, and the computing between them.

    netfold.torch.record("training.json")   # anywhere before the steps; each rank writes training.rankN.json

It works with every backend of torch.distributed: torch's own are seen by their operators (c10d::allreduce_ and so on),
which C++ code such as DistributedDataParallel's calls as well, and NetFold's by its group's methods.  Steps end where
the first optimizer has made its step.  After some steps the recording writes its file, and leaves torch as it was.

A wait is seen where Python code waits for the work object.  What C++ code of torch waits for, the buckets of
DistributedDataParallel, counts as waited for at the end of the backward pass in which it was called.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from netfold.disk import files
from netfold.host.torch.calls import untraced
from netfold.host.torch.process_group import NetfoldGroup
from netfold.host.torch.tensors import flattened
from netfold.host.torch.work import TorchWork
from netfold.wire.training_trace import (
    FORMAT,
    MAX_EVENTS,
    OPERATORS,
    Kind,
    RankTrace,
    TracedCall,
    TracedEvent,
    TracedGroup,
    TracedStep,
    TracedWait,
)

SKIPPED, RECORDED = 2, 5
"""Steps that are left out first, since they warm up, and those that are recorded."""

METHODS: Final[dict[str, tuple[Kind, int]]] = {
    **{name.rstrip("_"): known for name, known in OPERATORS.items()}, "all_gather_single": ("all_gather", 0),
    "all_gather_single_coalesced": ("all_gather", 0), "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1), "all_to_all_single": ("all_to_all", 1),
}
"""The same for the methods of NetFold's group."""

MOST_HELD: Final = 4096
"""Works at most that are kept because nobody has waited for them; the oldest are let go of."""

log = logging.getLogger("netfold")


class TrainingTrace:
    """The recording of one rank, without torch.

    clock   seconds, from any start
    skip    steps to leave out first
    steps   steps to record
    """

    def __init__(self, *, skip: int, steps: int, clock: Callable[[], float] = time.perf_counter) -> None:
        if skip < 0 or steps < 1:
            raise ValueError(f"skip={skip}, steps={steps}: expected 0 or more, and 1 or more")
        self.clock = clock
        self._skip, self._steps = skip, steps
        self._origin = 0.0
        self._events: list[TracedEvent] = []
        self._groups: dict[str, tuple[int, TracedGroup]] = {}
        self._number = 0
        self.full = False
        """True once all steps are recorded."""

    @property
    def begun(self) -> bool:
        """True if a step is being recorded."""
        return bool(self._events) and not self.full

    def called(self, kind: Kind, group: TracedGroup, nbytes: int, dtype: str, begin: float, *, asynchronous: bool,
               peer: int = 0) -> int:
        """Notes a call that returns now, and gives it a number."""
        place, _ = self._groups.setdefault(group.name, (len(self._groups), group))
        self._number += 1
        self._note(TracedCall(self._since(begin), self._since(), self._number, kind, place, nbytes, dtype, asynchronous,
                              peer))
        return self._number

    def waited(self, number: int, begin: float) -> None:
        """Notes that the program has waited for a call since ``begin``."""
        self._note(TracedWait(self._since(begin), self._since(), number))

    def step(self) -> None:
        """Notes the end of a step."""
        if self._skip:
            self._skip -= 1
            return
        if not self._events:
            self._origin = self.clock()
        now = self._since()
        self._note(TracedStep(now, now), opening=True)
        self.full = self.full or sum(isinstance(event, TracedStep) for event in self._events) > self._steps

    def content(self, rank: int, world: int, backend: str) -> RankTrace:
        """The file's content: whole steps alone.  Raises ValueError where there is none."""
        ends = [place for place, event in enumerate(self._events) if isinstance(event, TracedStep)]
        if len(ends) < 2:
            raise ValueError(f"rank {rank}: no whole step was recorded: expected an optimizer of torch.optim that "
                             "makes at least two steps more than are skipped")
        return RankTrace(FORMAT, rank, world, backend, [group for _, group in self._groups.values()],
                         self._events[:ends[-1] + 1])

    def _since(self, moment: float | None = None) -> float:
        return round(max(0.0, (self.clock() if moment is None else moment) - self._origin), 7)

    def _note(self, event: TracedEvent, *, opening: bool = False) -> None:
        if self.full or not (self._events or opening):
            return
        self._events.append(event)
        self.full = len(self._events) >= MAX_EVENTS


class Recording:
    """A recording of this process's training, under way; `stop` ends it, and so does leaving its ``with`` block.

    Raises ValueError where another one is under way.
    """

    path: Path
    _under_way: Recording | None = None

    def __init__(self, path: Path | str, *, skip: int = SKIPPED, steps: int = RECORDED) -> None:
        if Recording._under_way is not None:
            raise ValueError(f"{path}: a training is being recorded already, for {Recording._under_way.path}: expected "
                             "one recording at a time; stop() that one first")
        self.path = Path(path)
        self.trace = TrainingTrace(skip=skip, steps=steps)
        self._who: tuple[int, int, str] | None = None
        """Rank, ranks and backend."""
        self._held: dict[int, tuple[Any, int]] = {}
        """Works that nobody has waited for, by their identity, with their calls' numbers."""
        self._devices: set[torch.device] = set()
        """Accelerators on which calls had tensors."""
        self._inside = threading.local()
        self._optimizer: int | None = None
        self._backward = -1
        """The backward pass at whose end calls are noted as waited for."""
        self._called_backward: list[int] = []
        self._undo: list[Callable[[], object]] = []
        Recording._under_way = self
        self._watch()
        atexit.register(self.stop)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> Path | None:
        """Leaves torch as it was, and writes the file; its path, or None where it was written before, or where no whole
        step was recorded, which a warning says.  Raises OSError where it cannot be written."""
        if Recording._under_way is not self:
            return None
        Recording._under_way = None
        while self._undo:
            self._undo.pop()()
        self._held.clear()
        atexit.unregister(self.stop)
        try:
            content = self.trace.content(*(self._who or (0, 1, "")))
        except ValueError as error:
            log.warning("%s is not written: %s", self.path, error)
            return None
        path = self.path.with_name(f"{self.path.stem}.rank{content.rank}{self.path.suffix or '.json'}")
        files.replace(path, msgspec.json.encode(content))
        log.info("%s: %d steps recorded; `netfold what-if` replays them", path,
                 sum(isinstance(event, TracedStep) for event in content.events) - 1)
        return path

    # ---- what is watched ---------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        library = torch.library.Library("c10d", "IMPL")
        for name, (kind, place) in OPERATORS.items():
            operator = getattr(getattr(torch.ops.c10d, name, None), "default", None)
            if operator is not None:
                library.impl(name, self._operator(operator, kind, place), "Autograd", with_keyset=True)
        self._undo.append(library._destroy)
        for name, (kind, place) in METHODS.items():
            if name in NetfoldGroup.__dict__:
                self._replace(NetfoldGroup, name, self._method(getattr(NetfoldGroup, name), kind, place))
        for work in (dist.Work, TorchWork):
            self._replace(work, "wait", self._wait(work.wait))
        self._undo.append(register_optimizer_step_post_hook(self._stepped).remove)

    def _replace(self, owner: type, name: str, new: Any) -> None:
        old = getattr(owner, name)
        setattr(owner, name, new)
        self._undo.append(lambda: setattr(owner, name, old))

    def _operator(self, operator: Any, kind: Kind, place: int) -> Callable[..., Any]:
        """An operator of torch's, which is noted."""
        names = [argument.name for argument in operator._schema.arguments]
        defaults = {argument.name: argument.default_value for argument in operator._schema.arguments}

        def call(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
            below = keyset & torch._C._after_autograd_keyset

            def how() -> tuple[Any, Any]:
                out = operator.redispatch(below, *args, **kwargs)
                return out, dist.Work.unbox(out[-1] if isinstance(out, tuple | list) else out)

            group = dist.ProcessGroup.unbox(given["process_group"])
            peer = next((given[name] for name in ("root_rank", "dst", "src") if name in given), 0)
            return self._noted(how, kind, group, args[place], peer, bool(given.get("async_op", True)))

        return call

    def _method(self, method: Callable[..., Any], kind: Kind, place: int) -> Callable[..., Any]:
        """A method of NetFold's group, which is noted."""

        @wraps(method)
        def call(group: NetfoldGroup, *args: Any, **kwargs: Any) -> Any:
            def how() -> tuple[Any, Any]:
                work = method(group, *args, **kwargs)
                return work, work

            rest = [*args[1 + (kind in ("all_gather", "reduce_scatter", "gather", "scatter", "all_to_all")):],
                    *kwargs.values()]
            peer = next((one for one in rest if isinstance(one, int) and not isinstance(one, bool)),
                        next((one.rootRank for one in rest if hasattr(one, "rootRank")), 0))
            asynchronous = next((bool(one.asyncOp) for one in rest if hasattr(one, "asyncOp")), True)
            buffer = args[place] if kind != "barrier" else []
            return self._noted(how, kind, group, buffer, peer, asynchronous)

        return untraced(call)

    def _noted(self, how: Callable[[], tuple[Any, Any]], kind: Kind, group: Any, buffer: Any, peer: int,
               asynchronous: bool) -> Any:
        """Makes a call, and notes it unless another call has made it."""
        if getattr(self._inside, "a_call", False) or not self.trace.begun:
            return how()[0]
        tensors = [] if kind == "barrier" else flattened([buffer])
        traced = _group(group)
        self._devices |= {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        begin = self._now()
        self._inside.a_call = True
        try:
            out, work = how()
        finally:
            self._inside.a_call = False
        nbytes = sum(tensor.nbytes for tensor in tensors) * (len(traced.ranks) if kind in ("gather", "scatter") else 1)
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        number = self.trace.called(kind, traced, nbytes, dtype, begin, asynchronous=asynchronous,
                                   peer=min(max(0, peer), len(traced.ranks) - 1))
        if work is not None:
            self._held[id(work)] = work, number
            if len(self._held) > MOST_HELD:
                del self._held[next(iter(self._held))]
            self._at_the_end_of_backward(id(work))
        return out

    def _at_the_end_of_backward(self, work: int) -> None:
        """Lets a call of a backward pass count as waited for at its end, unless something waits for it before."""
        task = torch._C._current_graph_task_id()
        if task == -1:
            return
        if task != self._backward:
            self._backward, self._called_backward = task, []
            # the engine calls back in order, so that this comes before what torch waits for, and the next one after it
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)
        self._called_backward.append(work)

    def _backward_ends(self) -> None:
        begin, pending = self._now(), self._called_backward

        def after() -> None:
            since = begin
            self._now()
            for one in pending:
                work, number = self._held.get(one, (None, 0))
                if work is not None and _has_result(work):
                    del self._held[one]
                    self.trace.waited(number, since)
                    since = self.trace.clock()

        torch.autograd.Variable._execution_engine.queue_callback(after)

    def _wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(wait)
        def noted(work: Any, *args: Any, **kwargs: Any) -> Any:
            held = self._held.pop(id(work), None)
            begin = self._now() if held is not None else 0.0
            result = wait(work, *args, **kwargs)
            if held is not None:
                self._now()
                self.trace.waited(held[1], begin)
            return result

        return noted

    def _now(self) -> float:
        """The time, once accelerators have done what the calling thread's streams hold: else computing that the program
        has only queued would seem to take no time."""
        for device in self._devices:
            torch.get_device_module(device).current_stream(device).synchronize()
        return self.trace.clock()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The first optimizer that makes a step says where steps end."""
        del args, kwargs
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) != self._optimizer:
            return
        if self._who is None and dist.is_initialized():
            self._who = dist.get_rank(), dist.get_world_size(), dist.get_backend()
        self._now()
        self.trace.step()
        if self.trace.full:
            self.stop()


def record(path: Path | str, *, skip: int = SKIPPED, steps: int = RECORDED) -> Recording:
    """Records this rank's training from now on for `netfold what-if`, and writes PATH with .rankN before its suffix
    after ``skip`` and then ``steps`` steps, or when the program ends.

    Raises ValueError for numbers that are too small, and where a recording is under way.
    """
    return Recording(path, skip=skip, steps=steps)


def _has_result(work: Any) -> bool:
    """True if a wait for a work's future would return at once.  Torch's own works report their end later than their
    futures."""
    return bool(work.is_completed() if isinstance(work, TorchWork) else work.get_future().done())


def _group(group: Any) -> TracedGroup:
    """A process group by its name and its ranks in the job."""
    name = str(group.group_name)
    known = group if isinstance(group, NetfoldGroup) else dist.distributed_c10d._resolve_process_group(name)
    ranks: Sequence[int] = dist.get_process_group_ranks(known)
    return TracedGroup(name, tuple(ranks))

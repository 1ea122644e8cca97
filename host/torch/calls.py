# SPDX-License-Identifier: Apache-2.0
"""The services that torch's own backends add to each call, added to ours: an event in the profiler, a number, a
time-out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._C._profiler import _RecordFunctionFast as Record

from netfold.host.torch.completion import run_apart
from netfold.host.torch.tensors import flattened
from netfold.host.torch.work import TorchWork

Method = Callable[..., Any]


def started(name: str, place: int = 0, *, counted: bool = True) -> Callable[[Method], Method]:
    """Decorator for a method of a group that starts an operation.

    name     of its event in torch.profiler, "netfold:NAME", with the names of torch's own backends
    place    position of the input tensors among the method's arguments; the event has their shapes
    counted  every rank of the group makes the call: the group's sequence number counts it
    Torch calls these from C++ as well: inside torch.compile'd code Dynamo would trace into them, and fail.
    """

    def decorate(how: Method) -> Method:
        @wraps(how)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.check()
            if torch.autograd._profiler_enabled():
                inputs = flattened(args[place : place + 1]) or flattened(args[:1])
                work = _recorded(f"netfold:{name}", inputs, lambda: how(self, *args, **kwargs))
            else:
                work = how(self, *args, **kwargs)
            self.sequence_number += counted
            seconds = _timeout(args, kwargs)
            if seconds is not None and isinstance(work, TorchWork):
                work.limit(seconds)
            return work

        return untraced(call)

    return decorate


def untraced(how: Method) -> Method:
    """A method into which Dynamo does not trace.  Without Dynamo nothing is compiled, and its import takes seconds."""
    hidden = torch._disable_dynamo(how)

    def call(*args: Any, **kwargs: Any) -> Any:
        return (hidden if "torch._dynamo" in sys.modules else how)(*args, **kwargs)

    try:
        skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
        eval_frame.set_code_exec_strategy(call.__code__, skip)  # what torch._dynamo.decorators.skip does
    except AttributeError:  # another version of torch
        return hidden  # type: ignore[no-any-return]
    return wraps(how)(call)


def _recorded(name: str, inputs: list[torch.Tensor], how: Callable[[], Any]) -> Any:
    """Makes a call, which the profiler records from its beginning."""
    # Torch ends the record of a thread whose profiler is off, such as that of a communicator, when it frees the record.
    # So this list alone holds it: freed by the caller's thread, the event would not be an asynchronous one.
    records, caller = [Record(name, inputs)], threading.get_ident()
    records[0].__enter__()
    try:
        work = how()
    except BaseException:
        records.pop().__exit__(None, None, None)
        raise
    ended = threading.Event()

    def end() -> None:
        records.pop().__exit__(None, None, None)
        ended.set()

    def over() -> None:
        if threading.get_ident() == caller:
            run_apart(end)  # an asynchronous event, as torch sees it, ends on another thread than it began
        else:
            end()

    if isinstance(work, TorchWork):
        work.recorded(over, ended)
    elif work is None:
        over()
    else:
        work.get_future().add_done_callback(lambda _: over())
    return work


def _timeout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
    """The seconds that a call allows for itself, by an argument or in options; None if it sets no limit."""
    for one in (*args, *kwargs.values()):
        if one is None or isinstance(one, list | torch.Tensor | int):
            continue
        asked = one if isinstance(one, timedelta) else getattr(one, "timeout", None)
        if isinstance(asked, timedelta) and asked > timedelta(0):
            return asked.total_seconds()
    return None

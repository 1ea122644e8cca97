# SPDX-License-Identifier: Apache-2.0
"""Reads PyTorch's own execution traces as recordings.

What ExecutionTraceObserver writes says which collectives there are.  The profiler's trace of the same process
(`export_chrome_trace`, with ``record_shapes``) says when.

    with profile(execution_trace_observer=ExecutionTraceObserver().register_callback("et0.json"), ...) as p: ...
    p.export_chrome_trace("kineto0.json")

Neither has the waits.  A call that the program makes synchronously is waited for until its thread's next operator.  An
asynchronous one of a backward pass, as DistributedDataParallel's, is waited for from the end of that pass on.  Others
are waited for by the end of the step.  Steps are those of Optimizer.step; if there are no two, the whole trace is one.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from netfold.sim.whatif.program import TraceError
from netfold.wire.training_trace import (
    FORMAT,
    OPERATORS,
    RankTrace,
    TracedCall,
    TracedEvent,
    TracedGroup,
    TracedStep,
    TracedWait,
)

TYPES: Final = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
                "int": "int32", "long int": "int64", "long": "int64", "unsigned char": "uint8", "signed char": "int8"}
"""torch's dtypes by C++'s names."""
ENGINE: Final = "autograd::engine::evaluate_function"
Tree = Mapping[str, Any]


@dataclass(frozen=True)
class _Span:
    """An event of the profiler, in seconds."""

    begin: float
    end: float
    thread: object
    name: str


def recording(trace: Tree, profile: Tree) -> RankTrace:
    """One rank's recording.

    trace    the execution trace, parsed
    profile  the profiler's trace of the same process, parsed
    Raises TraceError for what they lack.
    """
    try:
        about = profile["distributedInfo"]
        rank, world, backend = int(about["rank"]), int(about["world_size"]), str(about["backend"])
        spans = {int(one["args"]["Record function id"]): _Span(one["ts"] / 1e6, (one["ts"] + one["dur"]) / 1e6,
                                                             one["tid"], one["name"])
                 for one in profile["traceEvents"] if one.get("ph") == "X"
                 and "Record function id" in one.get("args", {})}
        calls = _calls(trace, _groups(trace, world), spans)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"an execution trace of PyTorch and its profile: {type(error).__name__} {error}: expected "
                         "what torch 2.5 to 2.13 write, with record_shapes=True, of a process with process groups"
                         ) from error
    if not spans:
        raise TraceError("the profile has no operators: expected one that was made with the execution trace")
    groups = list(dict.fromkeys(group for _, group, _ in calls))
    return RankTrace(FORMAT, rank, world, backend, groups, _events(calls, groups, [*spans.values()]))


def _groups(trace: Tree, world: int) -> dict[str, TracedGroup]:
    """The process groups by name."""
    found = {}
    for node in trace["nodes"]:
        if "process_group:init" in node["name"]:
            for one in json.loads(node["inputs"]["values"][0]):
                found[one["pg_name"]] = TracedGroup(one["pg_name"], tuple(one["ranks"] or range(world)))
    return found


def _calls(trace: Tree, groups: Mapping[str, TracedGroup], spans: Mapping[int, _Span]
           ) -> list[tuple[TracedCall, TracedGroup, _Span]]:
    """Every call with its group and its span, in the order of time."""
    communication = {node["ctrl_deps"]: node for node in trace["nodes"] if node["name"] == "record_param_comms"}
    found = []
    for node in trace["nodes"]:
        name = str(node["name"]).removeprefix("c10d::")
        span = spans.get(_attribute(node, "rf_id"))
        if name == node["name"] or name not in OPERATORS or span is None:
            continue
        kind, place = OPERATORS[name]
        schema = re.search(r"\((.*)\) ->", str(_attribute(node, "op_schema")))
        arguments = re.findall(r"(\w+)(?:=[^,]*)?(?:,|$)", schema[1]) if schema else []
        given = dict(zip(arguments, node["inputs"]["values"], strict=False))
        group = _group(communication.get(node["id"]), groups)
        whole = len(group.ranks) if kind in ("gather", "scatter") else 1
        nbytes = 0 if kind == "barrier" else whole * _bytes(node["inputs"]["values"][place])
        peer = next((int(given[key]) for key in ("root_rank", "dst", "src") if key in given), 0)
        found.append((TracedCall(0, 0, 0, kind, 0, nbytes, _dtype(str(node["inputs"]["types"][place])),
                                 bool(given.get("async_op", True)), peer), group, span))
    return sorted(found, key=lambda one: one[2].begin)


def _attribute(node: Tree, name: str) -> Any:
    return next((one["value"] for one in node["attrs"] if one["name"] == name), None)


def _group(node: Tree | None, groups: Mapping[str, TracedGroup]) -> TracedGroup:
    """A call's group, of which NCCL's node says the name; where no node does, the only one."""
    if node is not None:
        names = [value[0] for value in node["inputs"]["values"] if isinstance(value, Sequence) and len(value) == 2
                 and all(isinstance(part, str) for part in value)]
        if names and names[0] in groups:
            return groups[names[0]]
    if len(groups) != 1:
        raise TraceError(f"an execution trace of PyTorch with {len(groups)} process groups, which does not say whose a "
                         "call is, as gloo's do not: expected one group; record with netfold.torch.record")
    return next(iter(groups.values()))


def _bytes(value: Any) -> int:
    """Bytes of a tensor (id, storage, offset, elements, bytes of each, device), or of a list of such."""
    if isinstance(value, list) and len(value) >= 6 and isinstance(value[5], str):
        return int(value[3]) * int(value[4])
    return sum(map(_bytes, value)) if isinstance(value, list) else 0


def _dtype(kind: str) -> str:
    found = re.search(r"Tensor\(([^)]*)\)", kind)
    return TYPES.get(found[1], found[1])[:255] if found else ""


def _events(calls: Sequence[tuple[TracedCall, TracedGroup, _Span]], groups: Sequence[TracedGroup],
            spans: Sequence[_Span]) -> list[TracedEvent]:
    """The events of a recording: calls, waits and steps, from the first step's end to the last one's."""
    ends = sorted(span.end for span in spans if span.name.startswith("Optimizer.step"))
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    steps = ends if len(ends) > 1 else [first, last]
    engines = sorted((span for span in spans if span.name.startswith(ENGINE)), key=lambda span: span.end)
    passes = [span.end for span in engines]
    starts: dict[object, list[float]] = {}
    for span in sorted(spans, key=lambda span: span.begin):
        starts.setdefault(span.thread, []).append(span.begin)
    origin = steps[0]

    def until(moment: float, thread: object) -> float:
        """When a thread's next operator after a moment begins."""
        known = starts[thread]
        place = bisect_left(known, moment)
        return known[place] if place < len(known) else last

    found: list[tuple[float, int, TracedEvent]] = [(step, 3, TracedStep(step - origin, step - origin))
                                                   for step in steps]
    free: dict[float, float] = {}
    for number, (call, group, span) in enumerate(calls, 1):
        if not steps[0] <= span.begin < steps[-1]:
            continue
        end = min(span.end, steps[-1])
        found.append((span.begin, 0, TracedCall(
            span.begin - origin, end - origin, number, call.kind, groups.index(group), call.nbytes,
            call.dtype, call.asynchronous, call.peer)))
        step = steps[bisect_right(steps, span.begin)]
        back = bisect_right(passes, step)
        if not call.asynchronous:
            begin, thread = end, span.thread
        elif back and passes[back - 1] > span.begin:
            begin, thread = passes[back - 1], engines[back - 1].thread
        else:
            begin, thread = step, span.thread
        stop = min(max(begin, until(begin, thread)), step) if begin < step else begin
        start = max(begin, free.get(begin, begin))
        free[begin] = stop
        found.append((begin, 1, TracedWait(start - origin, max(start, stop) - origin, number)))
    return [event for _, _, event in sorted(found, key=lambda one: one[:2])]

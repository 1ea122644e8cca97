# SPDX-License-Identifier: Apache-2.0
"""The program of a training's ranks, from their recordings: computing, calls of collectives, and waits for them.

The calls of a group's ranks belong together in the order in which each rank makes them, as for torch.distributed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from netfold.wire.training_trace import Kind, RankTrace, TracedCall, TracedGroup, TracedStep, TracedWait

ITEM_BYTES: Final = {"float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "uint32": 4,
                     "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2}
"""Bytes of an element by dtype, in torch's names; 1 of all others."""
FLOATS: Final = ("float32", "float16", "bfloat16")
"""dtypes whose sums switches fold in lanes of any width."""
FOLDED: Final = (*FLOATS, "int32")
MOST_ACTIONS: Final = 2_000_000
"""Actions of all ranks at most: a replay keeps each in memory."""


class TraceError(ValueError):
    """A recording cannot be replayed: it is damaged, or the ranks' recordings do not fit together.

    Remedy: record all ranks of one run, with the same numbers of steps, and give all of their files.  The message names
    the file or rank, the expected value and the one found.
    """


@dataclass(frozen=True)
class Operation:
    """One collective, or a message from the first of its two members to the second."""

    kind: Kind
    members: tuple[int, ...]
    """Ranks, in the order of their group."""
    nbytes: int
    dtype: str
    root: int = 0
    """Place of the root among the members."""

    @property
    def reduces(self) -> bool:
        """True if it adds up the ranks' data."""
        return self.kind in ("all_reduce", "reduce_scatter", "reduce")

    @property
    def elements(self) -> float:
        """Elements of the whole buffer."""
        return self.nbytes / ITEM_BYTES.get(self.dtype, 1)


@dataclass(frozen=True)
class Compute:
    """The rank computes for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Issue:
    """The rank calls an operation, by its index, and goes on."""

    operation: int


@dataclass(frozen=True)
class Await:
    """The rank goes on once an operation has ended."""

    operation: int


@dataclass(frozen=True)
class StepEnd:
    """A step ends on this rank, and the next one begins."""


Action = Compute | Issue | Await | StepEnd


@dataclass(frozen=True)
class TrainingProgram:
    """A training: the actions of each rank in order, and the operations that they call."""

    ranks: tuple[tuple[Action, ...], ...]
    operations: tuple[Operation, ...]
    order: tuple[tuple[int, ...], ...]
    """The operations of each group, which run one after another."""

    @property
    def steps(self) -> int:
        """Whole steps, the same number on every rank."""
        return sum(isinstance(action, StepEnd) for action in self.ranks[0]) - 1


def program_of(traces: Sequence[RankTrace]) -> TrainingProgram:
    """The program of a training, from the recordings of all ranks, or of one where all do the same.

    Raises TraceError.
    """
    if not traces:
        raise TraceError("no recording: expected that of one rank at least")
    world = traces[0].world
    if len(traces) == 1 and world > 1:
        traces = [_as_rank(traces[0], rank) for rank in range(world)]
    by_rank = {trace.rank: trace for trace in traces}
    if sorted(by_rank) != list(range(world)) or len(traces) != world or {trace.world for trace in traces} != {world}:
        raise TraceError(f"recordings of ranks {sorted(trace.rank for trace in traces)}: expected one of each of "
                         f"{world} ranks, or of one alone")
    if sum(len(trace.events) for trace in traces) > MOST_ACTIONS // 2:
        raise TraceError(f"{sum(len(trace.events) for trace in traces)} events: expected at most {MOST_ACTIONS // 2}; "
                         "record fewer steps")
    operations: list[Operation] = []
    order: dict[tuple[object, ...], list[int]] = {}
    ranks = [_actions(by_rank[rank], operations, order) for rank in range(world)]
    steps = {sum(isinstance(action, StepEnd) for action in actions) for actions in ranks}
    if len(steps) > 1 or max(steps) < 2:
        raise TraceError(f"the ranks recorded {sorted(number - 1 for number in steps)} whole steps: expected the same "
                         "number on all, and one at least")
    for actions, trace in zip(ranks, (by_rank[rank] for rank in range(world)), strict=True):
        called = {action.operation for action in actions if isinstance(action, Issue)}
        for number, operation in enumerate(operations):
            if trace.rank in operation.members and number not in called:
                raise TraceError(f"rank {trace.rank} did not call {_words(operation)}, which others did: expected the "
                                 "same calls on all ranks of a group")
    return TrainingProgram(tuple(map(tuple, ranks)), tuple(operations), tuple(map(tuple, order.values())))


def _actions(trace: RankTrace, operations: list[Operation], order: dict[tuple[object, ...], list[int]]) -> list[Action]:
    """One rank's actions; adds the operations that no rank before it has called."""
    actions: list[Action] = []
    numbers: dict[int, int] = {}
    counts: dict[tuple[object, ...], int] = {}
    before = trace.events[0].begin if trace.events else 0.0
    waited = {event.number for event in trace.events if isinstance(event, TracedWait)}
    for event in trace.events:
        if event.begin > before:
            actions.append(Compute(event.begin - before))
        before = max(before, event.end)
        if isinstance(event, TracedStep):
            actions.append(StepEnd())
        elif isinstance(event, TracedWait):
            if event.number in numbers:  # else it was called before the first step
                actions.append(Await(numbers[event.number]))
        else:
            key, operation = _operation(trace, event)
            place = counts.get(key, 0)
            counts[key] = place + 1
            known = order.setdefault(key, [])
            if place == len(known):
                known.append(len(operations))
                operations.append(operation)
            number = known[place]
            other = operations[number]
            if (other.kind, other.nbytes, other.root) != (operation.kind, operation.nbytes, operation.root):
                raise TraceError(f"rank {trace.rank} called {_words(operation)} where another rank called "
                                 f"{_words(other)}: expected the same calls in the same order")
            numbers[event.number] = number
            actions.append(Issue(number))
            if not event.asynchronous and event.number not in waited:
                actions.append(Await(number))
    return actions


def _operation(trace: RankTrace, call: TracedCall) -> tuple[tuple[object, ...], Operation]:
    """The operation of a call, and what those that run one after another with it have in common."""
    if call.group >= len(trace.groups):
        raise TraceError(f"rank {trace.rank}: a call in group {call.group}: expected one of {len(trace.groups)}")
    group = trace.groups[call.group]
    wrong = len(set(group.ranks)) != len(group.ranks) or max(group.ranks) >= trace.world
    if wrong or trace.rank not in group.ranks or call.peer >= len(group.ranks):
        raise TraceError(f"rank {trace.rank}: group {group.name!r} of ranks {list(group.ranks)[:8]}, peer {call.peer}: "
                         f"expected different ranks of {trace.world}, this one among them, and a peer among these")
    if call.kind in ("send", "recv"):
        ends = (trace.rank, group.ranks[call.peer])
        ends = ends if call.kind == "send" else ends[::-1]
        return (group.name, *ends), Operation("send", ends, call.nbytes, call.dtype)
    return (group.name,), Operation(call.kind, group.ranks, call.nbytes, call.dtype, call.peer)


def _words(operation: Operation) -> str:
    return (f"{operation.kind} of {operation.nbytes} bytes among ranks {list(operation.members)[:8]}, "
            f"root {operation.root}")


def _as_rank(trace: RankTrace, rank: int) -> RankTrace:
    """The recording of another rank, which does the same in its own groups.

    Groups are taken to be rows of a grid of ranks: as many, as far apart.  Raises TraceError for others.
    """
    groups = []
    for group in trace.groups:
        ordered = sorted(group.ranks)
        stride = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        if list(group.ranks) != _row(trace.rank, len(ordered), stride) or trace.world % (len(ordered) * stride):
            raise TraceError(f"group {group.name!r} of ranks {list(group.ranks)[:8]}: the groups of the ranks that "
                             "were not recorded cannot be told from it; give the recordings of all ranks")
        row = _row(rank, len(ordered), stride)
        groups.append(TracedGroup(f"{group.name} of {row[0]}", tuple(row)))
    if any(isinstance(event, TracedCall) and event.kind in ("send", "recv") for event in trace.events):
        raise TraceError("messages between two ranks: expected the recordings of all ranks, got one")
    return msgspec.structs.replace(trace, rank=rank, groups=groups)


def _row(rank: int, size: int, stride: int) -> list[int]:
    first = rank - rank // stride % size * stride
    return [first + stride * place for place in range(size)]

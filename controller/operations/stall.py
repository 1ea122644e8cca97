# SPDX-License-Identifier: Apache-2.0
"""Why a job is stalled: its open slots, and the ranks that have not contributed to them.

A slot is open while its result has not arrived.  In a job that runs, slots are open for microseconds; one that
stays open lacks the contribution of a child.  Where the child is a switch, the reason is further down the tree: at a
leaf that lacks a rank, at a leaf that no packet has reached (all of its ranks are missing), or on the link between the
two (the leaf's sum is complete and has not arrived).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from netfold.controller.switch.probe import SlotState
from netfold.fabric.folding.slots import Stream
from netfold.fabric.folding.trees import Child, Fold
from netfold.wire.roce import LaneOperation, psn_age
from netfold.wire.stalls import Culprit, OpenSlot, Stall

States = Mapping[str, Mapping[int, SlotState]]
"""The states of slots, by switch and slot."""


def slots_of(streams: Sequence[Stream], switch: str) -> list[int]:
    """All slots of these streams on a switch."""
    return [
        stream.bases[switch] + offset for stream in streams if switch in stream.bases for offset in range(stream.slots)
    ]


def open_slots(streams: Sequence[Stream], hosts: Sequence[str], states: States) -> list[OpenSlot]:
    """Open slots of the switches in ``states``, each stream's oldest first.  ``hosts`` are the ranks' names."""
    return [
        _open(stream, fold, hosts, slot, state)
        for stream in streams
        for fold in stream.tree.folds
        for slot, state in _waiting(stream, fold, states)
    ]


def report(job: str, epoch: int, streams: Sequence[Stream], hosts: Sequence[str], states: States) -> Stall:
    """Report why a job is stalled.

    epoch   by which its ranks and `netfold status` know the job; that of its slots differs once trees have moved
    states  must have all switches of the streams' trees
    """
    culprits: list[Culprit] = []
    count = 0
    for stream in streams:
        waiting = [
            (state.psn, fold) for fold in stream.tree.folds for _, state in _waiting(stream, fold, states)
        ]
        count += len(waiting)
        if waiting:
            first = waiting[0][0]
            oldest = min((psn for psn, _ in waiting), key=lambda psn: psn_age(psn, first))
            root = stream.tree.folds[0]
            if _finished(stream, root, oldest, states):  # there is a result: it was lost on its way down
                root = next(fold for psn, fold in waiting if psn == oldest)
            culprits += _blame(stream, root, hosts, oldest, states)
    ranks = sorted({rank for culprit in culprits for rank in culprit.ranks})
    return Stall(job, epoch, ranks, count, culprits)


def _blame(stream: Stream, fold: Fold, hosts: Sequence[str], psn: int, states: States) -> Iterator[Culprit]:
    """Follow an open slot down the tree to the ranks or links that it waits for."""
    slot, state = _slot(stream, fold, psn, states)
    here = _open(stream, fold, hosts, slot, state)
    where = (f"{fold.switch}, tree {stream.tree.root}, {here.operation}: slot {slot}, PSN {psn}, "
             f"bitmap {state.bitmap:#x} of {_full(fold):#x}")
    missing = [child for n, child in enumerate(fold.children) if not state.bitmap >> n & 1]
    if not missing:
        yield Culprit(here, [], f"{where}: complete, its sum or the result is lost between {fold.switch} and "
                                f"{fold.parent}; a rank's repeat brings it again")
        return
    ranks = [stream.ranks[child.rank] for child in missing if child.rank is not None]
    if ranks:
        yield Culprit(here, ranks, f"{where}: missing {', '.join(here.missing)}")
    for child in missing:
        if child.rank is not None:
            continue
        below = stream.tree.fold(child.node)
        if not _holds(stream, below, psn, states):
            all_below = sorted(_ranks_below(stream, below))
            names = ", ".join(_name(rank, hosts) for rank in all_below)
            yield Culprit(here, all_below, f"{where}: nothing of {child.node}, which has nothing of {names}")
        elif _slot(stream, below, psn, states)[1].bitmap == _full(below):
            yield Culprit(here, [], f"{where}: {child.node} has its sum, which is lost on the way to {fold.switch}; a "
                                    "rank's repeat brings it again")
        else:
            yield from _blame(stream, below, hosts, psn, states)


def _waiting(stream: Stream, fold: Fold, states: States) -> list[tuple[int, SlotState]]:
    """Open slots of a stream on one switch with their states, the oldest first."""
    base, held = stream.bases[fold.switch], states.get(fold.switch, {})
    found = [
        (slot, held[slot])
        for slot in range(base, base + stream.slots)
        if slot in held and held[slot].epoch == stream.epoch and not held[slot].done
    ]
    return sorted(found, key=lambda item: psn_age(item[1].psn, found[0][1].psn))


def _slot(stream: Stream, fold: Fold, psn: int, states: States) -> tuple[int, SlotState]:
    """The slot of a PSN and its state; an empty state if it holds another PSN."""
    slot = stream.bases[fold.switch] + (psn & (stream.slots - 1))
    if _holds(stream, fold, psn, states):
        return slot, states[fold.switch][slot]
    return slot, SlotState(stream.epoch, psn, False, False, 0)


def _finished(stream: Stream, fold: Fold, psn: int, states: States) -> bool:
    """True if a switch has, or had, the result of a PSN."""
    state = states[fold.switch].get(stream.bases[fold.switch] + (psn & (stream.slots - 1)))
    if state is None or state.epoch != stream.epoch:
        return False
    return state.done if state.psn == psn else psn_age(state.psn, psn) > 0


def _holds(stream: Stream, fold: Fold, psn: int, states: States) -> bool:
    state = states[fold.switch].get(stream.bases[fold.switch] + (psn & (stream.slots - 1)))
    return state is not None and (state.epoch, state.psn, state.done) == (stream.epoch, psn, False)


def _open(stream: Stream, fold: Fold, hosts: Sequence[str], slot: int, state: SlotState) -> OpenSlot:
    present: list[str] = []
    missing: list[str] = []
    for number, child in enumerate(fold.children):
        (present if state.bitmap >> number & 1 else missing).append(_child(stream, child, hosts))
    operation = _operation(state) if state.bitmap else f"{stream.kind} stream"
    return OpenSlot(fold.switch, stream.tree.root, operation, slot, state.psn, state.bitmap, present, missing)


def _operation(state: SlotState) -> str:
    if state.presence:
        return "presence"
    try:
        return LaneOperation(state.operation).name
    except ValueError:
        return f"operation {state.operation}"


def _ranks_below(stream: Stream, fold: Fold) -> Iterator[int]:
    for child in fold.children:
        if child.rank is None:
            yield from _ranks_below(stream, stream.tree.fold(child.node))
        else:
            yield stream.ranks[child.rank]


def _full(fold: Fold) -> int:
    return (1 << len(fold.children)) - 1


def _child(stream: Stream, child: Child, hosts: Sequence[str]) -> str:
    return child.node if child.rank is None else _name(stream.ranks[child.rank], hosts)


def _name(rank: int, hosts: Sequence[str]) -> str:
    return f"rank {rank} ({hosts[rank]})"

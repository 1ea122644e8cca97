# SPDX-License-Identifier: Apache-2.0
"""The slot protocol as a state space, explored exhaustively.

Hosts on one leaf, or on several leaves below a spine, reduce PSNs 0 .. psns-1.  The network is the worst possible one:
a packet in flight may arrive at any time, any number of times, in any order, or be lost, and a copy of any contribution
that a host ever sent may arrive late.  Hosts repeat what they miss at any time, so that ranks run ahead and lag.

Two properties hold in all reachable states (docs/protocol.md, "Slots"):

* safety: a packet that a switch emits holds each child's contribution for its PSN exactly once;
* liveness: from wherever the network leads, the hosts' repeats alone can still finish (no host is stuck).

The switches may lose their state at any moment, up to `ModelFabric.replans` times: the ranks then begin again in a new
epoch, at the lowest PSN that any of them lacks (docs/protocol.md, "Trees planned anew").  Ranks leave the job where
`ModelFabric.each` sets the length of operations; what a rank that has left could repeat must not be needed any more.

`explore(..., slots=2 * window)` proves both properties for the given sizes; with fewer slots it finds the stuck host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

_T = TypeVar("_T")
Departure = Literal["asked", "at once", "unasked"]
"""When a rank leaves after its last operation.

asked    when all others have reported, after it asked, that they lack no result of the operations that they have begun
at once  without waiting for the others
unasked  when all others have reported that at any time, also before it asked
"""


class ModelSlot(NamedTuple):
    """The state of a slot: PSN (-1: never used), bitmap of children, whether it is done, and the sum in its words."""

    psn: int
    bitmap: int
    done: bool
    words: frozenset[tuple[int, int]]
    """(rank, psn) of every contribution in the words."""


FREE = ModelSlot(-1, 0, False, frozenset())


class WrongSum(Exception):
    """A switch emitted words that do not hold the contribution of each child exactly once."""


@dataclass(frozen=True)
class ModelFabric:
    """The modelled fabric: ``leaves[i]`` ranks on leaf i; a single leaf is the root, several are below a spine."""

    leaves: tuple[int, ...]
    window: int
    slots: int
    psns: int
    psn_bits: int = 24
    first_psn: int = 0
    """Wire PSN of PSN 0, so that a small ``psn_bits`` makes the numbers wrap."""
    replans: int = 0
    """How many times the switches may lose their state."""
    each: int = 0
    """PSNs of an operation; 0: all PSNs are one operation, and no rank leaves.

    A rank begins an operation at any time after the one before, and may leave after the last.
    """

    @property
    def ranks(self) -> int:
        return sum(self.leaves)

    def leaf_of(self, rank: int) -> int:
        for leaf, count in enumerate(self.leaves):
            if rank < count:
                return leaf
            rank -= count
        raise ValueError(f"no rank {rank}")

    def ranks_of(self, leaf: int) -> range:
        first = sum(self.leaves[:leaf])
        return range(first, first + self.leaves[leaf])

    def age(self, psn: int, other: int) -> int:
        """How far ``psn`` is ahead of ``other`` in serial arithmetic on wire PSNs, as in the P4 program."""
        half = 1 << (self.psn_bits - 1)
        ahead = ((psn + self.first_psn) - (other + self.first_psn)) % (half * 2)
        return ahead - half * 2 if ahead >= half else ahead


class State(NamedTuple):
    """A state of the whole system; sets of PSNs are bit masks."""

    received: tuple[int, ...]  # of each rank: results of this epoch, and all PSNs before its start
    had: tuple[int, ...]  # of each rank: results that it has, of any epoch
    starts: tuple[int, ...]  # of each rank: the PSN at which this epoch began
    begun: tuple[int, ...]  # of each rank: PSNs of the operations that it has begun
    leaving: int  # ranks that have asked to leave, as bits
    settled: int  # ranks that have reported that they lack nothing, as bits
    left: int  # ranks that have left, as bits
    replans: int  # times that the switches may still lose their state
    leaves: tuple[tuple[ModelSlot, ...], ...]
    spine: tuple[ModelSlot, ...]
    partials: tuple[int, ...]  # of each leaf: partial sums in flight to the spine
    to_leaf: tuple[int, ...]  # to each leaf: results in flight from the spine
    to_rank: tuple[int, ...]  # to each rank: results in flight from its leaf


@dataclass
class ExplorationReport:
    """The result of an exploration."""

    states: int = 0
    stuck: list[State] = field(default_factory=list)
    """States from which not even a network without losses leads to the end."""

    @property
    def live(self) -> bool:
        return not self.stuck


def lowest_missing(received: int) -> int:
    psn = 0
    while received >> psn & 1:
        psn += 1
    return psn


class _Switch:
    """The behaviour of one slot: the verdict table of p4src/verdict.p4 in Python."""

    def __init__(self, fabric: ModelFabric, full: int, *, root: bool, checks_age: bool = True) -> None:
        self.fabric, self.full, self.root, self.checks_age = fabric, full, root, checks_age

    def contribution(
        self, slot: ModelSlot, psn: int, child: int, words: frozenset[tuple[int, int]]
    ) -> tuple[ModelSlot, str]:
        """The slot after a contribution, and who gets a packet: nobody, parent, asker or all."""
        bit = 1 << child
        age = 1 if slot.psn < 0 else self.fabric.age(psn, slot.psn)
        if age < 0 and self.checks_age:
            return slot, "nobody"
        if age != 0:
            slot = ModelSlot(psn, bit, False, words)
        elif slot.done:
            return slot, "asker"
        elif slot.bitmap & bit:
            return slot, "parent" if slot.bitmap == self.full else "nobody"
        else:
            if slot.words & words:
                raise WrongSum(f"PSN {psn}: child {child} added twice")
            slot = slot._replace(bitmap=slot.bitmap | bit, words=slot.words | words)
        if slot.bitmap != self.full:
            return slot, "nobody"
        return (slot._replace(done=True), "all") if self.root else (slot, "parent")

    def result(self, slot: ModelSlot, psn: int, words: frozenset[tuple[int, int]]) -> tuple[ModelSlot, str]:
        if slot.psn >= 0 and slot.psn == psn and slot.bitmap == self.full and not slot.done:
            return slot._replace(done=True, words=words), "all"
        return slot, "nobody"


class Exploration:
    """A breadth-first search of every state that the worst network can lead to."""

    def __init__(
        self, fabric: ModelFabric, *, checks_age: bool = True, resume_apart: bool = False,
        departure: Departure = "asked",
    ) -> None:
        self.fabric = fabric
        self.resume_apart = resume_apart
        self.departure = departure
        one = len(fabric.leaves) == 1
        self.leaf = [_Switch(fabric, (1 << n) - 1, root=one, checks_age=checks_age) for n in fabric.leaves]
        self.spine = _Switch(fabric, (1 << len(fabric.leaves)) - 1, root=True, checks_age=checks_age)
        self.all_psns = (1 << fabric.psns) - 1
        self.whole = [frozenset((r, p) for r in range(fabric.ranks)) for p in range(fabric.psns)]
        self.part = [
            [frozenset((r, p) for r in fabric.ranks_of(leaf)) for p in range(fabric.psns)]
            for leaf in range(len(fabric.leaves))
        ]

    def start(self) -> State:
        fabric = self.fabric
        ranks, leaves = fabric.ranks, len(fabric.leaves)
        free = (FREE,) * fabric.slots
        none, at_leaf = (0,) * ranks, (0,) * leaves
        begun = (0 if fabric.each else fabric.psns,) * ranks
        return State(
            none, none, none, begun, 0, 0, 0, fabric.replans, (free,) * leaves, free, at_leaf, at_leaf, none
        )

    def successors(self, state: State) -> tuple[list[State], list[State]]:
        """The states after one step: those by what hosts and switches do, and those that only a bad network causes."""
        fabric = self.fabric
        found: list[State] = []
        bad: list[State] = []
        alive = self._alive(state)
        for rank, received in enumerate(state.received):
            # a delivered packet stays in flight, since it may arrive again
            for psn in _bits(state.to_rank[rank] & ~received):
                had = _put(state.had, rank, state.had[rank] | 1 << psn)
                found.append(state._replace(received=_put(state.received, rank, received | 1 << psn), had=had))
            for psn in range(state.starts[rank], min(lowest_missing(received) + fabric.window, state.begun[rank])):
                if received >> psn & 1:
                    if alive >> psn & 1:
                        bad.append(self._to_leaf_up(state, rank, psn))  # a late copy
                elif not state.left >> rank & 1:
                    found.append(self._to_leaf_up(state, rank, psn))
            if fabric.each:
                found += self._between_operations(state, rank)
        for leaf in range(len(fabric.leaves)):
            for psn in _bits(state.partials[leaf] & alive):
                found.append(self._to_spine(state, leaf, psn))
            for psn in _bits(state.to_leaf[leaf] & alive):
                found.append(self._to_leaf_down(state, leaf, psn))
        if state.replans:
            bad.append(self._replanned(state))
        bad += [state._replace(partials=less) for less in _one_less(state.partials)]
        bad += [state._replace(to_leaf=less) for less in _one_less(state.to_leaf)]
        bad += [state._replace(to_rank=less) for less in _one_less(state.to_rank)]
        steps = {self._without_stale_packets(s) for s in found} - {state}
        return list(steps), list({self._without_stale_packets(s) for s in bad} - {state} - steps)

    def run(self, *, limit: int = 5_000_000) -> ExplorationReport:
        """Explore all states.  Raises WrongSum, and OverflowError beyond ``limit`` states."""
        start = self.start()
        number: dict[State, int] = {start: 0}
        before: list[list[int]] = [[]]
        final: list[int] = []
        states = [start]
        queue = deque([0])
        while queue:
            here = queue.popleft()
            state = states[here]
            if self._finished(state):
                final.append(here)
            steps, losses = self.successors(state)
            for i, then in enumerate([*steps, *losses]):
                there = number.get(then)
                if there is None:
                    there = number[then] = len(states)
                    if there >= limit:
                        raise OverflowError(f"more than {limit} states: choose a smaller fabric")
                    states.append(then)
                    before.append([])
                    queue.append(there)
                if i < len(steps):  # finishing must not depend on what a bad network does
                    before[there].append(here)
        can_finish = bytearray(len(states))
        stack = list(final)
        for state_number in final:
            can_finish[state_number] = 1
        while stack:
            for earlier in before[stack.pop()]:
                if not can_finish[earlier]:
                    can_finish[earlier] = 1
                    stack.append(earlier)
        return ExplorationReport(len(states), [states[i] for i in range(len(states)) if not can_finish[i]])

    def _finished(self, state: State) -> bool:
        if self.fabric.each:
            return state.left == (1 << self.fabric.ranks) - 1
        return all(had == self.all_psns for had in state.had)

    def _between_operations(self, state: State, rank: int) -> list[State]:
        """What a rank may do between operations: begin the next one, or leave (controller/jobs/leaving.py)."""
        bit, begun, others = 1 << rank, state.begun[rank], (1 << self.fabric.ranks) - 1 & ~(1 << rank)
        if state.left & bit or lowest_missing(state.had[rank]) < begun:
            return []
        then: list[State] = []
        if begun < self.fabric.psns:
            then.append(state._replace(begun=_put(state.begun, rank, begun + self.fabric.each)))
        elif not state.leaving & bit:
            then.append(state._replace(leaving=state.leaving | bit))
        elif self.departure == "at once" or not others & ~(state.settled | state.leaving):
            then.append(state._replace(left=state.left | bit))
        if state.leaving & others or self.departure == "unasked":
            then.append(state._replace(settled=state.settled | bit))
        return then

    def _without_stale_packets(self, state: State) -> State:
        """The state without packets that change nothing any more: the receiver has them, or its slot is past them.

        Slots and ranks only move forward, so such a packet never matters again; leaving it out merges equal states.
        """
        fabric = self.fabric
        to_rank = tuple(mask & ~had for mask, had in zip(state.to_rank, state.received, strict=True))
        to_leaf = tuple(
            sum(1 << p for p in _bits(mask) if not (slots[p % fabric.slots].psn > p or slots[p % fabric.slots].done))
            for mask, slots in zip(state.to_leaf, state.leaves, strict=True)
        )
        partials = tuple(
            sum(1 << p for p in _bits(mask) if state.spine[p % fabric.slots].psn <= p) for mask in state.partials
        )
        return state._replace(to_rank=to_rank, to_leaf=to_leaf, partials=partials)

    def _replanned(self, state: State) -> State:
        """The state with empty slots in a new epoch, which no packet in flight belongs to."""
        lacking = [lowest_missing(had) for had in state.had]
        starts = tuple(lacking) if self.resume_apart else (min(lacking),) * len(lacking)
        fresh = self.start()
        return fresh._replace(
            received=tuple((1 << start) - 1 for start in starts), had=state.had, starts=starts, begun=state.begun,
            leaving=state.leaving, settled=state.settled, left=state.left, replans=state.replans - 1,
        )

    # ---- deliveries of one packet ------------------------------------------------------------------------------------
    def _alive(self, state: State) -> int:
        """PSNs of packets that can still be in the network: none lives longer than half the PSN space."""
        newest = max(lowest_missing(r) for r in state.received) + self.fabric.window
        oldest = max(0, newest - (1 << (self.fabric.psn_bits - 1)) + 1)
        return self.all_psns & ~((1 << oldest) - 1)

    def _to_leaf_up(self, state: State, rank: int, psn: int) -> State:
        leaf = self.fabric.leaf_of(rank)
        child = rank - self.fabric.ranks_of(leaf).start
        index = psn % self.fabric.slots
        words = frozenset({(rank, psn)})
        slot, who = self.leaf[leaf].contribution(state.leaves[leaf][index], psn, child, words)
        state = state._replace(leaves=_put(state.leaves, leaf, _put(state.leaves[leaf], index, slot)))
        if who == "parent":
            if slot.words != self.part[leaf][psn]:
                raise WrongSum(f"leaf {leaf} sent {sorted(slot.words)} up as PSN {psn}")
            return state._replace(partials=_put(state.partials, leaf, state.partials[leaf] | 1 << psn))
        return self._down(state, leaf, slot, psn, who, rank)

    def _to_leaf_down(self, state: State, leaf: int, psn: int) -> State:
        index = psn % self.fabric.slots
        slot, who = self.leaf[leaf].result(state.leaves[leaf][index], psn, self.whole[psn])
        state = state._replace(leaves=_put(state.leaves, leaf, _put(state.leaves[leaf], index, slot)))
        return self._down(state, leaf, slot, psn, who, None)

    def _down(self, state: State, leaf: int, slot: ModelSlot, psn: int, who: str, asker: int | None) -> State:
        if who == "nobody":
            return state
        if slot.words != self.whole[psn]:
            raise WrongSum(f"leaf {leaf} sent {sorted(slot.words)} down as PSN {psn}")
        receivers = self.fabric.ranks_of(leaf) if who == "all" else [asker]
        to_rank = state.to_rank
        for rank in receivers:
            assert rank is not None
            to_rank = _put(to_rank, rank, to_rank[rank] | 1 << psn)
        return state._replace(to_rank=to_rank)

    def _to_spine(self, state: State, leaf: int, psn: int) -> State:
        index = psn % self.fabric.slots
        slot, who = self.spine.contribution(state.spine[index], psn, leaf, self.part[leaf][psn])
        state = state._replace(spine=_put(state.spine, index, slot))
        if who == "nobody":
            return state
        if slot.words != self.whole[psn]:
            raise WrongSum(f"the spine sent {sorted(slot.words)} down as PSN {psn}")
        to_leaf = state.to_leaf
        for receiver in range(len(self.fabric.leaves)) if who == "all" else [leaf]:
            to_leaf = _put(to_leaf, receiver, to_leaf[receiver] | 1 << psn)
        return state._replace(to_leaf=to_leaf)


def explore(
    fabric: ModelFabric, *, checks_age: bool = True, resume_apart: bool = False, departure: Departure = "asked",
    limit: int = 5_000_000,
) -> ExplorationReport:
    """Explore every reachable state of ``fabric``.  Raises WrongSum at the first wrong sum.

    Three arguments break the protocol on purpose: ``checks_age=False`` lets late contributions take slots over;
    ``resume_apart`` lets each rank begin at the first PSN that it lacks itself after the switches have lost their
    state; and ``departure`` other than "asked" lets ranks leave too early.
    """
    return Exploration(fabric, checks_age=checks_age, resume_apart=resume_apart, departure=departure).run(limit=limit)


def _put(values: tuple[_T, ...], index: int, value: _T) -> tuple[_T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _one_less(flying: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All states of these packets in flight with one of them lost."""
    return [_put(flying, i, mask & ~(1 << psn)) for i, mask in enumerate(flying) for psn in _bits(mask)]


def _bits(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]

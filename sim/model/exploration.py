# SPDX-License-Identifier: Apache-2.0
"""All states that the worst network leads to, and from which of them the ranks can still finish."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from netfold.sim.model.fabric import RC, WINDOWED, ModelFabric, Rules
from netfold.sim.model.state import FREE, State, bits, lowest_missing
from netfold.sim.model.system import ModelSystem, NotKept, WrongAcknowledgement, WrongSum

PROTOCOL = Rules()


@dataclass
class ExplorationReport:
    """The result of an exploration."""

    states: int = 0
    stuck: list[State] = field(default_factory=list)
    """States from which not even a network without losses leads to the end."""
    path: list[str] = field(default_factory=list)
    """Steps that lead to the first stuck state, or to an error."""
    wrong: Exception | None = None

    @property
    def live(self) -> bool:
        return not self.stuck and not self.wrong


class Exploration:
    """A breadth-first search of every state that the worst network can lead to."""

    def __init__(self, fabric: ModelFabric, rules: Rules = PROTOCOL) -> None:
        self.fabric, self.rules = fabric, rules
        self.switches = len(fabric.leaves) + (fabric.spine >= 0)

    def start(self) -> State:
        fabric, ranks = self.fabric, self.fabric.ranks
        none, at_switch = (0,) * ranks, (0,) * self.switches
        return State(
            received=none, had=none, acknowledged=none, confirmed=none, flow_expected=none, flow_acknowledged=none,
            told=0, starts=none, begun=(0 if fabric.each else fabric.psns,) * ranks, leaving=0, settled=0, left=0,
            replans=fabric.replans, restarts=fabric.restarts, lost=False,
            slots=((FREE,) * fabric.slots,) * self.switches, sums=(0,) * len(fabric.leaves),
            content_sums=(0,) * len(fabric.leaves), results=at_switch,
            acknowledgements=(0,) * (ranks + len(fabric.leaves)), old_limits=none, old_received=none,
        )

    # ---- what the worst network may do -------------------------------------------------------------------------------
    def deliveries(self, state: State) -> Iterator[tuple[str, State]]:
        """The states after one packet, of all that were ever sent, arrives; and what else may happen at any time.

        Packets that change nothing are left out.
        """
        fabric = self.fabric
        fresh = ModelSystem(fabric, self.rules, state)
        for label, action, who, psn in self._arrivals(state, fresh):
            getattr(fresh, action)(who, psn)
            if fresh.changed:
                yield f"{label} {who}, PSN {psn}", fresh.freeze()
                fresh = ModelSystem(fabric, self.rules, state)
        if state.replans:
            yield "all switches restart", self._replanned(state, state.replans - 1)
        if state.restarts:
            for switch in range(self.switches):
                system = ModelSystem(fabric, self.rules, state._replace(restarts=state.restarts - 1, lost=True))
                system.restart(switch)
                yield f"switch {switch} restarts", system.freeze()

    def _arrivals(self, state: State, system: ModelSystem) -> list[tuple[str, str, int, int]]:
        """Packets that may arrive: a description, the method of ModelSystem that takes the packet, and its
        arguments."""
        fabric = self.fabric
        limits = [max(system.limit(rank), state.old_limits[rank]) for rank in range(fabric.ranks)]
        alive = self._alive(max(limits))
        found: list[tuple[str, str, int, int]] = []
        for rank, kind in enumerate(fabric.kinds):
            for psn in range(state.starts[rank], limits[rank]):
                if alive >> psn & 1:
                    found.append(("contribution of rank", "contribute", rank, psn))
                    if kind == WINDOWED:
                        found.append(("ask of rank", "ask", rank, psn))
            if kind == RC:
                successor, seen = fabric.successor[rank], state.flow_acknowledged[rank]
                if seen < max(lowest_missing(state.received[successor]), state.old_received[successor]):
                    found.append(("ACK passes the leaf of rank", "watch", rank, seen + 1))
                if state.acknowledged[rank] < seen:
                    found.append(("ACK to rank", "acknowledge", rank, state.acknowledged[rank] + 1))
            for psn in bits(system.results_for(rank)):
                found.append(("result to rank", "receive", rank, psn))
            found += [("acknowledgement to rank", "receive_presence", rank, psn)
                      for psn in bits(state.acknowledgements[rank])]
        if fabric.spine >= 0:
            for leaf in range(len(fabric.leaves)):
                found += [("sum of leaf", "sum_from_leaf", leaf, psn) for psn in bits(state.sums[leaf] & alive)]
                found += [("content sum of leaf", "content_sum_from_leaf", leaf, psn)
                          for psn in bits(state.content_sums[leaf] & alive)]
                found += [("acknowledgement to leaf", "presence_from_parent", leaf, psn)
                          for psn in bits(state.acknowledgements[fabric.ranks + leaf] & alive)]
                down = bits(state.results[fabric.spine] & alive)
                found += [("result to leaf", "result_from_parent", leaf, psn) for psn in down]
                found += [("the spine's NAK to leaf", "asked_by_parent", leaf, psn) for psn in bits(alive)]
        return found

    def _alive(self, newest: int) -> int:
        """PSNs below ``newest`` of packets in the network: none lives longer than half the PSN space."""
        oldest = max(0, newest - (1 << (self.fabric.psn_bits - 1)) + 1)
        return (1 << newest) - (1 << oldest)

    # ---- what happens without loss -----------------------------------------------------------------------------------
    def progress(self, state: State) -> Iterator[tuple[str, State]]:
        """The states after a rank or the controller acts by itself, and the network loses and delays nothing.

        A rank acts where its timer fires, which is at any time, and between operations.
        """
        fabric = self.fabric
        for rank, kind in enumerate(fabric.kinds):
            if not state.left >> rank & 1:
                system = ModelSystem(fabric, self.rules, state, at_once=True)
                if kind == RC:
                    system.go_back(rank)
                    from_there = " and all after it" if fabric.goes_back == "all" else ""
                    yield (f"rank {rank} repeats PSN {state.acknowledged[rank]}{from_there}, nothing is lost",
                           system.freeze())
                else:
                    for psn in range(state.starts[rank], system.limit(rank)):
                        if not state.received[rank] >> psn & 1:
                            system = ModelSystem(fabric, self.rules, state, at_once=True)
                            system.ask(rank, psn)
                            yield f"rank {rank} asks for PSN {psn}, nothing is lost", system.freeze()
            if fabric.each:
                yield from self._between_operations(state, rank)
        if state.lost:
            yield "the ranks begin again", self._replanned(state, state.replans)

    def _between_operations(self, state: State, rank: int) -> Iterator[tuple[str, State]]:
        """Steps of a rank between operations: begin the next one, or leave (controller/jobs/leaving.py)."""
        bit, begun, others = 1 << rank, state.begun[rank], self.fabric.everyone & ~(1 << rank)
        if state.left & bit or lowest_missing(state.had[rank]) < begun:
            return
        acknowledged = self.fabric.kinds[rank] == WINDOWED or state.confirmed[rank] >= begun
        asked = state.leaving & others or self.rules.departure == "unasked"
        if asked and (acknowledged or not self.rules.settles_acknowledged):
            yield f"rank {rank} says that it lacks nothing", state._replace(settled=state.settled | bit)
        if not acknowledged and self.rules.ends_acknowledged:
            return
        if begun < self.fabric.psns:
            yield f"rank {rank} begins", state._replace(begun=_put(state.begun, rank, begun + self.fabric.each))
        elif not state.leaving & bit:
            yield f"rank {rank} asks to leave", state._replace(leaving=state.leaving | bit)
        elif self.rules.departure == "at once" or not others & ~(state.settled | state.leaving):
            yield f"rank {rank} leaves", state._replace(left=state.left | bit)

    def _replanned(self, state: State, replans: int) -> State:
        """The state with empty slots in a new epoch, which no packet in flight belongs to."""
        lacking = [self.fabric.message_start(lowest_missing(had)) for had in state.had]
        starts = (min(lacking),) * len(lacking) if self.rules.one_start else tuple(lacking)
        fresh = self.start()._replace(
            received=tuple((1 << start) - 1 for start in starts), had=state.had, acknowledged=starts,
            confirmed=state.confirmed, flow_expected=starts, flow_acknowledged=starts, starts=starts, begun=state.begun,
            leaving=state.leaving, settled=state.settled, left=state.left, replans=replans, restarts=state.restarts,
        )
        system = ModelSystem(self.fabric, self.rules, state)
        for rank, start in enumerate(starts):
            if self.fabric.kept and system.limit(rank) - start > self.fabric.kept:
                raise NotKept(f"rank {rank} may have sent all below {system.limit(rank)}, and is to begin at {start}")
        if self.rules.new_queue_pairs:
            return fresh
        return fresh._replace(
            sums=state.sums, content_sums=state.content_sums, results=state.results,
            acknowledgements=state.acknowledgements,
            old_limits=tuple(map(max, state.old_limits, map(system.limit, range(self.fabric.ranks)))),
            old_received=tuple(map(max, state.old_received, map(lowest_missing, state.received))),
        )

    def finished(self, state: State) -> bool:
        fabric = self.fabric
        if fabric.each:
            return state.left == fabric.everyone
        return all(lowest_missing(had) == fabric.psns for had in state.had) and all(
            state.confirmed[rank] == fabric.psns for rank in fabric.rc)

    # ---- the search --------------------------------------------------------------------------------------------------
    def run(self, *, limit: int = 5_000_000, live: bool = True) -> ExplorationReport:
        """Explore all states.  ``live=False`` looks for what is wrong alone, not for who is stuck.

        Raises OverflowError beyond ``limit`` states.
        """
        start = self.start()
        number: dict[State, int] = {start: 0}
        states = [start]
        parent = array("q", [-1])
        before: list[list[int]] = [[]]
        final: list[int] = []
        queue = deque([0])
        here = 0

        def reach(state: State, by: int) -> int:
            there = number.setdefault(state, len(states))
            if there == len(states):
                if there >= limit:
                    raise OverflowError(f"more than {limit} states: choose a smaller fabric")
                states.append(state)
                parent.append(by)
                before.append([])
                queue.append(there)
            return there

        try:
            while queue:
                here = queue.popleft()
                state = states[here]
                for _, then in self.deliveries(state):
                    reach(then, here)
                if self.finished(state):
                    final.append(here)
                else:
                    for _, then in self.progress(state):
                        before[reach(then, here)].append(here)
        except (WrongSum, WrongAcknowledgement, NotKept) as error:
            return ExplorationReport(len(states), path=self._path(states, parent, here), wrong=error)
        if not live:
            return ExplorationReport(len(states))
        can_finish = bytearray(len(states))
        stack = list(final)
        for state_number in final:
            can_finish[state_number] = 1
        while stack:
            for earlier in before[stack.pop()]:
                if not can_finish[earlier]:
                    can_finish[earlier] = 1
                    stack.append(earlier)
        stuck = [i for i in range(len(states)) if not can_finish[i]]
        path = self._path(states, parent, stuck[0]) if stuck else []
        return ExplorationReport(len(states), [states[i] for i in stuck], path)

    def _path(self, states: list[State], parent: array[int], last: int) -> list[str]:
        """The steps on the way from the start to a state."""
        path: list[str] = []
        while parent[last] >= 0:
            state, then = states[parent[last]], states[last]
            steps = [*self.deliveries(state), *self.progress(state)]
            path.append(next(label for label, found in steps if found == then))
            last = parent[last]
        return path[::-1]


def explore(
    fabric: ModelFabric, rules: Rules = PROTOCOL, *, limit: int = 5_000_000, live: bool = True
) -> ExplorationReport:
    """Explore every reachable state of ``fabric`` under ``rules``."""
    return Exploration(fabric, rules).run(limit=limit, live=live)


def _put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])

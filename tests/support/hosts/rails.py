# SPDX-License-Identifier: Apache-2.0
"""Planes within one process: ranks are threads, an allreduce of a rail is a meeting of them, and it fails where a test
says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from netfold.host.errors import RailDown
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Flat, RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.policy import OutOfBand, RailListeners, RailPolicy
from netfold.host.rails.rail_set import JobCounts, RailReopening, WatchedRail
from netfold.host.rails.rank_state import Answer, Question, RankState
from netfold.host.selection.cost import RailCost
from netfold.host.selection.peers import Peers

T = TypeVar("T")
TICK = 0.001
STALL = 0.25
FREE = RailCost(0.0, 1e9)


@dataclass
class _Meeting:
    """One allreduce: the ranks' arrays, and which ranks get the result."""

    parts: dict[int, Flat] = field(default_factory=dict)
    result: Flat | None = None
    told: Collection[int] = ()
    came: float = 0.0
    """Time at which the last rank came, on the ranks' clocks."""


@dataclass(frozen=True)
class Death:
    """The plane dies in its call ``call``, counted from 0 in its present life.

    told    ranks that still get the result
    errors  ranks that get an error at once; all others wait in vain
    """

    call: int
    told: Collection[int] = ()
    errors: Collection[int] = ()


class Plane:
    """Where the rails of all ranks meet.

    deaths  by life: the plane of life n dies as ``deaths[n]`` says; the first life's calls count from ``arm``
    quiet   rails report no progress while they wait; else only those of a dead plane do, however busy the machine is
    cost    of its calls, on the clocks of ranks that have one
    """

    def __init__(
        self, world: int, deaths: Sequence[Death] = (), *, quiet: bool = False, cost: RailCost = FREE
    ) -> None:
        self.world, self.cost = world, cost
        self.quiet = quiet
        self.deaths = list(deaths)
        self.armed: int | None = None
        self.changed = threading.Condition()
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.open: dict[int, set[int]] = {}
        self.up = threading.Event()
        """True if a dead plane can be opened again."""
        self.up.set()

    def arm(self) -> None:
        """Counts the calls of the first death from now on."""
        self.armed = max((call + 1 for life, call in self.meetings if life == 0), default=0)

    def death(self, life: int) -> tuple[int, Death] | None:
        """The call in which this life ends, and how; None where it does not."""
        if life >= len(self.deaths) or self.armed is None:
            return None
        return self.deaths[life].call + (self.armed if life == 0 else 0), self.deaths[life]


class RankClock:
    """A rank's clock, which shows what its calls take and moves only with them.

    busy  seconds that the rank is busy after each of its calls, so that it comes late to the next one
    """

    def __init__(self, busy: Iterable[float]) -> None:
        self.now = 0.0
        self._busy = iter(busy)
        self._just_ended = False

    def __call__(self) -> float:
        now = self.now
        if self._just_ended:
            self._just_ended = False
            self.now += next(self._busy)
        return now

    def end(self, now: float) -> None:
        """A call has ended at this time; the rank is busy from the next reading on, which is that of its duration."""
        self.now, self._just_ended = now, True


class FakeRail:
    """A rank's end of a plane.  ``charge`` is called with the bytes of each allreduce; ``narrows``: where there is a
    residual, lanes are whole numbers; ``clock``: the rank's, on which a call ends the plane's ``cost`` after the last
    rank has come."""

    clock: RankClock | None = None

    def __init__(
        self, plane: Plane, rank: int, life: int = 0, charge: Callable[[int], None] = lambda nbytes: None,
        name: str = "fake", narrows: bool = False,
    ) -> None:
        self.name, self.narrows = name, narrows
        self.watch: Callable[[float], bool] | None = None
        self.plane, self.rank, self.life = plane, rank, life
        self.calls = 0
        self.charge = charge
        self.closed = False
        self.numbers: list[int] = []

    @property
    def between_name(self) -> str:
        return f"hosts of {self.name}"

    def between_hosts(self, number: int, operation: Callable[[Peers], None]) -> None:
        raise NotImplementedError("nothing goes between the hosts of a fake plane")

    @property
    def carries_rows(self) -> bool:
        return False

    def collect(self, request: RowsRequest) -> None:
        raise NotImplementedError("nothing of rows goes over a fake plane")

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        self.watch = watch

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        return True

    def way(self, coding: Coding, algorithm: str | None) -> Callable[[AllreduceRequest], int]:
        return self.allreduce

    def allreduce(self, request: AllreduceRequest) -> int:
        assert not self.closed
        source, out, op = request.source, request.out, request.reduction.op
        plane, death = self.plane, self.plane.death(self.life)
        call, self.calls = self.calls, self.calls + 1
        begin = time.monotonic()
        with plane.changed:
            meeting = plane.meetings.setdefault((self.life, call), _Meeting())
            last, how = death or (1 << 62, Death(0))
            dead = call >= last
            given = source if request.feedback is None else source + request.feedback
            lanes = given if request.feedback is None else np.rint(given)
            meeting.parts[self.rank] = lanes.copy()
            meeting.came = max(meeting.came, self.clock.now if self.clock is not None else 0.0)
            left = given - lanes
            if request.feedback is not None:
                request.feedback[...] = np.nan
            out[...] = 0 if out.dtype.kind == "i" else np.nan  # a rail may leave anything behind
            if call > last or (dead and self.rank in how.errors):
                raise RailDown("the fake plane is dead")
            if len(meeting.parts) == plane.world:
                order = [meeting.parts[rank] for rank in range(plane.world)]
                total = np.sum(order, axis=0, dtype=source.dtype)
                meeting.result = total / plane.world if op == "average" else total
                meeting.told = how.told if dead else range(plane.world)
            plane.changed.notify_all()
            while meeting.result is None or self.rank not in meeting.told:
                plane.changed.wait(TICK)
                if self.watch is not None:
                    plane.changed.release()
                    try:
                        self.watch(begin if dead or plane.quiet else time.monotonic())
                    finally:
                        plane.changed.acquire()
            out[...] = meeting.result
            if request.feedback is not None:
                request.feedback[...] = left
        self.charge(source.nbytes)
        if self.clock is not None:
            self.clock.end(meeting.came + plane.cost.seconds(source.nbytes))
        return 0

    @property
    def retransmissions(self) -> int:
        return 0

    def stats(self) -> RailStats:
        return RailStats(operations=self.calls)

    def counted_by(self, counts: Callable[[], JobCounts]) -> None:
        pass

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        return "fake"

    def close(self) -> None:
        self.closed = True


class FakeReopening:
    """Opens the plane's next life as soon as it is up and all ranks ask for it."""

    def __init__(self, plane: Plane, rank: int, life: int, narrows: bool = False) -> None:
        self.plane, self.rank, self.life, self.narrows = plane, rank, life, narrows
        with plane.changed:
            plane.open.setdefault(life, set()).add(rank)

    @property
    def epoch(self) -> int:
        everybody = len(self.plane.open[self.life]) == self.plane.world
        return self.life if everybody and self.plane.up.is_set() else 0

    def take(self) -> WatchedRail:
        return FakeRail(self.plane, self.rank, self.life, narrows=self.narrows)

    def cancel(self) -> None:
        pass


class FakeChannels:
    """The out-of-band channels of all ranks, to each other's states.  A rank in ``deaf`` does not answer; one in
    ``gone`` never will again."""

    def __init__(self, world: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.states = [RankState(clock) for _ in range(world)]
        self.deaf: set[int] = set()
        self.gone: set[int] = set()
        self.asked: list[Question] = []

    def ask(self, question: Question, ranks: Collection[int], within: float) -> dict[int, Answer]:
        self.asked.append(question)
        return {rank: self.states[rank].answer(question) for rank in ranks if rank not in self.deaf | self.gone}

    def refused(self) -> Collection[int]:
        return self.gone

    def close(self) -> None:
        pass


def on_ranks(world: int, call: Callable[[int], T], within: float = 30.0) -> list[T]:
    """Runs ``call(rank)`` on a thread for every rank.  Returns results by rank, or raises the first error."""
    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(call, rank) for rank in range(world)]
        return [future.result(within) for future in futures]


class Ranks:
    """The MultiRails of all ranks over fake planes.

    options  as of ``RailPolicy``; ``known_by``: each rank's own ``known``; ``keep``; ``note``: called with rank and
             path; ``charges``: of each rail, called with the bytes that it has carried; ``narrows``: of the rails;
             ``clocks``: of the ranks
    """

    def __init__(self, planes: Sequence[Plane], **options: Any) -> None:
        self.planes = list(planes)
        self.world = planes[0].world
        self.channels = FakeChannels(self.world)
        charges = options.pop("charges", [lambda nbytes: None] * len(planes))
        options.setdefault("stall", STALL)
        options.setdefault("timeout", 1000.0)  # nothing here may need it
        clocks: Sequence[RankClock] = options.pop("clocks", ())
        if clocks:
            self.channels.states = [RankState(clock) for clock in clocks]
        states = self.channels.states
        known, narrows = options.pop("known_by", {}), options.pop("narrows", False)
        keep = options.pop("keep", lambda figures: None)
        note = options.pop("note", lambda rank, path: None)

        def reopen(rank: int) -> Callable[[int, int], RailReopening]:
            return lambda rail, deaths: FakeReopening(planes[rail], rank, deaths, narrows)

        def make(rank: int) -> MultiRail:
            rails = [
                FakeRail(plane, rank, charge=charge, name=f"rail{i}", narrows=narrows)
                for i, (plane, charge) in enumerate(zip(planes, charges, strict=True))
            ]
            for rail in rails:
                rail.clock = clocks[rank] if clocks else None
            return MultiRail(
                rails, rank, self.world, OutOfBand(states[rank], self.channels),
                policy=RailPolicy(known=known.get(rank, ()), **options),
                listeners=RailListeners(keep=keep, note=lambda path: note(rank, path)),
                reopen=reopen(rank),
            )

        self.rails = on_ranks(self.world, make)
        for plane in planes:
            plane.arm()

    def each(self, call: Callable[[MultiRail, int], T]) -> list[T]:
        """Runs ``call(rail, rank)`` on every rank at once."""
        return on_ranks(self.world, lambda rank: call(self.rails[rank], rank))

    def sum(self, size: int, seed: int, *, in_place: bool = False) -> None:
        """Runs one allreduce of random int32, and checks the sum on every rank."""
        data = [np.random.default_rng([seed, rank]).integers(-1000, 1000, size, np.int32) for rank in range(self.world)]
        expected = np.sum(data, axis=0, dtype=np.int32)

        def call(rail: MultiRail, rank: int) -> None:
            out = data[rank] if in_place else np.full(size, -1, np.int32)
            before = data[rank].copy()
            rail.allreduce(AllreduceRequest(data[rank], out, Reduction("sum", "int32"), seed))
            wrong = int(np.sum(out != expected))
            assert wrong == 0, f"rank {rank}: {wrong} of {size} elements are wrong"
            assert in_place or np.array_equal(data[rank], before), f"rank {rank}: the source was changed"

        self.each(call)

    def close(self) -> None:
        self.each(lambda rail, rank: rail.close())

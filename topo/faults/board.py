# SPDX-License-Identifier: Apache-2.0
"""The faults of one running fabric: which are there, which may come, and when each is undone.

What a fault does to processes and interfaces is in the `FaultPlan` that it comes with; here are its number, its clock,
and what it may not overlap with.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from netfold.wire.faults import ActiveFault, Inject

log = logging.getLogger("netfold.faults")

MAX_FAULTS: Final = 1000
"""Most faults at the same time."""


class FaultRefused(Exception):
    """A fault cannot be injected; the message says what was wrong, what was expected, and what to do.

    conflict  whether it could be without other faults, or later

    Remedy: name one of the targets in the message; end the present fault first; for shares of packets start the fabric
    with `--faults`.
    """

    def __init__(self, why: str, *, conflict: bool = False) -> None:
        super().__init__(why)
        self.conflict = conflict


@dataclass(frozen=True)
class FaultPlan:
    """How a fault is injected and undone.

    text    what it does, in words
    begin   injects it
    end     undoes it; None: it is over at once, or cannot be undone
    holds   what it changes, which no other fault may change meanwhile: "link leaf1:3 up or down"
    period  seconds between calls of ``end`` and ``begin`` in turn while it is there (flap); None: it stays as it is
    at_end  whether it is undone before the fabric ends, which would wait for it
    """

    text: str
    begin: Callable[[], None]
    end: Callable[[], None] | None
    holds: frozenset[str] = frozenset()
    period: float | None = None
    at_end: bool = False


@dataclass
class _Fault:
    number: int
    request: Inject
    plan: FaultPlan
    since: float
    until: float | None
    toggle: float | None
    """Time of its next change, if it is periodic."""
    on: bool = True
    problem: str = ""


class FaultBoard:
    """The faults that are there.  All methods may be called from any thread.

    plan   makes the plan of a request; raises FaultRefused
    clock  monotonic seconds
    """

    def __init__(self, plan: Callable[[Inject], FaultPlan], clock: Callable[[], float]) -> None:
        self._plan, self._clock = plan, clock
        self._faults: dict[int, _Fault] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def inject(self, request: Inject) -> tuple[int, str]:
        """Inject a fault, and return its number and what it does; number 0 for one that is over at once, or cannot be
        undone.  Raises FaultRefused, and what the plan's ``begin`` raises: nothing is injected then."""
        with self._lock:
            plan = self._plan(request)
            if plan.end is None and request.seconds is not None:
                raise FaultRefused(f"{request.kind} {request.target} for {request.seconds:g} s: expected no time, "
                                   "since it is over at once, or cannot be undone")
            for other in self._faults.values():
                if shared := plan.holds & other.plan.holds:
                    raise FaultRefused(
                        f"{request.kind} {request.target}: fault {other.number} ({other.plan.text}) has changed "
                        f"{', '.join(sorted(shared))} already: `netfold fault end {other.number}` first", conflict=True)
            if len(self._faults) >= MAX_FAULTS:
                raise FaultRefused(f"{MAX_FAULTS} faults are there: end some first", conflict=True)
            try:
                plan.begin()
            except BaseException:
                if plan.end is not None:  # half of it may have been done
                    with contextlib.suppress(Exception):
                        plan.end()
                raise
            log.info("fault: %s", plan.text)
            if plan.end is None:
                return 0, plan.text
            now = self._clock()
            number = next(self._numbers)
            self._faults[number] = _Fault(number, request, plan, now,
                                          None if request.seconds is None else now + request.seconds,
                                          None if plan.period is None else now + plan.period)
            return number, plan.text

    def undo(self, number: int | None) -> list[str]:
        """End a fault, or all; returns what was ended.  Raises FaultRefused for a number that is not there, and where
        one cannot be undone, once all others are."""
        with self._lock:
            if number is not None and number not in self._faults:
                there = ", ".join(map(str, self._faults)) or "none"
                raise FaultRefused(f"there is no fault {number}: expected one of those that are there "
                                   f"({there}), or all")
            faults = list(self._faults.values())[::-1] if number is None else [self._faults[number]]
            ended = [fault.plan.text for fault in faults if self._end(fault)]
            if problems := [fault.problem for fault in faults if fault.number in self._faults]:
                raise FaultRefused("; ".join(problems), conflict=True)
            return ended

    def active(self) -> list[ActiveFault]:
        """The faults that are there, the oldest first."""
        with self._lock:
            now = self._clock()
            return [
                ActiveFault(fault.number, fault.request.kind, fault.request.target, fault.plan.text, now - fault.since,
                            None if fault.until is None else max(0.0, fault.until - now), fault.problem)
                for fault in self._faults.values()
            ]

    def tick(self) -> float | None:
        """Do what is due, and return the seconds until the next thing is; None where nothing will be."""
        with self._lock:
            now = self._clock()
            for fault in list(self._faults.values()):
                if fault.until is not None and fault.until <= now:
                    self._end(fault)
                elif fault.toggle is not None and fault.toggle <= now:
                    self._toggle(fault)
            due = [time for fault in self._faults.values() for time in (fault.until, fault.toggle) if time is not None]
            return max(0.0, min(due) - self._clock()) if due else None

    def close(self) -> None:
        """Undo what the end of the fabric would wait for; everything else goes with it."""
        with self._lock:
            for fault in list(self._faults.values()):
                if fault.plan.at_end:
                    self._end(fault)
            self._faults.clear()

    def _toggle(self, fault: _Fault) -> None:
        assert fault.plan.period is not None
        assert fault.plan.end is not None
        fault.toggle = self._clock() + fault.plan.period
        try:
            (fault.plan.end if fault.on else fault.plan.begin)()
            fault.on = not fault.on
        except Exception as error:
            fault.problem = f"fault {fault.number} ({fault.plan.text}): {error}"
            log.exception("a fault could not go on: %s", fault.plan.text)

    def _end(self, fault: _Fault) -> bool:
        """Undo a fault.  Where that fails it stays, with the problem, and is not tried again by itself."""
        assert fault.plan.end is not None
        fault.until = fault.toggle = None
        try:
            if fault.on:
                fault.plan.end()
        except Exception as error:
            fault.problem = f"fault {fault.number} ({fault.plan.text}) could not be undone: {error}"
            log.exception("a fault could not be undone: %s", fault.plan.text)
            return False
        del self._faults[fault.number]
        log.info("fault ended: %s", fault.plan.text)
        return True

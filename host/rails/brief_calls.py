# SPDX-License-Identifier: Apache-2.0
"""Brief allreduces of a kind that one rail has carried before: they go to it at once, without being planned anew.

Such a call may take only a third of a millisecond, so little is done around it.  What is remembered holds until figures
are exchanged, or rails change; every rank forgets it in the same operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from netfold.host.errors import NetFoldError
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.account import Account
from netfold.host.rails.agreement import Agreements, KnownAgreement
from netfold.host.rails.exchange_schedule import ExchangeSchedule
from netfold.host.rails.ledger import Ledger
from netfold.host.rails.rail_set import RailSet

REMEMBERED = 64
"""Signatures of short calls that are cached; a program has a few."""
LATE_FACTOR = 1.5
"""Ratio to the predicted time up to which no packet of a short call can have been retransmitted."""


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A kind of brief allreduce that one rail carries, as planned by the last figures.

    live     the rails that are up, as long as it holds: the list object itself, which is replaced where rails change
    rail     the index of that which carries it
    seconds  that it is predicted to take
    late     seconds beyond which packets may have been sent again
    text     which rail carries it and why, for the flight recorder
    """

    live: list[int]
    rail: int
    agreement: KnownAgreement
    nbytes: int
    lane_bits: LaneBits
    ledger: Ledger
    seconds: float
    late: float
    text: str


@dataclass(frozen=True, slots=True)
class BriefListeners:
    """The functions that ``BriefCalls`` calls before and after each call that it carries.

    note    before a call: which rail carries it
    settle  after a call that counts as its rail's latency, or that another rail has carried: its bytes, the rail that
            was to carry it, the ledger, the width of its lanes
    late    after a call that took so long that packets may have been sent again: the rail that carried it
    told    makes a call's error of its rail's
    """

    note: Callable[[str], None]
    settle: Callable[[int, int, Ledger, LaneBits], None]
    late: Callable[[int], None]
    told: Callable[[NetFoldError, AllreduceRequest], NetFoldError]


class BriefCalls:
    """The kinds of brief calls that one rank remembers."""

    def __init__(
        self, rails: RailSet, agreements: Agreements, account: Account, schedule: ExchangeSchedule,
        listeners: BriefListeners,
    ) -> None:
        self._rails, self._agreements, self._account, self._schedule = rails, agreements, account, schedule
        self._note, self._settle, self._late = listeners.note, listeners.settle, listeners.late
        self._told = listeners.told
        self._calls: dict[tuple[object, ...], KnownCall] = {}
        self.known: Mapping[tuple[object, ...], KnownCall] = self._calls
        """Signature -> how allreduces with it are carried (``_kind``); empty if none may be repeated."""
        self.owed = 0.0
        """Predicted seconds of the short calls since figures were exchanged.  All ranks compute the same, since every
        rank must exchange figures after the same calls."""

    def repeat(self, request: AllreduceRequest) -> int | None:
        """Carries an allreduce of a kind that is known; None: it is not of one, and nothing was sent.  ``out`` may have
        any layout, and overlap the source in any way.  Raises and returns else what ``MultiRail.allreduce`` does."""
        source, rails = request.source, self._rails
        known = self.known.get(_kind(request))
        if (
            known is None or known.live is not rails.live or rails.broken or request.feedback is not None
            or source.ndim != 1 or not source.flags.carray
        ):
            return None
        agreements, rail, nbytes = self._agreements, known.rail, known.nbytes
        self._note(known.text)
        try:
            saturated = agreements.repeat(known.agreement, request)
            self.owed += known.seconds
            if self.owed > self._schedule.sample or agreements.failed:
                self._settle(nbytes, rail, known.ledger, known.lane_bits)
            else:
                self._account.nbytes[rail] += nbytes
            if agreements.seconds > known.late:
                self._late(agreements.carrier)
        except NetFoldError as error:
            raise self._told(error, request) from error
        self._account.count(nbytes, agreements.seconds)
        return saturated

    def remember(
        self, request: AllreduceRequest, live: list[int], rail: int, ledger: Ledger, seconds: float, text: str
    ) -> None:
        """Remembers the kind of a call that this rail has just carried; the others are those of ``KnownCall``."""
        if len(self._calls) < REMEMBERED:
            self._calls[_kind(request)] = KnownCall(
                live, rail, self._agreements.remember(request, rail), request.source.nbytes, request.coding.lane_bits,
                ledger, seconds, LATE_FACTOR * seconds, text
            )

    def owe(self, seconds: float) -> None:
        """Adds the predicted seconds of a short call that was planned."""
        self.owed += seconds

    def forget(self) -> None:
        """Forgets all kinds, and what is owed, because figures were exchanged."""
        self._calls.clear()
        self.owed = 0.0

    def enable(self, yes: bool) -> None:
        """Allows calls of remembered kinds to be repeated from now on, or forbids it."""
        self.known = self._calls if yes else {}


def _kind(request: AllreduceRequest) -> tuple[object, ...]:
    """The cache key of an allreduce of a flat array without residual."""
    source, reduction, coding = request.source, request.reduction, request.coding
    return (
        source.nbytes, source.dtype, reduction.op, reduction.element, coding.lane_bits, coding.saturate,
        request.algorithm,
    )

# SPDX-License-Identifier: Apache-2.0
"""The fold of a rank that folds nothing itself, since its machine has more ranks than another one: what it has to know,
and to say, of the trees of the others.

It knows which operations fold, as all ranks do, and takes part in recovery rounds: the controller plans no trees before
every rank of the job has stopped (``RecoveryRounds``).
"""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, nullcontext

from netfold.host import shared_log
from netfold.host.client.fold_control import FoldControl
from netfold.host.errors import NetFoldError
from netfold.host.innet.fallback import Fallback, fell_back
from netfold.host.innet.recovery_rounds import RecoveryRounds
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.rail import RailStats
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")


class Bystander:
    """Stands beside the ranks of its machine that fold; parameters as of ``FoldRail``."""

    retransmissions = 0
    """Always 0: it sends nothing to the switches."""

    def __init__(self, plan: Plan, address: str, *, timeout: float, control: FoldControl, falls_back: bool) -> None:
        self._who = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        self._control = control
        self._falls_back = falls_back
        self._offer = Fallback(address, timeout)
        self._turn = threading.Lock()
        """Held while trees are planned anew: meanwhile it is unknown if an operation folds."""
        self._lost: NetFoldError | None = None
        self._until = 0
        self.begun = 0
        """The highest number of an operation that has begun."""
        self.fallback = ""
        self._rounds = RecoveryRounds(self._serve)

    def begin(self, number: int) -> bool:
        """Same as ``FoldingRail.begin``."""
        with self._turn:
            if self._lost is not None:
                raise self._lost
            if self.fallback and number > self._until:
                return False
            self.begun = max(self.begun, number)
            return True

    def halt(self, number: int) -> None:
        """Same as ``FoldLoop.halt``."""
        if self._control.resume is not None:
            self._rounds.request(number)

    def interrupt(self, error: NetFoldError) -> None:
        """Same as ``FoldingRail.interrupt``; what is under way ends with those that fold."""
        self._lost = error

    def uncounted(self) -> AbstractContextManager[None]:
        """Same as ``FoldRail.uncounted``: it counts nothing."""
        return nullcontext()

    def progress(self) -> RailStats:
        return RailStats()

    def stats(self) -> RailStats:
        return RailStats(fallback=self.fallback)

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        """How those that fold carry it is not known here."""
        lanes = "" if lane_bits == 32 else f"in lanes of {lane_bits} bits, "
        return f"{nbytes} bytes fold in the network: {lanes}sent by ranks before this one on its machine"

    def close(self) -> None:
        """Takes part in no more rounds; safe to call twice."""
        self._rounds.close()
        self._offer.decline()

    def _serve(self) -> None:
        """Serves a recovery round: there is nothing that this rank lacks, or has to send again."""
        with self._turn:
            if self._lost is not None or not self._rounds.pending:
                return
            assert self._control.resume is not None
            try:
                offer = self._offer.offer() if self._falls_back else ""
                plan = self._control.resume({}, self.begun, offer)
            except NetFoldError as error:
                self._lost = error
                log.warning("%s: between operations: %s", self._who, error)
                return
            finally:
                self._offer.decline()
            self._rounds.complete(plan.round)
            if plan.stand_in:
                self._until, self.fallback = plan.folds_until, fell_back(plan)
                log.log(shared_log.level(plan.rank), "%s: %s", self._who, self.fallback)

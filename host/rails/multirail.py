# SPDX-License-Identifier: Apache-2.0
"""Operations over several rails at once (Nezha): split so that all finish together, complete even if one of them dies.

    short   an *agreement*: one rail carries it all, the one that is predicted to be the soonest (``agreement``)
    long    each rail carries a stripe, on a thread of its own (``striping``); then a short agreement in which every
            rank reports how many chunks each rail got done, and what the rails cost (``rail_report``).  Chunks that
            some rank lacks are split over the remaining rails, in the same call

An allreduce that folds goes by the rails' own ways, and so do collectives of rows on rails whose switches carry them;
all else goes between the hosts of each plane (``RailPeers``), in the same two forms.

A rail that fails on any rank is dead on all (``rank_state``).  It is reopened in the background (``ReopenRail``); once
it is open on all ranks, which an agreement reports too, it carries its share again (``rail_set``).  Missing ranks are
named on all others (``missing_ranks``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from netfold.host.errors import Closed, NetFoldError, RailDown, RankMismatch
from netfold.host.mesh.mesh import ranks
from netfold.host.operation.coding import Coding, LaneBits
from netfold.host.operation.rail import Flat, RailStats, folds
from netfold.host.operation.reduction import FILLED_IN, Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails import policy as settings
from netfold.host.rails import rail_report, striping
from netfold.host.rails.account import Account, RailUse
from netfold.host.rails.agreement import Agreements
from netfold.host.rails.brief_calls import LATE_FACTOR, BriefCalls, BriefListeners
from netfold.host.rails.cut import CutAllreduce, CutCollective, CutOperation, call_number, mismatch
from netfold.host.rails.exchange_schedule import ExchangeSchedule
from netfold.host.rails.ledger import Ledger
from netfold.host.rails.missing_ranks import MissingRankDetector
from netfold.host.rails.operation_costs import OperationCosts
from netfold.host.rails.policy import DEFAULT_POLICY, NO_LISTENERS, OutOfBand, RailListeners, RailPolicy, Start
from netfold.host.rails.rail_set import RailSet, RankLabel, ReopenRail, WatchedRail
from netfold.host.rails.rank_state import first_line
from netfold.host.rails.shares import BRIEF_BYTES, RailShares, Split
from netfold.host.selection.choice import INNET

MAX_AGREEMENT_BYTES = 2 << 20
"""Largest size of an agreement in bytes: its result is kept for ranks that may lack it."""
LINGER_SECONDS = 0.3
"""Seconds after its last agreement during which a closing rank still answers."""
GAVE_UP_LINGER_SECONDS = 0.8
"""The same in seconds after the rank gave up, beside the time after which a waiting rank asks for the first time: it
asks every quarter of a second, and may wait as long for answers."""

NONE_DOWN: Mapping[int, NetFoldError] = {}

log = logging.getLogger("netfold")


class MultiRail:
    """Several rails used as one.  All ranks make it from like rails in the same order, and call it alike.

    rails   the rails, one each; taken over
    spare   carries what it can while no other rail is up; None: there is none
    rank    this rank's number, of ``world`` ranks
    reopen  reopens a dead rail; None: it stays dead
    down    indices of rails that are dead from the start, the same on all ranks, and why
    clock   monotonic seconds, the clock of the rails' progress
    """

    def __init__(
        self,
        rails: Sequence[WatchedRail],
        rank: int,
        world: int,
        out_of_band: OutOfBand,
        *,
        policy: RailPolicy = DEFAULT_POLICY,
        listeners: RailListeners = NO_LISTENERS,
        reopen: ReopenRail | None = None,
        spare: WatchedRail | None = None,
        down: Mapping[int, NetFoldError] = NONE_DOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        names = [rail.name for rail in rails]
        if len(rails) + (spare is not None) < 2:
            raise ValueError(f"{len(rails)} rails named {names}: expected two or more")
        self.name = "+".join(names)
        self.rank, self.world = rank, world
        self.retransmissions = 0
        """Number of packets sent again during calls."""
        self.members = world
        """Number of ranks whose lanes add up on every rail."""
        self.narrows = any(rail.narrows for rail in rails)
        """True if any rail has narrow lanes; the others carry floats in 32 bits."""
        self.whole = tuple(rail.name for rail in rails if not rail.narrows)
        """Names of the rails that carry floats in 32 bits whatever a call asks for."""
        if spare is not None:
            rails, names = [*rails, spare], [*names, spare.name]
        self._costs = OperationCosts(rails, policy.overhead, policy.known)
        self._own = self._costs.own
        state, channel = out_of_band.state, out_of_band.channel
        detector = MissingRankDetector(
            state, channel, [other for other in range(world) if other != rank], timeout=policy.timeout,
            job_error=out_of_band.job_error,
        )
        self._me = listeners.me or f"rank {rank} of {world}"
        place = RankLabel(rank, listeners.job, self._me, listeners.hosts)
        self.rails = RailSet(
            rails, names, state, detector, reopen, place=place, stall=policy.stall, spare=spare is not None, clock=clock
        )
        self._gave_up_linger = policy.stall + GAVE_UP_LINGER_SECONDS
        self._agreements = Agreements(
            self.rails, state, detector, lambda: self.shares.quickest(self.rails.live), clock
        )
        self._stripes = striping.StripeThreads(self.rails, state, timeline=listeners.timeline, clock=clock)
        self.state, self._channel, self.detector, self._clock = state, channel, detector, clock
        self._note, self._keep = listeners.note, listeners.keep
        self._account = Account(self.rails)
        self._resent = [0] * len(rails)
        self.schedule = ExchangeSchedule()
        told = BriefListeners(self._note, self._settle, self._count, self._told_allreduce)
        self.brief = BriefCalls(self.rails, self._agreements, self._account, self.schedule, told)
        """Short calls that it repeats, by signature; none while a rail is pinned, or once it is closed."""
        self._pinned: int | None = None
        self._closed = False
        try:
            self.rails.mark_down(down)
            self._begin(policy.start)
        except BaseException:
            self.close()
            raise

    # ---- the rail that it is ---------------------------------------------------------------------------------------
    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """True if every kind of rail can do this reduction, each in lanes of its own (``OpenRail``)."""
        return folds(reduction.op, reduction.element)

    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``).  Raises what the rails raise where all of them are down, RankMismatch, PeerLost
        and CollectiveTimeout, with the operation, its size, the ranks that are missing, and each rail's state."""
        saturated = self.brief.repeat(request) if self.brief.known else None
        return self._plan(request) if saturated is None else saturated

    def _plan(self, request: AllreduceRequest) -> int:
        """An allreduce of a kind that is not known; where one rail carries it, it is from then on."""
        if self._closed:
            raise Closed("the rails were closed")
        if self._pinned is not None:
            saturated = self._pinned_rail(self.rails.names).allreduce(request)
            self._account.nbytes[self._pinned] += request.source.nbytes
            self._account.count(request.source.nbytes)
            return saturated
        self.rails.begin(request.number)
        source, coding, algorithm = request.source, request.coding, request.algorithm
        nbytes, live = source.nbytes, self.rails.live
        ledger = self._own if algorithm is None or algorithm == INNET else self._costs.of(f"allreduce by {algorithm}")
        split = ledger.shares.split(nbytes, live, coding.lane_bits)
        self._note(split.text)
        try:
            # a residual is a rank's own, so that no other can tell it as it can a sum (``agreement``)
            if split.whole and nbytes <= MAX_AGREEMENT_BYTES and request.feedback is None:
                agreements, rail, usual = self._agreements, split.single[0], split.seconds or 1.0
                request.out[...] = agreements.run(source, request.reduction, rail, coding, algorithm)
                saturated, seconds = agreements.saturated, agreements.seconds
                if nbytes <= BRIEF_BYTES and not agreements.failed:
                    self.brief.remember(request, live, rail, ledger, usual, split.text)
                self.brief.owe(usual)
                # a failure may be known here alone, where the other ranks' rail delivered the result
                self._settle(nbytes, rail, ledger, coding.lane_bits)
                if seconds > LATE_FACTOR * usual:  # in less nothing was sent again
                    self._count(agreements.carrier)
            else:
                saturated, seconds = self._long(CutAllreduce(request), split, ledger), 0.0
        except NetFoldError as error:
            raise self._told_allreduce(error, request) from error
        self._account.count(nbytes, seconds)
        return saturated

    def carry(self, cut: CutCollective, number: int) -> None:
        """Carries another collective, over the switches or between the hosts of all planes.  Raises what ``allreduce``
        raises.

        number  of the operation, for errors
        """
        if self._closed:
            raise Closed("the rails were closed")
        if self._pinned is not None:
            cut.carry(self._pinned_rail(self._costs.names(cut.folded is not None)), slice(0, cut.size), number)
            self._account.count_rows()
            return
        self.rails.begin(number)
        if cut.either and self.carries_rows and not self._costs.way(cut.kind).choose(cut.size, self.rails.live):
            cut = cut.between_hosts()
        ledger = self._costs.of(cut.kind, folded=cut.folded is not None)
        split = ledger.shares.split(cut.size, self.rails.live)
        self._note(split.text)
        try:
            self._long(cut, split, ledger)
        except NetFoldError as error:
            raise self._told(error, number, cut.what) from error
        self._account.count_rows()

    def _pinned_rail(self, names: Sequence[str]) -> WatchedRail:
        """The rail that carries every call.  Raises RailDown where it is down."""
        assert self._pinned is not None
        self._note(f"{names[self._pinned]} (pinned)")
        if self._pinned not in self.rails.live:
            raise RailDown(f"{self._me}: every call is for {names[self._pinned]}: {self.rails.describe_states()}")
        return self.rails[self._pinned]

    def _told(self, error: NetFoldError, number: int, what: str) -> NetFoldError:
        """The error of an operation, with the state of every rail."""
        return self.rails.with_states(error, f"{self._me}, operation {number} ({what})")

    def _told_allreduce(self, error: NetFoldError, request: AllreduceRequest) -> NetFoldError:
        """The same of an allreduce."""
        source = request.source
        return self._told(error, request.number, f"{source.size} x {source.dtype.name}, {source.nbytes} bytes")

    @property
    def shares(self) -> RailShares:
        """The shares of an allreduce by the rails' own ways."""
        return self._own.shares

    @property
    def carries_rows(self) -> bool:
        """True if the switches of any rail that is up carry rows; the same on all ranks."""
        return self._costs.carries_rows(self.rails.live)

    def describe_cut(self, kind: str, nbytes: int, *, folded: bool) -> str:
        """How a collective of this kind would be cut, in words.  Sends nothing.

        folded  whether switches can carry it, and hosts as well
        """
        return self._costs.preview(kind, nbytes, self.rails.live, folded=folded)

    @property
    def live(self) -> list[int]:
        """Indices of the rails that are up, as all ranks agree."""
        return self.rails.live

    def track(self, index: int) -> WatchedRail:
        """A rail that is up, by its index."""
        return self.rails[index]

    def pin(self, rail: int | None) -> None:
        """Lets this rail carry every call from now on, without the work around several rails, for comparison; it must
        be up, and its errors are the call's.  None: ends that.  The same on all ranks."""
        self._pinned = rail
        self.brief.enable(rail is None)

    def on_change(self, call: Callable[[], None]) -> None:
        """Registers a function that is called whenever a rail has failed or is back, on all ranks in the same
        operation."""
        self.rails.on_change(call)

    def use(self) -> list[RailUse]:
        """The work of each rail so far."""
        return self._account.use(self.shares)

    def stats(self) -> RailStats:
        return self._account.stats()

    def progress(self) -> RailStats:
        """The totals that the job's controller is to know; may be called on any thread."""
        return self._account.progress()

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        split = self.shares.preview(nbytes, self.live, lane_bits)
        down = [f"; {use.name} is down: {use.why}" for use in self.use() if use.state == "down"]
        lanes = "" if lane_bits == 32 or not self.narrows else f" in lanes of {lane_bits} bits"
        if lanes and self.whole:
            lanes += f" ({', '.join(self.whole)}: of 32)"
        return f"{nbytes} bytes{lanes}: {split.text}; known: {self._costs.known(self.live)}{''.join(down)}"

    def give_up(self, rail: WatchedRail, error: NetFoldError) -> None:
        """This rail is dead for this reason, which the other ranks learn with the next operation; called by another
        thread."""
        if rail in self.rails.rails:
            self.rails.broken.setdefault(self.rails.rails.index(rail), error)

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: the operation under way ends with this error soon, and so does each later one."""
        self.rails.stop(error)

    def leave(self, why: str) -> None:
        """Lets the controller of each rail's plane tell the other ranks why this one leaves, once it is closed."""
        for index in self.rails.live:
            self.rails[index].leave(why)

    def end(self, why: str) -> None:
        """Closes the rails at once, since no other rank needs this one any more: all have stopped.

        why  for the controllers
        """
        for index in self.rails.live:
            self.rails[index].leave(why, at_once=True)
        self.close(lingers=False)

    def close(self, *, lingers: bool = True) -> None:
        """Closes the rails.

        lingers  whether the rank answers the others for a moment yet
        """
        if self._closed:
            return
        self._closed = True
        self.brief.enable(False)
        self._stripes.close()
        if all(figure.bandwidth is not None for figure in self.shares.figures):
            self._keep(self.shares.figures)
        lasts = self._gave_up_linger
        if not self.state.gave_up:
            lasts = min(lasts, self.state.last_outcome_at + LINGER_SECONDS - self._clock())
        if lingers and lasts > 0 and self.detector.others:
            time.sleep(lasts)
        self._channel.close()
        self.rails.close()

    # ---- short and long --------------------------------------------------------------------------------------------
    def _settle(self, nbytes: int, rail: int, ledger: Ledger, lane_bits: LaneBits) -> None:
        """Learns from a short call, where it counts as its rail's latency or is not brief, and exchanges figures where
        that is due; else counts it, and says what carried it where that was not this rail."""
        schedule = self.schedule
        brief = nbytes <= BRIEF_BYTES
        if brief and self.brief.owed <= schedule.sample:
            self._record(nbytes, rail, None)
            self._account.nbytes[self._agreements.carrier] += nbytes
            return
        self._record(nbytes, rail, ledger, lane_bits)
        if brief:
            schedule.sampled(self.brief.owed)
        if self.brief.owed > schedule.due:
            self._exchange({}, schedule.turn(self.rails.live), together=True)

    def _agree(self, source: Flat, rail: int, ledger: Ledger | None = None) -> Flat:
        """Runs an agreement on a sum of int32 of our own.

        ledger  where its duration counts as the rail's cost, since all ranks come to it together
        """
        result = self._agreements.run(source, FILLED_IN, rail)
        self._record(source.nbytes, rail, ledger)
        return result

    def _record(self, nbytes: int, rail: int, ledger: Ledger | None, lane_bits: LaneBits = 32) -> None:
        """Records what carried the last agreement, and how long it took.

        nbytes  of its source
        rail    that was to carry it
        ledger  where its duration counts; None: nowhere
        """
        agreements, carrier = self._agreements, self._agreements.carrier
        if carrier != rail:
            self._note(f"then {self.rails.names[carrier]}, died: {self.rails.names[rail]}: {self._cause(rail)}")
        if ledger is not None:
            self._account.nbytes[carrier] += nbytes
            on_wire = ledger.shares.wire_bytes(carrier, nbytes, lane_bits)
            ledger.estimates[carrier].add(on_wire, 0.0 if agreements.failed else agreements.seconds)

    def _long(self, cut: CutOperation, split: Split, ledger: Ledger) -> int:
        """Carries an operation in stripes, and repeats what some rank lacks until no rank lacks anything.  Returns how
        many elements of a saturating sum stand at an end of the range."""
        shares, bits, begin, whole = ledger.shares, cut.lane_bits, self._clock(), True
        left, saturated = [slice(0, cut.size)], 0
        while True:
            parts = striping.cut_stripes(left, split, shares.figures_at(bits), cut.unit)
            self._stripes.run(parts, cut)
            for rail, part in parts.items():
                self._account.processor[rail] += part.processor
                on_wire = shares.wire_bytes(rail, part.elements * cut.unit, bits)
                ledger.estimates[rail].add(on_wire, part.seconds if part.error is None else 0.0)
            done = self._exchange(parts, self.shares.quickest(self.rails.live), ledger, cut.what)
            for rail, part in parts.items():
                self._account.nbytes[rail] += cut.unit * sum(c.stop - c.start for c in part.chunks[: done[rail]])
                saturated += sum(part.saturated[: done[rail]])
                if rail in self.rails.live:
                    self._count(rail)
            left = striping.missing_chunks(parts, done)
            if not left:
                seconds = self._clock() - begin
                self._account.add_seconds(seconds)
                if whole:
                    ledger.record_cut_call(split, self.rails.live, seconds)
                return saturated
            whole = False
            again = sum(chunk.stop - chunk.start for chunk in left) * cut.unit
            split = shares.split(again, self.rails.live, bits)
            dead = ", ".join(f"{self.rails.names[rail]}: {self._cause(rail)}" for rail in parts
                             if rail not in self.rails.live)
            self._note(f"{again} bytes again over {split.text}, died: {dead}")

    def _cause(self, rail: int) -> str:
        return first_line(self.rails.causes[rail])

    def _count(self, rail: int) -> None:
        """Counts what the rail has retransmitted since the last look."""
        resent = self.rails[rail].retransmissions if rail in self.rails.live else 0
        self.retransmissions += max(0, resent - self._resent[rail])
        self._resent[rail] = resent

    # ---- what the ranks tell each other ------------------------------------------------------------------------------
    def _exchange(
        self, parts: Mapping[int, striping.Stripe], rail: int, ledger: Ledger | None = None, what: str = "", *,
        together: bool = False,
    ) -> list[int]:
        """Exchanges all ranks' reports: chunks done by rail, failures, figures.  Returns the chunks that all ranks
        have, by rail.

        ledger    whose figures they are; default: of an allreduce by the rails' own ways
        rail      carries the exchange.  Dead rails are taken out of use, reopened ones restored, and shares learn
        what      the operation whose stripes have ended, in words; raises RankMismatch where another rank has carried
                  those of something else
        together  no rank comes late to it, so its duration counts as the rail's cost; not so after stripes
        """
        ledger, call = ledger or self._own, call_number(what) if what else 0
        table = rail_report.encode(
            self.rank, self.world, self.rails, parts, ledger.estimates, ledger.shares.figures, ledger.report(),
            call,
        )
        total = self._agree(table, rail, self._own if together else None)
        told = rail_report.decode(total, self.world, self.rails.live, parts)
        if others := [rank for rank, number in enumerate(told.calls) if number != call]:
            error = RankMismatch(mismatch(self.rank, what or "a short operation", others))
            self.rails.stop_mismatched(error)
            raise error
        names = self.rails.names
        self.rails.mark_down({
            rail: RailDown(f"{names[rail]}: {ranks(who)} lost it, and can say why") for rail, who in told.dead.items()
        })
        for index in told.reopened:
            self.rails.restore(index)
            self._resent[index] = 0
        self.brief.forget()
        live = self.rails.live
        self.state.set_live(live, exchanged=True)
        ledger.shares.adopt_cut_seconds(told.cut_call_seconds)
        if ledger.shares.learn(told.figures, live) and ledger is self._own:
            log.info("rails: %s", self.describe(64 << 20))
        self.schedule.exchanged(self.shares.figures, live)
        return told.done

    # ---- the beginning -----------------------------------------------------------------------------------------------
    def _begin(self, start: Start) -> None:
        """Agrees on what the ranks know of the rails, and measures the rest, the same on all ranks."""
        self._exchange({}, self.rails.live[0])
        strange = [rail for rail in self.rails.live if self.shares.figures[rail].bandwidth is None]
        for tell, nbytes in settings.first_calls(start):
            for rail in strange:  # in turns: what disturbs one of them for a while disturbs all
                if rail in self.rails.live:  # it may die here as well as later
                    self._agree(np.zeros(nbytes // 4, np.int32), rail, self._own if tell else None)
        if strange:
            self._exchange({}, self.rails.live[0])

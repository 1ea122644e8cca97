# SPDX-License-Identifier: Apache-2.0
"""Decides what carries a reduction: the switches, where they can and it pays, or an algorithm between the hosts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from msgspec import structs

from netfold.host import shared_log
from netfold.host.errors import NetFoldError
from netfold.host.operation.arrays import flat_copy, native
from netfold.host.operation.coding import Coding, LaneBits, check_levels, narrows
from netfold.host.operation.conversion import are_plain, between_hosts, deliver, in_float32, in_lanes, round_to
from netfold.host.operation.rail import FoldingRail, Rail, RailStats, RailTeam, folds
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection.choice import INNET, Collective
from netfold.host.selection.measure import Measured
from netfold.host.selection.peers import AUTO, Peers
from netfold.host.selection.prospect import Prospect, Prospects
from netfold.host.selection.rows import RowsDispatch
from netfold.host.tracing.flight import Flight

NO_SWITCHES: Final = "nothing folds for these ranks"

log = logging.getLogger("netfold")


class Chosen(NamedTuple):
    """What carries a kind of allreduce, and what that followed from: it holds while none of these is replaced."""

    hosts: Peers
    switches: FoldingRail | None
    measured: Measured | None
    """The figures by which costs were compared."""
    way: str
    """INNET, or an algorithm between the hosts."""


class Dispatch:
    """Carries all reductions of one group of ranks.  All ranks call it alike, and get the same decisions.

    hosts     the ranks, over the mesh between the hosts
    switches  the rail that folds, where the plan has trees
    rails     instead: several rails used as one, which choose among themselves
    always    fold what can be folded, whatever it costs
    why       reason for this set-up, for ``explain``
    flight    records what carries an operation, and its retransmissions
    me        job and rank, for warnings
    prospect  instead of both: what a group opens once one of its reductions is worth it
    groups    makes those of groups of these ranks
    members   these ranks by their numbers in the job; default: all of them
    """

    def __init__(
        self,
        hosts: Peers,
        *,
        switches: FoldingRail | None = None,
        rails: RailTeam | None = None,
        always: bool = False,
        why: str = NO_SWITCHES,
        flight: Flight | None = None,
        me: str = "",
        prospect: Prospect | None = None,
        groups: Prospects | None = None,
        members: Sequence[int] = (),
    ) -> None:
        self.hosts = hosts
        self.switches = switches
        self._why = why
        self._prospect = prospect
        self._groups = groups
        self._members = tuple(members) or tuple(range(hosts.size))
        self.rails = rails
        self._fold: Rail | None = switches if rails is None else rails
        self._always = always or rails is not None
        self._flight = flight
        self._me = me
        self.rows = self._rows()
        self._said_whole = hosts.size == 1 or switches is not None or (rails is not None and not rails.whole)
        """True if the warning that lanes are not narrowed has been logged, or is not needed."""
        if switches is not None:
            hosts.chooser.fold_by(switches.trial, switches.begin)

    @property
    def why(self) -> str:
        """The reason for this set-up."""
        return self._why if self._prospect is None else self._prospect.why

    @property
    def rail(self) -> str:
        """Name of the rail that folds; without one, of the transport between the hosts."""
        return self._fold.name if self._fold and not self.fallback else self.hosts.name

    @property
    def narrow(self) -> FoldingRail | RailTeam | None:
        """The rail with lanes narrower than 32 bits, which knows the number of ranks that its lanes add; None if there
        is none."""
        return self.rails if self.rails is not None and self.rails.narrows else self.switches

    @property
    def fallback(self) -> str:
        """Why the switches fold no longer (``FoldingRail.fallback``); empty while they do, or never did."""
        return "" if self.switches is None else self.switches.fallback

    def path(self, op: str, dtype: str) -> str:
        """Name of the rail that carries such an allreduce where the call names no algorithm."""
        return self.rail if folds(op, dtype) else self.hosts.name

    def group(self, ranks: Sequence[int]) -> Dispatch:
        """The dispatch of some of the ranks, in this order, which fold by themselves where they may."""
        peers = self.hosts.group(ranks)
        members = [self._members[rank] for rank in ranks]
        why = f"{self.rails.name} folds for all ranks of the job alone" if self.rails is not None else self._why
        return Dispatch(
            peers, always=self._always, why=why, flight=self._flight, me=self._me, groups=self._groups, members=members,
            prospect=None if self._groups is None or len(members) == 1 else self._groups.of(members),
        )

    def go_over(self, hosts: Peers) -> None:
        """Replaces the ranks between the hosts, because a rail has failed or is back, on all ranks in the same
        operation, which goes on."""
        hosts.count_from(self.hosts.number)
        self.hosts = hosts
        self.rows = self._rows()

    def _rows(self) -> RowsDispatch:
        why = self.why if self.rails is None else "several rails share it, and choose by themselves"
        return RowsDispatch(
            self.hosts, self.switches, always=self._always, why=why, flight=self._flight, lost=self._lose_fold
        )

    # ---- trees of a group's own --------------------------------------------------------------------------------------
    @property
    def may_open(self) -> bool:
        """True if nothing folds at present, and may fold later (``open_fold``)."""
        return self._prospect is not None and self._fold is None

    def open_fold(self) -> None:
        """Opens what folds for a group, where all of its ranks can; they call it together, inside an operation."""
        assert self._prospect is not None
        opened = self._prospect.open(self.hosts, self.progress)
        if opened is not None:
            self.rails = opened.rails
            self._said_whole = opened.rails is not None and not opened.rails.whole
            self._fold_by(opened.switches)
            self.go_over(opened.hosts)
        self.rows = self._rows()

    def foresee(self, request: AllreduceRequest) -> None:
        """Opens that rail before a reduction with which it becomes worth it.  All ranks call it alike, inside the
        operation."""
        reduction, algorithm = request.reduction, request.algorithm or self.hosts.algorithm
        if (
            self.may_open and algorithm in (AUTO, INNET) and folds(reduction.op, reduction.element)
            and self._prospect is not None and self._prospect.due(request.nbytes)
        ):
            self.open_fold()

    def _fold_by(self, rail: FoldingRail | None) -> None:
        """From now on this rail folds, or nothing does."""
        self.switches, self._fold = rail, rail if self.rails is None else self.rails
        if rail is None:
            self.hosts.chooser.fold_by(None)
        else:
            self._said_whole = True
            self.hosts.chooser.fold_by(rail.trial, rail.begin)
            self.hosts.chooser.forget()

    def _lose_fold(self) -> None:
        """The switches fold no longer, which all ranks of a group find in the same operation."""
        if self._prospect is not None and self.switches is not None:
            self._fold_by(None)
            self._prospect.lost()
            self.rows = self._rows()

    # ---- reducing ----------------------------------------------------------------------------------------------------
    def allreduce(self, request: AllreduceRequest) -> int:
        """Fills the caller's ``request.out``, of any layout.  May measure.

        Returns how many elements of a saturating sum are at an end of the range.
        """
        if request.reduction.half:
            wide = in_float32(request)
            self.allreduce(wide)
            round_to(request, wide.out)
            return 0
        flight = self._flight
        if self._prospect is not None:
            self.foresee(request)
        rails = self.rails
        if rails is not None and rails.brief.known:
            before = rails.retransmissions
            try:
                repeated = rails.brief.repeat(request)
            finally:
                if rails.retransmissions != before and flight is not None:
                    flight.count_retransmissions(rails.retransmissions - before)
            if repeated is not None:
                return repeated
        switches = self.switches
        known: Chosen | None = None if request.prepared is None else request.prepared.choice
        if request.inner is not None:
            chosen: str | None = INNET
        else:
            chosen = known.way if known is not None and self._holds(known) else self._choose(request)
        fallback = ""
        if switches is not None:
            if chosen == INNET and not switches.begin(request.number):
                chosen = None  # no trees are left, and no rank has begun this operation
                if request.inner is not None:
                    request.inner.stage()
                    request = structs.replace(request, inner=None)
                self._lose_fold()
            fallback = switches.fallback
        rail: Rail = self.hosts
        if self._fold is not None and chosen == INNET:
            rail = self._fold
            carried = in_lanes(request, narrows=rail.narrows)
            if flight is not None and rail is switches:  # the others say more themselves
                flight.note(rail.name if request.inner is None else f"{rail.name}, {request.inner.kind} inside")
        else:
            carried = between_hosts(request, chosen)
        before = rail.retransmissions
        try:
            saturated = rail.allreduce(carried)
            if switches is not None and flight is not None and switches.fallback != fallback:
                flight.note(f"{rail.name}, then TCP: {switches.fallback}")
        finally:
            after = rail.retransmissions
            if after != before and flight is not None:
                flight.count_retransmissions(after - before)
        return saturated if carried is request else saturated + deliver(carried, request)

    def prepare(self, request: AllreduceRequest) -> None:
        """Prepares allreduces like this one, which has just been carried, where the switches may fold them as they
        are."""
        prepared = request.prepared
        known: Chosen | None = None if prepared is None else prepared.choice
        if known is None or known.way != INNET or known.switches is None or not are_plain(request):
            return
        assert prepared is not None
        like = known.switches.prepare(request)
        if like is not None:
            prepared.repeat_by(like)

    def reduce_scatter(self, request: AllreduceRequest, pieces: Sequence[slice]) -> None:
        """Fills ``request.out`` with this rank's piece of the reduction.  May measure.

        pieces  each rank's elements of the flat source
        """
        source, out, mine = request.source, request.out, pieces[self.hosts.rank]
        if request.reduction.half:
            wide = in_float32(request)
            own = wide.out.reshape(-1)[mine]
            self.reduce_scatter(structs.replace(wide, out=own), pieces)
            round_to(request, own)
            return
        if self._prospect is not None:
            self.foresee(request)
        if self.rows.reduce_scatter(request, pieces):
            return
        if self.switches is None and request.algorithm == INNET:  # several rails: their sums are of the whole
            whole = np.empty(source.shape, native(source))
            self.allreduce(structs.replace(request, out=whole, algorithm=INNET))
            out[...] = whole.reshape(-1)[mine].reshape(out.shape)
            return
        data = flat_copy(source)
        algorithm = None if request.algorithm == INNET else request.algorithm
        self.hosts.reduce_scatter(data, pieces, request.reduction, algorithm=algorithm, coding=request.coding)
        out[...] = data[mine].reshape(out.shape)

    # ---- what can be asked for ---------------------------------------------------------------------------------------
    def check(self, algorithm: str | None, reduction: Reduction, coding: Coding) -> None:
        """Raises ValueError for an algorithm that does not exist, or cannot make this reduction."""
        if algorithm != INNET:
            if algorithm is not None:
                self.hosts.check(algorithm)
        elif self._fold is None:
            known = ", ".join(self.hosts.known)
            raise ValueError(f"algorithm='innet': nothing folds for this job: {self.why}; expected one of {known}")
        elif not self._fold.takes(reduction, coding):
            raise ValueError(
                f"algorithm='innet': {reduction.op} of {reduction.element}{_as_asked(coding)} does not fold"
            )
        elif self.rails is not None and self.rails.whole:
            raise ValueError(
                f"algorithm='innet' over {self.rails.name}: {', '.join(self.rails.whole)} cannot fold; leave it out"
            )

    def check_lanes(self, lane_bits: LaneBits) -> None:
        """Raises ValueError where lanes of this width cannot hold the sum; logs once where nothing folds."""
        if self.narrow is not None:
            check_levels(lane_bits, self.narrow.members)
        if not self._said_whole:
            self._said_whole = True
            over = f" over {', '.join(self.rails.whole)}" if self.rails is not None else ""
            log.log(
                shared_log.level(self.hosts.rank),
                "%s: lanes of %d bits are for what the switches fold; floats go between the hosts whole%s",
                self._me, lane_bits, over,
            )

    def explain(
        self, nbytes: int, reduction: Reduction, algorithm: str | None, coding: Coding,
        collective: Collective = "allreduce",
    ) -> str:
        """Which path a collective takes, and why.  Sends nothing."""
        if reduction.half and collective in ("allreduce", "reduce", "reduce_scatter"):
            wide = self.explain(2 * nbytes, reduction.wide, algorithm, coding, collective)
            return f"{reduction.element} goes as float32: {wide}"
        if collective != "allreduce":
            return self.rows.explain(collective, nbytes, reduction, algorithm, coding)
        op, dtype, hosts, fold = reduction.op, reduction.element, self.hosts, self._fold
        self.check(algorithm, reduction, coding)
        if algorithm not in (None, AUTO, INNET):
            return f"{nbytes} bytes go over {hosts.mesh.rail} by {algorithm}, as asked for"
        if fold is None or self.fallback:
            return f"{hosts.explain(nbytes)}; {self.fallback or self.why}"
        if not folds(op, dtype):
            return (
                f"{hosts.explain(nbytes)}; {op} of {dtype} does not fold: sums, averages, maxima and minima of "
                "float32, float16, bfloat16 and int32 do"
            )
        bits: LaneBits = coding.lane_bits if narrows(op, dtype) else 32
        said, why = fold.describe(nbytes, bits), self.why
        if self.switches is not None and self.switches.devices:
            why = f"tensors on devices {self.switches.devices}; {why}"
        if algorithm == INNET or self._sure(bits):
            return f"{said}; {'as asked for; ' if algorithm else ''}{why}"
        chosen = hosts.chooser.known(nbytes, folded=nbytes)
        costs = hosts.explain(nbytes, folded=nbytes)
        if hosts.algorithm != AUTO or (chosen is not None and chosen.algorithm != INNET):
            return f"{costs}; {why}"
        return f"{costs}; {said}; {why}"

    # ---- life --------------------------------------------------------------------------------------------------------
    def stats(self) -> RailStats:
        """Totals of the folding rail and of the hosts together."""
        own = self.hosts.stats()
        if self._fold is None:
            return own
        folded = self._fold.stats()
        return replace(
            folded,
            operations=folded.operations + own.operations,
            bytes_reduced=folded.bytes_reduced + own.bytes_reduced,
            seconds=folded.seconds + own.seconds,
        )

    def progress(self) -> RailStats:
        """Operations, bytes and retransmissions of both together; may be called on any thread, at any time."""
        own = self.hosts.stats()
        if self.switches is None:
            return own
        folded = self.switches.progress()
        return replace(own, operations=folded.operations + own.operations,
                       bytes_reduced=folded.bytes_reduced + own.bytes_reduced, retransmissions=folded.retransmissions,
                       by_tree=folded.by_tree)

    def interrupt(self, error: NetFoldError) -> None:
        """Called by another thread: what is under way ends with this error soon."""
        for rail in (self.switches, self.rails):
            if rail is not None:
                rail.interrupt(error)
        if self.hosts.size > 1:
            self.hosts.mesh.interrupt(error)

    def close_fold(self, reason: str = "") -> None:
        """Closes the rail that a group has opened, and opens none any more; from any thread.

        reason  why its communicator has failed, where it has
        """
        if self._prospect is not None:
            self._prospect.close(reason)

    def leave(self, why: str) -> None:
        """Tells the other ranks that this one leaves in order (``Mesh.leave``)."""
        self.hosts.mesh.leave(why)

    def close(self) -> None:
        """Closes the rails."""
        if self._prospect is not None:
            self._prospect.close()
        elif self._fold is not None:
            self._fold.close()
        self.hosts.close()

    # ---- choosing ----------------------------------------------------------------------------------------------------
    def _holds(self, known: Chosen) -> bool:
        """True if a request of its kind would be carried in the same way if that were decided anew."""
        hosts = self.hosts
        return known.hosts is hosts and known.switches is self.switches and known.measured is hosts.chooser.measured

    def _choose(self, request: AllreduceRequest) -> str | None:
        """INNET, an algorithm between the hosts, or None for the hosts' own choice.  A certain one is remembered."""
        chosen = self._choose_anew(request)
        measured = self.hosts.chooser.measured
        # what is certain without measuring stays so: of several rails, too, which choose by themselves
        asked = request.algorithm is not None and request.algorithm != AUTO
        sure = asked or measured is not None or self.rails is not None or self._sure(request.coding.lane_bits)
        if request.prepared is not None:
            request.prepared.choose(Chosen(self.hosts, self.switches, measured, chosen) if chosen and sure else None)
        return chosen

    def _choose_anew(self, request: AllreduceRequest) -> str | None:
        algorithm, coding, hosts = request.algorithm, request.coding, self.hosts
        if self._fold is None or not self._fold.takes(request.reduction, coding):
            return algorithm
        if algorithm is None and (self._sure(coding.lane_bits) or (coding.saturate and hosts.algorithm == AUTO)):
            return INNET
        if (algorithm or hosts.algorithm) != AUTO or self.rails is not None:
            return algorithm
        reduction, nbytes = request.reduction, request.nbytes
        what = f"{reduction.op} of {nbytes // reduction.dtype.itemsize} x {reduction.said}"
        return hosts.choice(nbytes, what, folded=nbytes).algorithm

    def _sure(self, lane_bits: int) -> bool:
        """True if a reduction that can be folded is folded without comparing costs."""
        if self._always or self.switches is None:
            return True
        return self.hosts.algorithm == AUTO and (lane_bits != 32 or self.switches.suffices)


def _as_asked(coding: Coding) -> str:
    """Special lanes that a call asks for, in words."""
    lanes = f" in lanes of {coding.lane_bits} bits" if coding.lane_bits != 32 else ""
    return lanes + (", saturating," if coding.saturate else "")

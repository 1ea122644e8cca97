# SPDX-License-Identifier: Apache-2.0
"""Adoption: a controller that has just started goes on with the jobs that an earlier one has left on the switches.

    first connection --> entries of jobs found on a switch: kept, their numbers reserved, by epoch
    a rank registers --> its ticket says which job they are: they are the job's again (`Adoption.adopt`)
    `grace` is over  --> what nobody has claimed is removed, also from a switch that is first reached later, and ranks
                         that have not registered count as lost

A ticket says what a job was, the switches what is true now: a job is adopted only where each switch of its trees holds
exactly its entries, so that the ticket of a job which has ended adopts nothing.  A switch that was down or empty proves
neither; the job is adopted, and its trees are planned anew, as they are where a switch came back after it was read: it
may have lost its slots.  A switch that holds another thing may follow a later plan, whose ticket is waited for; where
all that hold tickets have shown the same one, none of them has a later one: an earlier controller died before it could
answer them with the plan that it had written.  The job is then adopted, and planned anew as well, as it is where a rank
without a ticket has another plan.  Ranks without tickets wait until one with a ticket has come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from netfold.controller.jobs import ticket
from netfold.controller.jobs.callers import CALLER
from netfold.controller.jobs.job import Job
from netfold.controller.jobs.ticket import Record, TicketError
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import State, state
from netfold.controller.switch.target import Target
from netfold.fabric.folding import slots
from netfold.fabric.folding.slots import Allocator, Holding, Stream
from netfold.fabric.graph import Fabric, Tenant, ip_number
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import Watch
from netfold.wire.plan import Secret

log = logging.getLogger("netfold.controller")

NEVER: Final = -1
"""Session number of a switch that has never held a job's entries and slots while this controller was there."""


class Borne(NamedTuple):
    """The part of a ticket that the switches confirm."""

    entities: dict[int, dict[str, State]]
    """The job's entries, by epoch and switch."""
    alike: dict[tuple[str, int], State]
    """The entries of an epoch that an earlier controller has left on a switch, where they are exactly the job's."""
    numbers: dict[int, dict[str, Holding]]
    """The numbers of its streams, by epoch and switch."""


class Adoption:
    """The state that an earlier controller has left on the switches of one fabric."""

    def __init__(self, fabric: Fabric, allocator: Allocator, targets: Mapping[str, Target]) -> None:
        self._fabric = fabric
        self._hosts = {ip_number(host.address): host.name for host in fabric.hosts}
        self._allocator = allocator
        self._targets = targets
        self.is_open = True
        """True while ranks may register with tickets: from the start until the grace is over."""
        self._changed = asyncio.Event()
        """Set when a job was adopted, and when none is any more."""
        self._shown: dict[tuple[str | int, ...], set[int]] = {}
        """(Job, epoch, epochs of its slots) -> ranks that have shown a ticket that only some switches' state
        confirms."""
        self._reading: dict[str, asyncio.Task[Borne]] = {}
        """Tickets that are being compared with the switches (`borne_out`)."""
        self._adopted: dict[int, str] = {}
        """Epochs of the streams of adopted jobs, each with the name of its part on switches."""
        self.has_found = False
        """True if any switch held entries of jobs when this controller first connected to it."""

    def reserve(self, switch: str, found: Mapping[int, State]) -> bool:
        """Keep the numbers that a switch holds for unknown jobs from being handed out.  Returns False if the grace is
        over: nobody can claim them, and the switch shall lose its entries before it takes others."""
        if not self.is_open:
            log.warning("%s: the epochs %s, which an earlier controller has left there, are removed: the grace is over",
                        switch, ", ".join(map(str, sorted(found))))
            return False
        self.has_found |= bool(found)
        for epoch, entities in found.items():
            if not self._allocator.reserve(epoch, {switch: fold_tables.holding(self._hosts, entities.values())}):
                log.warning("%s: an earlier controller has left epoch %d there, with numbers that another job has",
                            switch, epoch)
        return True

    @staticmethod
    def record(request: Watch, key: bytes) -> Record:
        """The record in the ticket of a rank that registers; takes milliseconds where the job is large.  Raises Refusal
        unless it is of that rank's job."""
        who = f"job {request.job!r}, rank {request.rank}"
        try:
            record = ticket.unseal(key, request.ticket)
        except TicketError as error:
            raise Refusal(Code.PERMISSION_DENIED, f"{who}: {error}") from error
        mine = (request.job, request.epoch, CALLER.get().tenant.name)
        if (record.job, record.epoch, record.tenant) != mine or not 0 <= request.rank < len(record.joins):
            raise Refusal(Code.PERMISSION_DENIED, f"{who} of epoch {request.epoch}: ticket: expected one of this job, "
                                                  f"got that of {record.job!r}, epoch {record.epoch}")
        return record

    async def wait_until(self, known: Callable[[], bool]) -> None:
        """Wait until a job is known that others may bring by their tickets, or none is adopted any more."""
        while self.is_open and not known():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def borne_out(self, record: Record, shown: Secret) -> Borne:
        """The desired entries of the job in a ticket, and the switches that have them, computed beside the event loop;
        ranks that show the same ticket at once wait for the same answer.  Raises Refusal for a ticket of another
        fabric."""
        who = f"job {record.job!r} of epoch {record.epoch}"
        if record.fabric != self._fabric.name:
            raise Refusal(Code.FAILED_PRECONDITION, f"{who} is of the fabric {record.fabric!r}: expected "
                                                    f"{self._fabric.name!r}. Give the rank this fabric's controllers")
        if shown.value not in self._reading:
            self._reading[shown.value] = asyncio.create_task(asyncio.to_thread(self.compared, record, who))
            self._reading[shown.value].add_done_callback(lambda _: self._reading.pop(shown.value))
        return await asyncio.shield(self._reading[shown.value])

    def compared(self, record: Record, who: str) -> Borne:
        """The result of `borne_out`, computed on the calling thread."""
        entities = self._entries(record, who) if record.streams else {}
        found = {(name, epoch): (self._targets[name].found or {}).get(epoch)
                 for epoch, by_switch in entities.items() for name in by_switch}
        alike = {place: held for place, held in found.items()
                 if held is not None and held == entities[place[1]][place[0]]}
        held = {epoch: slots.holdings(streams) for epoch, streams in _by_epoch(record.streams).items()}
        return Borne(entities, alike, held)

    def adopt(self, record: Record, borne: Borne, rank: int) -> Job:
        """The job of a record that a rank has shown, holding what the switches hold for it.  Raises Refusal where they
        hold something else.

        Its ``sessions`` name, with NEVER, the switches that hold nothing of it or may have lost its slots since they
        were read: its trees must be planned anew."""
        who = f"job {record.job!r} of epoch {record.epoch}"
        if not self.is_open:
            raise Refusal(Code.FAILED_PRECONDITION, f"{who}: its rank came {self._fabric.grace:g} s or more after the "
                                                    "controller's start (fabric.grace), when what switches held of "
                                                    "unknown jobs was removed; join anew")
        job = _job(record, self._fabric.tenant(record.tenant))
        if record.streams:
            self._claim(job, borne, who, rank)
        asyncio.get_running_loop().call_soon(self._wake)
        return job

    async def close(self) -> None:
        """Remove what nobody has claimed, and free its numbers, unless an adopted job has them on other switches; no
        job is adopted from now on."""
        self.is_open = False
        self._wake()
        self._shown.clear()
        unclaimed = {epoch for target in self._targets.values() for epoch in target.found or ()}
        for epoch in sorted(unclaimed):
            log.warning("epoch %d, which an earlier controller has left, is removed where no job has claimed it", epoch)
            for target in self._targets.values():
                await target.forget(epoch)
            part = self._adopted.get(epoch)
            if part is None or not any(target.has_to_do_with(part) for target in self._targets.values()):
                self._allocator.release(epoch)

    def _entries(self, record: Record, who: str) -> dict[int, dict[str, State]]:
        """The entities of a job by epoch and switch.  Raises Refusal where it was planned on another fabric."""
        try:
            hosts = [self._fabric.host(name) for name in record.hosts]
            entities = {
                epoch: tables.merge(fold_tables.fold_entries(self._fabric, hosts, stream) for stream in streams)
                for epoch, streams in _by_epoch(record.streams).items()
            }
        except KeyError as error:
            raise Refusal(Code.FAILED_PRECONDITION, f"{who} was planned on another fabric: {error.args[0]}. Was the "
                                                    "fabric file changed? Join anew") from error
        return {epoch: {switch: state(those) for switch, those in by_switch.items()}
                for epoch, by_switch in entities.items()}

    def _claim(self, job: Job, borne: Borne, who: str, rank: int) -> None:
        entities = borne.entities
        wanted = [(name, epoch) for epoch, by_switch in entities.items() for name in by_switch]
        names, epochs = {name for name, _ in wanted}, ", ".join(map(str, sorted(entities)))
        held = {(name, epoch) for name, epoch in wanted if (found := (self._targets[name].found or {}).get(epoch))
                and (found is borne.alike.get((name, epoch)) or found == entities[epoch][name])}
        unknown = {name for name in names if self._targets[name].found is None or self._targets[name].was_empty}
        if without := sorted({name for name, epoch in wanted if (name, epoch) not in held} - unknown):
            shown = self._shown.setdefault((job.name, job.epoch, *sorted(entities)), set())
            shown.add(rank)
            if not held or shown != ticket.holders(job):
                raise Refusal(Code.UNAVAILABLE, f"{who}: {', '.join(without)} does not hold its entries of the "
                                                f"epochs {epochs}: the job has ended, or a rank with a later plan must "
                                                "register first")
            log.warning("%s: %s does not hold its entries of the epochs %s, but no rank has a later plan", who,
                        ", ".join(without), epochs)
        whole = self._reserve(borne)
        if not whole:  # what was found on a switch may be part of it alone
            self._allocator.release(*entities)
            whole = self._reserve(borne)
        if not whole:
            self._allocator.release(*entities)
            for name, target in self._targets.items():
                self.reserve(name, {epoch: those for epoch, those in (target.found or {}).items() if epoch in entities})
            raise Refusal(Code.FAILED_PRECONDITION, f"{who}: numbers of its are another job's by now; join anew")
        self._adopted |= {epoch: job.part_of(epoch) for epoch in entities}
        for name, epoch in held:
            self._targets[name].claim(epoch, self._adopted[epoch])
        lacking = {name for name, epoch in wanted if (name, epoch) not in held or self._targets[name].came_back}
        job.sessions |= {name: NEVER if name in lacking else self._targets[name].sessions for name in names}

    def _reserve(self, borne: Borne) -> bool:
        return all(self._allocator.reserve(epoch, numbers) for epoch, numbers in borne.numbers.items())


def _by_epoch(streams: Sequence[Stream]) -> dict[int, list[Stream]]:
    found: dict[int, list[Stream]] = {}
    for stream in streams:
        found.setdefault(stream.epoch, []).append(stream)
    return found


def record_of(job: Job, fabric: str) -> Record:
    """The ticket's contents for a running job."""
    joins = [job.joins[rank] for rank in sorted(job.joins)]
    return Record(fabric, job.name, job.epoch, job.secret, joins, job.hosts, job.first_trees, job.trees, job.streams,
                  job.rounds, job.reason, job.fell_back, job.tenant.name, job.parent_epoch,
                  job.members)


def _job(record: Record, tenant: Tenant) -> Job:
    """The job of a record and its tenant, none of whose ranks has registered yet."""
    job = Job(
        record.job, len(record.joins), "active", dict(enumerate(record.joins)), record.epoch, record.secret,
        record.hosts, record.first_trees, record.trees, record.streams, record.streams,
        slots=record.streams[0].slots if record.streams else 0, reason=record.reason,
        awaited=set(range(len(record.joins))), rounds=record.round, is_adopted=True, tenant=tenant,
        fell_back=record.fell_back, parent_epoch=record.parent_epoch, members=record.members, used=time.monotonic(),
    )
    job.all_opened.set()
    return job

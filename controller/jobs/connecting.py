# SPDX-License-Identifier: Apache-2.0
"""The second step of RC ranks: what their NICs have chosen, and the entries that need it.

    RC rank --Join, Resume--> Plan --Connect--.
    RC rank --Join, Resume--> Plan --Connect--+--> entries written --> Connected to RC ranks, Plan to windowed ones

A NIC numbers its queue pairs and places its memory itself, so that no entry can be written before all RC ranks of a job
have told theirs.  They are told their first PSNs before, by their plans.  No rank of the job sends anything until the
entries are there: RC ranks do not know their neighbours' queue pairs, and windowed ones have no plan.

A step belongs to one plan: the first one, or that of a recovery round.  It ends with an answer to all of its ranks, or
is aborted: the job has ended, or its trees must be planned once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from netfold.controller.jobs.admission import refuse
from netfold.controller.jobs.connect_step import ConnectStep
from netfold.controller.jobs.job import Job
from netfold.fabric.folding.trees import NoTree
from netfold.rpc.rpc import Code, Refusal
from netfold.wire.jobs import Connect, Connected, OwnPairs

MAX_ADDRESS: Final = 2**64 - 1


def check_ranks(job: Job) -> None:
    """Check that a job whose ranks have all joined has RC ranks that can fold.  Raises Refusal."""
    if job.world > 1 and len(job.rc_ranks) == 1:
        (rank,) = job.rc_ranks
        refuse(Code.FAILED_PRECONDITION, f"{job}: rank {rank} alone is of kind \"rc\": expected at least two, since a "
                                         "NIC sends to another NIC. Give it windowed end points (rail=\"innet\"), or "
                                         "other ranks a NIC as well (rail=\"verbs\")")


def check_machines(job: Job, machines: Sequence[Sequence[int]]) -> None:
    """Check that each rank of a job with RC ranks has a machine of its own.  Raises NoTree."""
    shared = next((ranks for ranks in machines if len(ranks) > 1), None)
    if job.rc_ranks and shared is not None:
        raise NoTree(f"ranks {', '.join(map(str, shared))} share {job.hosts[shared[0]]}: expected a machine for each "
                     f"rank of a job with RDMA NICs (ranks {', '.join(map(str, job.rc_ranks))})")


async def connect(job: Job, request: Connect, others: Iterable[Job]) -> Connected:
    """Take an RC rank's queue pairs, and answer when the job's switches are ready.  Raises Refusal.

    others  all jobs that may have entries on switches
    """
    who = f"{job}, rank {request.rank}"
    step = job.step
    if request.rank not in job.rc_ranks:
        refuse(Code.FAILED_PRECONDITION, f"{who}: it joined with kind \"windowed\": expected an RC rank, since others "
                                         "have no queue pairs to connect")
    if step is None and job.streams:
        refuse(Code.ABORTED, f"{who}: the controller was started anew before its ranks had connected. Call Resume")
    if step is None:
        refuse(Code.FAILED_PRECONDITION, f"{who}: its plan has no trees, and nothing to connect")
    if request.round < step.number:
        refuse(Code.ABORTED, f"{who}: round {request.round} is over, the trees were planned anew in round "
                             f"{step.number}. Call Resume")
    if request.round > step.number:
        refuse(Code.FAILED_PRECONDITION, f"{who}: round: expected {step.number}, as in its plan, got {request.round}")
    _check_pairs(step, request, who)
    _check_unused(job, request, others, who)
    if step.is_open:
        step.tell(request.rank, request.pairs)
    elif step.pairs.get(request.rank) != request.pairs:
        await step.answer(request.rank)  # raises why it was aborted
        refuse(Code.FAILED_PRECONDITION, f"{who}: it has connected other queue pairs in round {step.number}; those of "
                                         "a plan are connected once")
    try:
        async with asyncio.timeout(request.timeout):
            return await step.answer(request.rank)
    except TimeoutError:
        waits = f"the ranks {_listed(step.missing)} have not connected" if step.missing else "switches are not ready"
        _withdraw(step, request)
        raise Refusal(Code.DEADLINE_EXCEEDED, f"{who}: it waited {request.timeout:g} s, and {waits}") from None
    except asyncio.CancelledError:
        _withdraw(step, request)
        raise


def _withdraw(step: ConnectStep, request: Connect) -> None:
    """A rank no longer waits: where its queue pairs are still the ones of this request, entries must not name them."""
    if step.is_open and step.pairs.get(request.rank) is request.pairs:
        step.tell(request.rank, None)


def _check_pairs(step: ConnectStep, request: Connect, who: str) -> None:
    """Check a rank's queue pairs by themselves; the border has checked that they are numbers of 24 bits."""
    if len(request.pairs) != step.pairs_per_rank:
        refuse(Code.INVALID_ARGUMENT, f"{who}: pairs: expected {step.pairs_per_rank}, for data and agreement of each "
                                      f"of its {step.pairs_per_rank // 2} trees, got {len(request.pairs)}")
    for place, pair in enumerate(request.pairs):
        if pair.address > MAX_ADDRESS:
            refuse(Code.INVALID_ARGUMENT, f"{who}: pairs[{place}].address: expected 64 bits, got {pair.address:#x}")
    numbers = _numbers(request.pairs)
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        refuse(Code.INVALID_ARGUMENT, f"{who}: pairs: expected queue pairs that all differ, got {_listed(twice)} more "
                                      "than once")


def _check_unused(job: Job, request: Connect, others: Iterable[Job], who: str) -> None:
    """Check that no other job's entries are for one of these queue pairs of the same NIC.  Raises Refusal."""
    host, numbers = job.hosts[request.rank], set(_numbers(request.pairs))
    for other in others:
        if other is job or other.state in ("gathering", "finished"):
            continue
        for rank, there in enumerate(other.hosts):
            if there == host and (taken := sorted(numbers & _held(other, rank))):
                refuse(Code.ALREADY_EXISTS, f"{who}: pairs: the queue pairs {_listed(taken)} of {host} are those of "
                                            f"rank {rank} of {_named(job, other)}. A NIC gives each number once: does "
                                            f"that job still run?")


def _held(job: Job, rank: int) -> set[int]:
    """The numbers of the queue pairs of a rank's NIC that switches know, or that wait to be written."""
    found: set[int] = set()
    for stream in (*job.streams, *job.announced):
        if rank in stream.ranks and (end := stream.rc.get(stream.ranks.index(rank))) is not None:
            found |= {end.out_qp, end.in_qp}
    if job.step is not None and job.step.is_open:
        found |= set(_numbers(job.step.pairs.get(rank, [])))
    return found


def _numbers(pairs: Sequence[OwnPairs]) -> list[int]:
    return [number for pair in pairs for number in (pair.out_qp, pair.in_qp)]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _named(job: Job, other: Job) -> str:
    """Another job, as a rank may read of it: only those of its own tenant by name."""
    return str(other) if other.tenant.name == job.tenant.name else "another tenant's job"

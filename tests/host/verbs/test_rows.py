# SPDX-License-Identifier: Apache-2.0
"""Collectives of rows and barriers over queue pairs, as allreduces in which those who have nothing to give send zeros:
each gives what numpy does, and ranks that call different ones learn it by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from netfold.host.errors import RankMismatch
from netfold.host.operation.coding import Coding
from support.hosts.rows import COLLECTIVES, Operation
from support.hosts.verbs import VerbsJob, request, verbs_job

pytestmark = [pytest.mark.needs("verbs"), pytest.mark.timeout(240)]
WORLD = 3


def carry(job: VerbsJob, operations: Sequence[Operation]) -> None:
    """Runs operations one after another on all ranks, and checks the results."""
    for operation in operations:
        job.on_all(lambda rank, operation=operation: job.rails[rank].collect(operation.requests[rank]))
    for operation in operations:
        operation.check()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_collective_is_exact(data: st.DataObject) -> None:
    """All kinds one after another on the same queue pairs: any dtype, uneven and empty rows, any root, one or two
    trees, both path MTUs."""
    path_mtu = data.draw(st.sampled_from([1024, 4096]))
    with verbs_job(WORLD, trees=data.draw(st.integers(1, 2)), path_mtu=path_mtu) as job:
        carry(job, [
            Operation(
                data.draw(st.sampled_from(COLLECTIVES)),
                data.draw(st.lists(st.sampled_from([0, 1, 256, 1000, 9000, 20_000]), min_size=WORLD, max_size=WORLD)),
                root=data.draw(st.integers(0, WORLD - 1)), dtype=data.draw(st.sampled_from(["int32", "float32"])),
                op=data.draw(st.sampled_from(["sum", "max", "min"])), number=number, seed=number,
                in_place=data.draw(st.booleans()),
            )
            for number in range(1, 5)
        ])


@pytest.mark.parametrize("kind", COLLECTIVES[:4])
@pytest.mark.parametrize("after", [1, 5])
def test_a_queue_pair_that_breaks_in_the_middle_changes_nothing(kind: Any, after: int) -> None:
    """All begin again where the one that lacks the most does, in place, with the same zeros and elements."""
    with verbs_job(WORLD, patience=60) as job:
        job.lib.fake_break(job.pairs(1)[0].out_qp, 1, after)
        carry(job, [Operation(kind, [20_000] * WORLD, root=1, number=number, in_place=True) for number in (1, 2)])
        assert job.connections == 2


def test_sums_that_a_rank_does_not_want_are_not_read() -> None:
    """They reach it, as those of an allreduce do; what lies around its own row stays as it was."""
    operation = Operation("reduce_scatter", [400] * WORLD)
    around = [np.full(400 * WORLD, 99, np.int32) for _ in range(WORLD)]
    for rank, memory in enumerate(around):
        own = memory[400 * rank : 400 * (rank + 1)]
        operation.outs[rank] = own
        operation.requests[rank] = structs.replace(operation.requests[rank], out=own)
    with verbs_job(WORLD) as job:
        carry(job, [operation])
    for rank, memory in enumerate(around):
        assert (np.delete(memory, slice(400 * rank, 400 * (rank + 1))) == 99).all()


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_bytes_arrive_as_they_are_in_lanes_of_any_width(bits: Any) -> None:
    """Zeros added to them never carry; beside them the job's own sums go on, a reduce with the bits of an allreduce."""
    with verbs_job(WORLD, lane_bits=bits) as job:
        carry(job, [
            Operation("broadcast", [0, 0, 9001], root=2, number=1, seed=1),
            Operation("all_gather", [5000, 0, 9001], number=2, seed=2),
            Operation("barrier", [0, 0, 0], number=3),
            Operation("reduce", [0, 3000, 0], root=1, op="max", number=4),
        ])
        coding = Coding(bits)
        reduce = Operation("reduce", [0, 3000, 0], root=1, dtype="float32", number=5, coding=coding)
        job.on_all(lambda rank: job.rails[rank].collect(reduce.requests[rank]))
        whole = job.allreduce(reduce.sources, number=6, coding=coding)
        assert reduce.outs[1].tobytes() == whole[0].tobytes()


def unlike() -> list[tuple[Operation | None, Operation | None, str]]:
    """The operation of some ranks, that of rank 1 (None: an allreduce), and the field that differs."""
    made: list[tuple[Operation | None, Operation | None, str]] = []
    for first, second in combinations((*COLLECTIVES, None), 2):
        made.append((Operation(first, [1000] * WORLD), Operation(second, [1000] * WORLD) if second else None,
                     "collective"))
    made.append((Operation("broadcast", [900] * WORLD, root=0), Operation("broadcast", [900] * WORLD, root=2), "root"))
    made.append((Operation("reduce", [900] * WORLD, root=0), Operation("reduce", [900] * WORLD, root=1), "root"))
    made.append((Operation("all_gather", [3, 2, 4]), Operation("all_gather", [2, 3, 4]), "digest of rows"))
    made.append((Operation("broadcast", [9, 9, 9]), Operation("broadcast", [9, 9, 8]), "elements"))
    made.append((Operation("reduce", [9] * WORLD), Operation("reduce", [9] * WORLD, op="max"), "operation"))
    made.append((Operation("barrier", [0] * WORLD), Operation("barrier", [0] * WORLD, number=2), "operation number"))
    return made


def test_ranks_that_call_different_collectives_all_learn_it_by_name() -> None:
    """Another kind, root, number of rows, of elements, or reduction on one rank, or an allreduce: every rank raises
    RankMismatch, which says in what they differ."""
    plain = np.zeros(3000, np.int32)
    for first, second, field in unlike():
        with verbs_job(WORLD) as job:

            def call(rank: int, job: VerbsJob = job, calls: Any = (first, second)) -> str:
                rail, operation = job.rails[rank], calls[rank == 1]
                with pytest.raises(RankMismatch) as caught:
                    rail.collect(operation.requests[rank]) if operation else rail.allreduce(request(plain))
                return str(caught.value)

            for said in job.on_all(call):
                assert f"{field} " in said

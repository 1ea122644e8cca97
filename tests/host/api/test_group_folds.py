# SPDX-License-Identifier: Apache-2.0
"""Groups that fold by themselves: when they ask for trees, that all of their ranks fold or none, and how it ends."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netfold.host.api.group import Group
from netfold.host.api.group_folds import LEAST_BYTES, RETRY, GroupFold, GroupFolds
from netfold.host.errors import Closed
from netfold.host.operation.coding import Coding
from netfold.host.selection import chooser
from support.hosts.group_folds import SLOW, Switches, on_ranks
from support.hosts.insides import ranks_of

LARGE = LEAST_BYTES // 4
"""Elements of the first reduction that is worth asking for trees."""


@pytest.fixture(autouse=True)
def _nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are as slow as SLOW says, whenever they are measured anew."""
    monkeypatch.setattr(chooser.Chooser, "_measured", lambda self, number: SLOW)


def total(group: Group, elements: int = LARGE) -> int:
    """The first element of the sum of all ranks' numbers, where all elements are alike."""
    summed = group.allreduce(np.full(elements, group.rank + 1, np.int32))
    assert (summed == summed[0]).all()
    return int(summed[0])


def test_a_group_folds_from_the_reduction_on_that_is_worth_it() -> None:
    """Small ones go between the hosts until they come to LEAST_BYTES; then all fold, small ones as well."""
    switches = Switches(lambda members, number, rank: "ok")

    def work(comm: Group, folds: GroupFolds) -> None:
        group = comm.group([0, 2] if comm.rank in (0, 2) else [3, 1])
        assert "has yet to fold" in group.explain(8)
        for _ in range(15):
            assert total(group, LARGE // 16) == 3
        assert not switches.folded
        assert total(group, LARGE // 16) == 3
        assert total(group, 1) == 3
        assert "tree(s) for this group" in group.explain(8)

    on_ranks(4, switches, work, always=False, refusal=lambda rank: "")
    assert switches.numbers.count(((0, 2), 1)) == 2
    assert switches.numbers.count(((3, 1), 1)) == 2
    assert not any(switches.open.values())


def test_one_rank_that_cannot_keeps_all_from_folding() -> None:
    """A rank whose port is taken, or that the controller refuses: all go between the hosts, say why, ask again after
    RETRY reductions with a number of its own, and fold then."""
    for failure in ("port", "refused"):
        switches = Switches(lambda members, number, rank, failure=failure: (  # type: ignore[misc]
            failure if (number, rank) == (1, 1) else "ok"))

        def work(comm: Group, folds: GroupFolds, switches: Switches = switches) -> list[str]:
            group = comm.group([2, 0, 1])
            said = []
            for _ in range(RETRY):
                assert total(group) == 6
                said.append(group.explain(8))
            assert not switches.folded
            assert total(group) == 6
            return [*said, group.explain(8)]

        for said in on_ranks(3, switches, work):
            assert "rank 0: " in said[0]
            assert f"asks again after {RETRY} more" in said[0]
            assert "tree(s) for this group" in said[-1]
        assert switches.folded == {(2, 0, 1): 3}
        assert {number for _, number in switches.numbers} == {1, 2}
        assert not any(switches.open.values())


def test_a_refusal_for_good_is_not_asked_again() -> None:
    """Where nothing can be gained, or a rank folds nothing at all, the group never asks a second time."""
    switches = Switches(lambda members, number, rank: "never")

    def work(comm: Group, folds: GroupFolds) -> str:
        group = comm.group([0, 1])
        for _ in range(3 * RETRY):
            assert total(group) == 3
        with pytest.raises(ValueError, match="innet"):
            group.allreduce(np.ones(4, np.float32), algorithm="innet")
        return group.explain(8)

    assert all("rank 0: never" in said for said in on_ranks(2, switches, work))
    told = Switches(lambda members, number, rank: "ok")
    said = on_ranks(2, told, work, refusal=lambda rank: "asked for by rail='tcp'" if rank == 1 else "")
    assert all("rank 1: asked for by rail='tcp'" in one for one in said)
    assert not told.numbers


def test_a_group_that_is_asked_to_fold_asks_for_trees_at_once() -> None:
    """algorithm="innet" does not wait for bytes."""
    switches = Switches(lambda members, number, rank: "ok")

    def work(comm: Group, folds: GroupFolds) -> None:
        group = comm.group([1, 0])
        assert float(group.allreduce(np.ones(1, np.float32), algorithm="innet")[0]) == 2

    on_ranks(2, switches, work, always=False)
    assert switches.folded == {(1, 0): 2}


def test_a_group_whose_slots_go_goes_on_between_the_hosts_and_asks_again() -> None:
    """From the operation on that the controller names, on all ranks alike; later it folds anew."""
    switches = Switches(lambda members, number, rank: "ok")
    switches.ends["j#0-1.1"] = 5

    def work(comm: Group, folds: GroupFolds) -> str:
        group = comm.group([0, 1])
        for _ in range(5):
            assert total(group) == 3
        assert total(group) == 3
        said = group.explain(8)
        for _ in range(RETRY):
            assert total(group) == 3
        return said

    assert all("folds no longer: its slots are another's" in said for said in on_ranks(2, switches, work))
    assert {number for _, number in switches.numbers} == {1, 2}
    assert 10 < switches.folded[(0, 1)] < 2 * (RETRY + 6)


def test_a_closed_group_gives_its_slots_back() -> None:
    """Its operations are refused by name; the communicator and other groups go on."""
    switches = Switches(lambda members, number, rank: "ok")

    def work(comm: Group, folds: GroupFolds) -> None:
        group, other = comm.group([0, 1]), comm.group([1, 0])
        assert total(group) == total(other) == 3
        group.close()
        with pytest.raises(Closed, match="ranks 0,1 was closed"):
            total(group)
        assert total(other) == 3
        assert total(comm) == 3

    on_ranks(2, switches, work)
    assert switches.open == {"j#0-1.1": 0, "j#1-0.1": 0}


def test_groups_of_groups_keep_coding_and_fold_as_ranks_of_the_job() -> None:
    """A group within a group is named by the job's ranks, and has the communicator's lanes; rounding differs."""
    switches = Switches(lambda members, number, rank: "ok")

    def work(comm: Group, folds: GroupFolds) -> Any:
        outer = comm.group([3, 2, 1]) if comm.rank else None
        if outer is None:
            return None
        inner = outer.group([2, 0]) if outer.rank != 1 else None
        if inner is None:
            return None
        assert total(inner) == 3
        codings = {group._coding for group in (comm, outer, inner)}
        assert {coding.lane_bits for coding in codings} == {16}
        return inner.lanes(), len({coding.seed for coding in codings})

    results = on_ranks(4, switches, work, coding=Coding(16, seed=7))
    assert [result for result in results if result] == [(16, 3)] * 2
    assert {members for members, _ in switches.numbers} == {(1, 3)}


@settings(max_examples=75, deadline=None)
@given(shape=st.lists(st.integers(1, 4), min_size=2, max_size=3).filter(lambda shape: 2 <= np.prod(shape) <= 8),
       seed=st.integers(0, 2**32 - 1))
def test_every_dimension_of_random_meshes_sums_its_own_ranks(shape: list[int], seed: int) -> None:
    """Ranks in any order on a mesh: each folds with those of its line in each dimension, and with nobody else."""
    rng = np.random.default_rng(seed)
    ranks = int(np.prod(shape))
    mesh, own = rng.permutation(ranks).reshape(shape), rng.integers(-1000, 1000, ranks)
    switches = Switches(lambda members, number, rank: "ok")

    def work(comm: Group, folds: GroupFolds) -> None:
        place = tuple(int(axis[0]) for axis in np.nonzero(mesh == comm.rank))
        for dimension in range(len(shape)):
            line = mesh[(*place[:dimension], slice(None), *place[dimension + 1 :])].tolist()
            group = comm.group(line)
            out = group.allreduce(np.full(LARGE, own[comm.rank], np.int32))
            assert (out == own[line].sum()).all(), line
            group.close()

    on_ranks(ranks, switches, work, seed=seed % 1000)
    lines = [tuple(line.tolist()) for dimension, size in enumerate(shape) if size > 1
             for line in np.moveaxis(mesh, dimension, -1).reshape(-1, size)]
    assert switches.folded == Counter({line: len(line) * lines.count(line) for line in lines})
    assert not any(switches.open.values())


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(2, 5), seed=st.integers(0, 2**32 - 1))
def test_random_groups_sum_right_whatever_fails(ranks: int, seed: int) -> None:
    """Overlapping groups in any order, of which attempts fail on any rank at any step, and lose their slots in the
    middle: every sum is right, no rank folds what another one does not, and nothing is held in the end."""
    rng = random.Random(seed)
    groups = [tuple(rng.sample(range(ranks), rng.randint(2, ranks))) for _ in range(rng.randint(1, 4))]
    calls = [(rng.randrange(len(groups)), rng.choice([1, 7, LARGE]), rng.choice(["int32", "float32", "int64"]))
             for _ in range(rng.randint(10, 90))]

    def outcome(members: tuple[int, ...], number: int, rank: int) -> str:
        return random.Random(repr((seed, members, number, rank))).choice(["ok", "ok", "ok", "refused", "never", "port"])

    switches = Switches(outcome)
    for members in set(groups):
        name = "-".join(map(str, members))
        switches.ends |= {f"j#{name}.{n}": rng.randint(1, 60) for n in range(1, 5) if rng.random() < 0.5}

    def work(comm: Group, folds: GroupFolds) -> list[tuple[str, str]]:
        mine = {at: comm.group(members) for at, members in enumerate(groups) if comm.rank in members}
        for step, (at, elements, dtype) in enumerate(calls):
            if at in mine:
                source = np.full(elements, comm.rank + step, dtype)
                expected = sum(groups[at]) + step * len(groups[at])
                assert (mine[at].allreduce(source) == expected).all(), (step, groups[at])
        done = ranks_of(comm).sequencer.flight.operations()
        paths = [(operation.group, operation.path.split(",")[0]) for operation in done]
        for group in mine.values():
            group.close()
        return paths

    paths = on_ranks(ranks, switches, work, seed=seed)
    for members in set(groups):
        label = f"ranks {','.join(map(str, members))}"
        each = [[path for group, path in paths[rank] if group == label] for rank in members]
        shortest = min(map(len, each))
        assert all(one[len(one) - shortest:] == each[0][len(each[0]) - shortest:] for one in each)
    assert not any(switches.open.values())


def test_a_fold_that_opens_as_its_communicator_closes_is_closed() -> None:
    """It holds no slots that nobody would give back."""
    folds = GroupFolds(lambda folds, members: pytest.fail("none is made"))
    early, late = Mock(spec=GroupFold), Mock(spec=GroupFold)
    folds.keep(early)
    folds.close("a failure")
    folds.keep(late)
    early.close.assert_called_once_with("a failure", ended=False)
    late.close.assert_called_once_with()

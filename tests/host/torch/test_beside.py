# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatters of torch join the all-gather that was called before them, on all ranks alike, and FSDP's do."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.joinable import PART_BYTES
from netfold.host.errors import NetFoldError
from netfold.testing import loopback_job, on_every_rank, subnet
from support import RANKS as PROGRAMS
from support import needs

torch = pytest.importorskip("torch", reason=needs.reason("torch"))

from netfold.host.torch import pieces  # noqa: E402
from netfold.host.torch.beside import Following, JoiningScatter, joinable_gather, warn_where_nothing_joins  # noqa: E402
from netfold.host.torch.join import join  # noqa: E402
from netfold.host.torch.reducer import PendingCollective, Reducer  # noqa: E402
from netfold.torch import Options  # noqa: E402
from support.hosts.torch import loopback_jobs, torchrun  # noqa: E402

WORLD = 3
SHARD = 4 * PART_BYTES // (4 * WORLD)
"""Elements of a rank, so that an all-gather has four parts."""
COUNT = 500
ROUNDS = 8
LAYERS, RANKS = 3, 2


class Program:
    """One rank's collectives: an all-gather and a reduce-scatter of known numbers, started like a process group's."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.reducer = comm, Reducer(comm)
        self.expected: list[tuple[Any, Any]] = []

    def gather(self, turn: int) -> PendingCollective:
        mine, whole = torch.full((SHARD,), turn + self.comm.rank, dtype=torch.int32), torch.zeros(
            WORLD * SHARD, dtype=torch.int32
        )
        following = Following()
        call = joinable_gather(self.comm, whole, mine, following)
        self.expected.append((whole, torch.arange(WORLD).repeat_interleave(SHARD) + turn))
        return self.reducer.later([whole], [call], "gather", following=following)

    def scatter(self, turn: int) -> tuple[PendingCollective, JoiningScatter]:
        whole, rank = torch.arange(WORLD * COUNT, dtype=torch.int32) * turn, self.comm.rank
        mine = torch.zeros(COUNT, dtype=torch.int32)
        self.expected.append((mine, torch.arange(COUNT * rank, COUNT * (rank + 1)) * turn * WORLD))
        joins = JoiningScatter(self.comm, pieces.reduce_scatter(self.comm, mine, whole, "sum"), mine, whole, "sum")
        return self.reducer.later([mine], [joins], "scatter", joins=joins), joins

    def allreduce(self, turn: int) -> PendingCollective:
        tensor = torch.full((7,), turn, dtype=torch.int32)
        self.expected.append((tensor, torch.full((7,), turn * WORLD)))
        return self.reducer.allreduce(tensor, "sum")

    def check(self) -> list[tuple[int, str, int]]:
        """Ends it; fails where a number is wrong.  Returns what the rank has made, in order."""
        self.reducer.close()
        for tensor, wanted in self.expected:
            assert (tensor == wanted).all()
        return [(one.number, one.name, one.nbytes) for one in self.comm.flight()]


@pytest.mark.parametrize(("seed", "rail"), [(0, "innet"), (1, "innet"), (2, "innet"), (0, "tcp")])
def test_delayed_ranks_that_wait_at_different_places_get_the_same_operations_and_the_right_numbers(
    seed: int, rail: Any
) -> None:
    """Each rank is held up for times of its own between its calls, and of the same calls one rank waits for the first
    before it makes the second: a decision by the order of one rank's calls would not be the same on all."""
    print(f"seed {seed}")
    plan = random.Random(seed)
    between = [plan.choice(["nothing", "nothing", "allreduce", "gather"]) for _ in range(ROUNDS)]
    waits = [plan.randrange(2 * WORLD) for _ in range(ROUNDS)]
    """The rank that waits, if there is one of this number."""

    def calls(comm: Communicator) -> tuple[list[bool], list[tuple[int, str, int]]]:
        program, own, joined = Program(comm), random.Random(WORLD * seed + comm.rank), []
        for turn in range(ROUNDS):
            first = program.gather(turn)
            time.sleep(own.choice([0, 0.001, 0.02]))
            if waits[turn] == comm.rank:
                first.wait()
            if between[turn] == "allreduce":
                program.allreduce(turn)
            elif between[turn] == "gather":
                program.gather(turn + 1)
            second, joins = program.scatter(turn)
            for one in own.sample([first, second], 2):
                one.wait()
            joined.append(joins.made)
        return joined, program.check()

    with loopback_job(WORLD, rail=rail) as comms:
        results = on_every_rank(comms, calls)
    assert results[0] == results[1] == results[2]
    for turn, made in enumerate(results[0][0]):
        if rail == "tcp" or between[turn] == "allreduce" or (between[turn] == "nothing" and waits[turn] < WORLD):
            assert not made, f"turn {turn}"


def test_what_is_queued_behind_an_all_gather_joins_it() -> None:
    """Both are called before the first begins: one operation for what is left after the first part, and the
    reduce-scatter is not made a second time."""

    def calls(comm: Communicator) -> tuple[bool, list[tuple[int, str, int]]]:
        program, begin = Program(comm), threading.Event()
        held = program.reducer.later([], [lambda: begin.wait(30)], "held")
        program.gather(1)
        second, joins = program.scatter(2)
        begin.set()
        held.wait()
        second.wait()
        return joins.made, program.check()

    with loopback_job(WORLD, rail="innet") as comms:
        results = on_every_rank(comms, calls)
    assert [joined for joined, _ in results] == [True] * WORLD
    assert [name for _, name, _ in results[0][1]] == ["all_gather", "together"]


def test_a_rank_that_does_not_come_ends_both() -> None:
    """The errors are the communicator's, of both works, and the group can be closed."""
    with loopback_job(WORLD, rail="innet", timeout=1.0) as comms:

        def calls(comm: Communicator) -> None:
            if comm.rank == 2:
                return
            program = Program(comm)
            works = [program.gather(1), program.scatter(2)[0]]
            for work in works:
                with pytest.raises(NetFoldError):
                    work.wait()
            program.reducer.close()

        assert on_every_rank(comms, calls) == [None] * WORLD


def test_the_environment_may_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over it; anything but 0 and 1 is an error that names the variable."""
    assert not Options().goes_together()
    monkeypatch.setenv("NETFOLD_TOGETHER", "1")
    assert Options().goes_together()
    assert not Options(together=False).goes_together()
    monkeypatch.setenv("NETFOLD_TOGETHER", "always")
    with pytest.raises(ValueError, match="NETFOLD_TOGETHER='always': expected 0 or 1"):
        Options().goes_together()


@pytest.mark.parametrize(("rail", "reproducible", "why"), [
    ("tcp", "0", "asked for by rail='tcp'"),
    ("innet", "1", "reductions are reproducible"),
    ("innet", "0", ""),
])
def test_a_group_where_nothing_can_join_says_so(
    rail: Any, reproducible: str, why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning names the option, why it does nothing and what to do instead; none where it does something."""
    monkeypatch.setenv("NETFOLD_REPRODUCIBLE", reproducible)
    with loopback_job(2, rail=rail) as comms, caplog.at_level("WARNING", "netfold"):
        caplog.clear()
        warn_where_nothing_joins(comms[0])
        assert (comms[0].joins_nothing != "") == bool(why)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == bool(why)
    for line in said:
        assert "Options(together=True), or NETFOLD_TOGETHER=1, changes nothing" in line
        assert why in line
        assert "Leave it out for this group" in line


def test_the_option_outside_a_process_group_is_not_dropped_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A communicator by itself has nothing that follows its all-gathers: ``join`` says that the option is not for
    it."""
    monkeypatch.delenv("NETFOLD_RAILS", raising=False)
    with caplog.at_level("WARNING", "netfold"), pytest.raises(ValueError, match="needs a store"):
        join(Options(controller="store", address="127.0.0.1", together=True), rank=0, world=1)
    assert "Options(together=True) changes nothing in a communicator of its own" in caplog.text
    caplog.clear()
    with caplog.at_level("WARNING", "netfold"), pytest.raises(ValueError, match="needs a store"):
        join(Options(controller="store", address="127.0.0.1"), rank=0, world=1)
    assert "together" not in caplog.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every rank of rank_torch_sharded.py has left its results."""
    folder, net = tmp_path_factory.mktemp("torch"), subnet()
    where = f"unix:{folder}/jobs"
    with loopback_jobs(f"{net}.200", [f"{net}.{rank + 1}" for rank in range(RANKS)], where):
        script = PROGRAMS / "rank_torch_sharded.py"
        torchrun(script, net, where, str(folder), ranks=RANKS, environment={"GLOO_SOCKET_IFNAME": "lo"}, timeout=200,
                 forks=True)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, dict[str, list[float]]]]:
    """The losses of every rank, and how many of its operations went together."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.slow
def test_a_process_group_warns_once_where_the_option_changes_nothing(folder: Path) -> None:
    """The group that the store plans says so when it is made; that which folds says nothing of it."""
    for rank in range(RANKS):
        said = {where: [line for line in json.loads((folder / f"{rank}.{where}").read_text()) if "together" in line]
                for where in ("folds", "store")}
        assert said["folds"] == []
        assert len(said["store"]) == (1 if rank == 0 else 0), "rank 0 warns for all"
        assert all("without the fabric's controller" in line for line in said["store"])


@pytest.mark.slow
@pytest.mark.parametrize(("way", "joined"), [("prefetch", LAYERS - 1), ("default", 0), ("fsdp1", 0)])
def test_fully_shard_with_all_gathers_under_way_has_its_reduce_scatters_join(
    found: list[dict[str, dict[str, list[float]]]], way: str, joined: int
) -> None:
    """In every step each layer's reduce-scatter but the last one's joins the all-gather of the layer before it; by
    default, and in FSDP1, torch waits for each at once.  Losses are gloo's in all cases."""
    for results in found:
        assert results[way]["together"] == [joined] * len(results[way]["losses"])
        np.testing.assert_allclose(results[way]["losses"], results["gloo"]["losses"], rtol=1e-4)

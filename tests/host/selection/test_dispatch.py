# SPDX-License-Identifier: Apache-2.0
"""Where the switches fold, folding is one algorithm among others: chosen by cost, asked for, or ruled out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.api.communicator import Communicator
from netfold.host.errors import PlanError
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.arrays import Flat
from netfold.host.selection import chooser
from netfold.host.selection.choice import INNET, MARGIN, TIMED, Setting, choose
from netfold.host.selection.chooser import CHOSEN
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.measure import (
    BUDGET_SECONDS,
    LONG_TURNS,
    REPEAT_FACTOR,
    TOTAL_SECONDS,
    TURNS,
    Measured,
    time_algorithms,
)
from netfold.testing import MemoryFabric, loopback_job, on_every_rank
from support.hosts.collectives import values
from support.hosts.insides import parts_of

LINK = LinkCost(1e-4, 1e-9)
SMALL, LARGE = 1000, 500_000
"""Numbers of float32 elements for which one algorithm, and the other, is cheaper."""
# Folding costs 10 ms whatever the size, a ring 1 ms for 4 KB and 100 ms for 2 MB.
FIGURES = Measured(LINK, 1.0, timed={
    INNET: dict.fromkeys(TIMED, 0.01),
    **{name: dict(zip(TIMED, (0.001, 0.002, 0.01, 0.02, 0.1), strict=True)) for name in CHOSEN},
})


def reduce(comms: list[Communicator], count: int, **asked: object) -> list[str]:
    """Sums integers over all ranks, checks the sums, and returns what carried them on each."""
    sources = [np.arange(count, dtype=np.int32) + comm.rank for comm in comms]
    for got in on_every_rank(comms, lambda comm: comm.allreduce(sources[comm.rank], **asked)):
        np.testing.assert_array_equal(got, sum(sources))
    return [comm.flight()[-1].path for comm in comms]


def known(comms: list[Communicator]) -> None:
    """The same figures on all ranks, without measuring."""
    for comm in comms:
        parts_of(comm).dispatch.hosts.chooser.measured = FIGURES


def test_folding_is_taken_where_it_is_cheapest() -> None:
    """The size decides, and explain() states each algorithm's expected cost, also before the first operation."""
    with loopback_job(3, rail="auto") as comms:
        assert "once the first operation has measured the links" in comms[0].explain(4 * LARGE)
        known(comms)
        assert all(path.startswith("TCP") for path in reduce(comms, SMALL))
        assert reduce(comms, LARGE) == ["innet"] * 3
        small, large = comms[0].explain(4 * SMALL), comms[0].explain(4 * LARGE)
    assert "3 ranks: innet, 10.4 ms predicted" in large
    assert "fold in the network" in large
    assert small.startswith("over TCP, 4000 bytes on 3 ranks: ")
    for said in (small, large):
        assert all(name in said for name in (INNET, "ring", "recursive_doubling", "double_binary_tree")), said


def test_new_figures_count_for_calls_that_have_been_made_before() -> None:
    """A call of a kind that was carried between the hosts is folded once figures say that this is cheaper."""
    with loopback_job(3, rail="auto") as comms:
        known(comms)
        for _ in range(2):
            assert all(path.startswith("TCP") for path in reduce(comms, SMALL))
        for comm in comms:
            parts_of(comm).dispatch.hosts.chooser.measured = replace(
                FIGURES, timed={**FIGURES.timed, INNET: dict.fromkeys(TIMED, 1e-5)})
        assert reduce(comms, SMALL) == ["innet"] * 3


def test_arguments_and_the_environment_override_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either is taken when named; naming the fold for what switches cannot fold is an error, not silently something
    else."""
    with loopback_job(2, rail="auto") as comms:
        known(comms)
        assert reduce(comms, SMALL, algorithm="innet") == ["innet"] * 2
        assert reduce(comms, LARGE, algorithm="ring") == ["TCP, ring"] * 2
        for op, dtype in (("sum", np.float64), ("product", np.int32)):
            with pytest.raises(ValueError, match=rf"algorithm='innet': {op} of {np.dtype(dtype).name} does not fold"):
                comms[0].allreduce(np.ones(3, dtype), op=op, algorithm="innet")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="expected one of auto"):
            comms[0].group([0]).allreduce(np.ones(3, np.int32), algorithm="innet")
    monkeypatch.setenv("NETFOLD_ALGO", "ring")
    with loopback_job(2, rail="auto") as comms:
        assert reduce(comms, LARGE) == ["TCP, ring"] * 2
        assert "by ring, as asked for" in comms[0].explain(4 * LARGE)
    with loopback_job(2, rail="innet") as comms:  # the argument says more than the environment
        assert reduce(comms, SMALL) == ["innet"] * 2
    monkeypatch.setenv("NETFOLD_ALGO", "innet")
    with loopback_job(2, rail="auto") as comms:
        assert reduce(comms, SMALL) == ["innet"] * 2
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured is None
    with pytest.raises(ValueError, match=r"algorithm='innet' \(argument or NETFOLD_ALGO\), rail='tcp'"), loopback_job(
        2, rail="tcp"
    ):
        pass


def test_scattered_sums_fold_where_that_is_cheaper() -> None:
    """Reduce-scatters are carried by cost as allreduces are, by name, or folded in any case with rail="innet"; pieces
    of different sizes too."""

    def scatter(comms: list[Communicator], count: int, **asked: str) -> list[str]:
        counts = [count, 0, 2 * count]
        source = np.arange(sum(counts), dtype=np.int32)
        got = on_every_rank(comms, lambda comm: comm.reduce_scatter(source + comm.rank, counts=counts, **asked))  # type: ignore[arg-type]
        for piece, out in zip(np.split(3 * source + 3, np.cumsum(counts)[:-1]), got, strict=True):
            np.testing.assert_array_equal(out, piece)
        return [comm.flight()[-1].path for comm in comms]

    with loopback_job(3, rail="auto") as comms:
        known(comms)
        assert scatter(comms, SMALL // 3) == ["TCP, ring"] * 3
        assert scatter(comms, LARGE // 3) == ["innet"] * 3
        assert scatter(comms, LARGE // 3, algorithm="ring") == ["TCP, ring"] * 3
        assert scatter(comms, SMALL // 3, algorithm="innet") == ["innet"] * 3
        halves = on_every_rank(
            comms, lambda comm: comm.reduce_scatter(np.full(6, comm.rank + 1, np.float16), op="average")
        )
        assert [half.tolist() for half in halves] == [[2.0, 2.0]] * 3
        assert halves[0].dtype == np.float16
        with pytest.raises(ValueError, match="algorithm='innet': product of int32 does not fold"):
            comms[0].reduce_scatter(np.ones(3, np.int32), op="product", algorithm="innet")
        with pytest.raises(ValueError, match="algorithm='mesh2d': expected one of ring, innet"):
            comms[0].reduce_scatter(np.ones(3, np.int32), algorithm="mesh2d")
    with loopback_job(3, rail="innet") as comms:
        assert scatter(comms, 1) == ["innet"] * 3
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured is None
    with loopback_job(3, rail="tcp") as comms:
        assert scatter(comms, LARGE // 3) == ["TCP, ring"] * 3
        assert parts_of(comms[0]).dispatch.hosts.chooser.measured is None, "there was nothing to choose"
        with pytest.raises(ValueError, match="algorithm='innet': nothing folds for this job"):
            comms[0].reduce_scatter(np.ones(3, np.int32), algorithm="innet")


def test_folding_that_cannot_be_is_refused() -> None:
    """algorithm="innet" without trees is refused at the call, and when a communicator is made with it."""
    with loopback_job(2, rail="tcp") as comms:
        with pytest.raises(ValueError, match="algorithm='innet': nothing folds for this job: asked for by rail='tcp'"):
            comms[0].allreduce(np.ones(3), algorithm="innet")
        with pytest.raises(PlanError, match="rail='innet' asked for, but the plan has no tree"):
            Communicator.of_plan(comms[0].plan, address="127.0.0.1", algorithm="innet")


def test_narrow_lanes_and_saturation_always_fold(caplog: pytest.LogCaptureFixture) -> None:
    """Lanes of 16 bits and saturating sums always fold, whatever it costs, since only switches narrow; without switches
    rank 0 logs that once."""
    with loopback_job(2, rail="auto") as comms:
        known(comms)
        ones = np.ones(SMALL, np.float32)
        on_every_rank(comms, lambda comm: comm.allreduce(ones, lane_bits=16))
        assert comms[0].flight()[-1].path == "innet"
        assert reduce(comms, SMALL, saturate=True) == ["innet"] * 2
        with caplog.at_level(logging.WARNING, "netfold"):
            group = {comm.rank: comm.group([0, 1]) for comm in comms}
            for _ in range(2):
                got = on_every_rank(comms, lambda comm: group[comm.rank].allreduce(ones, lane_bits=16))
                assert [out.tolist() for out in got] == [[2.0] * SMALL] * 2
    said = [r for r in caplog.records if "go between the hosts whole" in r.message and r.levelno == logging.WARNING]
    assert ["rank 0 of 2" in r.message for r in said] == [True]


def test_the_fold_is_timed_with_the_others_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first operation measures: all ranks get the same figures, and the totals count one operation."""
    monkeypatch.setattr(chooser, "measure", lambda mesh: Measured(LinkCost(1e-4, 1e-9), 1.0))
    with loopback_job(2, rail="auto") as comms:
        reduce(comms, LARGE)
        measured = [parts_of(comm).dispatch.hosts.chooser.measured for comm in comms]
        assert measured[0] is not None
        assert measured[0] == measured[1]
        assert set(measured[0].timed[INNET]) >= {TIMED[0]}
        assert all(seconds > 0 for seconds in measured[0].timed[INNET].values())
        assert [comm.stats().operations for comm in comms] == [1, 1]
        assert [comm.stats().bytes_reduced for comm in comms] == [4 * LARGE] * 2
        assert "predicted" in comms[0].explain(4 * LARGE)


@pytest.mark.parametrize("milliseconds", [4, 40])
def test_slow_links_are_measured_in_bounded_time(milliseconds: int) -> None:
    """Timing takes about a second, with at least three turns of each algorithm at a size; one that turns out to be slow
    is timed once."""
    ends: list[float] = []

    def time(mesh: Mesh) -> dict[str, dict[int, float]]:
        now = 0.0

        def way(seconds: float) -> Callable[[Flat], None]:
            def one(data: Flat) -> None:
                nonlocal now
                now += seconds

            return one

        once = milliseconds * 1e-3
        algorithms = {"ring": way(once), "mesh2d": way(1.75 * once), "double_binary_tree": way(5 * once)}
        with mesh.operation(Call(1, "timing")):
            timed = time_algorithms(mesh, algorithms, lambda nbytes: dict.fromkeys(algorithms, once), clock=lambda: now)
        ends.append(now)
        return timed

    first, second = values(MemoryFabric(2).run(time))
    assert first == second
    assert set(first) == {"ring", "mesh2d", "double_binary_tree"}
    assert set(first["double_binary_tree"]) == {TIMED[0]}
    sizes = TIMED[: 3 if milliseconds == 4 else 2]
    assert first["ring"] == pytest.approx(dict.fromkeys(sizes, milliseconds * 1e-3))
    assert max(ends) <= TOTAL_SECONDS + BUDGET_SECONDS


@pytest.mark.parametrize("hits", [1, 2, 3])
def test_algorithms_that_stall_now_and_then_count_as_slow_by_as_much(hits: int) -> None:
    """Stalls of 20 ms in several turns count by their average; one in a single turn is taken for an accident."""

    def time(mesh: Mesh) -> dict[str, dict[int, float]]:
        now, calls, size = 0.0, 0, 0

        def way(data: Flat) -> None:
            nonlocal now, calls, size
            calls, size = (calls + 1 if size == data.nbytes else 0), data.nbytes
            _, in_a_row = TURNS.get(size, LONG_TURNS)
            turn, place = divmod(calls, in_a_row)
            now += 1e-3 + (20e-3 if mesh.rank == 1 and place == 0 and 1 <= turn <= hits else 0)

        with mesh.operation(Call(1, "timing")):
            return time_algorithms(mesh, {"ring": way}, lambda nbytes: {"ring": 1e-3}, clock=lambda: now)

    turns, in_a_row = TURNS[64 << 10]
    mean = 1e-3 + 20e-3 / in_a_row * (hits - 1) / ((1 + REPEAT_FACTOR) * turns - 1)
    for timed in values(MemoryFabric(2).run(time)):
        assert timed["ring"][64 << 10] == pytest.approx(mean)


def test_an_algorithm_that_leads_by_luck_loses_the_lead() -> None:
    """An algorithm that was fast in the race and stalls later is not timed as fast, and the next one leads."""

    def time(mesh: Mesh) -> dict[str, dict[int, float]]:
        now, calls = 0.0, 0

        def lucky(data: Flat) -> None:
            nonlocal now, calls
            turns, in_a_row = TURNS[TIMED[0]]
            now += 1e-3 + (20e-3 if calls >= (1 + turns) * in_a_row and calls % (2 * in_a_row) == 0 else 0)
            calls += 1

        def steady(data: Flat) -> None:
            nonlocal now
            now += 1.5e-3

        algorithms = {"ring": lucky, "mesh2d": steady}
        with mesh.operation(Call(1, "timing")):
            return time_algorithms(mesh, algorithms, lambda nbytes: dict.fromkeys(algorithms, 1e-3), clock=lambda: now)

    first, second = values(MemoryFabric(2).run(time))
    assert first == second
    assert first["ring"][TIMED[0]] > first["mesh2d"][TIMED[0]] == pytest.approx(1.5e-3)


def test_long_tensors_take_the_ring_unless_another_algorithm_is_clearly_cheaper() -> None:
    """An algorithm that was fast beside its model at the longest size timed is taken at that size, and not assumed to
    be fast at longer ones, whose bytes decide."""
    link, last = LinkCost(1e-4, 8e-9), TIMED[-1]
    model = dict(choose(last, Setting(4, link)).candidates)
    lucky = {"ring": {last: model["ring"]}, "double_binary_tree": {last: 0.6 * model["double_binary_tree"]},
             "mesh2d": {last: 0.95 * model["mesh2d"]}}
    only = (*lucky,).__contains__
    assert choose(last, Setting(4, link), timed=lucky, only=only).algorithm == "double_binary_tree"
    for nbytes in (2 * last, 32 * last):
        chosen = choose(nbytes, Setting(4, link), timed=lucky, only=only)
        assert chosen.algorithm == "ring"
        costs = dict(chosen.candidates)
        assert costs["double_binary_tree"] > 1.3 * costs["ring"]
    slow = {**lucky, "ring": {last: 2 * model["ring"]}}  # many ranks on few cores, say
    slow["mesh2d"] = {last: 1.5 * model["mesh2d"]}
    folds = choose(32 * last, Setting(4, link, fold=link), timed=slow, only=(*lucky, INNET).__contains__)
    assert folds.algorithm == INNET


@given(beside=st.floats(0.5, 2.0).filter(lambda x: all(abs(x - edge) > 1e-9 for edge in (1, MARGIN))))
def test_folding_wins_where_timings_cannot_tell(beside: float) -> None:
    """Folding is taken up to MARGIN times the cheapest algorithm's cost, and not beyond; the text says so."""
    timed = {INNET: {4096: beside * 1e-3}, **{name: {4096: 1e-3} for name in CHOSEN}}
    chosen = choose(4096, Setting(4, LINK, fold=LINK), timed=timed, only=(*CHOSEN, INNET).__contains__)
    assert (chosen.algorithm == INNET) == (beside <= MARGIN)
    assert ("easier on the links" in str(chosen)) == (1 < beside <= MARGIN)

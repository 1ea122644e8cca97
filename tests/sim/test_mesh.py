# SPDX-License-Identifier: Apache-2.0
"""Allreduce on a grid: schedules that sum what they should, are the library's own, and end when arithmetic says."""

from __future__ import annotations

import csv
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.host.collectives import mesh2d, tidalmesh
from netfold.host.collectives.flow import run
from netfold.host.mesh.memory import MemoryFabric
from netfold.host.mesh.mesh import Call
from netfold.host.operation.reduction import Reduction
from netfold.sim.collectives import mesh_figures
from netfold.sim.collectives.mesh import ALGORITHMS, Grid, flows_of, runs_on, simulate
from netfold.sim.workloads.mesh_schedule import Line, MeshMessage, Order, allreduce, ring, tide
from netfold.sim.workloads.workload import Workload

pytestmark = pytest.mark.slow

SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda shape: shape[0] * shape[1] > 1)


@given(shape=SHAPES, count=st.integers(0, 60), line=st.sampled_from([tide, ring]),
       order=st.sampled_from(["halves", "rows first"]), chunks=st.integers(1, 3))
def test_every_place_ends_with_the_sum(shape: tuple[int, int], count: int, line: Line, order: Order,
                                       chunks: int) -> None:
    """Carrying out the messages step by step leaves each place with every contribution exactly once."""
    rows, columns = shape
    held = 4 ** np.arange(rows * columns, dtype=object)[:, None] * np.ones(count, object)  # one digit for each place
    steps: dict[tuple[int, int], list[MeshMessage]] = defaultdict(list)
    for message in allreduce(rows, columns, count, line=line, order=order, chunks=chunks):
        steps[message.strand, message.step].append(message)
    for step in sorted(steps):
        sent = [held[m.source, m.low:m.high].copy() for m in steps[step]]  # all of a step at the same time
        for m, data in zip(steps[step], sent, strict=True):
            place = held[m.destination]
            place[m.low:m.high] = place[m.low:m.high] + data if m.way == "reduce-scatter" else data
    assert (held == sum(4**place for place in range(rows * columns))).all()


@pytest.mark.parametrize("chunks", [None, 1, 3])
@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (1, 5), (5, 1), (4, 3)])
def test_the_schedule_is_the_librarys(shape: tuple[int, int], chunks: int | None,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts' own allreduces, mesh2d (None) and tidalmesh in chunks, send the same elements between the same ranks,
    in the same order on each link."""
    rows, columns = shape
    ranks, count = rows * columns, 149
    fabric = MemoryFabric(ranks, seed=3)
    sent: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)

    def one(mesh):
        data = np.arange(count, dtype=np.int64)
        real = mesh.send

        def send(peer, array, *, tag=0):
            low = (array.ctypes.data - data.ctypes.data) // data.itemsize
            sent[mesh.rank, peer, tag].append((low, low + array.size))
            return real(peer, array, tag=tag)

        monkeypatch.setattr(mesh, "send", send, raising=False)
        with mesh.operation(Call(1, "allreduce")):
            add = Reduction("sum", "int64")
            places = np.arange(ranks).reshape(shape).tolist()
            run(mesh, mesh2d.allreduce(mesh, data, add, shape=shape) if chunks is None else
                tidalmesh.allreduce(mesh, data, add, places=places, chunks=chunks))
        return data

    for result in fabric.run(one):
        np.testing.assert_array_equal(result, np.arange(count) * ranks)
    planned: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for m in allreduce(rows, columns, count, chunks=chunks or 1):
        planned[m.source, m.destination, m.strand].append((m.low, m.high))
    assert planned == sent


@given(shape=SHAPES, wraps=st.booleans(), data=st.data())
def test_routes_and_cycles_follow_links(shape: tuple[int, int], wraps: bool, data: st.DataObject) -> None:
    """A route is a walk along links, as short as can be; a cycle visits every place once, along links where it can."""
    grid = Grid(*shape, wraps)
    a, b = (data.draw(st.integers(0, grid.size - 1)) for _ in range(2))
    route = grid.route(a, b)
    assert (route[0], route[-1]) == (a, b)
    assert all(pair in grid.links for pair in pairwise(route))
    apart = [abs(x - y) for x, y in zip(divmod(a, grid.columns), divmod(b, grid.columns), strict=True)]
    if wraps:
        apart = [min(way, length - way) for way, length in zip(apart, shape, strict=True)]
    assert len(route) == 1 + sum(apart)
    cycle = grid.cycle()
    assert sorted(cycle) == list(range(grid.size))
    assert all(pair in grid.links for pair in pairwise(cycle))
    if grid.size % 2 == 0 and min(shape) > 1:
        assert (cycle[-1], cycle[0]) in grid.links


@pytest.mark.parametrize("shape", [(4, 4), (2, 6), (5, 5)])
def test_a_tide_loads_all_links_alike(shape: tuple[int, int]) -> None:
    """Over reduce-scatter and all-gather each link along a row carries half (1 + 1/R) of the bytes, whatever its place,
    and on a square grid that is the least that any allreduce can do with."""
    rows, columns = shape
    count = 2 * 15 * rows * columns * 4
    grid = Grid(rows, columns, delay=0)
    carried = simulate(grid, flows_of(allreduce(rows, columns, count))).link_bytes
    for (a, b), link in grid.links.items():
        other = rows if a // columns == b // columns else columns
        assert carried[link] == 4 * count // 2 * (1 + other) // other
    if rows == columns:
        assert carried.max() / 50e9 == pytest.approx(mesh_figures.bound(grid, 4 * count))


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_no_algorithm_is_faster_than_its_links(name: str) -> None:
    """Times are no less than the bound, than the busiest link takes, and than the steps' delays."""
    grid = Grid(4, 4)
    for kilobytes in (16, 1024):
        if runs_on(name, grid):
            outcome = simulate(grid, ALGORITHMS[name](grid, kilobytes << 8))
            assert outcome.time >= max(mesh_figures.bound(grid, kilobytes << 10), outcome.link_bytes.max() / 50e9,
                                       outcome.steps * grid.delay)


def test_times_are_those_of_closed_forms() -> None:
    """A ring takes 2 (n-1) steps; a tide alone on its links 2 (R-1 + C-1), each of a piece and a delay."""
    grid, count = Grid(3, 4), 3 * 4 * 1000
    piece = 4 * count / 12 / 50e9
    assert simulate(grid, ALGORITHMS["ring"](grid, count)).time == pytest.approx(22 * (piece + grid.delay))
    rows_first = simulate(grid, ALGORITHMS["tide, rows first"](grid, count))
    assert rows_first.time == pytest.approx(2 * (3 * (3 * piece + grid.delay) + 2 * (piece + grid.delay)))
    assert rows_first.steps == 10


def test_chunks_bring_a_tide_to_what_links_allow() -> None:
    """Chunks that gather while others reduce take at most 15 % more than the bound; one alone takes half more."""
    grid, count = Grid(4, 4, delay=0), 1 << 20
    least = mesh_figures.bound(grid, 4 * count)
    alone, chunked = (simulate(grid, flows_of(allreduce(4, 4, count, chunks=chunks))).time for chunks in (1, 16))
    assert alone > 1.45 * least
    assert chunked < 1.15 * least


def test_links_of_another_rate_count() -> None:
    """Columns at half the rate take twice as long where columns are all there is."""
    times = [simulate(Grid(4, 1, column_rate=rate, delay=0), ALGORITHMS["ring"](Grid(4, 1), 4000)).time
             for rate in (400e9, 200e9)]
    assert times[1] == pytest.approx(2 * times[0])


@pytest.mark.needs("matplotlib")
def test_the_command_writes_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form has a row for each algorithm that runs, and draws every message of the schedule; an interrupted
    run simulates with --resume only the rows that it has not kept."""
    result = CliRunner().invoke(app, ["sim", "mesh", "--short", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    with (tmp_path / "mesh.csv").open() as table:
        lines = list(csv.DictReader(table))
    assert len(lines) == 2 * (len(ALGORITHMS) - 1)  # 12 and 9 places are no powers of two
    with (tmp_path / "schedule.csv").open() as table:
        messages = list(csv.DictReader(table))
    arrows = [len(group) for group in ET.parse(tmp_path / "schedule.svg").iter()
              if group.get("id", "").startswith("Step ") and group.get("id", "").endswith(" first")]
    assert sum(arrows) == len(messages)
    assert "mesh.svg" in result.output
    table = (tmp_path / "mesh.csv").read_bytes()
    (tmp_path / "mesh.csv").write_bytes(table[:len(table) // 2])  # as an interruption leaves it
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # the figures are there already
    result = CliRunner().invoke(app, ["sim", "mesh", "--short", "--resume", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "20 simulations, 9 of them done" in result.output
    assert (tmp_path / "mesh.csv").read_bytes() == table


@pytest.mark.parametrize(("options", "said"), [
    (["--grids", "4by4"], "expected 4x4, 4x8t and the like"),
    (["--grids", "1x1"], "expected 2 places or more"),
    (["--sizes", "1M"], "expected whole numbers by commas"),
    (["--rate", "fast"], "expected a rate such as 100mbit"),
    (["--delay", "-1"], "a delay of at least 0"),
])
def test_what_cannot_be_is_refused(options: list[str], said: str, tmp_path: Path) -> None:
    """The command says what it expected, before anything is simulated."""
    result = CliRunner().invoke(app, ["sim", "mesh", "--out", str(tmp_path / "none"), *options])
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert not (tmp_path / "none").exists()


def test_strangers_are_refused() -> None:
    """A flow to a place that the grid does not have is a mistake of the caller."""
    work: Workload = ALGORITHMS["ring"](Grid(3, 3), 100)
    with pytest.raises(ValueError, match="place 8 is not among the grid's 4"):
        simulate(Grid(2, 2), work)
    with pytest.raises(ValueError, match="expected 2 places or more"):
        allreduce(1, 1, 10)
    with pytest.raises(ValueError, match="a size of 0 KiB: expected 1 or more"):
        mesh_figures.run([Grid(2, 2)], [1, 0], out=Path("none"))

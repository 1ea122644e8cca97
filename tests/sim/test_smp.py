# SPDX-License-Identifier: Apache-2.0
"""`netfold sim smp`: what its workloads send, that contention is seen, and what it writes and refuses."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import CANNOT
from netfold.sim.collectives.smp import SmpPoint, simulate_smp, threshold, times
from netfold.sim.workloads.smp_workload import ALGORITHMS, SEEDED, MessageLatency, with_latency

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name.startswith("smp")])
def test_only_first_ranks_of_machines_use_the_network(name: str) -> None:
    """Between machines flows lead from first rank to first rank; inside, each edge of a tree carries M up and down."""
    work = ALGORITHMS[name](4, 4, 1 << 12, 0)
    between = work.source // 4 != work.destination // 4
    assert not (work.source[between] % 4).any()
    assert not (work.destination[between] % 4).any()
    inside = np.bincount(work.source[~between] // 4, work.size[~between])
    assert (inside == 2 * 3 * (1 << 12)).all()


def test_bytes_between_machines_are_those_of_the_formulas() -> None:
    """A machine's interface sends 2 (H-1)/H M by SMP-butterfly and 2 (P-1)/P M by the ring in order; the binomial
    tree's root sends log2 H M."""
    size, machines, cores = 1 << 14, 8, 4

    def sent(name: str) -> list[int]:
        work = ALGORITHMS[name](machines, cores, size, 0)
        between = work.source // cores != work.destination // cores
        return [int(work.size[between & (work.source // cores == m)].sum()) for m in range(machines)]

    assert sent("smp-butterfly") == [2 * (machines - 1) * size // machines] * machines
    assert sent("ring") == [2 * (machines * cores - 1) * size // (machines * cores)] * machines
    assert sent("smp-binomial")[0] == 3 * size
    assert max(sent("butterfly")) > 4 * max(sent("ring")) * 0.8, "all four ranks of a machine send far"


def test_a_ring_in_order_crosses_each_interface_once() -> None:
    """A random order has several flows on the busiest interface."""
    def crossings(name: str) -> int:
        work = ALGORITHMS[name](8, 8, 64, 7)
        between = work.source // 8 != work.destination // 8
        flows = np.unique(np.stack([work.source, work.destination], axis=1)[between], axis=0) // 8
        return int(max(np.bincount(flows[:, 0]).max(), np.bincount(flows[:, 1]).max()))

    assert crossings("ring") == 1
    assert crossings(SEEDED) > 3


def test_a_message_begins_later_by_its_latency() -> None:
    """A message inside a machine costs the machine's latency, other messages the network's."""
    work = with_latency(ALGORITHMS["ring"](2, 2, 64, 0), 2, MessageLatency(1.0, 3.0))
    assert set(zip(work.source, work.gap, strict=True)) == {(0, 1.0), (1, 3.0), (2, 1.0), (3, 3.0)}


def test_contention_decides_for_long_tensors_and_steps_for_short_ones() -> None:
    """At 1 MiB butterfly and random ring share interfaces and take twice the ring's time and more; at 4 KiB the ring's
    many steps lose."""
    long = {name: simulate_smp("gigabit", 8, 4, name, 1 << 20, 1).time for name in ALGORITHMS}
    assert min(long["butterfly"], long["random ring"], long["smp-binomial"]) > 2 * long["ring"]
    assert long["ring"] > 2 * 31 / 32 * (1 << 20) * 8 / 1e9, "no faster than its bytes"
    short = {name: simulate_smp("gigabit", 8, 4, name, 4096, 1).time for name in ("ring", "smp-butterfly")}
    assert short["smp-butterfly"] < 0.7 * short["ring"]


def test_the_threshold_is_where_the_ring_begins_to_win_for_good() -> None:
    """A size at which it wins below one at which it loses does not count."""
    taken = {64: (1.0, 2.0), 128: (2.0, 1.0), 256: (1.0, 2.0), 512: (1.0, 2.0)}
    points = [SmpPoint("gigabit", 4, 4, name, size, 1, pair[n])
              for size, pair in taken.items() for n, name in enumerate(("ring", "butterfly"))]
    assert threshold(times(points), "gigabit", 4) == 256
    assert threshold(times([p for p in points if p.size == 128]), "gigabit", 4) is None


def test_the_command_writes_every_point_and_says_its_seeds(tmp_path: Path) -> None:
    """A random order is simulated for each seed, all else once."""
    done = CliRunner().invoke(app, ["sim", "smp", "--clusters", "racks", "--machines", "2,4", "--cores", "2",
                                    "--sizes", "4,64", "--seeds", "3,4", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "smp.csv").open()))
    assert len(rows) == 2 * 2 * (4 + 2)
    assert all(float(row["time"]) > 0 for row in rows)
    assert "seeds 3, 4" in done.output
    assert "racks, 4 machines: the ring is the fastest" in done.output


@pytest.mark.usefixtures("undrawn")
def test_an_ended_command_goes_on_from_its_table(tmp_path: Path) -> None:
    """With --resume, rows that the table has are not simulated again, and the table ends as if nothing had ended it."""
    command = ["sim", "smp", "--clusters", "racks", "--machines", "2", "--cores", "2", "--sizes", "4,64",
               "--seeds", "1", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    table = tmp_path / "smp.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:4]))
    again = CliRunner().invoke(app, [*command, "--resume"])
    assert again.exit_code == 0, again.output
    assert "10 simulations, 3 of them done" in again.output
    assert table.read_text() == whole


@pytest.mark.parametrize(("arguments", "says"), [
    (["--machines", "3"], "--machines 3: expected powers of two"),
    (["--cores", "3"], "--cores 3: expected a power of two"),
    (["--clusters", "token-ring"], "--clusters token-ring: expected some of gigabit"),
    (["--sizes", "much"], "--sizes: expected whole numbers"),
    (["--sizes", "0"], "expected a size of 1 byte or more"),
])
def test_what_cannot_be_simulated_is_refused_by_name(arguments: list[str], says: str) -> None:
    """Each mistake names its option and what was expected."""
    done = CliRunner().invoke(app, ["sim", "smp", *arguments])
    assert done.exit_code == CANNOT
    assert says in done.stderr

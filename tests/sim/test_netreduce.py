# SPDX-License-Identifier: Apache-2.0
"""`netfold sim netreduce`: its bounds, its schedules' bytes, and its short form."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.plots.charts import PlotsMissing
from netfold.sim.netreduce import beside, training
from netfold.sim.netreduce import points as netreduce


def test_the_condition_is_the_papers_formula() -> None:
    """Above 2 P (n-1) / (n (P-2)) parallel NetReduce beats a flat ring; 8 GPUs a machine."""
    assert [round(netreduce.bound(gpus), 3) for gpus in (32, 128, 1024)] == [1.867, 1.778, 1.753]


def test_a_machines_card_carries_its_gpus_pieces_once() -> None:
    """Parallel NetReduce moves the buffer through each card once each way, a ring of all GPUs nearly twice."""
    topology = netreduce.fabric(32, 100.0, 1e-6)
    size, n, machines = 1 << 20, topology.size, topology.leaves
    carried = {}
    for way in ("PN", "FR"):
        outcome = netreduce.run_job(topology, netreduce.WAYS[way](topology, size))
        up = outcome.link_bytes[2 * n:2 * n + machines]
        assert up.min() == up.max()
        carried[way] = up[0] / size
    assert carried["PN"] == pytest.approx(1 + 58 / 4096, rel=0.001)
    assert carried["FR"] == pytest.approx(2 * 31 / 32 * (1 + 58 / 4096), rel=0.01)


def test_gpus_that_fill_no_machines_are_refused() -> None:
    """12 GPUs are one machine and a half."""
    with pytest.raises(ValueError, match="machines of 8"):
        netreduce.fabric(12, 100.0, 1e-6)


@pytest.mark.needs("matplotlib")
@pytest.mark.slow
def test_the_short_form_writes_figures_and_data(tmp_path) -> None:
    """Every way at every point ends; folds win where GPUs are well joined; figures and CSV are there."""
    points = netreduce.run(out=tmp_path, short=True)
    time = {(p.scheme, p.inside): p.time for p in points if p.figure == "gpus" and p.gpus == 64}
    assert min(time, key=lambda key: time[key])[0] in ("PN", "PN-credits")
    assert {f.name for f in tmp_path.iterdir()} >= {"points.csv", "crossover.csv", "netreduce.svg", "crossover.svg"}
    rows = list(csv.DictReader((tmp_path / "points.csv").open()))
    assert len(rows) == len(points)
    assert all(float(row["time"]) < 1 for row in rows)
    for row in csv.DictReader((tmp_path / "crossover.csv").open()):
        assert float(row["condition"]) < float(row["measured"]) < 1.15 * float(row["condition"])


def test_with_the_papers_credits_long_latencies_cost_netreduce_its_lead() -> None:
    """At 100 us and 64 GPUs parallel NetReduce is earlier than halving-doubling by our window, and later by the paper's
    2 messages of 170 KB."""
    time = {way: netreduce.point("latency", way, 64, 100.0, 1e-4, 8 << 20).time for way in ("PN", "PN-credits", "HD")}
    assert time["PN"] < time["HD"] < time["PN-credits"]


def test_without_matplotlib_all_parts_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part whose figures cannot be drawn says so, and the next one follows."""
    done: list[str] = []

    def undrawn(name: str) -> None:
        done.append(name)
        raise PlotsMissing

    for module in (netreduce, training, beside):
        monkeypatch.setattr(module, "run", lambda name=module.__name__, **how: undrawn(name))
    said = CliRunner().invoke(app, ["sim", "netreduce"])
    assert (said.exit_code, len(done)) == (0, 3), said.output
    assert said.output.count("pip install matplotlib") == 3

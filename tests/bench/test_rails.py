# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`: its options, its figures, and one small run of all of it."""

from __future__ import annotations

import csv
import errno
import json
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.bench.commands import rails_figures, rails_mptcp
from netfold.bench.commands.rails import row_of, run
from netfold.bench.commands.rails_death import death_of
from netfold.bench.commands.rails_figures import tables, write
from netfold.bench.commands.rails_report import RailsReport, RailsRow, RailTrainingRow, Started
from netfold.bench.commands.rails_training import BATCH, rows_of
from netfold.bench.options.paths import RailsOptions
from netfold.bench.ranks.mptcp import MptcpResult, Ring
from netfold.bench.ranks.rail_series import SeriesCall, SeriesResult
from netfold.bench.ranks.rail_training import RailTrainingResult
from netfold.bench.ranks.rails import SumsResult
from netfold.cli.app import app
from support import needs
from support.sandboxes.topo import in_sandbox

OPTIONS: dict[str, Any] = {"rate": "100mbit,50mbit", "end": "1M", "factor": 16, "cuts": "0.5", "cut_bytes": "2M"}


def test_options_become_sizes_rates_and_cuts() -> None:
    """Sizes grow by the factor, and parts of a call are numbers; there may be no cut at all."""
    wanted = RailsOptions(**OPTIONS)
    assert wanted.sizes == [4096, 65536, 1 << 20]
    assert (wanted.rates, wanted.parts, wanted.ranks) == (["100mbit", "50mbit"], [0.5], 4)
    assert RailsOptions(rate="100mbit").rates == ["100mbit"] * 2
    assert RailsOptions(cuts="").parts == []
    with pytest.raises(ValueError, match="--topo leafspine,1,0,4: expected 2 or 3 planes"):
        RailsOptions(topo="leafspine,1,0,4")
    assert RailsOptions(ranks=2).topo == "dual,leafspine,1,0,2"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rate", "100mbit,1gbit,1gbit", "expected one for all planes, or 2 with commas"),
        ("rate", "100mbit,fast", "--rate 100mbit,fast: expected a rate"),
        ("rate", "none", "--rate none: expected rates of links"),
        ("rails", "innet@a", "--rails innet@a: expected one for each plane of dual"),
        ("cuts", "1.5", "between 0 and 1"),
        ("cuts", "half", "--cuts half: expected parts"),
        ("topo", "leafspine,1,0,4", "--topo leafspine,1,0,4: rate '100mbit,50mbit': expected one for all planes, or 1"),
        ("begin", "2M", "-e 1M: expected the end not below the beginning"),
        ("cut_bytes", "much", "--cut-bytes much"),
        ("train", -1, "--train -1"),
        ("series", -1, "--series -1"),
    ],
)
def test_what_cannot_be_is_refused_by_name(option: str, value: str, message: str) -> None:
    """Each mistake names its option."""
    with pytest.raises(ValueError, match=message):
        RailsOptions(**{**OPTIONS, option: value})


def test_a_kernel_without_multipath_tcp_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The option is named, and what the kernel would need."""
    def none() -> socket.socket:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(rails_mptcp, "mptcp_socket", none)
    with pytest.raises(ValueError, match=r"--mptcp: .*Protocol not supported.*CONFIG_MPTCP"):
        run(RailsOptions(mptcp=True))


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_ring_over_multipath_tcp_sums_exactly(size: int) -> None:
    """Three ranks in threads, each with a socket to the next: every rank has the sum, also of fewer elements than
    ranks."""
    pairs = [socket.socketpair() for _ in range(3)]
    rings = [Ring(rank, 3, pairs[rank][0], pairs[rank - 1][1]) for rank in range(3)]
    buffers = [np.arange(size, dtype=np.int32) * (rank + 1) for rank in range(3)]
    threads = [threading.Thread(target=ring.allreduce, args=(data,)) for ring, data in zip(rings, buffers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all((data == 6 * np.arange(size)).all() for data in buffers)
    for pair in pairs:
        for end in pair:
            end.close()


def turns(times: list[list[float]]) -> list[list[list[SumsResult]]]:
    """Two ranks' results of turns that took so long, in which the first rail carried three quarters."""
    return [
        [[SumsResult(seconds, 0, "", ["up", "up"], 0.0, seconds * cores, [75, 25], [0.2, 0.1]) for cores in (0.4, 0.6)]
         for seconds in turn]
        for turn in times
    ]


def multipath(seconds: list[float], sent: list[int]) -> list[MptcpResult]:
    """A turn over Multipath TCP whose ranks took so long, and sent so much over each plane."""
    return [MptcpResult(took, took / 2, sent, 0, 1) for took in seconds]


def test_multipath_tcp_is_compared_turn_by_turn() -> None:
    """The slowest rank of a turn counts, ratios are those of one turn, and shares are of what all ranks sent."""
    row = rails_mptcp.row([1.0, 3.0, 2.0], [multipath([1.0, 2.0], [90, 10]), multipath([2.0, 2.0], [50, 50]),
                                            multipath([4.0, 1.0], [40, 60])])
    assert (row.seconds, row.over, row.quartiles) == (2.0, 0.5, [0.5, 1.0])
    assert (row.shares, row.processor, row.subflows, row.wrong) == ([0.6, 0.4], 1.0, 1, 0)


def figures(times: list[list[float]]) -> RailsRow:
    """The row of turns that took so long."""
    return row_of(100, times, 0, "", turns(times))


def test_shares_and_processor_time_are_those_of_the_turns() -> None:
    """Shares are parts of what all carried in the turns of all; processor time is a rank's mean, and a thread's."""
    row = figures([[1.0, 2.0, 0.8], [1.0, 2.0, 0.8]])
    assert row.shares == [0.75, 0.25]
    assert row.processor == [pytest.approx(0.5), pytest.approx(1.0), pytest.approx(0.4)]
    assert row.threads == [pytest.approx(0.2), pytest.approx(0.1)]


def trained(seconds: list[float], digest: str = "a") -> RailTrainingResult:
    """One rank's turn, whose steps took so long."""
    return RailTrainingResult(seconds, 1000, digest, 2.0, 0.1)


def test_a_training_step_is_as_long_as_its_slowest_rank() -> None:
    """Of each step the slowest rank counts, of a turn the median, and ratios compare turns of one round."""
    rows = rows_of(["a", "b"], {
        "a": [[trained([1.0, 1.0]), trained([2.0, 2.0])], [trained([4.0, 4.0]), trained([4.0, 4.0])]],
        "b": [[trained([8.0, 8.0]), trained([8.0, 8.0])]] * 2,
        "together": [[trained([1.0, 1.0]), trained([1.0, 1.0])], [trained([2.0, 2.0]), trained([2.0, 2.0], "b")]],
    })
    assert [(row.way, row.step, row.of_best, row.alike) for row in rows] == [
        ("a", 3.0, 1.0, True), ("b", 8.0, 0.375, True), ("together", 1.5, 2.0, False),
    ]
    assert rows[2].samples == pytest.approx(2 * BATCH / 1.5)


def test_a_call_of_a_series_lasts_until_its_last_rank_is_done() -> None:
    """Times count from the first rank's first call, and wrong elements are those of all ranks."""
    ranks = [SeriesResult([SeriesCall(10.0, 1.0, [8, 0], 0), SeriesCall(12.0, 1.0, [4, 4], 1)]),
             SeriesResult([SeriesCall(10.5, 1.0, [8, 0], 0), SeriesCall(11.5, 2.0, [4, 4], 2)])]
    death = death_of(8, 10.25, 11.0, ranks)
    assert (death.cut, death.back) == (0.25, 1.0)
    assert [(call.at, call.took, call.carried, call.wrong) for call in death.calls] == [
        (0.0, 1.5, [8, 0], 0), (1.5, 2.0, [4, 4], 3),
    ]


@pytest.mark.slow
def test_all_figures_and_their_data_are_written_to_a_folder(tmp_path: Path) -> None:
    """Every figure is an SVG, with shares by start, every table a CSV with one row for each thing measured, and a cut
    plane is told."""
    pytest.importorskip("matplotlib", reason=needs.reason("matplotlib"))
    starts = [Started(name, 0.1, [0.1] * 4, [[1.0, 0.0]], [[0.7, 0.3]], 65536) for name in ("cold", "hot")]
    ranks = [SeriesResult([SeriesCall(10.0 + n, 1.0, [8, 8 * (n != 1)], 0) for n in range(3)])]
    report = RailsReport(
        "innet@a+tcp@b", ["1gbit", "1gbit"], 1, "softswitch", "reno", "auto", starts, [figures([[1.0, 2.0, 0.8]])], [],
        1000, [RailTrainingRow("together", 0.5, 16.0, 1.5, 0.1, 2.0, True)], death_of(16, 10.5, 11.5, ranks),
    )
    assert {file.name for file in write(report, tmp_path / "new")} == {
        *(f"{name}.{form}" for name in ("shares", "times", "training", "failure") for form in ("svg", "pdf")),
        "sizes.csv", "starts.csv", "training.csv", "failure.csv",
    }
    assert "cold start" in (tmp_path / "new" / "shares.svg").read_text()
    failure = (tmp_path / "new" / "failure.csv").read_text().splitlines()
    assert [line.split(",")[-1] for line in failure] == ["plane", "cut", "cut", "up"]
    for rows in tables(report).values():
        assert {len(row) for row in rows} == {len(rows[0])}


def test_figures_are_medians_of_the_turns_own_ratios() -> None:
    """A ratio compares neighbouring turns, so that a machine that is slow for a while does not change it."""
    row = figures([[1.0, 2.0, 0.8], [10.0, 20.0, 8.0], [1.0, 2.0, 0.9]])
    assert row.single == [1.0, 2.0]
    assert row.together == pytest.approx(0.9)
    assert row.of_best == pytest.approx(0.8)
    assert row.speedup == pytest.approx(1.25)
    assert row.of_sum == pytest.approx((1 / 0.8) / (1 / 1.0 + 1 / 2.0))


def test_the_best_rail_is_one_rail() -> None:
    """The best rail is the one with the best median, not the faster one of each turn."""
    row = figures([[1.0, 2.0, 1.5], [2.0, 1.0, 1.5], [1.6, 1.5, 1.5], [1.4, 1.5, 1.5], [1.5, 1.5, 1.5]])
    assert row.of_best == pytest.approx(1.0)
    assert row.quartiles == [pytest.approx(1.5 / 1.6), pytest.approx(1.5 / 1.4)]
    assert row.turns == 5


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=200)
def test_a_small_run_measures_cuts_and_writes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has three starts, both rails alone and together, and a plane that failed; all sums are right.

    Over Multipath TCP, each connection has a subflow on either plane, both carry data, and the table has them."""
    for charts in ("bar_charts", "line_charts"):  # the test above draws all figures
        monkeypatch.setattr(rails_figures, charts, lambda *_, **__: [])
    multipath = needs.missing("mptcp") is None
    done = CliRunner().invoke(app, [
        "bench", "rails", "-b", "256K", "-e", "256K", "--rounds", "1", "--ranks", "2", "--cuts", "0.5", "--cut-bytes",
        "2M", "--stall", "0.5", "--rows", str(tmp_path / "rails.json"), "--train", "1", "--width", "16", "--series",
        "6", "--out", str(tmp_path), *(["--mptcp"] if multipath else []),
    ])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "rails.json").read_text())
    assert [row["nbytes"] for row in result["rows"]] == [262144]
    assert len(result["rows"][0]["single"]) == 2
    assert [(start["name"], len(start["first"])) for start in result["starts"]] == [
        ("cold", 4), ("hot", 4), ("known", 4),
    ]
    assert all(0.9 < sum(row["shares"]) < 1.1 and len(row["processor"]) == 3 for row in result["rows"])
    assert all(len(start["before"]) == len(start["after"]) == 1 for start in result["starts"])
    assert result["cuts"][0]["wrong"] == result["rows"][0]["wrong"] == 0
    assert result["cuts"][0]["back"] > 0
    assert [call["wrong"] for call in result["death"]["calls"]] == [0] * 6
    assert all(row["alike"] and row["samples"] > 0 for row in result["training"])
    assert [row["way"] for row in result["training"]] in (["innet@a", "tcp@b", "together", "gloo"], [])
    assert (tmp_path / "failure.csv").exists()
    if multipath:
        row = result["rows"][0]["mptcp"]
        assert (row["subflows"], row["wrong"]) == (1, 0)
        assert min(row["shares"]) > 0.05
        assert row["seconds"] > 0
        with (tmp_path / "sizes.csv").open() as table:
            line = next(csv.DictReader(table))
        assert line["subflows of Multipath TCP"] == "2"
        assert float(line["Multipath TCP ms"]) == pytest.approx(row["seconds"] * 1e3, abs=1e-3)

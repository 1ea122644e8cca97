# SPDX-License-Identifier: Apache-2.0
"""`netfold bench growth`: its points, its figures, and small runs of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.bench.growth import fabric, figures, program
from netfold.bench.growth.controller import STAGES, ControllerRow
from netfold.bench.growth.fabric import FabricRow
from netfold.bench.options.sums import GrowthOptions
from netfold.bench.scripts import rows
from netfold.cli.app import app
from softswitch.compiler.driver import compile_source
from support.sandboxes.topo import in_sandbox

ROW = FabricRow("innet", "softswitch", 8, 1 << 20, "float32", "sum", 32, 1024, 0.01, 0.01, 0.02, 1e8, 1.75e8, "1gbit",
                0.93, 0.002, 0.004, 0.5, 0, 0, "", "", "link", "a machine", 1.0, 1, "innet")


def test_a_figure_says_what_was_the_limit() -> None:
    """Each tick names what limited the folding there, and each line has a value where there was a run."""
    gloo = msgspec.structs.replace(ROW, algorithm="gloo", series="gloo", seconds=0.02, limited_by="neither")
    large = msgspec.structs.replace(ROW, nbytes=4 << 20, limited_by="processor")
    (time, cost), x = fabric.charts("sizes", [ROW, gloo, large])

    assert time[0].ticks == ["1M\nlink", "4M\nprocessor"]
    assert time[0].series == {"innet": [10.0, 10.0], "gloo": [20.0, None]}
    assert [round(value or 0, 3) for value in cost[0].series["innet"]] == [5.722, 1.431]
    assert "limited innet" in x


def test_rows_of_tables_name_their_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a benchmark wrote becomes a row with gloo beside it, below its machine."""
    gloo = msgspec.structs.replace(ROW, algorithm="gloo", seconds=0.02, switch_cpu_seconds=0.0)
    (tmp_path / "rows.json").write_bytes(msgspec.json.encode([ROW, gloo]))

    assert rows.main([str(tmp_path / "rows.json")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "a machine"
    assert said[-1] == (
        "| 8, 1gbit, 32 bit, 1024 | 1M | 10 (10..20) | 20 (10..20) | 2.00 | 93% | 50% | 1.9 + 3.8 | 1.9 | link |")


def test_every_point_can_be_measured() -> None:
    """Ranks are spread evenly over the leaves of each point's fabric, and its algorithms are known ones."""
    for points in (*fabric.POINTS.values(), *fabric.QUICK.values()):
        for point in points:
            assert point.ranks % point.leaves == 0
            assert set(point.algorithms) <= {"innet", "gloo", "ring@bridge"}


def test_generated_programs_are_p4() -> None:
    """A generated program has the tables that it was asked for."""
    compiled = compile_source(program.source(3), "generated.p4")

    assert [table.preamble.alias for table in compiled.p4info.tables] == ["t_0", "t_1", "t_2"]


def test_figures_that_there_are_not_are_refused(tmp_path: Path) -> None:
    """A wrong name, and a file that was never measured, are said with what was expected."""
    with pytest.raises(ValueError, match="--what nonsense: expected some of ranks, sizes"):
        GrowthOptions(what="nonsense")
    (tmp_path / "growth-ranks.json").write_text("[{}]")
    with pytest.raises(ValueError, match="expected what `netfold bench growth --what ranks` writes"):
        figures.run(GrowthOptions(what="ranks", out=tmp_path, draw=True))


@pytest.mark.needs("matplotlib")
@in_sandbox(timeout=200)
def test_quick_figures_are_measured_and_drawn(tmp_path: Path) -> None:
    """A small run of a fabric and of a controller leaves rows and figures, and they can be drawn again."""
    done = CliRunner().invoke(app, ["bench", "growth", "--out", str(tmp_path), "--quick", "--what",
                                    "credits,controller,jobs", "--rate", "none"])

    assert done.exit_code == 0, done.output
    (row,) = msgspec.json.decode((tmp_path / "growth-credits.json").read_bytes(), type=list[FabricRow])
    assert (row.credits, row.rate, row.link_fraction, row.wrong) == ("1x16", "", 0.0, 0)
    (scale,) = msgspec.json.decode((tmp_path / "growth-controller.json").read_bytes(), type=list[ControllerRow])
    assert scale.switches == 4
    assert scale.entries > 0
    assert min(scale.link_updates, scale.leaf_link_updates, scale.spine_updates) > 0, "the job's trees move each time"
    assert scale.probes_sent == 8, "over four links between switches, both ways"
    assert scale.restart_updates == 0, "all is in place"
    assert list(scale.stalls) == list(STAGES)
    assert all(0 < stall.callback_seconds <= stall.seconds and stall.callback for stall in scale.stalls.values())
    (job,) = msgspec.json.decode((tmp_path / "growth-jobs.json").read_bytes(), type=list[ControllerRow])
    assert job.ranks == 8
    assert job.answers > 8 * 8 * len("10.0.1.1"), "each rank is told all ranks' addresses"
    assert "ranks of the job" in (tmp_path / "growth-jobs.svg").read_text()
    figure = (tmp_path / "growth-controller.svg").read_text()
    assert "anew after a spine" in figure
    figures.run(GrowthOptions(what="controller", out=tmp_path, draw=True), echo=lambda line: None)
    assert (tmp_path / "growth-controller.svg").read_text() == figure

# SPDX-License-Identifier: Apache-2.0
"""`netfold bench rails`: its options, its figures, and one small run of all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from netfold.bench.commands.rails import _row, spec

OPTIONS: dict[str, Any] = {
    "rails": "innet@a+tcp@b", "rates": "100mbit,50mbit", "begin": "4K", "end": "1M", "factor": 16, "rounds": 1,
    "ranks": 4, "topo": "1,0", "engine": "softswitch", "cuts": "0.5", "cut_bytes": "2M", "timeout": 30.0,
}


def test_options_become_sizes_rates_and_cuts() -> None:
    """Sizes grow by the factor, and parts of a call are numbers; there may be no cut at all."""
    wanted = spec(**OPTIONS)
    assert wanted.sizes == (4096, 65536, 1 << 20)
    assert (wanted.rates, wanted.cuts, wanted.cut_bytes) == (("100mbit", "50mbit"), (0.5,), 2 << 20)
    assert spec(**OPTIONS | {"cuts": ""}).cuts == ()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rates", "100mbit", "as many rates"),
        ("rates", "100mbit,fast", "--rates"),
        ("cuts", "1.5", "between 0 and 1"),
        ("cuts", "half", "--cuts half: expected parts"),
        ("topo", "2", "LEAVES,SPINES"),
        ("begin", "2M", "expected sizes"),
        ("cut_bytes", "much", "--cut-bytes much"),
    ],
)
def test_what_cannot_be_is_refused_by_name(option: str, value: str, message: str) -> None:
    """Each mistake names its option."""
    with pytest.raises(ValueError, match=message):
        spec(**OPTIONS | {option: value})


def test_figures_are_medians_of_the_turns_own_ratios() -> None:
    """A ratio compares neighbouring turns, so that a machine that is slow for a while does not change it."""
    row = _row(100, [[1.0, 2.0, 0.8], [10.0, 20.0, 8.0], [1.0, 2.0, 0.9]], 0, "")
    assert row.single == [1.0, 2.0]
    assert row.together == pytest.approx(0.9)
    assert row.of_best == pytest.approx(0.8)
    assert row.speedup == pytest.approx(1.25)
    assert row.of_sum == pytest.approx((1 / 0.8) / (1 / 1.0 + 1 / 2.0))


def test_the_best_rail_is_one_rail() -> None:
    """The best rail is the one with the best median, not the faster one of each turn."""
    row = _row(100, [[1.0, 2.0, 1.5], [2.0, 1.0, 1.5], [1.6, 1.5, 1.5], [1.4, 1.5, 1.5], [1.5, 1.5, 1.5]], 0, "")
    assert row.of_best == pytest.approx(1.0)
    assert row.quartiles == [pytest.approx(1.5 / 1.6), pytest.approx(1.5 / 1.4)]
    assert row.turns == 5


@pytest.mark.netns
@pytest.mark.needs("namespaces", "mininet")
@pytest.mark.timeout(150)
def test_a_small_run_measures_cuts_and_writes_rows(tmp_path: Path) -> None:
    """The report has three starts, both rails alone and together, and a plane that failed; all sums are right."""
    file = tmp_path / "rails.json"
    command = [
        sys.executable, "-m", "netfold.cli", "bench", "rails", "-b", "64K", "-e", "64K", "--rounds", "1",
        "--ranks", "2", "--cuts", "0.5", "--cut-bytes", "2M", "--json", str(file),
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(file.read_text())
    assert [row["nbytes"] for row in result["rows"]] == [65536]
    assert len(result["rows"][0]["single"]) == 2
    assert [(start["name"], len(start["first"])) for start in result["starts"]] == [
        ("cold", 4), ("hot", 4), ("known", 4),
    ]
    assert result["cuts"][0]["wrong"] == result["rows"][0]["wrong"] == 0
    assert result["cuts"][0]["back"] > 0

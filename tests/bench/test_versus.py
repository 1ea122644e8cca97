# SPDX-License-Identifier: Apache-2.0
"""Two checkouts in one interleaved run: who takes a turn when, and what the table makes of the rows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from netfold.bench.harness import paced
from netfold.bench.harness.limits import limited_by
from netfold.bench.scripts import versus


@dataclass(frozen=True)
class Spec:
    """Of a benchmark's options those that a paced run looks at."""

    sizes: tuple[int, ...] = (1, 2)
    algorithms: str = "innet,auto"
    ways: tuple[str, ...] = ("innet", "auto")
    rounds: int = 7


def test_every_size_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A size begins when a line has come, and what is left is said before each and after the last."""
    asked = []

    def run(spec: Any, echo: Any) -> Any:
        echo("# 4 ranks; fabric 2 x 2")
        echo("#      bytes  algorithm")
        for size in spec.sizes:
            asked.append(f"measured {size}")
            for name in spec.ways:
                echo(f"  {size} {name}")
            echo("#   auto took innet")
        return spec

    class Asking:
        def readline(self) -> str:
            asked.append("asked")
            return "\n"

    monkeypatch.setattr(sys, "stdin", Asking())
    spec = paced.in_turns(run, 2)(Spec())

    assert spec.rounds == 1
    assert asked == ["asked", "measured 1", "asked", "measured 2"] * 2
    assert capsys.readouterr().out.split("\n") == [f"@turn {left}" for left in (4, 3, 2, 1, 0)] + [""]


def row(nbytes: int, seconds: float, cpu: float) -> dict[str, Any]:
    """What an older checkout writes, as far as the table needs it."""
    return {"nbytes": nbytes, "seconds": seconds, "cpu_seconds": cpu / 2, "switch_cpu_seconds": cpu / 2,
            "link_fraction": 0.5, "machine_busy": 0.95, "wrong": 0}


def test_ratios_are_those_of_each_round() -> None:
    """A round in which the machine was twice as slow leaves the ratios as they are."""
    rows = {
        versus.Key(1000, "gloo", "this"): [row(1000, 0.3, 1.0), row(1000, 0.6, 2.0)],
        versus.Key(1000, "innet", "other"): [row(1000, 0.4, 4.0), row(1000, 0.8, 8.0)],
        versus.Key(1000, "innet", "this"): [row(1000, 0.1, 1.0), row(1000, 0.2, 2.0)],
    }
    _, gloo, _, ours = versus.table(rows)

    assert "gloo / it 3.00 (3.00..3.00); it / other: time 0.25 (0.25..0.25), cpu 0.25 (0.25..0.25)" in ours
    assert "150.00 (100.00..200.00)" in ours
    assert " processor " in ours
    assert "other" not in gloo


def test_the_limit_is_what_is_nearly_used_up() -> None:
    """A figure names the link or the processor where that had nothing left to give, and none where both waited."""
    assert [limited_by(*used) for used in ((0.93, 0.5), (0.5, 0.95), (0.93, 0.95), (0.5, 0.5))] == [
        "link", "processor", "both", "neither"]


def test_an_algorithm_is_left_to_one_checkout() -> None:
    """gloo, which is the same in both checkouts, runs with one of them unless it is all that is asked for."""
    assert versus.without(["-b", "1M", "--algos", "innet,gloo"], "gloo") == ["-b", "1M", "--algos", "innet"]
    assert versus.without(["--algorithms", "gloo"], "gloo") == ["--algorithms", "gloo"]


OLD_BENCH = """
import json as j
from dataclasses import dataclass
@dataclass(frozen=True)
class Spec:
    sizes: tuple = (4096, 8192)
    algorithms: tuple = ("innet",)
    rounds: int = 3
def run(spec, json, echo=print):
    echo("# 2 ranks")
    echo("#      bytes  algorithm")
    rows = []
    for size in spec.sizes:
        echo(f"  {size}  innet")
        rows.append({"nbytes": size, "algorithm": "innet", "rounds": spec.rounds})
        json.write_text(j.dumps(rows))
"""
OLD_COMMAND = """
import sys
from pathlib import Path
from netfold.bench.commands import allreduce
def main(on_interrupt):
    assert sys.argv[1:3] == ["bench", "allreduce"], sys.argv
    allreduce.run(allreduce.Spec(), Path(sys.argv[-1]))
"""


def test_an_older_checkout_takes_its_turns(tmp_path: Path) -> None:
    """A checkout whose benchmark takes the file of rows apart from its options is measured as it stands."""
    old, scratch = tmp_path / "old", tmp_path / "scratch"
    files = {"netfold/__init__.py": "", "netfold/bench/__init__.py": "", "netfold/bench/commands/__init__.py": "",
             "netfold/cli/__init__.py": "", "netfold/bench/commands/allreduce.py": OLD_BENCH,
             "netfold/cli/app.py": OLD_COMMAND}
    for name, text in files.items():
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        (old / name).write_text(text)
    scratch.mkdir()
    other = versus.Checkout("other", old, 2, ["--rate", "none"], scratch)
    try:
        assert [other.await_turn(), *(other.take_turn() for _ in range(4))] == [4, 3, 2, 1, 0]
        rows = other.finish()
    finally:
        other.end()

    assert [(row["nbytes"], row["rounds"]) for row in rows] == [(size, 1) for size in (4096, 8192) * 2]

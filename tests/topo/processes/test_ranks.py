# SPDX-License-Identifier: Apache-2.0
"""Processes of ranks: their output, and what is said of those that fail, hang or had wrong data."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from netfold.topo.processes import ranks as ranks_module
from netfold.topo.processes.failures import EXIT_WRONG_DATA, RankFailed, WrongData
from netfold.topo.processes.ranks import Ranks, state_of
from switch_support.ports import wait_for


def processes(*commands: str, tmp_path: Path) -> Ranks:
    ranks = Ranks("job")
    for rank, command in enumerate(commands):
        log = tmp_path / f"rank{rank}.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=errors)
        ranks.add(process, f"h{rank + 1}", log)
    return ranks


def test_lines_of_all_ranks_come_as_they_are_said(tmp_path: Path) -> None:
    """Output comes in whole lines, each with its rank."""
    ranks = processes("echo a; echo b", "printf 'c\\nd\\n'", tmp_path=tmp_path)
    assert sorted(ranks.lines(within=20)) == [(0, "a"), (0, "b"), (1, "c"), (1, "d")]


def test_a_failing_rank_ends_the_others_and_shows_its_log(tmp_path: Path) -> None:
    """When one rank fails, the others are ended, and the error has the end of its log."""
    ranks = processes("exec sleep 600", "echo broken >&2; exit 4", tmp_path=tmp_path)
    with pytest.raises(RankFailed, match=r"rank 1 on h2 ended with status 4\n.*\n    broken"):
        ranks.wait(within=20)
    assert all(process.poll() is not None for process in ranks.processes)


def test_a_rank_with_wrong_data_is_told_apart_from_those_that_lose_it(tmp_path: Path) -> None:
    """Its exit status becomes WrongData with the end of its log, even where another rank has failed before it."""
    os.mkfifo(tmp_path / "gone")
    slow_exit = f"exec {sys.executable} -c 'raise SystemExit({EXIT_WRONG_DATA})'"
    wrong = f"read line < {tmp_path}/gone; echo 'sum 3 is wrong' >&2; {slow_exit}"
    ranks = processes(f"echo > {tmp_path}/gone; exit 1", wrong, tmp_path=tmp_path)
    with pytest.raises(WrongData, match=r"rank 1 on h2 received wrong data\n.*\n    sum 3 is wrong") as caught:
        ranks.wait(within=20)
    assert not isinstance(caught.value, RankFailed)
    assert all(process.poll() is not None for process in ranks.processes)


def test_ranks_that_take_too_long_are_ended_and_named(tmp_path: Path) -> None:
    """The limit holds for ranks without output as well, and the error names them."""
    ranks = processes("exec sleep 600", "true", tmp_path=tmp_path)
    assert ranks.processes[1].wait(30) == 0
    with pytest.raises(RankFailed, match=r"after 0\.5 s the ranks 0 \(h1\) had not ended"):
        ranks.wait(within=0.5)
    assert all(process.poll() is not None for process in ranks.processes)


def test_a_rank_that_hangs_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error holds the state of its process and the stack of its threads, for what cannot be watched."""
    stuck = "import threading, sys\ndef in_vain():\n  print(1, flush=True); threading.Event().wait()\nin_vain()"
    ranks = processes(f"exec {sys.executable} -X faulthandler -c '{stuck}'", "true", tmp_path=tmp_path)
    late = 0.0
    monkeypatch.setattr(ranks_module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + late))
    lines = ranks.lines(within=60)
    assert next(lines) == (0, "1")
    wait_for(lambda: state_of(ranks.processes[0].pid).startswith("S"))
    late = 60.0
    with pytest.raises(RankFailed, match=r"rank 0, S \(sleeping\):\n(.*\n)*.* in in_vain\n"):
        list(lines)

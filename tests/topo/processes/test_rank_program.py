# SPDX-License-Identifier: Apache-2.0
"""Wrong data in a rank's program: it is found out, also under `python -O`, and has an exit status of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from netfold.bench.ranks.loss import LossTask
from netfold.bench.ranks.recovery import RecoveryTask
from netfold.bench.ranks.soak import SoakTask
from netfold.topo.processes.failures import EXIT_WRONG_DATA, WrongData
from netfold.topo.processes.rank_program import check_data, run_rank

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = [*sorted((ROOT / "bench" / "ranks").rglob("*.py")), ROOT / "topo" / "processes" / "allreduce_rank.py",
            ROOT / "demo" / "train.py"]
OWN_DATA = """
import runpy, sys, types
import netfold

class OwnData:
    '''A communicator of two ranks whose allreduce gives every rank its own data back.'''
    rank, size, shared_memory_rate = 0, 2, 0.0
    plan = types.SimpleNamespace(round=0)
    def __enter__(self): return self
    def __exit__(self, *error): {close}
    def stats(self): return types.SimpleNamespace(by_tree={{}}, retransmissions=0, packets_sent=0)
    def barrier(self): pass
    def allreduce(self, source, out=None, algorithm=None):
        if out is not None: out[...] = source
    def all_to_all(self, words): return self.size * words  # what rank 0 of bench/ranks/soak.py is to get

netfold.init = lambda **settings: OwnData()
module, task = sys.argv[1:]
sys.argv = [module, task]
runpy.run_module(module, run_name="__main__")
"""
TASKS = {
    "loss": LossTask(1000, 2),
    "recovery": RecoveryTask(1000, 0.0),
    "soak": SoakTask(1, 1000, "/nonexistent"),
}


def run_program(name: str, optimize: str, close: str = "pass") -> subprocess.CompletedProcess[str]:
    """Run the program of a benchmark's rank with a communicator whose sums are wrong."""
    return subprocess.run(
        [sys.executable, "-c", OWN_DATA.format(close=close), f"netfold.bench.ranks.{name}",
         msgspec.json.encode(TASKS[name]).decode()],
        env={**os.environ, "PYTHONOPTIMIZE": optimize}, capture_output=True, text=True, timeout=60, check=False,
    )


@pytest.mark.parametrize("name", TASKS)
def test_a_wrong_sum_is_found_out_without_assertions(name: str) -> None:
    """Under `python -O` a rank whose sums are wrong says so and ends with the status of wrong data."""
    ended = run_program(name, "1")
    assert ended.returncode == EXIT_WRONG_DATA, ended.stderr
    assert "WrongData: rank 0, " in ended.stderr
    assert "elements are wrong, the first at index" in ended.stderr


def test_wrong_data_is_not_hidden_by_an_error_of_closing() -> None:
    """Where closing the communicator fails as well, the status is still that of wrong data."""
    ended = run_program("loss", "", close="raise OSError('the controller is gone')")
    assert ended.returncode == EXIT_WRONG_DATA, ended.stderr
    assert "OSError: the controller is gone" in ended.stderr


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_programs_of_ranks_check_nothing_by_assert_statements(program: Path) -> None:
    """What `python -O` would leave out is not there."""
    asserts = [node.lineno for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, ast.Assert)]
    assert not asserts


def test_the_message_says_what_is_wrong_and_where() -> None:
    """Rank, operation, how many of how many elements, the first index, expected and got."""
    got = np.array([1, 2, 9, 4, 7], np.int32)
    with pytest.raises(WrongData) as caught:
        check_data(got, [1, 2, 3, 4, 5], rank=3, operation="sum 8")
    assert str(caught.value) == (
        "rank 3, sum 8: 2 of 5 elements are wrong, the first at index 2: expected 3, got 9"
    )


@pytest.mark.parametrize(("got", "expected", "tolerance"), [
    ([1.0, 2.0], [1.0, 2.5], 0.25),
    ([1.0, np.nan], [1.0, 2.0], 0.25),
    ([1.0, np.nan], [1.0, 2.0], 0),
    ([1.0, 2.0], [1.5, 2.0], np.array([0.25, 1.0])),
    ([5.0, 5.0], [5.0], 0),
    ([5.0, 6.0], 5.0, 0),
])
def test_what_differs_by_more_than_the_tolerance_is_wrong(
    got: list[float], expected: float | list[float], tolerance: float
) -> None:
    """Per element; no NaN is right, and no shape is stretched."""
    with pytest.raises(WrongData):
        check_data(np.array(got), expected, rank=0, operation="sum 1", tolerance=tolerance)


def test_what_is_within_the_tolerance_is_right() -> None:
    """Equal arrays, one number for all elements, differences of exactly the tolerance, and nothing at all."""
    check_data(np.array([1, 2]), [1, 2], rank=0, operation="sum 1")
    check_data(np.array([5, 5]), 5, rank=0, operation="sum 1")
    check_data(np.array([1.0, 2.0]), [1.25, 1.75], rank=0, operation="sum 1", tolerance=0.25)
    check_data(np.empty(0), 5, rank=0, operation="sum 1")


def test_other_errors_of_a_program_stay_what_they_are() -> None:
    """Only wrong data has the status of wrong data."""
    with pytest.raises(ZeroDivisionError):
        run_rank(lambda: 1 / 0)

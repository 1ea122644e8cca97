# SPDX-License-Identifier: Apache-2.0
"""Rows of simulations that survive an interruption."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from netfold.sim.sweeps.kept import Progress, simulate_all


@dataclass(frozen=True)
class Squared:
    """A row: two arguments, and what came of them."""

    name: str
    number: int
    square: float


def run(path: Path, numbers: list[int], *, resume: bool, fails_at: int = -1, said: list[str] | None = None
        ) -> tuple[list[Squared], list[int], str]:
    """Rows, the numbers that were computed, and what was said."""
    computed: list[int] = []
    said = [] if said is None else said

    def square(name: str, number: int) -> Squared:
        if number == fails_at:
            raise KeyboardInterrupt
        computed.append(number)
        return Squared(name, number, float(number**2))

    rows = simulate_all(path, Squared, square, [("a", number) for number in numbers], key=2, resume=resume, jobs=1,
                        echo=said.append)
    return rows, computed, "\n".join(said)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Rows before the interruption are in the file, are not computed again, and the file ends in the order asked for;
    without resume everything is computed again."""
    path = tmp_path / "rows.csv"
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run(path, [3, 1, 2], resume=False, fails_at=2, said=told)
    assert told[-1] == (f"interrupted: 2 of 3 simulations are kept in {path}; the same command with --resume goes on "
                        "from there")
    assert path.read_text() == "name,number,square\na,3,9.0\na,1,1.0\n"
    path.write_text(path.read_text() + "a,2,4")  # a line that was not written to its end
    rows, computed, said = run(path, [1, 2, 3], resume=True)
    assert computed == [2]
    assert rows == [Squared("a", 1, 1.0), Squared("a", 2, 4.0), Squared("a", 3, 9.0)]
    assert path.read_text() == "name,number,square\na,1,1.0\na,2,4.0\na,3,9.0\n"
    assert "3 simulations, 2 of them done" in said
    assert "3/3, about 0 s left: name=a number=2 square=4" in said
    assert run(path, [1, 2, 3], resume=False)[1] == [1, 2, 3]


@pytest.mark.parametrize("text", ["other,columns\n1,2\n", "name,number,square\na,1\n", "name,number,square\na,b,1.0\n"])
def test_a_file_of_something_else_is_not_taken_over(tmp_path: Path, text: str) -> None:
    """Other columns, missing cells and what is no number are refused with the file's name, and the file stays."""
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"rows\.csv.*without --resume"):
        run(path, [1], resume=True)
    assert path.read_text() == text


def test_what_is_left_takes_as_long_as_what_this_run_has_done() -> None:
    """Rows that were there before count as done, and not for the estimate."""
    ticks = iter([0.0, 2.0, 6.0, 9.0])
    progress = Progress(10, 7, clock=lambda: next(ticks))
    assert [progress.step() for _ in range(3)] == ["8/10, about 4 s left", "9/10, about 3 s left",
                                                   "10/10, about 0 s left"]

# SPDX-License-Identifier: Apache-2.0
"""Simulations whose rows are in a CSV as soon as each is done, so that a run that is interrupted goes on from there.

    rows = simulate_all(out / "points.csv", AllreducePoint, point, arguments, key=8, resume=True)
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from netfold.disk import files
from netfold.sim.sweeps.sweep import sweep

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")
_READ: Final[dict[str, Callable[[str], object]]] = {"str": str, "int": int, "float": float,
                                                    "bool": lambda cell: bool(["False", "True"].index(cell))}


class Progress:
    """How many of all simulations are done, and about how long the rest takes."""

    def __init__(self, total: int, done: int, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.total, self.done = total, done
        self._before, self._clock, self._begin = done, clock, clock()

    def step(self) -> str:
        """Count one more and say, for a line of progress, where that leads."""
        self.done += 1
        left = (self._clock() - self._begin) / (self.done - self._before) * (self.total - self.done)
        return f"{self.done}/{self.total}, about {left:.0f} s left"

    @contextmanager
    def kept_in(self, path: Path, echo: Callable[[str], None]) -> Iterator[None]:
        """While rows are written to ``path``: whoever interrupts is told what is kept, and how to go on."""
        try:
            yield
        except KeyboardInterrupt:
            echo(f"interrupted: {self.done} of {self.total} simulations are kept in {path}; the same command with "
                 "--resume goes on from there")
            raise


def simulate_all(path: Path, kind: type[Row], simulate: Callable[..., Row], arguments: Sequence[tuple[object, ...]], *,
                 key: int, resume: bool, jobs: int | None = None, echo: Callable[[str], None] = print) -> list[Row]:
    """The row of each of ``arguments``, in order; the file at ``path`` has in the end exactly these.

    kind, simulate   rows are of this class, whose first ``key`` fields are the arguments that `simulate` takes
    resume           take over rows that the file has; else it is written anew
    jobs             processes; None: as joblib is configured, else all cores
    echo             receives a line for each row, with the number that are done and how long the rest may take
    Raises ValueError where the file has other rows than ``kind``, OSError where it cannot be read or written.
    """
    names = [field.name for field in fields(kind)]
    done = {astuple(row)[:key]: row for row in (_read(path, kind) if resume else [])}
    todo = [one for one in dict.fromkeys(arguments) if one not in done]
    files.replace(path, _lines([names, *map(astuple, done.values())]))
    progress = Progress(len(arguments), len(arguments) - len(todo))
    echo(f"{progress.total} simulations, {progress.done} of them done")
    with files.append(path) as file, progress.kept_in(path, echo):
        for row in sweep(partial(_call, simulate), todo, jobs=jobs, echo=echo):
            done[astuple(row)[:key]] = row
            file.write(_lines([astuple(row)]))
            file.flush()
            said = " ".join(f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
                            for name, value in zip(names, astuple(row), strict=True))
            echo(f"{progress.step()}: {said}")
    rows = [done[one] for one in arguments]
    files.replace(path, _lines([names, *map(astuple, rows)]))
    return rows


def _read(path: Path, kind: type[Row]) -> list[Row]:
    """The rows of a file, without a last line that was not written to its end; none where there is no file."""
    if not path.exists():
        return []
    whole, _, _ = files.read_text(path).rpartition("\n")
    read = {field.name: _READ[str(field.type)] for field in fields(kind)}
    head, *lines = csv.reader(io.StringIO(whole)) if whole else [list(read)]
    if sorted(head) != sorted(read) or any(len(line) != len(head) for line in lines):
        raise ValueError(f"{path}: expected the columns {', '.join(read)} and a cell for each in all lines, got "
                         f"{', '.join(head)}; run without --resume, or with another --out")
    make: Callable[..., Row] = kind
    try:
        return [make(**{name: read[name](cell) for name, cell in zip(head, line, strict=True)}) for line in lines]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; run without --resume, or with another --out") from None


def _call(simulate: Callable[..., Row], arguments: tuple[object, ...]) -> Row:
    return simulate(*arguments)


def _lines(rows: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()

# SPDX-License-Identifier: Apache-2.0
"""Files of a comparison: rows.jsonl, which has each simulation as soon as it is done, and results.json at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path
from types import TracebackType
from typing import Self

from netfold.sim.claims import ComparisonRow, identity

ROWS = "rows.jsonl"
RESULTS = "results.json"


class Journal:
    """The rows of a comparison, by their points, in memory and in rows.jsonl.

    folder   where the file lies
    rto      seconds of the time-out that all simulations share
    resume   whether the rows of an earlier run are taken over; else the file is written anew
    Raises ValueError where the earlier rows cannot be taken over, OSError where the file cannot be opened.
    """

    def __init__(self, folder: Path, rto: float, *, resume: bool) -> None:
        path = folder / ROWS
        self._rto = rto
        self.rows = _read(path, rto) if resume else {}
        self._file = path.open("a" if resume else "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, row: ComparisonRow) -> None:
        """Append a row to the file at once, so that a run that is interrupted loses nothing."""
        self.rows[identity(row)] = row
        self._file.write(json.dumps({"rto": self._rto, **_jsonable(row)}) + "\n")
        self._file.flush()


def write_results(folder: Path, rows: Sequence[ComparisonRow], about: Mapping[str, object]) -> None:
    """Write results.json: what ``about`` says of the run, and its rows."""
    document = {**about, "rows": [_jsonable(row) for row in rows]}
    (folder / RESULTS).write_text(json.dumps(document, indent=1) + "\n")


def _read(file: Path, rto: float) -> dict[tuple[object, ...], ComparisonRow]:
    """Read the rows of an earlier run. Raises ValueError where the file has others, or another time-out."""
    rows: dict[tuple[object, ...], ComparisonRow] = {}
    for number, line in enumerate(file.read_text().splitlines() if file.exists() else (), 1):
        try:
            fields = json.loads(line)
            if fields.pop("rto") != rto:
                raise ValueError("another time-out")
            row = ComparisonRow(**{**fields, "time": inf if fields["time"] is None else fields["time"]})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}:{number}: no row of a run like this one ({error}); run without resume, or give "
                             "another folder") from error
        rows[identity(row)] = row
    return rows


def _jsonable(row: ComparisonRow) -> dict[str, object]:
    """A row for JSON, which has no infinity: the time of a run that did not finish is null."""
    return {**asdict(row), "time": row.time if isfinite(row.time) else None}

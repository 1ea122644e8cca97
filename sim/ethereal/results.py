# SPDX-License-Identifier: Apache-2.0
"""Files of a comparison: rows.jsonl, which has each simulation as soon as it is done, and at the end results.json,
FABRIC.csv and claims.csv."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from math import inf, isfinite
from pathlib import Path
from types import TracebackType
from typing import Self

from netfold.disk import files
from netfold.sim.ethereal.claims import Claim, ComparisonRow, identity

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
        self._path = folder / ROWS
        self._rto = rto
        self.rows = _read(self._path, rto) if resume else {}
        self._file = (files.append(self._path) if resume else files.create(self._path)).detach()
        self._size = _whole_lines(self._path)
        self._file.truncate(self._size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._file.close()

    def add(self, row: ComparisonRow) -> None:
        """Append a row to the file at once, so that a run that is interrupted loses nothing.

        Raises OSError with the file's name where the disk is full; the file then ends with the row before.
        """
        self.rows[identity(row)] = row
        line = json.dumps({"rto": self._rto, **_jsonable(row)}).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._file.truncate(self._size)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._size += len(line)


def write_results(folder: Path, rows: Sequence[ComparisonRow], about: Mapping[str, object]) -> None:
    """Write results.json: what ``about`` says of the run, and its rows."""
    document = {**about, "rows": [_jsonable(row) for row in rows]}
    files.replace(folder / RESULTS, json.dumps(document, indent=1) + "\n")


def write_tables(folder: Path, rows: Sequence[ComparisonRow], claims: Sequence[Claim]) -> list[Path]:
    """Write FABRIC.csv, the rows of each fabric with no time where a run did not finish, and claims.csv."""
    names = [field.name for field in fields(ComparisonRow)]
    tables: dict[str, list[list[object]]] = {}
    for row in rows:
        tables.setdefault(row.fabric, []).append(["" if value is None else value for value in _jsonable(row).values()])
    written = [_table(folder / f"{Path(fabric).stem}.csv", names, lines) for fabric, lines in tables.items()]
    verdicts = [[claim.says, "yes" if claim.holds else "no", claim.found] for claim in claims]
    return [*written, _table(folder / "claims.csv", ["claim", "holds", "found"], verdicts)]


def _table(path: Path, names: Sequence[str], lines: Iterable[Sequence[object]]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(lines)
    files.replace(path, text.getvalue())
    return path


def _read(file: Path, rto: float) -> dict[tuple[object, ...], ComparisonRow]:
    """Read the rows of an earlier run. Raises ValueError where the file has others, or another time-out."""
    rows: dict[tuple[object, ...], ComparisonRow] = {}
    text = file.read_bytes()[: _whole_lines(file)].decode(errors="replace") if file.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
            if found.pop("rto") != rto:
                raise ValueError("another time-out")
            row = ComparisonRow(**{**found, "time": inf if found["time"] is None else found["time"]})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{file}:{number}: no row of a run like this one ({error}); run without resume, or give "
                             "another folder") from error
        rows[identity(row)] = row
    return rows


def _whole_lines(file: Path) -> int:
    """Bytes of a file up to the end of its last whole line: what follows was cut off by a crash."""
    return file.read_bytes().rfind(b"\n") + 1 if file.exists() else 0


def _jsonable(row: ComparisonRow) -> dict[str, object]:
    """A row for JSON, which has no infinity: the time of a run that did not finish is null."""
    return {**asdict(row), "time": row.time if isfinite(row.time) else None}

# SPDX-License-Identifier: Apache-2.0
"""Rows of the tables in README.md and docs/bench.md, as Markdown, from what benchmarks wrote with --json.

    python bench/scripts/rows.py FILE...        # of netfold bench allreduce, growth, or bench/scripts/versus.py

Rounds of versus.py are put together by their medians.  The machine stands above its table.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from netfold.bench.growth.fabric import in_units
from netfold.bench.harness.limits import limited_by

HEAD = """
| ranks, links, lanes, path MTU | bytes | innet, ms | gloo, ms | gloo / innet | link | busy | CPU s/GB: ranks + switches | gloo | limit |
|---|---|---|---|---|---|---|---|---|---|"""  # noqa: E501
Rows = Sequence[Mapping[str, Any]]


def rows_of(file: Path) -> tuple[str, Rows]:
    """The machine and the rows of a file, of this checkout alone.  Raises ValueError, OSError."""
    found = json.loads(file.read_text())
    rows = found["rows"] if isinstance(found, dict) else found
    rows = [row for row in rows if row.get("checkout", "this") == "this"]
    if not rows or "machine" not in rows[0]:
        raise ValueError(f"{file}: expected rows of `netfold bench allreduce --rows`, which name their machine")
    return rows[0]["machine"], rows


def line(innet: Rows, gloo: Rows) -> str:
    """One row of the table, of all rounds of innet and of gloo at one size."""
    first, gigabytes = innet[0], innet[0]["nbytes"] / 1e9

    def median(rows: Rows, name: str) -> float:
        return statistics.median(float(row[name]) for row in rows)

    def milliseconds(rows: Rows) -> str:
        low, high = min(row["seconds_best"] for row in rows), max(row["seconds_worst"] for row in rows)
        return f"{median(rows, 'seconds') * 1e3:.4g} ({low * 1e3:.4g}..{high * 1e3:.4g})"

    link, busy = median(innet, "link_fraction"), median(innet, "machine_busy")
    beside = ["", "", ""] if not gloo else [
        milliseconds(gloo), f"{median(gloo, 'seconds') / median(innet, 'seconds'):.2f}",
        f"{median(gloo, 'cpu_seconds') / gigabytes:.1f}"]
    cells = [
        f"{first['ranks']}, {first['rate'] or 'not shaped'}, {first['lane_bits']} bit, {first['path_mtu']}",
        in_units(first["nbytes"]), milliseconds(innet), *beside[:2], f"{link:.0%}" if first["rate"] else "",
        f"{busy:.0%}",
        f"{median(innet, 'cpu_seconds') / gigabytes:.1f} + {median(innet, 'switch_cpu_seconds') / gigabytes:.1f}",
        beside[2], limited_by(link, busy),
    ]
    return "| " + " | ".join(cells) + " |"


def main(files: Sequence[str]) -> int:
    """Print a table for each machine."""
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    by_machine: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for file in files:
        machine, rows = rows_of(Path(file))
        by_machine[machine] += rows
    for machine, rows in by_machine.items():
        print(f"\n{machine}\n{HEAD}")
        groups: dict[tuple[Any, ...], dict[str, list[Mapping[str, Any]]]] = {}
        for row in rows:
            key = tuple(row[name] for name in ("ranks", "rate", "path_mtu", "nbytes"))
            groups.setdefault(key, defaultdict(list))[f"{row['algorithm']} {row['lane_bits']}"].append(row)
        for group in groups.values():
            for name, innet in group.items():
                if name.startswith("innet "):
                    print(line(innet, group.get("gloo 32", ())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""This checkout beside another one, and gloo on a plain bridge, in one interleaved run of `netfold bench allreduce`.

    python bench/scripts/versus.py --other DIR [--rounds 5] [--json FILE] -- [OPTION...]
    python bench/scripts/versus.py --other ../old -- --ranks 8 -b 16M -e 16M --rate 1gbit
    python bench/scripts/versus.py --other ../old -- --ranks 4 -b 16M -e 64M --rate none
    python bench/scripts/versus.py --other . --other-options "--path-mtu 1024" -- --path-mtu 4096

Options behind -- are those of `netfold bench allreduce`; --rate none leaves the links unshaped.  Both checkouts start
their fabrics, in sandboxes of their own, and then take turns: the first turn of a round is the one's and the other's
alternately.  gloo runs with this checkout alone, which is all there is without --other.  A checkout is run by the
Python of its .venv where it has one, else by this Python.

Each row has medians over rounds, with least and greatest: time of the slowest rank, processor time of ranks and of
switches for a gigabyte of tensor, part of the link, share of all cores that was busy, and what limited it.  Ratios are
the medians, least and greatest of the rounds' own ratios, so that other load on the machine concerns both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from netfold.bench.harness import checkouts, paced
from netfold.bench.harness.limits import limited_by, machine
from netfold.disk import files

DEFAULTS = ("--algorithms", "innet,gloo")


class Key(NamedTuple):
    """The key of a row of the table."""

    nbytes: int
    algorithm: str
    checkout: str


Rounds: TypeAlias = Sequence[Mapping[str, Any]]
"""A row of each round."""


class Checkout:
    """A checkout's benchmark, which takes its turns."""

    def __init__(self, name: str, folder: Path, turns: int, options: Sequence[str], scratch: Path) -> None:
        self.name = name
        self._log = scratch / f"{name}.log"
        self._json = scratch / f"{name}.json"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [checkouts.python(folder), paced.__file__, str(turns), *options, "--rows", str(self._json)],
                cwd=folder, env=checkouts.environment(folder), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )

    def await_turn(self) -> int:
        """Wait until the benchmark waits for its next turn, and return how many are left.

        Raises SystemExit with its log when it has ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@turn "):
                return int(line.split()[1])
        self._process.wait()
        raise SystemExit(f"{self.name} ended before its turns were over:\n{self._log.read_text()[-4000:]}")

    def take_turn(self) -> int:
        """Measure one size, wait until that is done, and return how many turns are left."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.await_turn()

    def finish(self) -> list[dict[str, Any]]:
        """Wait until everything has ended, and return the rows of all turns."""
        self._process.communicate()
        found = json.loads(self._json.read_text())
        assert isinstance(found, list)
        return found

    def end(self) -> None:
        """End the benchmark if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate()


def without(options: Sequence[str], algorithm: str) -> list[str]:
    """The options, with one algorithm fewer."""
    found = list(options)
    for at, word in enumerate(found[:-1]):
        if word in ("--algorithms", "--algos"):
            left = [name for name in found[at + 1].split(",") if name != algorithm]
            found[at + 1] = ",".join(left or [algorithm])
    return found


def spread(values: Iterable[float], form: str) -> str:
    """The median, with least and greatest, as text."""
    values = list(values)
    low, high = (f"{value:{form}}" for value in (min(values), max(values)))
    return f"{statistics.median(values):{form}} ({low}..{high})"


def cost(row: Mapping[str, Any]) -> float:
    """Processor seconds of ranks and switches for a gigabyte of tensor."""
    return 1e9 * float(row["cpu_seconds"] + row["switch_cpu_seconds"]) / float(row["nbytes"])


def seconds(row: Mapping[str, Any]) -> float:
    """The time of an operation."""
    return float(row["seconds"])


def ratio(above: Rounds, below: Rounds, of: Callable[[Mapping[str, Any]], float]) -> str:
    """The rounds' ratios of a figure, as text."""
    return spread((of(a) / of(b) for a, b in zip(above, below, strict=True)), ".2f")


def table(rows: Mapping[Key, Rounds]) -> list[str]:
    """The lines of the table: ``rows`` has the row of each round."""
    lines = [f"{'bytes':>10} {'algorithm':<14} {'checkout':<9} {'ms':>24} {'cpu s/GB':>20} {'ranks':>6} "
             f"{'switches':>8} {'link':>5} {'busy':>5} {'limited by':<11} {'repeats':>7} {'wrong':>5}  ratios"]
    for key, ours in rows.items():
        median = {name: statistics.median(row[name] for row in ours)
                  for name in ("cpu_seconds", "switch_cpu_seconds", "link_fraction", "machine_busy")}
        ratios = []
        gloo, other = (rows.get(Key(key.nbytes, name, checkout))
                       for name, checkout in (("gloo", "this"), (key.algorithm, "other")))
        if gloo and key.algorithm != "gloo":
            ratios.append(f"gloo / it {ratio(gloo, ours, seconds)}")
        if other and key.checkout != "other":
            ratios.append(f"it / other: time {ratio(ours, other, seconds)}, cpu {ratio(ours, other, cost)}")
        gigabytes = key.nbytes / 1e9
        lines.append(
            f"{key.nbytes:>10} {key.algorithm:<14} {key.checkout:<9} "
            f"{spread((seconds(row) * 1e3 for row in ours), '.2f'):>24} {spread(map(cost, ours), '.1f'):>20} "
            f"{median['cpu_seconds'] / gigabytes:>6.1f} {median['switch_cpu_seconds'] / gigabytes:>8.1f} "
            f"{median['link_fraction']:>5.0%} {median['machine_busy']:>5.0%} "
            f"{limited_by(median['link_fraction'], median['machine_busy']):<11} "
            f"{statistics.median(row.get('retransmissions', 0) for row in ours):>7.0f} "
            f"{sum(row['wrong'] for row in ours):>5}  {'; '.join(ratios)}")
    return lines


def main() -> int:
    """Measure, print the table, write the JSON, and return 1 where a sum was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="DIR", help="the other checkout; default: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows of all rounds there")
    parser.add_argument("--this-options", default="", metavar="WORDS", help="more options, for this checkout alone")
    parser.add_argument("--other-options", default="", metavar="WORDS", help="more options, for the other one alone")
    parser.add_argument("options", nargs="*", help="of netfold bench allreduce, behind --")
    asked = parser.parse_args()
    if asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected 1 or more")
    options = [*([] if {"--algorithms", "--algos"} & set(asked.options) else DEFAULTS), *asked.options]
    print(f"# {machine()}; load {os.getloadavg()[0]:.1f}; {asked.rounds} rounds; {shlex.join(options)}", flush=True)
    rows: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        running = []
        sides = [("this", checkouts.HERE, [*options, *shlex.split(asked.this_options)])]
        if asked.other:
            sides.append(("other", asked.other.resolve(), [*without(options, "gloo"),
                                                           *shlex.split(asked.other_options)]))
        for name, folder, words in sides:
            running.append(Checkout(name, folder, asked.rounds, words, Path(scratch)))
            stack.callback(running[-1].end)
        turns = {checkout.await_turn() for checkout in running}
        if len(turns) > 1:
            parser.error("the two checkouts measure different numbers of sizes")
        sizes = turns.pop() // asked.rounds
        for number in range(asked.rounds):
            for _ in range(sizes):
                for checkout in running if number % 2 == 0 else running[::-1]:
                    checkout.take_turn()
            print(f"# round {number + 1} of {asked.rounds}; load {os.getloadavg()[0]:.1f}", flush=True)
        for checkout in running:
            for row in checkout.finish():
                rows[Key(row["nbytes"], row["algorithm"], checkout.name)].append(row)
    print("\n".join(table(dict(sorted(rows.items())))))
    if asked.json:
        report = [{"checkout": key.checkout, **row} for key, ours in rows.items() for row in ours]
        files.replace(asked.json,
                      json.dumps({"machine": machine(), "options": options, "rows": report}, indent=1) + "\n")
    return int(any(row["wrong"] for ours in rows.values() for row in ours))


if __name__ == "__main__":
    raise SystemExit(main())

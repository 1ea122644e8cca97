# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of a folder on p4c and softswitch and writes the verdicts.

    PYTHONPATH=tests python -m foreign.run FOLDER --csv docs/programs.csv --details details.jsonl
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from foreign import programs, verdicts

SECONDS = 300.0
"""For one program, both compilers and all of its traffic."""
COLUMNS = ("repository", "commit", "path", "p4c", "ours", "p4info", "traffic")


def judge(program: programs.ForeignProgram, cache: Path | None, seed: int) -> dict[str, Any]:
    """A row of the table, and what the compilers said."""
    row: dict[str, Any] = {"repository": program.repository, "commit": program.commit, "path": program.path}
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        began = time.process_time()
        mine, made = verdicts.ours(program)
        row["cpu"] = round(time.process_time() - began, 2)
        theirs = verdicts.p4c(program, Path(folder))
        row |= {"p4c": theirs.said, "ours": mine.said, "p4info": "", "traffic": ""}
        row |= {"p4c_message": theirs.message, "ours_message": mine.message}
        if mine.p4info is not None and theirs.p4info is not None:
            row["p4info_difference"] = verdicts.difference(mine.p4info, theirs.p4info)
            row["p4info"] = {"": "equal", "order": "order"}.get(row["p4info_difference"], "differs")
            if cache is not None and made is not None:
                from foreign import traffic as frames

                result = frames.compare(made, theirs.p4info, theirs.message, Path(folder), cache,
                                        random.Random(seed))
                row |= {"traffic": result.verdict, "traffic_message": result.message}
    return row


def _worker(pipe: Connection, cache: Path | None, seed: int) -> None:
    os.nice(5)
    while (program := pipe.recv()) is not None:
        pipe.send(judge(program, cache, seed))


class _Worker:
    def __init__(self, cache: Path | None, seed: int) -> None:
        self.pipe, far = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=_worker, args=(far, cache, seed))
        self.process.start()
        far.close()
        self.program: programs.ForeignProgram | None = None
        self.since = 0.0

    def give(self, program: programs.ForeignProgram) -> None:
        self.program, self.since = program, time.monotonic()
        self.pipe.send(program)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def judge_all(
    found: Iterable[programs.ForeignProgram], *, cache: Path | None, seed: int, workers: int
) -> Iterator[dict[str, Any]]:
    """The rows of all programs, as they come; one that takes too long or ends its process is a row that says so.

    cache  a folder for what is built; None: no traffic
    """
    todo = sorted(found, key=lambda program: -program.size)  # the last is the first
    busy: list[_Worker] = []
    try:
        while todo or busy:
            while todo and len(busy) < workers:
                busy.append(_Worker(cache, seed))
                busy[-1].give(todo.pop())
            ready = wait([worker.pipe for worker in busy], timeout=1.0)
            for worker in list(busy):
                late = time.monotonic() - worker.since > SECONDS
                if worker.pipe not in ready and not late:
                    continue
                try:
                    row = worker.pipe.recv() if worker.pipe in ready else None
                except (EOFError, ConnectionResetError):
                    row = None
                assert worker.program is not None
                if row is None:
                    program = worker.program
                    row = {"repository": program.repository, "commit": program.commit, "path": program.path, "p4c": "",
                           "ours": "timeout" if late else "crash", "p4info": "", "traffic": "",
                           "ours_message": "the process ended" if not late else f"not done in {SECONDS:g} s"}
                    worker.end()
                    busy.remove(worker)
                elif todo:
                    worker.give(todo.pop())
                else:
                    worker.end()
                    busy.remove(worker)
                yield row
    finally:
        for worker in busy:
            worker.end()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="checkouts named OWNER+NAME")
    parser.add_argument("--csv", type=Path, help="where the table goes")
    parser.add_argument("--details", type=Path, help="where all that the compilers said goes, a JSON object a line")
    parser.add_argument("--resume", action="store_true", help="take from --details what an earlier run has done")
    parser.add_argument("--traffic", action="store_true", help="run what both take, on BMv2 and on ours")
    parser.add_argument("--only", default="", help="programs with this in OWNER/NAME/PATH")
    parser.add_argument("--seed", type=int, default=1, help="of entries and frames")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    found = [p for p in programs.find(args.folder) if args.only in f"{p.repository}/{p.path}"]
    print(f"{len(found)} programs of {len({p.repository for p in found})} repositories, seed {args.seed}", flush=True)
    rows = []
    if args.resume:
        rows = [json.loads(line) for line in args.details.read_text().splitlines()]
        done = {(row["repository"], row["path"]) for row in rows}
        found = [program for program in found if (program.repository, program.path) not in done]
    details = args.details.open("a" if args.resume else "w") if args.details else None
    with tempfile.TemporaryDirectory(prefix="foreign-cache-") as cache:
        built = Path(cache) if args.traffic else None
        for row in judge_all(found, cache=built, seed=args.seed, workers=args.workers):
            rows.append(row)
            if details:
                details.write(json.dumps(row) + "\n")
                details.flush()
    rows.sort(key=lambda row: (row["repository"], row["path"]))
    if args.csv:
        with args.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    for (p4c, ours), number in sorted(Counter((row["p4c"], row["ours"]) for row in rows).items()):
        print(f"p4c {p4c:8} ours {ours:8} {number}")
    print("p4info", dict(Counter(row["p4info"] for row in rows)), "traffic", dict(Counter(r["traffic"] for r in rows)))


if __name__ == "__main__":
    main()

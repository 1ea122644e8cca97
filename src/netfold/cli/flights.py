# SPDX-License-Identifier: Apache-2.0
"""Compares the flight recorders of all ranks: where each one is, which are behind, and which wrote no file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from netfold.disk import files
from netfold.wire.flight import Dump

MOST_BYTES: Final = 64 << 20
"""Bytes of a rank's file at most, which keeps a bounded number of operations (host/tracing/flight.py)."""


def read(folder: Path) -> list[Dump]:
    """Read all files of a folder, in order of jobs and ranks.  Raises ValueError for a file of another kind."""
    dumps = []
    for path in sorted(folder.glob("*.json")):
        try:
            dumps.append(msgspec.json.decode(files.read(path, MOST_BYTES, regular=True), type=Dump))
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"{path}: no file of a flight recorder: {error}") from error
    return sorted(dumps, key=lambda dump: (dump.job, dump.rank))


def compare(dumps: list[Dump]) -> list[str]:
    """Lines that say where each rank of each job is, and which ranks are behind or have no file."""
    lines: list[str] = []
    for job in dict.fromkeys(dump.job for dump in dumps):
        ranks = {dump.rank: dump for dump in dumps if dump.job == job}
        world = max(dump.world for dump in ranks.values())
        lines.append(f"job {job}, {world} ranks")
        for rank, dump in sorted(ranks.items()):
            lines.append(f"  rank {rank} ({dump.host}, {dump.pid}): {_where(dump)}")
        silent = [rank for rank in range(world) if rank not in ranks]
        if silent:
            lines.append(f"  nothing of rank {', '.join(map(str, silent))}: dead, or not asked")
        last = {
            rank: max((operation.number for operation in dump.operations if not operation.group), default=0)
            for rank, dump in ranks.items()
        }
        behind = [rank for rank, number in last.items() if number < max(last.values())]
        if behind:
            lines.append(f"  behind the others, which are at operation {max(last.values())}: rank "
                         f"{', '.join(map(str, behind))}")
    return lines


def _where(dump: Dump) -> str:
    if not dump.operations:
        return "no operation yet"
    last = dump.operations[-1]
    what = " ".join(word for word in (last.group, last.name, last.op, last.dtype) if word)
    seconds = (last.end or dump.time) - last.begin
    return (f"operation {last.number} ({what}, {last.nbytes} bytes, {last.path or 'no path yet'}) {last.state}"
            f"{' for' if last.state == 'running' else ' after'} {seconds:.3f} s"
            f"{', ' + str(last.retransmissions) + ' retransmissions' if last.retransmissions else ''}"
            f"{': ' + last.error.splitlines()[0] if last.error else ''}")


# SPDX-License-Identifier: Apache-2.0
"""Reads recordings of a training, of one rank or of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from netfold.disk import files
from netfold.sim.whatif.program import TraceError
from netfold.wire.training_trace import RankTrace, TracedStep

MOST_BYTES: Final = 256 << 20
"""Bytes of one file at most."""
MOST_FILES: Final = 4096


def read(paths: Sequence[Path]) -> list[RankTrace]:
    """The recordings in files, or in all .json files of folders; PATH stands for PATH.rankN.json as well, as
    `netfold.torch.record` was given it.

    Raises TraceError, and OSError for files that cannot be read.
    """
    found = [file for path in paths for file in _files(path)]
    if not 0 < len(found) <= MOST_FILES:
        raise TraceError(f"{', '.join(map(str, paths))}: {len(found)} files: expected 1 to {MOST_FILES}")
    return [_read(file) for file in found]


def seconds_of_a_step(recorded: Sequence[RankTrace]) -> float:
    """Seconds of a step, the mean over all ranks and steps."""
    spans = [(steps[-1] - steps[0], len(steps) - 1) for trace in recorded
             if len(steps := [event.begin for event in trace.events if isinstance(event, TracedStep)]) > 1]
    return sum(span for span, _ in spans) / max(1, sum(number for _, number in spans))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.json"))
    if path.exists():
        return [path]
    return sorted(path.parent.glob(f"{_literal(path.stem)}.rank*{_literal(path.suffix or '.json')}")) or [path]


def _literal(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _read(path: Path) -> RankTrace:
    try:
        return msgspec.json.decode(files.read(path, MOST_BYTES), type=RankTrace)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{path}: {error}; expected a file of `netfold.torch.record`") from None

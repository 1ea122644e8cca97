# SPDX-License-Identifier: Apache-2.0
"""Reads recordings of a training, of one rank or of all: those of `netfold.torch.record`, PyTorch's execution traces
with the profiler's traces beside them, and Chakra's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from netfold.disk import files
from netfold.sim.whatif import chakra, pytorch
from netfold.sim.whatif.program import TraceError
from netfold.wire.training_trace import FORMAT, RankTrace, TracedStep

MOST_BYTES: Final = 256 << 20
"""Bytes of one file at most."""
MOST_FILES: Final = 4096
SHOWN: Final = 4
"""Most files that a message lists."""


def read(
    paths: Sequence[Path], ranks: int | None = None, say: Callable[[str], None] = lambda what: None
) -> list[RankTrace]:
    """The recordings in files, or in all .json and .et files of folders; PATH stands for PATH.rankN.json as well, as
    `netfold.torch.record` was given it.

    ranks  how many there are, where one trace of Chakra stands for all
    say    told of timelines (host/tracing/timeline.py), which may be in the same folder, and are left out
    Chakra's files are those of rank 0, 1 ... in the order of their names' numbers.  A profile belongs to the execution
    trace of the same process; those of several processes with one number, as in containers, are paired in the order of
    their names, which has to be that of their ranks.
    Raises TraceError, and OSError for files that cannot be read.
    """
    found = [file for path in paths for file in _files(path)]
    if not 0 < len(found) <= MOST_FILES:
        raise TraceError(f"{', '.join(map(str, paths))}: {len(found)} files: expected 1 to {MOST_FILES}")
    recorded: list[RankTrace] = []
    graphs: list[list[chakra.ChakraNode]] = []
    traces: dict[object, list[tuple[Path, pytorch.Tree]]] = {}
    profiles: dict[object, list[tuple[Path, pytorch.Tree]]] = {}
    timelines: list[Path] = []
    for file in sorted(found, key=_numbers):
        data = files.read(file, MOST_BYTES)
        tree = _tree(data)
        if tree.get("format") == FORMAT:
            recorded.append(_decoded(file, data))
        elif isinstance(tree.get("nodes"), list):
            traces.setdefault(tree.get("pid"), []).append((file, tree))
        elif _is_timeline(tree):
            timelines.append(file)
        elif isinstance(tree.get("traceEvents"), list):
            profiles.setdefault(_process(tree), []).append((file, tree))
        else:
            graphs.append(_graph(file, data))
    if timelines:
        names = ", ".join(map(str, timelines[:SHOWN])) + f" and {len(timelines) - SHOWN} more" * (
            len(timelines) > SHOWN)
        if len(timelines) == len(found):
            raise TraceError(f"{names}: timelines (NETFOLD_TIMELINE), which do not say what a program waits for: "
                             "expected recordings of netfold.torch.record, or execution traces")
        say(f"left out {names}: timelines (NETFOLD_TIMELINE)")
    for process in traces | profiles:
        recorded += _of_process(process, traces.get(process, []), profiles.get(process, []))
    if ranks is not None and (recorded or len(graphs) != 1):
        raise TraceError(f"--ranks {ranks}: goes with one trace of Chakra, got {len(graphs)} of these and "
                         f"{len(recorded)} other recordings: these say how many ranks there are")
    return [*recorded, *(chakra.recordings(graphs, ranks) if graphs else ())]


def _of_process(process: object, traces: Sequence[tuple[Path, pytorch.Tree]],
                profiles: Sequence[tuple[Path, pytorch.Tree]]) -> list[RankTrace]:
    """The recordings of the processes of one number, from their files in the order of names.  Raises TraceError."""
    files = ", ".join(str(path) for path, _ in [*traces, *profiles])
    if len(traces) != len(profiles):
        raise TraceError(f"{files}: {len(traces)} execution traces and {len(profiles)} profiles of process {process}: "
                         "expected both of each, since the former have no times")
    found = [pytorch.recording(trace, profile) for (_, trace), (_, profile) in zip(traces, profiles, strict=True)]
    ranks = [one.rank for one in found]
    if ranks != sorted(set(ranks)):
        raise TraceError(f"{files}: all of process {process}, and by the names of the profiles of ranks {ranks}: "
                         "expected names in the order of ranks, such as et0.json and kineto0.json")
    return found


def seconds_of_a_step(recorded: Sequence[RankTrace]) -> float:
    """Seconds of a step, the mean over all ranks and steps."""
    spans = [(steps[-1] - steps[0], len(steps) - 1) for trace in recorded
             if len(steps := [event.begin for event in trace.events if isinstance(event, TracedStep)]) > 1]
    return sum(span for span, _ in spans) / max(1, sum(number for _, number in spans))


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [*path.glob("*.json"), *path.glob("*.et")]
    if path.exists():
        return [path]
    return sorted(path.parent.glob(f"{_literal(path.stem)}.rank*{_literal(path.suffix or '.json')}")) or [path]


def _literal(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _numbers(path: Path) -> list[tuple[int, str]]:
    """A sort key by which trace.2.et precedes trace.10.et."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", str(path))]


def _tree(data: bytes) -> dict[str, Any]:
    """The object in a JSON file; empty if the file has none, or several one after another."""
    try:
        tree = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _is_timeline(tree: Mapping[str, Any]) -> bool:
    """True for the timeline of a rank, or a merged one, which count the spans that they lack."""
    about = tree.get("otherData")
    return isinstance(tree.get("traceEvents"), list) and isinstance(about, dict) and "lost" in about


def _process(profile: pytorch.Tree) -> object:
    """The process whose operators a profile has."""
    return next((event.get("pid") for event in profile["traceEvents"]
                 if isinstance(event, dict) and event.get("cat") == "cpu_op"), None)


def _decoded(path: Path, data: bytes) -> RankTrace:
    try:
        return msgspec.json.decode(data, type=RankTrace)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(f"{path}: {error}; expected a file of `netfold.torch.record`") from None


def _graph(path: Path, data: bytes) -> list[chakra.ChakraNode]:
    try:
        return chakra.nodes(data)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error.__cause__

# SPDX-License-Identifier: Apache-2.0
"""The timeline: what a rank's file holds, that spans do not overlap wrongly, and what the merge makes of all files."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.timelines import merge
from netfold.host.api.communicator import Communicator
from netfold.host.tracing import timeline
from netfold.host.tracing.spans import SPANS
from netfold.host.tracing.timeline import Timeline
from netfold.testing import loopback_job, on_every_rank
from support.hosts.insides import parts_of
from support.hosts.timeline import read
from support.hosts.timeline import rows as rows_of

Trace = dict[str, Any]


def traces(
    folder: Path, patch: pytest.MonkeyPatch, rail: str, work: Any, *, ranks: int = 2, **options: Any
) -> list[Trace]:
    """The files that all ranks of a job have written."""
    patch.setenv(timeline.VARIABLE, str(folder / "trace.json"))
    with loopback_job(ranks, rail=rail, **options) as comms:  # type: ignore[arg-type]
        for result in on_every_rank(comms, work):
            assert not isinstance(result, BaseException), result
    return [read(folder / f"trace.loop.rank{rank}.json") for rank in range(ranks)]


def well_formed(trace: Trace) -> dict[str, list[Trace]]:
    """Spans of a rank's own file by row; fails where Perfetto could not read it."""
    return defaultdict(list, {row: spans for (_, row), spans in rows_of(trace).items()})


def test_folding_shows_where_the_time_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every packet is quantised, sent, received and dequantised inside its operation."""
    elements = 300_000

    def work(comm: Communicator) -> None:
        comm.allreduce(np.ones(elements, np.float32), name="bucket 7")

    for trace in traces(tmp_path, monkeypatch, "innet", work):
        rows = well_formed(trace)
        (operation,) = rows["operations"]
        assert (operation["name"], operation["args"]["nbytes"]) == ("bucket 7", 4 * elements)
        assert operation["args"]["path"] == "innet"
        packets: Counter[str] = Counter()
        for span in rows["packets"]:
            assert operation["ts"] <= span["ts"] <= operation["ts"] + operation["dur"]
            packets[span["name"]] += span.get("args", {}).get("packets", 0)
        blocks = -(-elements // 256)
        needed = blocks + -(-blocks // 256) + 1  # with exponents and the signature
        assert packets["quantise"] == packets["send"]
        if operation["args"]["retransmissions"]:  # a run of packets that has some counts as all repeated
            assert packets["quantise"] + packets["retransmit"] > needed
        else:
            assert packets["quantise"] == needed
        assert packets["dequantise"] >= needed
        stages = {"quantise", "send", "wait", "receive", "dequantise"}
        assert {span["name"] for span in rows["packets"]} >= stages
        times = operation["args"]["stages_ms"]
        assert stages <= set(times) <= set(SPANS)
        for name, time in times.items():
            assert time == pytest.approx(sum(s["dur"] for s in rows["packets"] if s["name"] == name) / 1e3, abs=0.01)
        assert sum(times.values()) <= operation["dur"] / 1e3


def test_repeats_are_told_from_first_packets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a lossy fabric retransmissions have spans of their own, with at least as many packets as the recorder
    counted."""

    def work(comm: Communicator) -> None:
        comm.allreduce(np.ones(100_000, np.float32))

    for trace in traces(tmp_path, monkeypatch, "innet", work, loss=0.05, seed=2, slots=32):
        rows = well_formed(trace)
        repeated = sum(s["args"]["packets"] for s in rows["packets"] if s["name"] == "retransmit")
        assert repeated >= rows["operations"][0]["args"]["retransmissions"] > 0


def test_queued_operations_and_messages_have_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous operations over TCP are queued, send, wait and receive."""

    def work(comm: Communicator) -> None:
        works = [comm.iallreduce(np.ones(50_000), name=f"bucket {i}") for i in range(3)]
        for one in works:
            one.wait(20)

    for trace in traces(tmp_path, monkeypatch, "tcp", work):
        rows = well_formed(trace)
        assert [span["name"] for span in rows["operations"]] == ["bucket 0", "bucket 1", "bucket 2"]
        assert len(rows["queued"]) == 3
        assert all(set(span["args"]["stages_ms"]) <= {"send", "wait", "receive"} for span in rows["operations"])
        assert {span["name"] for span in rows["messages"]} == {"send", "wait", "receive"}
        assert not rows["packets"]


def test_ranks_come_together_by_their_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one process a rank; an operation overlaps the same one of the other rank, and ranks of two jobs stay
    apart."""

    def work(comm: Communicator) -> None:
        comm.iallreduce(np.ones(1000, np.float32)).wait(20)

    traces(tmp_path, monkeypatch, "tcp", work, ranks=3)
    out = tmp_path / "all.json"
    files = [str(path) for path in sorted(tmp_path.glob("trace.*.json"))]
    result = CliRunner().invoke(app, ["timeline", "merge", *files, "-o", str(out)])
    assert result.exit_code == 0, result.output
    merged = read(out)
    by_row = rows_of(merged)
    for row in ("operations", "queued", "messages"):
        assert [pid for pid, name in sorted(by_row) if name == row] == [0, 1, 2]
    processes = {e["pid"]: e["args"]["name"] for e in merged["traceEvents"] if e["name"] == "process_name"}
    assert [name.split(",")[0] for _, name in sorted(processes.items())] == [f"rank {r} of 3" for r in range(3)]
    spans = [e for e in merged["traceEvents"] if e["ph"] == "X" and e["cat"] == "operations"]
    assert len(spans) == 3
    assert max(e["ts"] for e in spans) < min(e["ts"] + e["dur"] for e in spans)
    twice = merge([Path(files[0]), Path(files[0])])
    rows_of(twice)
    assert {e["pid"] for e in twice["traceEvents"]} == {0, 10_000}


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    """A file that is no timeline is status 1 and one line; an empty timeline is not written."""
    (tmp_path / "a.json").write_text('{"traceEvents": []}')
    result = CliRunner().invoke(app, ["timeline", "merge", str(tmp_path / "a.json"), "-o", str(tmp_path / "b.json")])
    assert (result.exit_code, "a.json: no rank's timeline" in result.output) == (1, True)
    Timeline("j", 0, 1, tmp_path / "c.json").write()
    assert not (tmp_path / "c.json").exists()
    with pytest.raises(ValueError, match="no files"):
        merge([])


def test_what_does_not_fit_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and the file says how many spans are missing."""
    monkeypatch.setattr(timeline, "MAX_EVENTS", 3)
    one = Timeline("j", 0, 1, tmp_path / "t.json")
    for number in range(5):
        one.add("operations", f"{number}", number, number + 1)
    one.spans([], 4)
    one.write()
    trace = json.loads((tmp_path / "t.json").read_text())
    assert trace["otherData"]["lost"] == 6
    assert [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"] == ["0", "1", "2"]


def test_without_the_variable_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable there is no timeline, and the native loop records no spans."""
    monkeypatch.delenv(timeline.VARIABLE, raising=False)
    assert timeline.timeline_from_environment("j", 0, 1) is None
    assert SPANS[0] == "quantise"
    with loopback_job(2, rail="innet") as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(10, np.float32)))
        assert all(parts_of(comm).sequencer.flight.timeline is None for comm in comms)

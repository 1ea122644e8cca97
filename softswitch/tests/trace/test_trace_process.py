# SPDX-License-Identifier: Apache-2.0
"""Traces that a switch process records to a file or a pipe: limits, readers that are slow, files of others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softswitch.cli.app import app
from softswitch.compiler.driver import compile_file
from softswitch.p4runtime.process import Settings, SwitchProcess
from softswitch.p4runtime.program import Compiler
from softswitch.trace import PacketTrace, TraceError
from softswitch.trace.recording import Live, Lost, Recorder, read
from switch_support.way import ETHERNET, WAY, ipv4, only


@pytest.fixture(scope="module")
def executable() -> tuple[Path, str]:
    """The program as an executable with the trace, built in the manner of a push."""
    built = Compiler(trace=True)(compile_file(WAY).preprocessed.encode())
    return built.executable, built.trace


def test_a_switch_process_records_to_a_file(executable: tuple[Path, str], tmp_path: Path) -> None:
    """What passes a confined process is in the file, which only its owner reads."""
    path, description = executable
    recorder = Recorder(tmp_path / "packets.trace")
    process = SwitchProcess(path, Settings(cpu_port=510, trace=recorder), description=description)
    try:
        process.start()
        for frame in (ETHERNET + b"\x09\0rest", ipv4("10.1.0.1"), ipv4("10.1.0.1", tos=1)):
            process.engine.packet_out(frame)
        assert process.death is None
    finally:
        process.close()

    found = list(read(tmp_path / "packets.trace"))

    assert [only(trace, "drop").name for trace in found if isinstance(trace, PacketTrace)] == [
        "no_port", "ingress", "ingress"]
    assert (tmp_path / "packets.trace").stat().st_mode & 0o777 == 0o600
    first = found[0]
    assert isinstance(first, PacketTrace)
    assert first.program.started_us
    assert "never assigned egress_spec" in only(first, "drop").text

    shown = CliRunner().invoke(app, ["trace", str(tmp_path / "packets.trace"), "--packet", "2", "--format", "bmv2"])
    assert shown.exit_code == 0
    assert "[2.0] [cxt 0] Dropping packet at the end of ingress" in shown.output
    assert "[0.0]" not in shown.output
    none = CliRunner().invoke(app, ["trace", str(tmp_path / "packets.trace"), "--packet", "99"])
    assert (none.exit_code, "no packet 99" in none.stderr) == (1, True)


def test_a_full_pipe_never_stops_the_switch(executable: tuple[Path, str]) -> None:
    """Nobody reads: the switch answers, frames are lost whole, and their number is told once there is room."""
    path, description = executable

    class Blocked:
        """A stream that takes nothing until it is opened, and counts what it is told."""

        def __init__(self) -> None:
            self.opened = threading.Event()
            self.text: list[str] = []

        def write(self, text: str) -> int:
            assert self.opened.wait(60)
            self.text.append(text)
            return len(text)

        def flush(self) -> None: ...

    out = Blocked()
    live = Live(out, "json")  # type: ignore[arg-type]
    process = SwitchProcess(path, Settings(cpu_port=510, trace=live), description=description)
    frame, total = ipv4("10.5.0.1") + bytes(8000), 2000
    try:
        process.start()
        for _ in range(total):
            process.engine.packet_out(frame)
        assert process.engine.stats().received == total
        out.opened.set()
    finally:
        process.close()
        live.close()

    rows = [json.loads(row) for row in out.text]
    assert all(row.get("lost", 1) is not None for row in rows)
    lost = sum(row["lost"] for row in rows if "lost" in row)
    assert 0 < lost == total - sum("steps" in row for row in rows)


def test_a_recording_ends_at_its_limit_and_says_what_is_missing(executable: tuple[Path, str], tmp_path: Path) -> None:
    """Beyond the limit frames are counted, not written."""
    path, description = executable
    limit = len(description) * 2 + 20_000
    recorder = Recorder(tmp_path / "packets.trace", limit=limit)
    process = SwitchProcess(path, Settings(cpu_port=510, trace=recorder), description=description)
    try:
        process.start()
        for _ in range(500):
            process.engine.packet_out(ipv4("10.5.0.1"))
    finally:
        process.close()

    found = list(read(tmp_path / "packets.trace"))

    assert os.path.getsize(tmp_path / "packets.trace") <= limit + 100
    assert isinstance(found[-1], Lost)
    assert found[-1].frames + len(found) - 1 == 500


def test_a_file_that_is_there_loses_its_readers_and_another_users_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording has frames: whoever made the file before cannot read them, nor by a link that comes in its place."""
    path, other = tmp_path / "packets.trace", tmp_path / "other"
    path.write_text("old")
    path.chmod(0o666)
    recorder = Recorder(path)
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, 0)
    path.rename(tmp_path / "moved")
    other.write_text("theirs")
    path.symlink_to(other)
    os.close(recorder.begin("{}").fd)
    recorder.close()
    assert other.read_text() == "theirs"
    assert (tmp_path / "moved").stat().st_size > 0

    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        Recorder(other)
    assert other.read_text() == "theirs"


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    """A file of something else is an error that says so."""
    (tmp_path / "other").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(100))

    with pytest.raises(TraceError, match="no recording"):
        list(read(tmp_path / "other"))

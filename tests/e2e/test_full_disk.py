# SPDX-License-Identifier: Apache-2.0
"""Full disks: the error names the file, what was there is intact and alone, and the run goes on where it can.

Each case runs in namespaces of its own, with a file system of 1 MiB that is full but for what the case has written
before.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cbuild import cc
from netfold.disk import files
from switch_support.namespace import in_own_network, sh

BOUND = 60.0
FULL = "No space left on device"


def disk(folder: Path) -> Path:
    """A small disk."""
    place = folder / "disk"
    place.mkdir()
    sh(f"mount -t tmpfs -o size=1m,mode=0700 tmpfs {place}")
    return place


def fill(place: Path) -> None:
    """Leave no room, not even for one byte more of a file that has room in its last page."""
    with (place / "filler").open("wb", buffering=0) as filler:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))
    with (place / "probe").open("wb", buffering=0) as probe, pytest.raises(OSError, match=FULL):
        probe.write(b"x")
    (place / "probe").unlink()


def logged() -> io.StringIO:
    """The log from now on."""
    text = io.StringIO()
    logging.basicConfig(level=logging.INFO, stream=text, force=True)
    return text


def command(*words: str | Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """A command of ours, to its end."""
    return subprocess.run([sys.executable, "-m", *map(str, words)], capture_output=True, text=True, timeout=BOUND,
                          **settings)


# ---- cases: each gets an empty disk, fills it, and checks what it says -------------------------------------------


def replaced_file(place: Path) -> None:
    """Everything below rests on it."""
    path = place / "file"
    files.replace(path, b"old")
    path.chmod(0o640)
    fill(place)
    with pytest.raises(OSError, match=str(path)) as caught:
        files.replace(path, b"new" * 10_000)
    assert caught.value.errno == errno.ENOSPC
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"old", 0o640)


def state_file(place: Path) -> None:
    """A drain that cannot be saved is refused, and what is drained stays so."""
    from netfold.controller.operations import state_file
    from netfold.fabric.graph import FabricError

    path = place / "lab.state"
    state_file.save(path, state_file.SavedState(["spine1"]))
    fill(place)
    with pytest.raises(FabricError, match=f"fabric.state: cannot write {path}.*{FULL}"):
        state_file.save(path, state_file.SavedState(["leaf1"] * 2000))
    assert state_file.load(path).drained == ["spine1"]


def flight_recorder(place: Path) -> None:
    """The rank goes on, and its log names the file; the recording before it is whole."""
    from netfold.cli.flights import read
    from netfold.host.tracing.flight import Flight

    text = logged()
    flight = Flight("j", 0, 1, folder=place)
    assert flight.dump("first") is not None
    fill(place)
    with flight.operation(1, "", "allreduce", "sum", "float32", 4):
        pass
    assert flight.dump("second", threads=True) is None
    assert f"cannot write {place / 'j.rank0.json'}" in text.getvalue()
    assert [dump.why for dump in read(place)] == ["first"]


def timeline(place: Path) -> None:
    """The same for a timeline."""
    from netfold.host.tracing.timeline import Timeline

    text, path = logged(), place / "trace.json"
    path.write_text("old")
    fill(place)
    one = Timeline("j", 0, 1, path)
    one.add("operations", "x" * 10_000, 0, 1)
    one.write()
    assert f"cannot write {path}" in text.getvalue()
    assert path.read_text() == "old"


def saved_figures(place: Path) -> None:
    """Figures of links are measured again; those that were saved can still be read."""
    from netfold.host.selection import saved_figures

    text, path = logged(), str(place / "figures.json")
    saved_figures.write(path, "old", [1, 2])
    fill(place)
    saved_figures.write(path, "new", list(range(10_000)))
    assert f"{path}: cannot be written" in text.getvalue()
    assert saved_figures.read(path, "old", list[int]) == [1, 2]
    assert saved_figures.read(path, "new", list[int]) is None


def cache_of_c(place: Path) -> None:
    """Compiled programs are used; a new one is an error that names the cache and the variable to set."""
    done = cc.build(["int f(void) { return 1; }\n"], kind="shared", cache_dir=place)
    fill(place)
    assert cc.build(["int f(void) { return 1; }\n"], kind="shared", cache_dir=place) == done
    with pytest.raises(cc.BuildError, match=rf"cache of compiled programs, {place}|{FULL}"):
        cc.build(["int f(void) { return 2; }\n"], kind="shared", cache_dir=place)
    assert not list(place.glob("build-*"))


def cache_of_p4(place: Path) -> None:
    """A program compiles without a cache, only later."""
    from softswitch.compiler import cache

    os.environ["XDG_CACHE_HOME"] = str(place)
    folder = cc.default_cache_dir()
    fill(place)
    from finsy.proto import p4i

    cache.store("program", "name", "int c;" * 10_000, p4i.P4Info(), "{}")
    assert cache.load("program", "name") is None
    assert list(folder.iterdir()) == []


def fabric_file(place: Path) -> None:
    """`netfold fabric --out`: status 1, the file before it untouched."""
    path = place / "lab.toml"
    assert command("netfold.cli", "fabric", "leafspine,1,0,2", "--out", path).returncode == 0
    before = path.read_text()
    fill(place)
    done = command("netfold.cli", "fabric", "leafspine,4,4,64", "--out", path, "--force")
    assert done.returncode == 1
    assert f"cannot write {path}" in done.stderr
    assert FULL in done.stderr
    assert path.read_text() == before


def merged_timelines(place: Path) -> None:
    """`netfold timeline merge`: the same."""
    one, out = place.parent / "one.json", place / "trace.json"
    one.write_text(json.dumps({"traceEvents": [{"name": "x", "ph": "X", "ts": 1, "pid": 0}] * 100,
                               "otherData": {"job": "j", "rank": 0, "epoch_ns": 1}}))
    out.write_text("old")
    fill(place)
    done = command("netfold.cli", "timeline", "merge", one, "-o", out)
    assert done.returncode == 1
    assert f"{out}" in done.stderr
    assert FULL in done.stderr
    assert out.read_text() == "old"


def charts(place: Path) -> None:
    """A chart that does not fit leaves the one before it whole."""
    from netfold.plots import charts

    (place / "chart.svg").write_text("old")
    fill(place)
    with pytest.raises(OSError, match=f"chart.svg.*|{FULL}"):
        charts.bar_charts(place / "chart", "title", [charts.BarChart("", {"a": {"a": 1.0}}, "s")])
    assert (place / "chart.svg").read_text() == "old"


def demo_report(place: Path) -> None:
    """The demo's report.json."""
    from support.demo import a_report

    path = place / "report.json"
    a_report().save(path)
    before = path.read_bytes()
    fill(place)
    with pytest.raises(OSError, match=FULL):
        a_report().save(path)
    assert path.read_bytes() == before


def simulations(place: Path) -> None:
    """Rows end with the last whole one, so that the comparison can be resumed when there is room."""
    from netfold.sim.ethereal import results
    from netfold.sim.ethereal.claims import ComparisonRow

    def a_row(seed: int) -> ComparisonRow:
        return ComparisonRow("leaf-spine", "ring", 1 << 20, "spray", "healthy", seed, 1.0, 0, 8, 1.0, 0, 0)

    with results.Journal(place, 1.0, resume=False) as journal:
        journal.add(a_row(0))
        number = 1
        with contextlib.suppress(OSError):
            while number < 100_000:
                journal.add(a_row(number))
                number += 1
        with pytest.raises(OSError, match=f"{FULL}.*rows.jsonl"):
            journal.add(a_row(number))
    (place / "rows.jsonl").chmod(0o644)
    whole = (place / "rows.jsonl").read_text()
    assert whole.endswith("\n")
    with results.Journal(place, 1.0, resume=True) as journal:
        assert len(journal.rows) == whole.count("\n") == number


def log_of_a_switch(place: Path) -> None:
    """A switch whose log and standard output are on the disk starts, and serves."""
    import grpc
    from finsy.proto import p4r

    from switch_support.client import Client

    fill(place)
    address = f"unix:{place.parent}/s"
    with (place / "out").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "softswitch", "--no-p4", "--grpc-server-addr", address,
                                    "--log-file", str(place / "log"), "--log-level", "debug"], stdout=out, stderr=out)
    try:
        until = time.monotonic() + BOUND
        with Client(address) as client:
            while True:
                try:
                    assert client.stub.Capabilities(p4r.CapabilitiesRequest(), timeout=BOUND).p4runtime_api_version
                    break
                except grpc.RpcError:
                    assert process.poll() is None
                    assert time.monotonic() < until
        process.send_signal(signal.SIGTERM)
        assert process.wait(BOUND) in (0, 120)  # 120: Python could not flush its standard output
    finally:
        process.kill()
        process.wait(BOUND)


CAPTURES = ("s1_in", "s2_out")
"""The captures with frames in them."""


def captures(place: Path) -> None:
    """A capture ends with its last whole packet, its end is logged, and packets are forwarded as before."""
    from switch_support import ports

    ports.make_hosts()
    frames = [bytes.fromhex("00000002000200000001000188b5") + bytes([number]) * 1000 for number in range(20)]
    with ports.switch(pcap=place) as process:
        out, into = ports.Tap("h2"), ports.Tap("h1")
        into.send(frames[0])
        assert out.take(1) == frames[:1]
        ports.wait_for(lambda: all((place / f"{name}.pcap").stat().st_size > len(frames[0]) for name in CAPTURES))
        fill(place)
        for frame in frames[1:]:
            into.send(frame)
            assert out.take(1) == [frame]
        assert process.ports()
    for name in CAPTURES:
        whole = ports.read_pcap(place / f"{name}.pcap")
        assert 1 <= len(whole) < len(frames)
        assert whole == frames[: len(whole)]


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__: case for case in (
        replaced_file, state_file, flight_recorder, timeline, saved_figures, cache_of_c, cache_of_p4, fabric_file,
        merged_timelines, charts, demo_report, simulations, log_of_a_switch, captures)
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.needs("matplotlib")] if name == "charts" else []) for name in CASES
])
@in_own_network
def test_a_full_disk_is_named_and_nothing_is_lost(name: str, tmp_path: Path) -> None:
    """Whatever is written there; nothing half-written is left beside the old files."""
    place = disk(tmp_path)
    CASES[name](place)
    assert not list(place.rglob("*.new"))
    assert not list(place.rglob("*.part"))

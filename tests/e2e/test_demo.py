# SPDX-License-Identifier: Apache-2.0
"""The demo as a person runs it: its reports, its end by Ctrl-C, and its failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import needs
from switch_support.ports import wait_for

pytestmark = [pytest.mark.netns, pytest.mark.needs("namespaces", "mininet", "scikit-learn"), pytest.mark.timeout(280)]

NETFOLD = [sys.executable, "-m", "netfold.cli"]
BOUND = 240.0
ENDS_WITHIN = 100.0
"""Seconds for a demo to end after Ctrl-C, on a machine that other tests keep busy."""


@pytest.fixture
def mark() -> Iterator[dict[str, str]]:
    """An environment by which every process that a test started is known; none may be left at its end."""
    name = f"NETFOLD_TEST_{uuid.uuid4().hex}"
    yield {**os.environ, name: "1"}
    wait_for(lambda: not any(name.encode() in _read(path) for path in Path("/proc").glob("[0-9]*/environ")))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended while we looked, or is not ours
        return b""


def _interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_the_demo_reports_what_happened(tmp_path: Path, mark: dict[str, str]) -> None:
    """It ends well; tables, JSON and picture agree with each other and with the arithmetic of folding."""
    before = _interfaces()
    command = [*NETFOLD, "demo", "--ranks", "4", "--steps", "5", "--loss", "0.005", "--out", str(tmp_path)]
    done = subprocess.run(command, env=mark, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ring_bytes_per_host_link"], report["times"]
    assert (report["engine"], report["ranks"], report["steps"], report["loss_rate"]) == ("softswitch", 4, 5, 0.005)
    assert report["final_weights_equal"] is True
    assert report["rail"] == "innet"
    assert report["max_abs_diff_vs_single"] < 1e-5
    assert report["accuracy"] == pytest.approx(report["accuracy_single"], abs=0.01)
    assert report["seconds"] > 0
    assert report["packets_lost"] > 0
    assert report["retransmissions"] > 0
    # each gradient crosses a host's link once each way, by ring 2(N-1)/N = 1.5 times; headers and repeats come on top
    gradients = report["gradient_bytes"] * report["steps"]
    assert gradients < report["bytes_per_host_link"] < 2 * gradients
    assert 1.5 * gradients < report["ring_bytes_per_host_link"] < 3 * gradients  # TCP, too, sends lost packets again
    assert {tree["root"] for tree in report["trees"]} == {"spine1", "spine2"}
    assert sum(tree["gradient_bytes"] for tree in report["trees"]) == 4 * gradients
    assert len(report["links"]) == 8
    drawing = ElementTree.parse(tmp_path / "fabric.svg")
    words = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"spine1", "spine2", "leaf1", "leaf2", "h1", "h2", "h3", "h4"} <= words
    assert report["weights_sha256"][:16] in done.stdout
    assert ("torch is not installed" in done.stdout) == (needs.missing("torch") is not None)
    assert _interfaces() == before


def test_narrow_lanes_train_as_well_on_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    """--lane-bits 8: the ranks agree bit for bit, the model learns as in one process, and links carry a quarter.

    The environment is a newcomer's: nothing in it says how wide a terminal is, and the words come whole all the same;
    there is no torch, which is said, and not missed otherwise.
    """
    command = [*NETFOLD, "demo", "--ranks", "2", "--steps", "10", "--lane-bits", "8", "--out", str(tmp_path)]
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {"TERM": "dumb"}
    bare["PYTHONPATH"] = needs.without_modules("torch", hidden, os.environ.get("PYTHONPATH"))
    done = subprocess.run(command, env=bare, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["lane_bits"], report["rail"], report["final_weights_equal"]) == (8, "innet", True)
    assert "in lanes of 8 bits" in report["explain"]
    assert report["loss"] == pytest.approx(report["loss_single"], rel=0.1)
    assert 1e-5 < report["max_abs_diff_vs_single"] < 0.1
    # 0.27 with headers; what a busy machine sends again comes on top, and is far from the 1.06 of whole lanes
    assert report["bytes_per_host_link"] < 0.6 * report["gradient_bytes"] * report["steps"]
    assert "lanes of 8 bits" in done.stdout
    assert "torch is not installed" in done.stdout


@pytest.mark.parametrize("moment", ["P4 switches", "are up"])
def test_ctrl_c_leaves_nothing(moment: str, tmp_path: Path, mark: dict[str, str]) -> None:
    """While the fabric comes up, and while it trains: status 130, no process, no interface.

    One that does not end is aborted, and its output has where each of its threads stands.
    """
    before = _interfaces()
    command = [*NETFOLD, "demo", "--ranks", "4", "--steps", "1000000", "--out", str(tmp_path)]
    demo = subprocess.Popen(
        command, env={**mark, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )
    assert demo.stdout is not None
    abort = threading.Timer(ENDS_WITHIN, os.killpg, (demo.pid, signal.SIGABRT))
    try:
        for line in demo.stdout:
            if moment in line:
                break
        else:
            pytest.fail(f"the demo never said {moment!r}")
        os.killpg(demo.pid, signal.SIGINT)
        abort.start()
        rest = demo.stdout.read()
        assert demo.wait(30) == 130, rest
        assert "interrupted; everything is torn down" in rest
    finally:
        abort.cancel()
        demo.kill()
        demo.wait(30)
        demo.stdout.close()
    assert _interfaces() == before


def test_a_switch_that_fails_to_start_is_explained_and_leaves_nothing(tmp_path: Path, mark: dict[str, str]) -> None:
    """The error has its command line, the end of its log, and its P4Runtime address."""
    before = _interfaces()
    for name in ("simple_switch_grpc", "p4c-bm2-ss"):
        script = tmp_path / name
        script.write_text("#!/bin/sh\necho cannot start today >&2\nexit 9\n")
        script.chmod(0o755)
    command = [*NETFOLD, "demo", "--switch", "bmv2", "--out", str(tmp_path / "out")]
    env = {**mark, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 1
    assert "switch leaf1 (bmv2) ended with status 9" in done.stderr
    assert f"{tmp_path}/simple_switch_grpc --no-p4" in done.stderr
    assert "    cannot start today" in done.stderr
    assert "leaf1.sock" in done.stderr
    assert "Traceback" not in done.stderr
    assert _interfaces() == before


@pytest.mark.without("bmv2")
def test_a_missing_switch_says_how_to_get_on(tmp_path: Path) -> None:
    """`--switch bmv2` on a machine without BMv2 says what to install."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("mnexec", "ip", "sh", "bash", "env", "tc", "ethtool", "ifconfig", "stty"):
        found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        if found is not None:
            (programs / name).symlink_to(found)
    done = subprocess.run(
        [*NETFOLD, "demo", "--switch", "bmv2", "--out", str(tmp_path)],
        env={**os.environ, "PATH": str(programs)}, capture_output=True, text=True, timeout=BOUND, check=False,
    )
    assert done.returncode == 1
    assert "simple_switch_grpc is neither in" in done.stderr
    assert "--switch softswitch" in done.stderr


@pytest.mark.needs("root", "setpriv")
def test_without_the_right_to_make_namespaces_it_says_how_to_get_on(tmp_path: Path) -> None:
    """No capabilities, as in a container: the step that was refused, and ways on."""
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *NETFOLD, "demo", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=BOUND, check=False,
    )
    assert done.returncode == 1
    assert "cannot make namespaces" in done.stderr
    assert "sudo make demo" in done.stderr
    assert "Traceback" not in done.stderr

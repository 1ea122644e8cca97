# SPDX-License-Identifier: Apache-2.0
"""Listeners that a launcher opens outside of its sandbox, and the pages that are reached by them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from netfold.controller.web import listeners as inherited
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import FabricError
from netfold.topo.network import listeners

NETFOLD = [sys.executable, "-m", "netfold.cli"]
BOUND = 60
WAIT = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"
WITHOUT_ROOT = ["setpriv", "--bounding-set=-sys_admin"]
# a launcher, and inside its sandbox two servers one after the other: the first dies by SIGKILL as soon as it has one
# connection, the second answers the next one, which came while there was none
LAUNCHER = """
import os, signal, socket, subprocess, sys
from netfold.topo.network import listeners, sandbox
if not sandbox.inside():
    listeners.open_listeners(["127.0.0.1:0"])
    from netfold.controller.web.listeners import inherited
    print(socket.socket(fileno=os.dup(inherited()["127.0.0.1:0"])).getsockname()[1], flush=True)
sandbox.enter()
from netfold.controller.web.listeners import inherited
server = '''
import os, select, signal, sys
from netfold.controller.web.listeners import adopted
listener = adopted("127.0.0.1:0")
select.select([listener], [], [])
connection, _ = listener.accept()
if sys.argv[1] == "dies": os.kill(os.getpid(), signal.SIGKILL)
connection.sendall(b"alive")
'''
for what in ("dies", "lives"):
    status = subprocess.run([sys.executable, "-c", server, what], pass_fds=list(inherited().values())).returncode
    print(status, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.netns
@pytest.mark.parametrize("before", [pytest.param([], id="as-it-is"), pytest.param(WITHOUT_ROOT, id="without-root")])
def test_a_listener_outlives_the_server_inside_that_died(before: list[str]) -> None:
    """Reached from outside of the sandbox's network, also where that is in a user namespace since root's capability is
    not there; connections wait for the next server."""
    if before and os.geteuid() != 0:
        pytest.skip("already without root: the other case is this one")
    with subprocess.Popen([*before, sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as launcher:
        assert launcher.stdin is not None
        assert launcher.stdout is not None
        try:
            port = int(launcher.stdout.readline())
            with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as first:
                assert first.recv(8) == b""
                assert launcher.stdout.readline() == "-9\n"
            with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as second:  # nobody accepts it yet
                launcher.stdin.write("\n")
                launcher.stdin.flush()
                assert second.recv(8) == b"alive"
        finally:
            launcher.kill()


def two_free_ports() -> int:
    """The first of two in a row that nobody has; above those that the kernel gives to connections."""
    for port in random.sample(range(61000, 65000), 100):
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("no two free ports in a row")


@pytest.mark.netns
def test_the_page_of_a_run_is_reached_from_the_machine_itself(tmp_path: Path) -> None:
    """Outside of the namespaces in which switches, hosts and controller are, at the address that `netfold run` says;
    of two planes, each has its own."""
    done = tmp_path / "done"
    port = two_free_ports()
    command = [*NETFOLD, "run", "--quiet", "--topo", "dual,leafspine,1,0,1", "--metrics", f"127.0.0.1:{port}", "--",
               sys.executable, "-c", WAIT, str(done)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        try:
            names = []
            for number in range(2):
                line = running.stderr.readline()
                said = re.search(r"page and metrics at (\S+)/#key=[\w-]{32}\n$", line)
                assert said, line
                url = said[1]
                assert url == f"http://127.0.0.1:{port + number}"
                with urllib.request.urlopen(f"{url}/fabric.json", timeout=BOUND) as answer:
                    names.append(json.load(answer)["name"])
                with urllib.request.urlopen(f"{url}/live.json", timeout=BOUND) as answer:
                    assert [switch["up"] for switch in json.load(answer)["switches"]] == [True]
            assert [name[-2:] for name in names] == ["-a", "-b"]
            done.touch()
            assert running.wait(BOUND) == 0
        finally:
            running.kill()


@pytest.mark.parametrize("command", [["run", "--topo", "leafspine,1,0,2"], ["up", "--topo", "leafspine,1,0,2"],
                                     ["demo", "--page"]])
def test_an_address_in_use_is_told_before_anything_starts(command: list[str]) -> None:
    """With the address, by each command that brings a fabric up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        program = ["--", "true"] if command[0] == "run" else []
        got = subprocess.run([*NETFOLD, *command, "--metrics", address, *program], capture_output=True, text=True,
                             timeout=BOUND, check=False)
    assert got.returncode == 2
    assert f"cannot listen at {address}" in got.stderr
    assert got.stdout == ""


@pytest.mark.parametrize(("address", "planes", "words"), [
    ("0.0.0.0:9464", 1, "ssh -L"), ("127.0.0.1:0", 2, "above 0"), ("127.0.0.1:65535", 2, "HOST:PORT"),
    ("9464", 1, "expected"), ("127.0.0.1:http", 1, "HOST:PORT"),
])
def test_addresses_that_cannot_be_are_refused(address: str, planes: int, words: str) -> None:
    """Those that other machines reach, since this fabric has no tokens, and those that are none."""
    with pytest.raises(FabricError, match=words):
        listeners.with_pages([leafspine(1, 0, 1)] * planes, address)


def test_planes_have_ports_in_a_row() -> None:
    """The first one's as it was said."""
    pages = listeners.with_pages([leafspine(1, 0, 1)] * 2, "127.0.0.1:9464")
    assert [fabric.metrics for fabric in pages] == ["127.0.0.1:9464", "127.0.0.1:9465"]


def test_a_descriptor_that_is_no_such_listener_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed, a file, a socket that does not listen, or one that listens elsewhere; the right one is."""
    with socket.create_server(("127.0.0.1", 0)) as right, socket.socket() as silent, open(os.devnull) as file:
        port = right.getsockname()[1]
        words = [f"a:1={right.fileno()}", f"b:{port}={silent.fileno()}", f"c:{port}={file.fileno()}", f"d:{port}=987",
                 f"e:{port}=x", f"f:{port}", f"g:{port}={right.fileno()}"]
        monkeypatch.setenv(inherited.VARIABLE, " ".join(words))
        assert inherited.inherited() == {f"g:{port}": right.fileno()}
        taken = inherited.adopted(f"g:{port}")
        assert taken is not None
        with taken:
            assert taken.getsockname() == right.getsockname()
        assert inherited.adopted(f"b:{port}") is None

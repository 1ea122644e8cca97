# SPDX-License-Identifier: Apache-2.0
"""The page of a switch's packets: what it is served, to whom, and what a browser shows of it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from softswitch.trace import TracedEngine
from softswitch.trace.page import render
from softswitch.trace.page.serving import MAX_CLIENTS, PageError, Recent, parse_address, serve
from softswitch.trace.recording import Lost
from switch_support import browser
from switch_support.namespace import in_own_network, sh
from switch_support.ports import wait_for

PROGRAM = Path(__file__).parent.parent / "explain" / "l3.p4"
FRAME = bytes.fromhex("020000000002020000000001" "0800" "4500001c0001000340010000" "0a0001010b000202") + bytes(8)
OTHER = bytes.fromhex("020000000002020000000001" "0806") + bytes(46)


@pytest.fixture(scope="module")
def engine() -> Iterator[TracedEngine]:
    """A switch without entries: what is IPv4 is dropped, all else leaves at port 0."""
    with TracedEngine.compile(PROGRAM) as engine:
        yield engine


def get(url: str, path: str, host: str | None = None) -> tuple[int, str]:
    """Status and content of an answer."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    key = parts.fragment.removeprefix("key=")
    connection.request("GET", path, headers={"Host": host or parts.netloc, "Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_packets_come_once_and_a_new_program_brings_its_source(engine: TracedEngine) -> None:
    """What the page has seen is not sent again; the source comes with the first answer and with another program."""
    recent = Recent()
    with serve(recent, "127.0.0.1:0") as url:
        assert get(url, "/")[0] == 200
        first = json.loads(get(url, "/packets?after=-1&program=-1")[1])
        assert first["packets"] == []
        assert first["program"] is None
        for frame in (FRAME, OTHER):
            for trace in engine.receive_traced(1, frame):
                recent.put(trace)
        recent.put(Lost(3))
        path = "/packets?after={after}&program={running}"
        second = json.loads(get(url, path.format(**first))[1])
        assert [packet["frame"] for packet in second["packets"]] == [FRAME.hex(), OTHER.hex()]
        assert any("l3.p4" in name for name in second["program"]["files"])
        assert second["lost"] == 3
        third = json.loads(get(url, path.format(**second))[1])
        assert third["packets"] == []
        assert third["program"] is None
        with TracedEngine.compile(PROGRAM) as another:
            for trace in another.receive_traced(1, FRAME):
                recent.put(trace)
        fourth = json.loads(get(url, path.format(**third))[1])
        assert len(fourth["packets"]) == 1
        assert fourth["program"] is not None


def test_what_is_kept_for_the_page_is_bounded_in_packets_and_bytes(engine: TracedEngine) -> None:
    """The oldest packets go where there are too many, or too large ones."""
    trace, = engine.receive_traced(1, FRAME)
    few, small = Recent(kept=2), Recent(kept_bytes=1)
    for recent in (few, small):
        for _ in range(5):
            recent.put(trace)
    assert len(json.loads(few.since(-1, -1))["packets"]) == 2
    assert len(json.loads(small.since(-1, -1))["packets"]) == 1


def test_only_requests_that_name_a_loopback_address_are_answered() -> None:
    """A site that lets its own name lead to 127.0.0.1 reads nothing; broken requests are refused by name."""
    with serve(Recent(), "127.0.0.1:0") as url:
        port = urlsplit(url).port
        assert get(url, "/", f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "10.0.0.1", "", "[", "localhost.evil.example"):
            assert get(url, "/", host or "x")[0] == 403, host
        assert get(url, "/packets")[0] == 400
        assert get(url, "/packets?after=x&program=1")[0] == 400
        assert get(url, "/../etc/passwd")[0] == 404
        assert get(url, "http://[::1")[0] == 400
        assert get(url, "/packets?" + "a=b&" * 1000)[0] == 400


def test_only_who_has_the_key_reads_packets_and_source() -> None:
    """The page itself is for everybody; the key is another one at each start, and is in its address alone."""
    with serve(Recent(), "127.0.0.1:0") as url, serve(Recent(), "127.0.0.1:0") as other:
        path = "/packets?after=-1&program=-1"
        assert get(url, path)[0] == 200
        bare, key = url.split("#key=")
        for wrong in ("", other.split("#key=")[1], key[:-1], key + "x"):
            assert get(f"{bare}#key={wrong}", path)[0] == 403
            status, page = get(f"{bare}#key={wrong}", "/")
            assert (status, key in page) == (200, False)


def test_clients_that_stall_keep_nobody_out() -> None:
    """A request takes the place of the one that has been there longest, at once."""
    with serve(Recent(), "127.0.0.1:0") as url:
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or 0)
        stalled = [socket.create_connection(address, timeout=10) for _ in range(3 * MAX_CLIENTS)]
        for one in stalled:
            one.sendall(b"GET / HT")
        assert get(url, "/")[0] == 200
        assert stalled[0].recv(1) == b""
        stalled[-1].sendall(b"TP/1.0\r\nHost: localhost\r\n\r\n")
        assert stalled[-1].recv(12) == b"HTTP/1.0 200"
        for one in stalled:
            one.close()


@pytest.mark.parametrize("address", ["8080", "127.0.0.1", "0.0.0.0:8080", "example.com:80", "127.0.0.1:99999", "[::1"])
def test_an_address_that_others_reach_or_that_is_none_is_refused(address: str) -> None:
    """The page is for this machine alone."""
    with pytest.raises(PageError, match="--page"):
        parse_address(address)


def test_a_port_that_is_taken_is_named() -> None:
    """Two switches cannot serve their pages at one address."""
    with serve(Recent(), "127.0.0.1:0") as url, \
            pytest.raises(PageError, match="cannot listen"), serve(Recent(), urlsplit(url).netloc):
        pass


@pytest.mark.needs("chromium")
def test_a_browser_shows_the_drop_its_reason_and_the_line_that_caused_it(engine: TracedEngine, tmp_path: Path) -> None:
    """In headless Chromium the written page marks the lines that a packet passed, and those of its drop."""
    page = tmp_path / "page.html"
    page.write_text(render(engine.program, engine.receive_traced(1, FRAME)))
    shown = browser.dump(page.as_uri())
    drop = next(n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "mark_to_drop" in line)
    rows = {int(found[1]): found[0] for found in browser.rows(shown)}
    assert "drop" in rows[drop].split()
    passed = next(n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "routes.apply()" in line)
    assert "seen" in rows[passed].split()
    untouched = next(n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "ttl - 1" in line)
    assert rows[untouched].split() == ["row", "mono"]
    assert "DROPPED: egress_spec" in shown
    assert "first 0x4500001c00010003" in shown, "scripts round numbers of more than 53 bits"


@pytest.mark.needs("chromium")
def test_a_browser_shows_packets_that_a_switch_has_meanwhile_seen(engine: TracedEngine) -> None:
    """The served page asks for packets and shows the newest."""
    recent = Recent()
    for trace in engine.receive_traced(1, OTHER):
        recent.put(trace)
    with serve(recent, "127.0.0.1:0") as url:
        shown = browser.dump(url)
    assert "60 bytes in at port 1" in shown
    assert "live" in shown


@in_own_network
def test_a_running_switch_serves_its_page() -> None:
    """`softswitch run --page` says where, and the page has a packet that came in at an interface."""
    sh("ip link add s1 type veth peer name far")
    sh("ip link set s1 up; ip link set far up")
    command = [sys.executable, "-m", "softswitch", "run", str(PROGRAM), "-i", "1@s1", "--page", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
        assert switch.stdout is not None
        url = switch.stdout.readline().split(" page ")[1].strip()
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as far:
            far.bind(("far", 0))
            far.send(FRAME)
        wait_for(lambda: FRAME.hex() in get(url, "/packets?after=-1&program=-1")[1])
        switch.terminate()
    assert switch.returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""The page in a browser: what it makes of the state of a fabric, whatever its jobs and switches are called."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.controller.web import answers, view
from netfold.controller.web.serve import HEADERS
from netfold.fabric.generate import leafspine
from netfold.fabric.generate.grids import torus
from netfold.fabric.graph import Fabric
from netfold.wire import faults as wire
from netfold.wire.operator import FabricEvent
from switch_support import browser

pytestmark = pytest.mark.slow

HOSTILE = '<img src="x" onerror="document.title=1"><script>document.title=2</script>'
FABRIC = leafspine(2, 2, 4, rate="1gbit")


def static() -> dict[str, str]:
    """The page's files that are text, by name."""
    return {name: (answers.STATIC / name).read_text() for name in answers.static_files()}


def test_each_file_that_the_page_names_is_served() -> None:
    """Files that the page loads and modules that modules import are there, and nothing is named that lies elsewhere."""
    files = static()
    assert {"index.html", "page.css", "page.js", "icon.svg"} <= files.keys()
    named = set(re.findall(r'(?:href|src)="([^"#]+)"', files["index.html"]))
    for name in (name for name in files if name.endswith(".js")):
        named |= {found.removeprefix("./") for found in re.findall(r'from "([^"]+)"', files[name])}
    assert named <= files.keys()
    elsewhere = re.compile(r"https?://(?!www\.w3\.org)")
    assert not [name for name, text in files.items() if elsewhere.search(text)]


def test_no_text_becomes_markup() -> None:
    """No module sets HTML, and the page has neither a script nor a style of its own inside, as the policy asks."""
    files = static()
    scripts = "".join(text for name, text in files.items() if name.endswith(".js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", scripts)
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=", files["index.html"])


def live(**changes: Any) -> view.Live:
    """A state in which spine2 is down and a job with a hostile name was planned anew."""
    problems = {"spine2": HOSTILE}
    switches = [view.SwitchLive(s.name, s.name not in problems, False, problems.get(s.name, ""), 64, 1024, 1e3, 1.0, 9)
                for s in FABRIC.switches]
    links = [view.LinkLive(5e8, 2.5e8, 1e5, 1e5, 0.0, "spine2" not in f"{link.a} {link.b}", False, "")
             for link in FABRIC.links]
    job = view.JobLive(
        HOSTILE, "active", "default", 3, 4, 4, 0, [], [host.name for host in FABRIC.hosts], 120, 5_000_000, 4_000_000,
        2e6, 7,
        [view.TreeLive("spine1", 1.0, [0, 2], [4, 5])], [view.RailLive("innet", 0.75), view.RailLive("tcp", 0.25)],
        view.RecoveryLive(1, "spine2 does not answer", 0.042), "")
    events = [FabricEvent(1, 1_700_000_000.0, "down", "spine2", HOSTILE),
              FabricEvent(2, 1_700_000_001.0, "re-planned", HOSTILE, "after 42 ms")]
    state = view.Live(1_700_000_002.0, 60.0, switches, links, [job], [], events)
    return msgspec.structs.replace(state, **changes)


CLICKS = b"""
const shown = async (selector) => {
  let found = null;
  while (!(found = document.querySelector(selector))) await new Promise((resolve) => { setTimeout(resolve, 10); });
  return found;
};
(await shown('[data-node="h1"]')).dispatchEvent(new MouseEvent("click", { bubbles: true }));
(await shown(".packet button")).click();
"""
"""A script that a viewer's two clicks stand in: on host h1, and on the button that records a packet."""


@contextmanager
def served(state: view.Live, fabric: Fabric = FABRIC, packet: wire.RecordedPacket | None = None) -> Iterator[str]:
    """The page's files and a fixed state at the URL that this yields, with the real server's headers.  Faults are
    offered to who says "the-key", and so is a recorded packet, which is clicked for where there is one."""
    bodies = {
        "/clicks.js": CLICKS,
        "/faults.json": msgspec.json.encode(wire.ActiveFaults("lab", [], True)),
        "/live.json": msgspec.json.encode(state),
        "/history.json": msgspec.json.encode(view.HistoryView(1.0, [], [], [], [], [], {})),
    }

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked = (self.path, said.get("host"), said.get("tree"), self.headers["Authorization"])
            known = asked == ("/packet", "h1", "spine1", "Bearer the-key")
            body = msgspec.json.encode(packet if known else {"text": f"not for {asked}"})
            self.send_response(200 if known else 403)
            self.send_header("Content-Type", answers.JSON)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = "index.html" if path == "/" else path[1:]
            offered = self.headers["Authorization"] == "Bearer the-key"
            if path == "/fabric.json":
                body = msgspec.json.encode(view.of_fabric(fabric, faults=offered))
            else:
                body = bodies.get(path) or (answers.STATIC / name).read_bytes()
            if path == "/" and packet is not None:
                body = body.replace(b"</head>", b'<script type="module" src="clicks.js"></script></head>')
            self.send_response(200)
            self.send_header("Content-Type", answers.TYPES[Path(name).suffix])
            for header in HEADERS.items():
                self.send_header(*header)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.needs("chromium")
def test_a_browser_shows_what_is_down_and_who_was_planned_anew() -> None:
    """The headline, the drawing, the job and the events say it, and a name that is markup stays text."""
    with served(live()) as url:
        document = browser.dump(url)
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", document))
    assert "Down: spine2" in said
    assert "Planned anew 1 time, last: spine2 does not answer; ranks stood still for 42 ms" in said
    assert "120 operations · each rank 5 MB reduced, 2 Mb/s · 7 packets sent again" in said
    assert "4 MB, ring 6 MB" in said
    assert "innet 75 %" in said
    assert re.search(r'<g[^>]*class="switch down"[^>]*data-node="spine2"', document)
    assert set(re.findall(r'data-node="([^"]+)"', document)) == {node.name for node in FABRIC.nodes}
    assert len(re.findall(r'<path[^>]*class="link down"', document)) == 2
    assert len(re.findall("<img", document)) == 1, "the page's own icon alone"
    assert "&lt;img src=" in document
    assert "<title>leafspine-2-2-4 – NetFold</title>" in document
    assert re.search(r'<section[^>]*id="faults"[^>]*hidden', document)


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("width", [1280, 360])
def test_a_browser_draws_a_torus_as_a_grid(width: int) -> None:
    """Switches of a row are beside each other and those of a column below each other, in the fabric's order; links
    around it leave at its edges; no box is over another one, nor outside the drawing, on a phone too.  With all up and
    no job the page says so, and who has the key is offered faults."""
    fabric = torus(3, 4)
    ups = [view.SwitchLive(s.name, True, False, "", 0, 1024, None, None, 9) for s in fabric.switches]
    links = [view.LinkLive(None, None, None, None, None, True, False, "") for _ in fabric.links]
    with served(live(switches=ups, links=links, jobs=[], events=[]), fabric) as url:
        document = browser.dump(f"{url}#key=the-key", size=(width, 900))
    assert "All switches and links are up" in document
    assert "No job has joined yet." in document
    assert not re.search(r'<section[^>]*id="faults"[^>]*hidden', document)
    boxes = {name: (float(x), float(y), float(w), float(h)) for x, y, name, w, h in re.findall(
        r'<g[^>]*transform="translate\(([\d.]+) ([\d.]+)\)" data-node="([^"]+)".*?<rect[^>]*class="box"[^>]*'
        r'width="([\d.]+)" height="([\d.]+)"', document)}
    assert boxes.keys() == {node.name for node in fabric.nodes}
    places = {switch.place: boxes[switch.name] for switch in fabric.switches if switch.place}
    for row, column in places:
        assert places[row, column][1] == places[row, 0][1]
        assert places[row, column][0] == places[0, column][0]
    assert [places[0, column][0] for column in range(4)] == sorted({places[0, column][0] for column in range(4)})
    assert [places[row, 0][1] for row in range(3)] == sorted({places[row, 0][1] for row in range(3)})
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*aria-label="The fabric"'
                      r'|aria-label="The fabric"[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', document)
    assert found is not None
    wide, high = (float(number) for number in found.groups() if number)
    for name, (x, y, w, h) in boxes.items():
        assert w / 2 <= x <= wide - w / 2, name
        assert h / 2 <= y <= high - h / 2, name
        for other, (x2, y2, w2, h2) in boxes.items():
            assert name == other or abs(x - x2) >= (w + w2) / 2 or abs(y - y2) >= (h + h2) / 2, (name, other)
    around = re.findall(r'<path[^>]*\bd="M[\d.]+ [\d.]+[hv]-\d+M', document)
    assert len(around) == 3 + 4, "one for each row and each column"


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("key", ["#key=the-key", ""])
def test_a_browser_shows_a_recorded_packet_link_by_link(key: str) -> None:
    """Two clicks later the steps are listed with times, and drawn in order; a step that was not seen is told, and names
    stay text.  Without the key there is the reason, and no step."""
    up = [wire.PacketStep("contribution", "leaf1:1", "h1", "leaf1", True, 0.0, True, 1,
                          [wire.Contributor(f"rank 1 ({HOSTILE})", -12.5)]),
          wire.PacketStep("sum", "leaf1:3", "leaf1", "spine1", True, 15.25, True, 2, [wire.Contributor("leaf2", None)])]
    down = [wire.PacketStep("result", "leaf1:3", "spine1", "leaf1", True, 31.0, True, 1, []),
            wire.PacketStep("result", "leaf1:1", "leaf1", "h1", True, None, False, 0, []),
            wire.PacketStep("result", "leaf1:2", "leaf1", "h2", False, 44.0, False, 1, [])]
    packet = wire.RecordedPacket("h1", "rank 0 (h1)", HOSTILE, "spine1", "data", "SUM32", 70, 6, up + down, 40, 3, 0)
    host = next(number for number, link in enumerate(FABRIC.links) if "h1:" in f"{link.a} {link.b}")
    spine = next(number for number, link in enumerate(FABRIC.links)
                 if {"leaf1", "spine1"} == {end.rpartition(":")[0] for end in (link.a, link.b)})
    (job,) = live().jobs
    job = msgspec.structs.replace(job, trees=[view.TreeLive("spine1", 1.0, [spine, host], [host])])
    with served(live(jobs=[job]), packet=packet) as url:
        document = browser.dump(f"{url}{key}")
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", document))
    hops = re.findall(r'<path[^>]*class="(hop[^"]*)"[^>]*data-hop="([^"]*)"', document)
    if not key:
        assert "not for (" in said
        assert not hops
        return
    assert "PSN 70, slot 6; 1 step not seen" in said
    assert "Recorded 40 packets, 3 came too fast." in said
    for step in ("+0.0 µs h1 → leaf1 contribution of rank 0 (h1)",
                 "+15.3 µs leaf1 → spine1 sum of leaf1, passed 2 times",
                 "in slot 6 of spine1 with leaf2 not seen", "– leaf1 → h1 result: not seen",
                 "+44.0 µs leaf1 → h2 result without elements (presence)"):
        assert step in said, step
    assert [hop for _, hop in hops] == ["h1 leaf1", "leaf1 spine1", "spine1 leaf1", "leaf1 h1", "leaf1 h2"]
    assert [kind for kind, hop in hops if hop == "leaf1 h1"] == ["hop result missed"]
    assert len(re.findall("<img", document)) == 1, "the page's own icon alone"

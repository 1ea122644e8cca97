# SPDX-License-Identifier: Apache-2.0
"""Metrics and the web page: what Prometheus scrapes, what people see, and who may."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from netfold.controller import client
from netfold.controller.controller import Controller
from netfold.controller.jobs import callers
from netfold.controller.jobs.callers import Callers
from netfold.controller.operations.events import EventLog
from netfold.controller.switch import tables
from netfold.controller.switch.codec import Count
from netfold.controller.web import answers, metrics, serve, view
from netfold.controller.web.answers import Answers, Sources
from netfold.fabric import file as fabric_file
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric, FabricError
from netfold.rpc.rpc import CallRefused
from netfold.wire.faults import KEY_VARIABLE
from netfold.wire.jobs import Done, RankReport
from netfold.wire.operator import Status
from support.control.controller import BOUND, run, until
from support.control.credentials import scopes
from support.control.jobs import rig
from support.control.recovery import all_resume, lose

ANYWHERE = "127.0.0.1:0"


async def get(url: str, authorization: str = "") -> tuple[int, str, str]:
    """Status, content type and body of a GET."""

    def fetch() -> tuple[int, str, str]:
        request = urllib.request.Request(url)
        if authorization:
            request.add_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=BOUND) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()

    return await asyncio.to_thread(fetch)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """As the library's own parser reads them, by name and labels."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


async def test_a_scrape_has_what_the_fabric_does(tmp_path: Path) -> None:
    """Switches, links in both directions, slots, jobs with their ranks, rounds, and what ranks have told."""
    async with rig(tmp_path, metrics=ANYWHERE) as r:
        r.switches["leaf1"].counters = {
            tables.PORT_OUT: {3: Count(7, 7000)}, tables.PORT_IN: {1: Count(9, 900)},
            tables.OUTCOMES: {0: Count(40, 0), 4: Count(2, 0)},
        }
        plans = await r.together(4)
        watcher = await r.watch(plans[0])
        lose(r, "spine2")
        await watcher.next()
        await all_resume(r, plans)
        for retransmissions in (1, 3):  # the later one counts, not both
            report = RankReport("j", 2, plans[2].epoch, 5, 1000, 50, retransmissions, {}, plans[2].rank_secret)
            await r.call("Report", report, Done)
        await client.drain(r.fabric.jobs, "spine2", True)
        status, kind, text = await get(r.controller.page + "/metrics")
        assert (status, kind.startswith("text/plain; version=")) == (200, True)
        found = samples(text)
        job = (("epoch", str(plans[0].epoch)), ("job", "j"))
        uplink = (("kind", "uplink"), ("receiver", "spine1:1"), ("sender", "leaf1:3"))
        host = (("kind", "host"), ("receiver", "leaf1:1"), ("sender", "h1:0"))
        for key, value in {
            ("netfold_switch_up", (("role", "leaf"), ("switch", "leaf1"))): 1,
            ("netfold_switch_up", (("role", "spine"), ("switch", "spine2"))): 0,
            ("netfold_switch_drained", (("role", "spine"), ("switch", "spine2"))): 1,
            ("netfold_link_up", (("a", "leaf1:4"), ("b", "spine2:1"), ("kind", "uplink"))): 0,
            ("netfold_link_bytes_total", uplink): 7000,
            ("netfold_link_packets_total", host): 9,
            ("netfold_switch_folded_packets_total", (("outcome", "first"), ("switch", "leaf1"))): 40,
            ("netfold_switch_folded_packets_total", (("outcome", "late"), ("switch", "leaf1"))): 2,
            ("netfold_jobs", (("state", "active"),)): 1,
            ("netfold_job_ranks", (*job, ("state", "there"))): 4,
            ("netfold_job_rounds_total", job): 1,
            ("netfold_job_stands_still", job): 0,
            ("netfold_round_seconds_count", ()): 1,
            ("netfold_jobs_complete_total", ()): 1,
            ("netfold_ranks_packets_sent_total", ()): 50,
            ("netfold_ranks_retransmissions_total", ()): 3,
        }.items():
            assert found[key] == value, key
        assert found["netfold_switch_slots_used", (("role", "leaf"), ("switch", "leaf1"))] > 0
        assert found["netfold_round_seconds_sum", ()] > 0


def test_the_names_of_metrics_keep_the_rules_of_promtools_lint() -> None:
    """Base units written out and last, _total on counters alone, a help text for each, no type in a name, no camelCase:
    the rules of prometheus/client_golang/prometheus/testutil/promlint, over every metric that there is."""
    families = list(text_string_to_metric_families(metrics.text(Status("lab", "softswitch", 1.0, [], [], [])).decode()))
    assert len(families) > 25
    abbreviated = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
    scaled = re.compile(r"(milli|micro|nano|kilo|mega|giga|kibi|mebi|gibi)|^(bits?|minutes?|hours?|days?|percent)$")
    for family in families:
        name, words = family.name, family.name.split("_")
        assert family.documentation, f"{name} has no help text"
        assert re.fullmatch(r"netfold(_[a-z]+)+", name), name
        assert not set(words) & (abbreviated | {"gauge", "counter", "summary", "histogram", "metric"}), name
        assert not any(map(scaled.search, words)), f"{name}: expected a base unit"
        assert not name.endswith(("_total", "_count", "_sum", "_bucket")), name  # the parser takes _total off a counter
        if family.type == "counter":
            assert all(sample.name == f"{name}_total" for sample in family.samples), name


async def test_what_the_page_asks_for_comes_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fabric, its present state and its history, in the same order of links; other paths are named."""
    monkeypatch.setenv(KEY_VARIABLE, "the-key")
    async with rig(tmp_path, metrics=ANYWHERE) as r:
        await r.together(2)
        operator = "Bearer the-key"
        status, kind, text = await get(r.controller.page + "/fabric.json")
        assert (status, kind) == (200, "application/json")
        fabric = msgspec.json.decode(text, type=view.FabricView)
        assert [node.name for node in fabric.nodes] == [node.name for node in r.fabric.nodes]
        assert [(link.a, link.b) for link in fabric.links] == [(link.a, link.b) for link in r.fabric.links]
        live = msgspec.json.decode((await get(r.controller.page + "/live.json?since=0"))[2], type=view.Live)
        assert [switch.name for switch in live.switches] == [switch.name for switch in r.fabric.switches]
        (job,) = live.jobs
        assert (job.name, job.state, job.joined, job.hosts, [tree.root for tree in job.trees]) == (
            "j", "active", 2, ["h1", "h2"], ["leaf1"])
        assert [fabric.links[number].b for number in job.trees[0].hosts] == ["h1:0", "h2:0"]
        history = msgspec.json.decode((await get(r.controller.page + "/history.json"))[2], type=view.HistoryView)
        assert {len(row) for row in history.links} == {len(history.times)} == {1}
        slots = msgspec.json.decode((await get(r.controller.page + "/slots.json?switch=leaf1", operator))[2],
                                    type=view.SlotsView)
        assert [held.job for held in slots.jobs] == ["j"]
        assert 0 < slots.jobs[0].count <= slots.slots
        status, kind, text = await get(r.controller.page + "/status")
        assert msgspec.json.decode(text, type=Status).fabric == r.fabric.name
        for path, expected in (("/etc/passwd", 404), ("/slots.json", 400), ("/slots.json?switch=x", 404),
                               ("/live.json?since=-1", 400), ("/live.json?" + "a=1&" * 40, 400),
                               ("/" + "a" * 3000, 414), ("/../serve.py", 404), ("/%2e%2e/serve.py", 404)):
            assert (path, (await get(r.controller.page + path, operator))[0]) == (path, expected)


@pytest.mark.parametrize(("authorization", "status"), [
    ("", 401), ("Bearer wrong", 401), ("Basic !!!", 401), ("Bearer viewers", 200),
    ("Basic " + base64.b64encode(b"anybody:operators").decode(), 200),
    ("Basic " + base64.b64encode(b"anybody:another").decode(), 401), ("Bearer jobs", 403),
])
async def test_a_token_that_may_look_is_the_password(tmp_path: Path, authorization: str, status: int) -> None:
    """Any user name goes with it; without one of them there is no page but status 401."""
    fabric = msgspec.structs.replace(leafspine(1, 0, 1, rundir=tmp_path), metrics=ANYWHERE, **scopes(tmp_path))
    callers = Callers(fabric)
    callers.load()
    server = serve.Web(Sources(fabric, nobody), callers)
    url = server.start(ANYWHERE)
    try:
        code, _, text = await get(f"{url}/fabric.json", authorization)
    finally:
        await server.stop()
    assert (code, "leaf1" in text) == (status, status == 200)


@pytest.mark.parametrize(("said", "path", "status"), [
    ("viewers", "/slots.json?switch=leaf1", 403), ("viewers", "/slots.json", 403), ("viewers", "/status", 200),
    ("operators", "/slots.json?switch=leaf1", 200), ("jobs", "/status", 403), ("jobs", "/slots.json", 403),
])
async def test_the_page_has_the_scopes_of_grpc(tmp_path: Path, said: str, path: str, status: int) -> None:
    """A viewer reads no slots by the page, as it reads none by gRPC."""
    async with rig(tmp_path, metrics=ANYWHERE, **scopes(tmp_path)) as r:
        assert (await get(r.controller.page + path, f"Bearer {said}"))[0] == status


def test_without_tokens_slots_are_read_by_the_keys_holder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the page looks; where no launcher has drawn a key, nobody is an operator by the page."""

    async def story(expected: int) -> None:
        async with rig(tmp_path, metrics=ANYWHERE) as r:
            page = r.controller.page
            assert (await get(page + "/live.json"))[0] == 200
            assert (await get(page + "/slots.json?switch=leaf1"))[0] == 403
            assert (await get(page + "/slots.json?switch=leaf1", "Bearer the-key"))[0] == expected

    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    run(story(403))
    monkeypatch.setenv(KEY_VARIABLE, "the-key")
    run(story(200))


async def test_viewers_of_page_and_grpc_share_one_rate_and_operators_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it the answer is 429, by either way; the operator is served all the same."""
    monkeypatch.setattr(callers, "READ_BURST", 4)
    monkeypatch.setattr(callers, "READ_RATE", 1e-6)
    async with rig(tmp_path, metrics=ANYWHERE, **scopes(tmp_path)) as r:
        for _ in range(2):
            await client.status(r.fabric.jobs, token="viewers")
        found = [(await get(r.controller.page + "/status", "Bearer viewers"))[0] for _ in range(4)]
        assert found == [200, 200, 429, 429]
        with pytest.raises(CallRefused, match="expected at most"):
            await client.status(r.fabric.jobs, token="viewers")
        for _ in range(6):
            assert (await get(r.controller.page + "/status", "Bearer operators"))[0] == 200


async def test_without_tokens_an_address_that_asks_too_often_costs_no_other_one_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches such a page is a viewer: one that floods it is refused, and the others are served."""
    monkeypatch.setattr(callers, "READ_BURST", 2)
    monkeypatch.setattr(callers, "READ_RATE", 1e-6)
    monkeypatch.setattr(callers, "MAX_LIMITS", 2)
    fabric = msgspec.structs.replace(leafspine(1, 0, 1, rundir=tmp_path), metrics=ANYWHERE)
    known = Callers(fabric)
    server = serve.Web(Sources(fabric, nobody), known)
    port = int(server.start(ANYWHERE).rpartition(":")[2])

    def asked(source: str) -> int:
        caller = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND, source_address=(source, 0))
        with contextlib.closing(caller):
            caller.request("GET", "/status")
            return caller.getresponse().status

    try:
        flooded = [200, 200, 429, 429]
        for sources, expected in (("1111", flooded), ("2221", flooded), ("34", [200, 200])):
            found = [await asyncio.to_thread(asked, f"127.0.0.{source}") for source in sources]
            assert (sources, found) == (sources, expected)
        assert len(known.limits) == 2
    finally:
        await server.stop()


async def nobody() -> Status:
    """The status of a fabric with no switch, no link and no job."""
    return Status("lab", "bmv2", 1.0, [], [], [])


async def test_a_status_that_fails_is_told_and_the_server_lives_on(tmp_path: Path) -> None:
    """503 with the reason; what needs no status is there all the same."""

    async def broken() -> Status:
        raise RuntimeError("counters are on holiday")

    fabric = leafspine(1, 0, 1, rundir=tmp_path)
    server = serve.Web(Sources(fabric, broken), Callers(fabric))
    url = server.start(ANYWHERE)
    try:
        code, _, text = await get(f"{url}/metrics")
        assert (code, "counters are on holiday" in text) == (503, True)
        assert (await get(f"{url}/fabric.json"))[0] == 200
    finally:
        await server.stop()


def test_the_switches_are_asked_once_for_all_who_look() -> None:
    """Within a second, whoever and however many, and never while nobody looks."""
    now, asked = [100.0], 0

    async def ask() -> Status:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return Status("lab", "bmv2", now[0], [], [], [])

    async def story() -> None:
        looks = Answers(Sources(leafspine(1, 0, 1), ask), clock=lambda: now[0])
        first = await asyncio.gather(*(looks.live(0) for _ in range(5)))
        assert (asked, {uptime(look) for look in first}) == (1, {100.0})
        now[0] += answers.MAX_AGE / 2
        assert uptime(await looks.live(0)) == 100.0
        now[0] += 4.0
        assert asked == 1
        assert uptime(await looks.live(0)) == now[0]
        assert asked == 2

    def uptime(text: bytes) -> float:
        return msgspec.json.decode(text, type=view.Live).uptime

    run(story())


async def test_what_is_made_of_a_status_is_made_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics for many scrapers, and the state for many pages, each of which gets the events that it has not seen."""
    now, made = [100.0], 0
    text = metrics.text

    def counted(status: Status) -> bytes:
        nonlocal made
        made += 1
        return text(status)

    monkeypatch.setattr(metrics, "text", counted)
    log = EventLog()
    log.note("down", "spine1", "first")
    log.note("up", "spine1", "second")
    looks = Answers(Sources(leafspine(1, 0, 1), nobody, events=log.since), clock=lambda: now[0])
    loop = asyncio.get_running_loop()

    def ask(path: str, **query: str) -> bytes:
        return looks.get(path, query, lambda work: asyncio.run_coroutine_threadsafe(task(work), loop).result()).body

    async def task(work: Any) -> Any:
        return await work

    scrapes = await asyncio.gather(*(asyncio.to_thread(ask, "/metrics") for _ in range(5)))
    assert (made, len(set(scrapes))) == (1, 1)
    now[0] += 2 * answers.MAX_AGE
    await asyncio.to_thread(ask, "/metrics")
    assert made == 2
    for since, expected in ((0, ["first", "second"]), (1, ["second"]), (2, [])):
        live = msgspec.json.decode(await asyncio.to_thread(ask, "/live.json", since=str(since)), type=view.Live)
        assert [event.text for event in live.events] == expected


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Every metric that docs/grafana.json names is in a scrape, and every panel has a place of its own."""
    board = json.loads((Path(__file__).resolve().parents[3] / "docs" / "grafana.json").read_text())
    text = metrics.text(Status("lab", "bmv2", 1.0, [], [], [])).decode()
    there = {name for line in text.splitlines() if line.startswith("# TYPE")
             for name in (line.split()[2], line.split()[2] + "_count", line.split()[2] + "_sum")}
    asked = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"netfold_\w+", target["expr"])}
    assert len(asked) > 15
    assert asked <= there
    cells = [(x, y) for panel in board["panels"] for p in [panel["gridPos"]]
             for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))


def test_an_address_that_is_taken_is_an_error_at_the_start(tmp_path: Path) -> None:
    """Named, and the controller does not run half."""

    async def story(fabric: Fabric) -> None:
        async with rig(tmp_path, metrics=fabric.metrics):
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        fabric = msgspec.structs.replace(leafspine(2, 2, 4), metrics=address)
        with pytest.raises(FabricError, match=f"fabric.metrics: cannot listen at {address}: Address already in use"):
            run(story(fabric))


def test_with_a_standby_a_taken_address_does_not_keep_from_serving_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other controller may still have it: the page comes when it is free, and the log says so meanwhile."""
    monkeypatch.setattr("netfold.controller.web.serve.RETRY", 0.01)

    async def story(taken: socket.socket) -> None:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with rig(tmp_path, metrics=address, standby=f"unix:{tmp_path}/standby.sock") as r:
            assert r.controller.page == ""
            assert f"fabric.metrics: cannot listen at {address}: Address already in use" in caplog.text
            assert (await r.controller.status()).fabric
            taken.close()
            await until(lambda: r.controller.page == f"http://{address}")
            assert (await get(r.controller.page + "/metrics"))[0] == 200

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        run(story(taken))


def test_what_is_no_address_is_refused() -> None:
    """The error says what an address looks like."""
    text = fabric_file.dumps(msgspec.structs.replace(leafspine(2, 2, 4), metrics="9464"))
    with pytest.raises(FabricError, match=r"fabric\.metrics: expected HOST:PORT, such as .*:9464, got '9464'"):
        fabric_file.loads(text)


async def test_without_an_address_nothing_listens(tmp_path: Path) -> None:
    """Nobody pays for what nobody asked for."""
    async with rig(tmp_path) as r:
        assert isinstance(r.controller, Controller)
        assert r.controller.page == ""

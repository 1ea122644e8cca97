# SPDX-License-Identifier: Apache-2.0
"""Faults by the page: who may inject them, what is forwarded, and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from netfold.controller.jobs.callers import Callers
from netfold.controller.operations.events import EventLog
from netfold.controller.web import faults, serve
from netfold.controller.web.answers import Sources
from netfold.controller.web.faults import FaultForwarder
from netfold.fabric.generate import leafspine
from netfold.wire import faults as wire
from netfold.wire.operator import Status
from support.control.controller import BOUND
from support.control.credentials import scopes

KILL = {"kind": "kill", "target": "spine1", "seconds": 5}


async def nobody() -> Status:
    """The status of a fabric with no switch, no link and no job."""
    return Status("lab", "bmv2", 1.0, [], [], [])


class Service:
    """A fault service in memory: records requests and gives the answers that it was told."""

    def __init__(self, *answers: wire.Answer) -> None:
        self.requests: list[msgspec.Struct] = []
        self._answers = list(answers)

    def __call__(self, path: Path, request: msgspec.Struct) -> wire.Answer:
        self.requests.append(request)
        return self._answers.pop(0)


def post(url: str, body: bytes, **headers: str) -> tuple[int, str]:
    """Status and body of a POST."""
    words = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return _ask(urllib.request.Request(url, body, words))


def get(url: str, headers: dict[str, str]) -> tuple[int, str]:
    """Status and body of a GET."""
    return _ask(urllib.request.Request(url, headers=headers))


def _ask(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(("token", "headers", "body", "status"), [
    ("operators", {}, KILL, 200),
    ("viewers", {}, KILL, 403),
    ("wrong", {}, KILL, 401),
    ("operators", {"Origin": "http://evil.example"}, KILL, 421),
    ("operators", {"Host": "evil.example"}, KILL, 421),
    ("operators", {"Content-Type": "text/plain"}, KILL, 415),
    ("operators", {}, {"kind": "explode", "target": "spine1"}, 400),
    ("operators", {}, {**KILL, "seconds": -1}, 400),
    ("operators", {}, {**KILL, "shell": "rm"}, 400),
    ("operators", {}, {"kind": "kill", "target": "x" * 5000}, 413),
    ("operators", {}, [1], 400),
])
async def test_only_an_operators_own_page_injects(
    tmp_path: Path, token: str, headers: dict[str, str], body: object, status: int
) -> None:
    """By the operator's token, from this page, as JSON of bounded size, in the service's words; nothing else reaches
    the service."""
    service = Service(wire.Injected(1, "spine1 is killed, for 5 s"))
    fabric = msgspec.structs.replace(leafspine(1, 0, 1, rundir=tmp_path), **scopes(tmp_path))
    callers = Callers(fabric)
    callers.load()
    forwarder = FaultForwarder(Path("/nowhere"), call=service)
    server = serve.Web(Sources(fabric, nobody, faults=forwarder), callers)
    url = server.start("127.0.0.1:0")
    words = {"Authorization": f"Bearer {token}", **{k.replace("-", "_"): v for k, v in headers.items()}}
    try:
        code, text = await asyncio.to_thread(post, f"{url}/fault", json.dumps(body).encode(), **words)
    finally:
        await server.stop()
    assert code == status, text
    asked = [wire.Inject("kill", "spine1", 5.0)] if status == 200 else []
    assert (service.requests, "killed, for 5 s" in text) == (asked, status == 200)


@pytest.mark.parametrize(("said", "tokens", "status"), [
    ("", False, 403), ("kex", False, 403), ("key", False, 200),
    ("", True, 401), ("key", True, 401), ("viewers", True, 403), ("jobs", True, 403), ("operators", True, 200),
])
async def test_the_faults_there_are_listed_for_operators_alone(
    tmp_path: Path, said: str, tokens: bool, status: int
) -> None:
    """Nobody else's request reaches the launcher: without tokens by the key, with tokens by the operator's."""
    service = Service(wire.ActiveFaults("lab", [], compiled_in=True))
    fabric = msgspec.structs.replace(leafspine(1, 0, 1, rundir=tmp_path), **scopes(tmp_path) if tokens else {})
    callers = Callers(fabric)
    callers.load()
    server = serve.Web(Sources(fabric, nobody, faults=FaultForwarder(Path("/nowhere"), call=service, key="key")),
                       callers)
    url = server.start("127.0.0.1:0")
    try:
        code, text = await asyncio.to_thread(get, f"{url}/faults.json", {"Authorization": f"Bearer {said}"})
    finally:
        await server.stop()
    assert (code, "compiled_in" in text, len(service.requests)) == (status, status == 200, int(status == 200))


@pytest.mark.parametrize(("known", "said", "status"), [
    ("key", "key", 200), ("key", "kex", 403), ("key", "", 403), ("", "", 403), ("", "anything", 403)])
async def test_without_tokens_only_the_keys_holder_injects(tmp_path: Path, known: str, said: str, status: int) -> None:
    """Who reaches the page by another way may look, and is not offered what he may not do; without a key nobody may."""
    service = Service(wire.Injected(1, "spine1 is killed, for 5 s"))
    fabric = leafspine(1, 0, 1, rundir=tmp_path)
    forwarder = FaultForwarder(Path("/nowhere"), call=service, key=known)
    server = serve.Web(Sources(fabric, nobody, faults=forwarder), Callers(fabric))
    url = server.start("127.0.0.1:0")
    headers = {"Authorization": f"Bearer {said}"} if said else {}
    try:
        offered = json.loads((await asyncio.to_thread(get, f"{url}/fabric.json", headers))[1])["faults"]
        code, text = await asyncio.to_thread(post, f"{url}/fault", json.dumps(KILL).encode(), **headers)
    finally:
        await server.stop()
    assert code == status, text
    assert bool(service.requests) is offered is (status == 200)


@pytest.mark.parametrize(("said", "body", "status"), [
    ("key", {"host": "h1", "job": "j", "tree": "spine1"}, 200), ("key", {"host": "h9"}, 409),
    ("key", {"hosts": "h1"}, 400), ("key", {"host": "h" * 256}, 400),
    ("", {"host": "h1"}, 403), ("kex", {"host": "h1"}, 403)])
async def test_a_packet_is_recorded_for_the_keys_holder_alone(
    tmp_path: Path, said: str, body: dict[str, str], status: int
) -> None:
    """By the rule of the faults, since a recording reads traffic; the answer is the way, or why there is none."""
    way = wire.RecordedPacket("h1", "rank 0 (h1)", "j", "spine1", "data", "SUM32", 7, 7, [], 3, 0, 0)
    service = Service(way if status == 200 else wire.Refused("nothing passed", conflict=True))
    fabric = leafspine(1, 0, 1, rundir=tmp_path)
    forwarder = FaultForwarder(Path("/nowhere"), call=service, key="key")
    server = serve.Web(Sources(fabric, nobody, faults=forwarder), Callers(fabric))
    url = server.start("127.0.0.1:0")
    headers = {"Authorization": f"Bearer {said}"} if said else {}
    try:
        code, text = await asyncio.to_thread(post, f"{url}/packet", json.dumps(body).encode(), **headers)
    finally:
        await server.stop()
    assert code == status, text
    assert service.requests == ([wire.RecordPacket(**body)] if status in (200, 409) else [])
    assert {200: '"psn":7', 409: "nothing passed"}.get(code, "") in text


async def test_a_body_without_length_or_end_is_no_request(tmp_path: Path) -> None:
    """No length, several, chunks, also beside a length, more than is allowed: answered at once, without reading it."""
    heads = {"": b"411", "Content-Length: 1\r\nContent-Length: 2\r\n": b"411", "Transfer-Encoding: chunked\r\n": b"411",
             "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n": b"411",
             "Content-Length: 99999999999999999999\r\n": b"413", "Content-Length: -1\r\n": b"411"}

    def ask(port: int, head: str) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=BOUND) as connection:
            start = "POST /fault HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{start}Authorization: Bearer key\r\n{head}\r\n".encode())
            return connection.recv(4096).split()[1]

    fabric = leafspine(1, 0, 1, rundir=tmp_path)
    server = serve.Web(Sources(fabric, nobody, faults=FaultForwarder(None, key="key")), Callers(fabric))
    port = int(server.start("127.0.0.1:0").rpartition(":")[2])
    try:
        for head, status in heads.items():
            assert await asyncio.to_thread(ask, port, head) == status, head
    finally:
        await server.stop()


def test_faults_that_begin_and_end_are_events() -> None:
    """A switch that is killed as such; what is gone from the list has ended; refusals come with their reason."""
    log = EventLog()
    cut = wire.ActiveFault(3, "cut", "leaf1:3", "leaf1:3 - spine1:1 is cut", 1.0, 4.0)
    service = Service(wire.Injected(3, "leaf1:3 - spine1:1 is cut"), wire.ActiveFaults("lab", [cut], True),
                      wire.ActiveFaults("lab", [], True), wire.Refused("spine1 is killed already", conflict=True),
                      wire.Refused("no switch spine9"), wire.Undone(["leaf1:3 is whole"]), wire.Injected(4, "gone"))
    forwarder = FaultForwarder(Path("/nowhere"), log.note, service)
    assert forwarder.inject(b'{"kind": "cut", "target": "leaf1:3"}').text == "leaf1:3 - spine1:1 is cut"
    assert [forwarder.active().faults.faults for _ in range(2)] == [[cut], []]  # type: ignore[union-attr]
    assert forwarder.inject(b'{"kind": "kill", "target": "spine1"}')[:2] == (409, "spine1 is killed already")
    assert forwarder.inject(b'{"kind": "kill", "target": "spine9"}')[:2] == (400, "no switch spine9")
    assert forwarder.inject(b'{"undo": 3}')[:2] == (200, "leaf1:3 is whole")
    assert service.requests[-1] == wire.Undo(3)
    forwarder.inject(b'{"kind": "kill", "target": "spine2"}')
    assert [(event.kind, event.target) for event in log.since(0)] == [
        ("fault", "leaf1:3"), ("fault ended", "leaf1:3"), ("killed", "spine2")]


def test_without_a_service_nothing_is_injected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher that serves faults, or one that has gone: said so, and not found out by a crash."""
    monkeypatch.delenv(wire.FAULTS_VARIABLE, raising=False)
    none = FaultForwarder.of_environment()
    assert not none.is_there
    assert none.inject(json.dumps(KILL).encode()).status == 409
    refused = none.record(b'{"host": "h1"}')
    assert refused.status == 409
    assert "on a fabric of this machine alone" in refused.text
    monkeypatch.setenv(wire.FAULTS_VARIABLE, str(tmp_path / "gone.sock"))
    gone = FaultForwarder.of_environment()
    assert gone.is_there
    assert gone.inject(json.dumps(KILL).encode()).status == 409
    assert gone.record(b'{"host": "h1"}').status == 409
    assert "gone.sock" in gone.active().text
    assert faults.TIMEOUT < serve.TIMEOUT

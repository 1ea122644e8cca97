# SPDX-License-Identifier: Apache-2.0
"""What the web server answers to each path, from what the controller knows.

    /                 the page: static/index.html       /metrics       Prometheus' text format (metrics.py)
    /page.css, ...    files of static/                  /status        what `netfold status --json` prints
    /faults.json, POST /fault, POST /packet     faults.py
    /fabric.json, /live.json?since=SEQ, /history.json, /slots.json?switch=NAME     for the page (view.py)

Nothing is read from the switches but for a request, once for all requests within MAX_AGE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from netfold.controller.operations.history import History, Sample
from netfold.controller.web import metrics, view
from netfold.controller.web.faults import FaultForwarder
from netfold.fabric.graph import Fabric
from netfold.wire.operator import FabricEvent, PinnedPath, Status
from netfold.wire.stalls import JobSlots, SwitchSlots

MAX_AGE: Final = 0.9
"""Seconds for which a status is reused for further requests."""
MAX_NUMBER: Final = 2**62
JSON: Final = "application/json"
TYPES: Final = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png", ".ico": "image/x-icon",
    ".woff2": "font/woff2", ".webmanifest": "application/manifest+json", ".json": JSON,
}
"""Content types of the page's files by suffix; others are not served."""
STATIC: Final = Path(__file__).resolve().parent / "static"
"""Folder of the page's files."""


class WebAnswer(NamedTuple):
    """The answer to a request."""

    status: HTTPStatus
    kind: str
    body: bytes


class BadRequest(ValueError):
    """A request that cannot be answered as it is; the message says what was expected.

    Remedy: ask for a path that the page itself asks for, with the fields that the message names.
    """


@dataclass(frozen=True)
class Sources:
    """Where answers come from; all but ``fabric`` are called in the controller's loop.

    status  reads the switches
    ask_progress  asks the ranks of jobs how far they are, without waiting for them
    slots   reads the open slots of one switch by its name.  Raises Refusal.
    """

    fabric: Fabric
    status: Callable[[], Awaitable[Status]]
    history: History = field(default_factory=History)
    events: Callable[[int], list[FabricEvent]] = lambda _: []
    paths: Callable[[], list[PinnedPath]] = list
    slots: Callable[[str], Awaitable[list[JobSlots]]] | None = None
    faults: FaultForwarder = field(default_factory=lambda: FaultForwarder(None))
    ask_progress: Callable[[], None] = lambda: None


class Moment(NamedTuple):
    """What is known at one moment."""

    status: Status
    sample: Sample
    samples: list[Sample]
    paths: list[PinnedPath]
    events: list[FabricEvent]


class Answers:
    """Answers requests for one fabric.  Its coroutines run in the controller's loop; ``clock``: monotonic seconds."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._busy = asyncio.Lock()
        self._last: tuple[float, Status] | None = None
        self._finder = view.LinkFinder(sources.fabric)

    async def status(self) -> Status:
        """The status; a new one is read unless the last is younger than MAX_AGE."""
        async with self._busy:
            if self._last is None or self._clock() - self._last[0] >= MAX_AGE:
                status = await self._sources.status()
                self._sources.history.note(status)
                self._last = (self._clock(), status)
            return self._last[1]

    async def moment(self, since: int) -> Moment:
        """What is known now, with the events after number ``since``."""
        self._sources.ask_progress()
        status = await self.status()
        samples = list(self._sources.history.samples)
        return Moment(status, samples[-1], samples, self._sources.paths(), self._sources.events(since))

    async def _slots(self, switch: str) -> tuple[Status, SwitchSlots]:
        if self._sources.slots is None:
            raise BadRequest("slots: this controller does not read them")
        held = await self._sources.slots(switch)
        return await self.status(), SwitchSlots(held)

    def post(self, path: str, body: bytes) -> WebAnswer:
        """The answer to an operator's POST; called in a thread of its own.  Raises msgspec.MsgspecError."""
        if path not in ("/fault", "/packet"):
            return WebAnswer(HTTPStatus.NOT_FOUND, "text/plain", b"POST: there are /fault and /packet\n")
        done = self._sources.faults.record(body) if path == "/packet" else self._sources.faults.inject(body)
        return WebAnswer(done.status, JSON, msgspec.json.encode(
            {"text": done.text} if done.packet is None else done.packet))

    def get(
        self, path: str, query: Mapping[str, str], run: Callable[[Awaitable[Any]], Any], *, operator: bool = True
    ) -> WebAnswer:
        """The answer to a GET; called in a thread of its own.  Raises BadRequest, and Refusal of the slots.

        run       runs a coroutine in the controller's loop and returns its result
        operator  whether the caller may do more than look
        """
        match path:
            case "/fabric.json":
                return _json(view.of_fabric(self._sources.fabric, faults=operator and self._sources.faults.is_there))
            case "/faults.json":
                active = self._sources.faults.active()
                body = msgspec.json.encode({"text": active.text} if active.faults is None else active.faults)
                return WebAnswer(active.status, JSON, body)
            case "/live.json":
                now: Moment = run(self.moment(_number(query, "since")))
                return _json(view.live(self._finder, now.status, now.sample, now.paths, now.events))
            case "/history.json":
                now = run(self.moment(MAX_NUMBER))
                return _json(view.history(now.samples, len(now.status.links), len(now.status.switches)))
            case "/slots.json":
                if not (switch := query.get("switch", "")):
                    raise BadRequest("slots.json: expected ?switch=NAME")
                status, held = run(self._slots(switch))
                return _json(view.slots(next(s for s in status.switches if s.name == switch), held))
            case "/status":
                return _json(run(self.status()))
            case "/metrics":
                return WebAnswer(HTTPStatus.OK, metrics.CONTENT_TYPE, metrics.text(run(self.status())))
        name = "index.html" if path == "/" else path.removeprefix("/")
        if name in static_files():
            return WebAnswer(HTTPStatus.OK, TYPES[Path(name).suffix], (STATIC / name).read_bytes())
        known = "there are /, /live.json, /history.json, /fabric.json, /slots.json, /metrics and /status\n"
        return WebAnswer(HTTPStatus.NOT_FOUND, "text/plain", known.encode())


@cache
def static_files() -> frozenset[str]:
    """Names of the page's files, below STATIC: nothing else is ever opened for a request."""
    return frozenset(str(path.relative_to(STATIC)) for path in STATIC.rglob("*")
                     if path.is_file() and path.suffix in TYPES)


def _json(value: object) -> WebAnswer:
    return WebAnswer(HTTPStatus.OK, JSON, msgspec.json.encode(value))


def _number(query: Mapping[str, str], name: str) -> int:
    said = query.get(name, "0")
    if not (said.isascii() and said.isdecimal() and len(said) < 20 and int(said) < MAX_NUMBER):
        raise BadRequest(f"{name}: expected a number of 0 or more, got {said[:40]!r}")
    return int(said)

# SPDX-License-Identifier: Apache-2.0
"""The web server's answer to each path, from the controller's state.

    /                 the page: static/index.html       /metrics       Prometheus' text format (metrics.py)
    /page.css, ...    files of static/                  /status        what `netfold status --json` prints
    /faults.json, POST /fault, POST /packet     faults.py
    /fabric.json, /live.json?since=SEQ, /history.json, /slots.json?switch=NAME     for the page (view.py)

The switches are read only for a request, once for all requests within MAX_AGE, and each answer is also made once: a
hundred clients cost no more than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from netfold.controller.operations.history import History
from netfold.controller.web import metrics, view
from netfold.controller.web.faults import FaultForwarder
from netfold.fabric.graph import Fabric
from netfold.rpc.limits import Shared
from netfold.wire.operator import FabricEvent, PinnedPath, Status
from netfold.wire.stalls import JobSlots, SwitchSlots

EVERY: Final = 4.0
"""Seconds between two samples while there are no viewers."""
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
    """An invalid request; the message says what was expected.

    Remedy: use a path that the page itself uses, with the fields that the message names.
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


class Answers:
    """Answers requests for one fabric.  Its coroutines run in the controller's loop; ``clock``: monotonic seconds."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self.status = Shared(self._read, fresh=MAX_AGE, clock=clock)
        """The status; a new one is read unless the last is younger than MAX_AGE."""
        self._faults = Shared(lambda: asyncio.to_thread(sources.faults.active), fresh=MAX_AGE, clock=clock)
        self._made: dict[str, tuple[Status, asyncio.Task[bytes]]] = {}
        """Path -> the latest answer, and the status from which it was made."""
        self._finder = view.LinkFinder(sources.fabric)

    async def _read(self) -> Status:
        status = await self._sources.status()
        self._sources.history.note(status)
        return status

    async def look(self) -> None:
        """Take a sample each EVERY seconds, so that whoever opens the page finds what was before; returns when
        cancelled.  A switch or rank that does not answer then is told to whoever looks."""
        while True:
            self._sources.ask_progress()
            with contextlib.suppress(Exception):
                await self._read()
            await asyncio.sleep(EVERY)

    async def _of_status(self, path: str, make: Callable[[Status], bytes]) -> bytes:
        """The answer for a path, made of the status in a thread, once for each status."""
        status = await self.status()
        if path not in self._made or self._made[path][0] is not status:
            self._made[path] = status, asyncio.create_task(asyncio.to_thread(make, status))
        return await asyncio.shield(self._made[path][1])

    async def live(self, since: int) -> bytes:
        """view.Live of now, with the events after number ``since``, as JSON."""
        self._sources.ask_progress()
        paths = self._sources.paths()
        state = await self._of_status("/live.json", lambda status: msgspec.json.encode(
            view.live(self._finder, status, self._sources.history.samples[-1], paths)))
        return view.with_events(state, self._sources.events(since))

    async def history(self) -> bytes:
        """view.HistoryView of now, as JSON."""
        await self.status()
        samples = list(self._sources.history.samples)
        return await self._of_status("/history.json", lambda status: msgspec.json.encode(
            view.history(samples, len(status.links), len(status.switches))))

    async def _slots(self, switch: str) -> view.SlotsView:
        if self._sources.slots is None:
            raise BadRequest("slots: this controller does not read them")
        held = await self._sources.slots(switch)
        status = await self.status()
        return view.slots(next(s for s in status.switches if s.name == switch), SwitchSlots(held))

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
                active = run(self._faults())
                return WebAnswer(active.status, JSON, msgspec.json.encode(
                    {"text": active.text} if active.faults is None else active.faults))
            case "/live.json":
                return WebAnswer(HTTPStatus.OK, JSON, run(self.live(_number(query, "since"))))
            case "/history.json":
                return WebAnswer(HTTPStatus.OK, JSON, run(self.history()))
            case "/slots.json":
                if not (switch := query.get("switch", "")):
                    raise BadRequest("slots.json: expected ?switch=NAME")
                return _json(run(self._slots(switch)))
            case "/status":
                return WebAnswer(HTTPStatus.OK, JSON, run(self._of_status(path, msgspec.json.encode)))
            case "/metrics":
                return WebAnswer(HTTPStatus.OK, metrics.CONTENT_TYPE, run(self._of_status(path, metrics.text)))
        name = "index.html" if path == "/" else path.removeprefix("/")
        if name in static_files():
            return WebAnswer(HTTPStatus.OK, TYPES[Path(name).suffix], (STATIC / name).read_bytes())
        known = ("there are /, /live.json, /history.json, /fabric.json, /slots.json, /faults.json, /metrics and "
                 "/status\n")
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

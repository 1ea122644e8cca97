# SPDX-License-Identifier: Apache-2.0
"""One switch kept at its desired state, whatever happens to the connection or to the switch.

    connecting -> pipeline pushed (unless it runs) -> entries read back -> difference written -> up
        ^                                                                                        |
        '--------------------------------- stream ended -----------------------------------------'
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entity, State, state
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.reconcile import Update, diff
from netfold.controller.switch.switch import Count, NotPrimary, PacketIn, SwitchError

log = logging.getLogger("netfold.controller")

RETRY: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before the next attempt to connect; the last one repeats."""


class Client(Protocol):
    """What a target needs of a session: `netfold.controller.switch.switch.Session`, or a fake one."""

    packets: asyncio.Queue[PacketIn]
    ports_down: set[int]
    """As far as the switch tells."""
    on_ports: Callable[[], None]
    """Called when they change."""

    async def packet_out(self, port: int, payload: bytes) -> None: ...
    async def ensure_pipeline(self) -> bool: ...
    async def read_state(self, tables: Iterable[str]) -> State: ...
    async def read_counter(self, name: str) -> dict[int, Count]: ...
    async def write(self, updates: list[Update]) -> None: ...
    async def probe_all(self, slots: Iterable[int]) -> dict[int, SlotState]: ...
    async def ended(self) -> str: ...
    async def close(self) -> None: ...


Connect = Callable[[], Awaitable[Client]]
Sleep = Callable[[float], Awaitable[None]]


class Target:
    """A switch's name, its desired state, and the task that holds the switch to it.

    ``base`` entries stay for good (routes, losses); each job adds a part of its own under its name.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        sleep: Sleep = asyncio.sleep,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.problem: str = "not connected yet"
        """Why the switch is not up; empty where it is."""
        self.sessions = 0
        """Counts those that came up: a new one may be with a switch that has lost its registers."""
        self.pushes = 0
        """Pipelines pushed by this controller."""
        self._connect = connect
        self._sleep = sleep
        self._on_change = on_change
        self._parts: dict[str, State] = {}
        self._actual: State = {}
        self._actual_unknown = True
        """Whether the switch may hold something else than ``_actual``."""
        self._client: Client | None = None
        self._busy = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gave_up = False

    @property
    def is_up(self) -> bool:
        """True where the switch holds its desired state."""
        return self._client is not None and not self.problem

    @property
    def client(self) -> Client:
        """The session.  Raises SwitchError while there is none."""
        if self._client is None:
            raise SwitchError(f"{self.name} is down: {self.problem}")
        return self._client

    @property
    def ports_down(self) -> set[int]:
        """Ports that the switch says are down; none while it is down itself, or does not tell."""
        return set() if self._client is None else self._client.ports_down

    @property
    def entries(self) -> int:
        """Entities that the switch holds."""
        return len(self._actual)

    def start(self) -> None:
        """Begin to hold the switch to its desired state."""
        self._task = asyncio.create_task(self._run(), name=f"target {self.name}")

    async def stop(self) -> None:
        """Let go of the switch and leave it as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait_up(self, timeout: float) -> None:
        """Wait for the switch to hold its desired state.  Raises SwitchError with the last problem."""
        try:
            async with asyncio.timeout(timeout):
                while not self.is_up and not self._gave_up:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if not self.is_up:
            waited = "" if self._gave_up else f"{self.name} is not up after {timeout:g} s: "
            raise SwitchError(f"{waited}{self.problem}")

    def preset(self, part: str, entities: Iterable[Entity]) -> None:
        """Set a part of the desired state before `start`."""
        self._parts[part] = state(entities)

    async def install(self, part: str, entities: Iterable[Entity]) -> None:
        """Add or replace a part of the desired state, and wait until the switch has it.

        Raises SwitchError where the switch is down or refuses; the part then is not desired any more.
        """
        wanted = state(entities)
        async with self._busy:
            client = self.client
            self._parts[part] = wanted
            try:
                await self._apply(client)
            except BaseException as error:
                del self._parts[part]
                if isinstance(error, SwitchError):
                    await self._retry(client)
                raise

    async def replace(self, part: str, entities: Iterable[Entity]) -> None:
        """Set a part of the desired state to something else; a switch that is down gets it when it comes back."""
        wanted = state(entities)
        async with self._busy:
            if self._parts.get(part) != wanted:
                self._parts[part] = wanted
                await self._reconcile()

    async def uninstall(self, part: str) -> None:
        """Take a part out of the desired state.  A switch that is down is cleaned when it comes back."""
        async with self._busy:
            if self._parts.pop(part, None) is not None or self._actual_unknown:
                await self._reconcile()

    async def compare(self, *, repair: bool = False) -> tuple[State, list[Update]]:
        """What the switch holds, read back now, and the writes that it lacks; ``repair``: they are made.  Raises
        SwitchError."""
        async with self._busy:
            client = self.client
            actual = self._actual = await client.read_state(tables.MANAGED)
            updates = diff(actual, self._desired())
            if repair:
                await self._apply(client)
            else:
                self._actual_unknown |= bool(updates)  # whatever is written next mends this, too
            return actual, updates

    def _desired(self) -> State:
        return state(entity for part in self._parts.values() for entity in part.values())

    async def _reconcile(self) -> None:
        """Bring the switch to its desired state, if it is there."""
        if self._client is not None:
            try:
                await self._apply(self._client)
            except SwitchError as error:
                log.warning("%s", error)
                await self._retry(self._client)

    async def _apply(self, client: Client) -> None:
        """Write the difference.  After a write that failed or was cut off, look at what is there first."""
        if self._actual_unknown:
            self._actual = await client.read_state(tables.MANAGED)
        desired = self._desired()
        updates = diff(self._actual, desired)
        if updates:
            self._actual_unknown = True
            await client.write(updates)
        self._actual = desired
        self._actual_unknown = False

    async def _retry(self, client: Client) -> None:
        """Once more after a write that failed half-way."""
        try:
            await self._apply(client)
        except SwitchError as error:
            log.warning("%s: still not in its desired state, connecting anew: %s", self.name, error)
            await client.close()  # the next session starts from what the switch then holds

    async def _run(self) -> None:
        attempt = 0
        while True:
            client: Client | None = None
            try:
                began = time.monotonic()
                client = await self._connect()
                connected = time.monotonic()
                async with self._busy:
                    self.pushes += await client.ensure_pipeline()
                    loaded = time.monotonic()
                    self._actual_unknown = True
                    await self._apply(client)
                    self._client, client.on_ports = client, self._on_change
                    self.sessions += 1
                    self._set_problem("")
                attempt = 0
                log.info("%s: up, %d entries; connected after %.0f ms, program loaded in %.0f, entries written in %.0f",
                         self.name, len(self._actual), 1e3 * (connected - began), 1e3 * (loaded - connected),
                         1e3 * (time.monotonic() - loaded))
                self._set_problem(await client.ended() or "the session ended")
                log.warning("%s: down: %s", self.name, self.problem)
            except NotPrimary as error:
                # whoever took the switch meant to: fighting over it would cut both off
                self._gave_up = True
                self._set_problem(str(error))
                log.error("%s", error)
                return
            except SwitchError as error:
                if str(error) != self.problem:
                    log.warning("%s", error)
                self._set_problem(str(error))
            except Exception as error:
                self._gave_up = True
                self._set_problem(f"{self.name}: the controller failed: {error!r}")
                log.exception("%s: the controller failed", self.name)
                return
            finally:
                self._client = None
                if client is not None:
                    await client.close()
            await self._sleep(RETRY[min(attempt, len(RETRY) - 1)])
            attempt += 1

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        self._changed.set()
        self._on_change()

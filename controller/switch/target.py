# SPDX-License-Identifier: Apache-2.0
"""Keeps one switch in its desired state, whatever happens to the connection or to the switch.

    connecting -> pipeline pushed (unless it runs) -> entries read back -> difference written -> up
        ^                                                                                        |
        '--------------------------------- stream ended -----------------------------------------'
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.codec import Cells, Wanted
from netfold.controller.switch.desired import Desired
from netfold.controller.switch.election import Superseded
from netfold.controller.switch.entities import Entity, State, state
from netfold.controller.switch.probe import SlotState
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import NotPrimary, PacketIn, SwitchError
from netfold.controller.switch.turns import Turns

log = logging.getLogger("netfold.controller")

COMPARED: Final = 8
"""Entities that are compared in the time in which one update is encoded."""
STEADY: Final = 10.0
"""Seconds that a session must last for the next attempt to come at once: a switch whose program keeps crashing is
retried ever later."""
DISPUTE: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds until a switch that another client has taken is claimed again, longer each time, so that two clients that
both want it do not take it from each other all the time.  A session of the last length ends the series."""
RETRY: Final = (0.02, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before the next attempt to connect; the last one repeats."""


class Client(Protocol):
    """The part of `netfold.controller.switch.switch.Session` that a target uses; tests have others."""

    packets: asyncio.Queue[PacketIn]
    packets_dropped: int
    """Packet-ins that were dropped on the way to ``packets``, by the switch's stream or because the queue was full."""
    ports_down: set[int]
    """Ports that are down, if the switch reports them."""
    on_ports: Callable[[], None]
    """Called when ``ports_down`` changes."""

    async def packet_out(self, port: int, payload: bytes) -> None: ...
    async def packet_out_to_neighbours(self, payload: bytes) -> None: ...
    async def heard(self) -> int: ...
    async def hear(self) -> None: ...
    async def ensure_pipeline(self) -> bool: ...
    async def read_state(self, tables: Iterable[str]) -> State: ...
    async def read_counters(self, wanted: Wanted) -> Callable[[], Cells]: ...
    async def read_cell(self, name: str, index: int) -> int: ...
    async def write(self, updates: list[Update]) -> None: ...
    async def probe_all(self, slots: Iterable[int]) -> dict[int, SlotState]: ...
    async def ended(self) -> str: ...
    async def close(self) -> None: ...


Connect = Callable[[], Awaitable[Client]]
Sleep = Callable[[float], Awaitable[None]]


class Target:
    """A switch, its desired state, and the task that reconciles the two.

    The desired state consists of named parts: what the fabric needs (faults, routes), and a part for each job.  What an
    earlier controller has left of its jobs on the switch is part of it as well, by epoch, until somebody calls `claim`
    or `forget`.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        turns: Turns | None = None,
        sleep: Sleep = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[], None] = lambda: None,
        on_found: Callable[[dict[int, State]], bool] = lambda found: True,
        on_superseded: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.name = name
        self.problem: str = "not connected yet"
        """Why the switch is not up; empty if it is."""
        self.silence: str = ""
        """Why the controller neither queries the switch nor writes to it, though its session has not ended; usually
        empty."""
        self._writing: asyncio.Task[None] | None = None
        """The write under way."""
        self.sessions = 0
        """Number of sessions so far: with a new one, the switch may have lost its registers."""
        self.pushes = 0
        """Number of pipelines that this controller has pushed."""
        self.entries = 0
        """Number of entities that the switch held when that was last known."""
        self.found: dict[int, State] | None = None
        """State of jobs that an earlier controller has left on the switch, by epoch; None until it was read, at the
        first connection."""
        self.was_empty = False
        """True if the switch had no program at the first connection, and so no state of any job."""
        self.came_back = False
        """True if a session began after that in which `found` was read: the switch may have lost these jobs' slots."""
        self._connect = connect
        self._turns = turns or Turns()
        self._installs: list[Collection[str]] = []
        """Parts of each `install` that waits for the work under way, or is under way: that work is then urgent."""
        self._removals: list[Collection[str]] = []
        """Parts of each `uninstall` that waits for the work under way, or is under way."""
        self._sleep = sleep
        self._clock = clock
        self._on_change = on_change
        self._on_found = on_found
        self._on_superseded = on_superseded
        self.desired = Desired()
        self._client: Client | None = None
        self.busy = asyncio.Lock()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._gave_up = False

    @property
    def is_up(self) -> bool:
        """True if the switch is connected and in its desired state."""
        return self._client is not None and not self.problem

    @property
    def is_heard(self) -> bool:
        """True if the switch is up and not silent, so that it can be queried and written to."""
        return self.is_up and not self.silence

    @property
    def client(self) -> Client:
        """The current session.  Raises SwitchError if there is none, or the switch is silent."""
        if self._client is None:
            raise SwitchError(f"{self.name} is down: {self.problem}")
        if self.silence:
            raise SwitchError(f"{self.name}: {self.silence}")
        return self._client

    async def hear(self) -> None:
        """Wait for a sign of life of the current session.  Raises SwitchError."""
        if self._client is None:
            raise SwitchError(f"{self.name} is down: {self.problem}")
        await self._client.hear()

    def fall_silent(self, why: str) -> None:
        """From now on nothing is asked of the switch or written to it.  What is being written ends with an error when
        this is called a second time: the switch may only be slow."""
        if self.silence and self._writing is not None:
            self._writing.cancel()
        self.silence = why

    async def resume(self) -> None:
        """The switch answers again: write what it lacks."""
        self.silence = ""
        async with self.busy:
            await self._reconcile()

    @property
    def ports_down(self) -> set[int]:
        """Ports that the switch reports as down; none if it is down itself or does not report them."""
        return set() if self._client is None else self._client.ports_down

    @property
    def packets_dropped(self) -> int:
        """Packet-ins of the current session that were dropped on their way here; 0 where there is none."""
        return 0 if self._client is None else self._client.packets_dropped

    def start(self) -> None:
        """Begin to keep the switch in its desired state."""
        self._task = asyncio.create_task(self._run(), name=f"target {self.name}")

    async def stop(self) -> None:
        """Close the session and leave the switch as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait_up(self, timeout: float) -> None:
        """Wait until the switch is in its desired state.  Raises SwitchError with the last problem."""
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

    def preset(self, parts: Mapping[str, Iterable[Entity] | State]) -> None:
        """Set parts of the desired state before `start`."""
        self.desired.put({part: state(entities) for part, entities in parts.items()})

    async def install(self, parts: Mapping[str, Iterable[Entity]]) -> None:
        """Add or replace parts of the desired state, and wait until the switch has them.

        Raises SwitchError if the switch is down or refuses; the parts are removed from the desired state then.
        """
        wanted = {part: state(entities) for part, entities in parts.items()}
        self._installs.append(wanted)
        self._turns.hurry(self)
        try:
            async with self.busy:
                client = self.client
                try:
                    self.desired.put(wanted)
                    await self._apply(client)
                except BaseException as error:
                    for part in wanted:
                        self.desired.remove(part)
                    if isinstance(error, SwitchError) and not self.silence:
                        await self._retry(client)
                    raise
        finally:
            self._installs.remove(wanted)

    async def replace(self, parts: Mapping[str, Iterable[Entity] | State]) -> None:
        """Replace parts of the desired state; a switch that is down gets them when it comes back."""
        wanted = {part: state(entities) for part, entities in parts.items()}
        async with self.busy:
            held = {part: self.desired.part(part) for part in wanted}
            if any(held[part] is not entities and held[part] != entities for part, entities in wanted.items()):
                self.desired.put(wanted)
                await self._reconcile()

    async def uninstall(self, parts: Collection[str]) -> None:
        """Remove parts from the desired state; a switch that is down loses them when it comes back.  Work that is under
        way for others alone is not waited for: a program may take minutes to load."""
        if (self.busy.locked() or self.desired.is_compared) and not any(map(self.has_to_do_with, parts)):
            return
        self._removals.append(parts)
        try:
            async with self.busy:
                if [part for part in parts if self.desired.remove(part)] or not self.desired.is_compared:
                    await self._reconcile()
        finally:
            self._removals.remove(parts)

    def has_to_do_with(self, part: str) -> bool:
        """True if the switch should have a part, or if one of that name is being installed or removed."""
        return self.desired.part(part) is not None or any(part in those for those in self._installs + self._removals)

    def claim(self, epoch: int, part: str) -> None:
        """Make what an earlier controller has left of an epoch, in `found`, the part of a job, with nothing to
        write."""
        assert self.found is not None
        del self.found[epoch]
        self.desired.rename(_left_part(epoch), part)

    async def forget(self, epoch: int) -> None:
        """Remove what an earlier controller has left of an epoch."""
        await self.uninstall([_left_part(epoch)])
        if self.found:
            self.found.pop(epoch, None)

    async def compare(self, *, repair: bool = False) -> tuple[State, list[Update]]:
        """The switch's actual state, read now, and the updates that it lacks; with ``repair`` they are written.  Raises
        SwitchError."""
        async with self.busy:
            client = self.client
            actual = await self._read(client)
            updates = self.desired.lacking()
            if repair:
                await self._apply(client)
            elif updates:
                self.desired.unsettle()  # whatever is written next mends this, too
            return actual, updates

    async def _read(self, client: Client) -> State:
        """Learn the actual state from the switch, and compare it.  Raises SwitchError."""
        actual = await client.read_state(tables.MANAGED)
        await self._turn(max(len(actual), len(self.desired.all)) // COMPARED)
        self.desired.compare(actual)
        self.entries = len(actual)
        return actual

    async def _reconcile(self) -> None:
        """Bring the switch to its desired state if it is connected."""
        client = self._client  # which ends, and is None, where the session does while this waits
        if client is not None and not self.silence:
            try:
                await self._apply(client)
            except SwitchError as error:
                log.warning("%s", error)
                if not self.silence:
                    await self._retry(client)

    async def _apply(self, client: Client) -> None:
        """Write the difference, unless the switch falls silent meanwhile.  Raises SwitchError."""
        self._writing = asyncio.ensure_future(self._write(client))
        try:
            await self._writing
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise SwitchError(f"{self.name}: {self.silence}") from None
        finally:
            self._writing = None

    async def _write(self, client: Client) -> None:
        """Write the difference; after a failed or cancelled write, read the actual state first.  Raises SwitchError."""
        if not self.desired.is_compared:
            await self._read(client)
        await self._turn(self.desired.size // COMPARED)
        updates = self.desired.lacking()
        if updates:
            self.desired.unsettle()
            for start in range(0, len(updates), self._turns.size):
                batch = updates[start : start + self._turns.size]
                await self._turn(len(batch))
                await client.write(batch)
        self.desired.settle()
        self.entries = len(self.desired.all)

    async def _turn(self, updates: int) -> None:
        """Wait for a turn of the event loop with room for so many updates."""
        await self._turns.wait(self, updates, urgent=bool(self._installs))

    async def _retry(self, client: Client) -> None:
        """Try again after a failed write, and close the session if that fails, too."""
        try:
            await self._apply(client)
        except SwitchError as error:
            log.warning("%s: still not in its desired state, connecting anew: %s", self.name, error)
            await client.close()  # the next session starts from what the switch then holds

    async def _read_jobs(self, client: Client, *, empty: bool) -> None:
        """At the first connection: keep what an earlier controller has left of its jobs, if somebody may still claim
        it.  Raises SwitchError."""
        if self.found is not None:
            self.came_back = True
            return
        actual = await self._read(client)
        await self._turn(len(actual) // COMPARED)
        desired = self.desired.all
        left = fold_tables.by_epoch(entity for key, entity in actual.items() if key not in desired)
        found = {epoch: state(entities) for epoch, entities in left.items()}
        if found and not self._on_found(found):
            found = {}  # the first write removes it
        self.found, self.was_empty = found, empty
        self.desired.put({_left_part(epoch): entities for epoch, entities in found.items()})
        if found:
            log.info("%s: holds entries of jobs of an earlier controller, of the epochs %s", self.name,
                     ", ".join(map(str, sorted(found))))

    async def _run(self) -> None:
        attempt = disputes = 0
        while True:
            client: Client | None = None
            wait = 0.0
            try:
                began = self._clock()
                client = await self._connect()
                connected = self._clock()
                async with self.busy:
                    pushed = await client.ensure_pipeline()
                    self.pushes += pushed
                    loaded = self._clock()
                    self.desired.unsettle()
                    await self._read_jobs(client, empty=pushed)
                    await self._apply(client)
                    self._client, client.on_ports = client, self._on_change
                    self.sessions += 1
                    self._set_problem("")
                log.info("%s: up, %d entries; connected after %.0f ms, program loaded in %.0f, entries written in %.0f",
                         self.name, self.entries, 1e3 * (connected - began), 1e3 * (loaded - connected),
                         1e3 * (self._clock() - loaded))
                self._set_problem(await client.ended() or "the session ended")
                if self._clock() - began >= STEADY:
                    attempt = 0
                if self._clock() - began >= DISPUTE[-1]:
                    disputes = 0
                log.warning("%s: down: %s", self.name, self.problem)
            except Superseded as error:  # said by the controller, once for all switches
                self._gave_up = True
                self._set_problem(str(error))
                self._on_superseded(str(error))
                return
            except NotPrimary as error:
                if error.present:
                    wait = DISPUTE[min(disputes, len(DISPUTE) - 1)]
                    disputes += 1
                self._set_problem(str(error))
                log.error("%s; claiming it again", error)
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
                self._client, self.silence = None, ""
                if client is not None:
                    await client.close()
            await self._sleep(wait or RETRY[min(attempt, len(RETRY) - 1)])
            attempt += not wait

    def _set_problem(self, problem: str) -> None:
        self.problem = problem
        self._changed.set()
        self._on_change()


def _left_part(epoch: int) -> str:
    """Name of the part with what an earlier controller has left of an epoch."""
    return f"left of epoch {epoch}"

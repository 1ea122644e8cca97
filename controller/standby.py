# SPDX-License-Identifier: Apache-2.0
"""A standby: a controller that waits until the first one has died, and takes over.

   observers on all switches --no primary of ours for SETTLE--> a controller at the standby's address --superseded-->
        ^                                                                                                            |
        '------------------------------------------------------------------------------------------------------------'

It takes over where more than half of the fabric's switches can be reached, and the first controller hangs, or nobody
listens at its address any more (heartbeat.py), or they have no primary.  Where nothing is known of the first one, which
may be on another network, a primary whose election id is not of this fabric is none.  So a standby that is cut off
itself, or a first controller that has lost one switch alone, changes nothing, and neither does a stranger that takes a
switch, or repeats an id of a controller that has died.
There are never two: the switches obey the primary alone, and a controller that was only cut off finds an election id
that covers its own when it is back, and ends (switch/election.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from netfold.controller import exposure, garbage
from netfold.controller.controller import START_TIMEOUT, Controller
from netfold.controller.heartbeat import Heartbeat
from netfold.controller.jobs import fabric_key
from netfold.controller.jobs.callers import Callers
from netfold.controller.serving import StartError
from netfold.controller.switch import credentials, pipeline
from netfold.controller.switch.election import Elections, Superseded
from netfold.controller.switch.observer import Observer
from netfold.fabric.graph import Fabric, FabricError, Switch

log = logging.getLogger("netfold.controller")

SETTLE: Final = 0.2
"""Seconds without a primary after which the first controller counts as dead: after a switch has closed its stream, it
reconnects in less."""
PATIENCE: Final = 10.0
"""Seconds that a standby which has never seen a primary waits for one: the first controller may be starting."""


class Standby:
    """The standby of one fabric, which serves jobs at ``fabric.standby`` when it has taken over.  Raises FabricError
    where the fabric has none.

    observe   makes the observer of a switch; the argument is called when what it sees changes
    beats     makes the heartbeat of the first controller, of the arguments of `Heartbeat`
    insecure, start_timeout  as of `Controller`
    """

    def __init__(
        self, fabric: Fabric, *, insecure: bool = False, start_timeout: float = START_TIMEOUT,
        observe: Callable[[Switch, Callable[[], None]], Observer] | None = None,
        beats: Callable[..., Heartbeat] | None = None,
    ) -> None:
        if fabric.standby is None:
            raise FabricError('fabric.standby: expected the address at which the standby serves jobs, such as '
                              '"unix:/run/netfold-standby.sock", got none')
        self.fabric = msgspec.structs.replace(fabric, jobs=fabric.standby, standby=fabric.jobs)
        """The fabric as this controller serves it."""
        # now, rather than when it is needed
        exposure.certificates(self.fabric)
        exposure.check_client(self.fabric, fabric.jobs)
        callers = Callers(self.fabric)
        callers.load()
        exposure.check(self.fabric, token=callers.exist, insecure=insecure)
        self._insecure = insecure
        self._start_timeout = start_timeout
        self._changed = asyncio.Event()
        key = fabric_key.load(self.fabric)  # now, rather than when it is needed
        self._elections = {switch.name: Elections(key, switch.device_id) for switch in fabric.switches}
        make = observe or self._observer
        self.observers = [make(switch, self._changed.set) for switch in fabric.switches]
        self.heartbeat = (beats or Heartbeat)(fabric.jobs, key, callers.operator_token, self._changed.set,
                                               claimed=self._is_claimed)

    async def run(self, ready: Callable[[str], None]) -> None:
        """Wait and take over, again and again, until cancelled.  Raises FabricError, PipelineError and StartError.

        ready  called with a line that says what the standby does now
        """
        made = await asyncio.to_thread(pipeline.of_fabric, self.fabric)
        while True:
            ready(f"standby: fabric {self.fabric.name}, watches {len(self.observers)} switches; will serve jobs at "
                  f"{self.fabric.jobs}")
            reached = await self.wait()
            began = time.monotonic()
            log.warning("the first controller %s: taking over %s",
                        "hangs" if self.heartbeat.health == "hung" else "has gone", ", ".join(sorted(reached)))
            controller = Controller(self.fabric, pipeline=made, insecure=self._insecure, needed=reached,
                                    start_timeout=self._start_timeout,
                                    seen={observer.name: observer.last for observer in self.observers})
            try:
                async with contextlib.AsyncExitStack() as running:
                    with garbage.kept_out():
                        await running.enter_async_context(controller)
                    ready(f"ready: took over {self.fabric.name} in {1e3 * (time.monotonic() - began):.0f} ms, jobs at "
                          f"{self.fabric.jobs}")
                    await controller.run()
            except Superseded as error:
                log.warning("%s; waiting as standby again", error)
            except StartError as error:
                log.warning("could not take over: %s", error)

    async def wait(self) -> set[str]:
        """Wait until the first controller has died or hangs.  Returns the switches that can be reached and that no
        stranger has: above one with the highest election id there is nothing."""
        tasks = [asyncio.create_task(observer.run(), name=f"standby on {observer.name}")
                 for observer in self.observers]
        self.heartbeat.begin()
        tasks.append(asyncio.create_task(self.heartbeat.run(), name="heartbeat"))
        try:
            seen, began = False, time.monotonic()
            while True:
                self._changed.clear()
                seen |= any(map(self._is_ours, self.observers)) or self.heartbeat.health != "unknown"
                settle = SETTLE if seen else max(SETTLE, began + PATIENCE - time.monotonic())
                try:
                    async with asyncio.timeout(settle if self._is_dead() else None):
                        await self._changed.wait()
                except TimeoutError:
                    # what came while the loop stood still is handled in the turn in which the time was over
                    if self._changed.is_set() or not self._is_dead():
                        continue
                    return {observer.name for observer in self.observers
                            if self._is_free(observer) or self._is_ours(observer)}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for observer in self.observers:
                observer.primary = None

    def _is_ours(self, observer: Observer) -> bool:
        """True if the primary of a switch has an election id of this fabric."""
        return bool(observer.primary) and self._elections[observer.name].is_ours(observer.primary or 0)

    def _is_free(self, observer: Observer) -> bool:
        """True if a switch has no primary, or one of this fabric that only looks."""
        return observer.primary is not None and (
            not observer.primary or self._elections[observer.name].is_looking(observer.primary))

    def _is_claimed(self) -> bool:
        """True if more than half of all switches have a primary with an election id of this fabric."""
        return 2 * sum(map(self._is_ours, self.observers)) > len(self.observers)

    def _is_dead(self) -> bool:
        """True if more than half of all switches can be reached, and the first controller has died, hangs, or has none
        of these.  A foreign client that has one does not count while the controller is working."""
        health = self.heartbeat.health
        vacant = [observer for observer in self.observers if observer.primary is not None and (
            health in ("gone", "hung") or self._is_free(observer)
            or (health != "alive" and not self._is_ours(observer)))]
        return 2 * len(vacant) > len(self.observers)

    def _observer(self, switch: Switch, on_change: Callable[[], None]) -> Observer:
        return Observer(switch.name, switch.grpc, switch.device_id, partial(credentials.of, self.fabric, switch),
                        self._elections[switch.name].looking, on_change)

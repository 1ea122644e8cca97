# SPDX-License-Identifier: Apache-2.0
"""A standby: a controller that waits until the first one has died, and takes over.

    observers on all switches --no primary anywhere for SETTLE--> a controller at the standby's address --superseded-->
        ^                                                                                                            |
        '------------------------------------------------------------------------------------------------------------'

The first controller counts as dead where every switch that the standby reaches has no primary, and these are more than
half of the fabric's: a standby that is cut off itself, or a first controller that has lost one switch alone, changes
nothing.  There are never two: the switches obey the primary alone, and a controller that was only cut off finds a
higher election id with the fabric's seal when it is back, and ends (switch/election.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from netfold.controller import exposure
from netfold.controller.controller import Controller
from netfold.controller.jobs import fabric_key
from netfold.controller.jobs.callers import Callers
from netfold.controller.serving import StartError
from netfold.controller.switch import credentials, pipeline
from netfold.controller.switch.election import Superseded
from netfold.controller.switch.observer import Observer
from netfold.fabric.graph import Fabric, FabricError, Switch

log = logging.getLogger("netfold.controller")

SETTLE: Final = 0.2
"""Seconds without a primary after which the first controller counts as dead: it connects again in less where a switch
has closed its stream."""
PATIENCE: Final = 10.0
"""Seconds that a standby which has never seen a primary waits for one: the first controller may be starting."""


class Standby:
    """The standby of one fabric, which serves jobs at ``fabric.standby`` when it has taken over.  Raises FabricError
    where the fabric has none.

    observe   makes the observer of a switch; the argument is called when what it sees changes
    insecure  as of `Controller`
    """

    def __init__(
        self, fabric: Fabric, *, insecure: bool = False,
        observe: Callable[[Switch, Callable[[], None]], Observer] | None = None,
    ) -> None:
        if fabric.standby is None:
            raise FabricError('fabric.standby: expected the address at which the standby serves jobs, such as '
                              '"unix:/run/netfold-standby.sock", got none')
        self.fabric = msgspec.structs.replace(fabric, jobs=fabric.standby, standby=fabric.jobs)
        """The fabric as this controller serves it."""
        # now, rather than when it is needed
        exposure.certificates(self.fabric)
        callers = Callers(self.fabric)
        callers.load()
        exposure.check(self.fabric, token=callers.exist, insecure=insecure)
        self._insecure = insecure
        self._changed = asyncio.Event()
        make = observe or self._observer
        self._observers = [make(switch, self._changed.set) for switch in fabric.switches]

    async def run(self, ready: Callable[[str], None]) -> None:
        """Wait and take over, again and again, until cancelled.  Raises FabricError, PipelineError and StartError.

        ready  called with a line that says what the standby does now
        """
        fabric_key.load(self.fabric)  # now, rather than when it is needed
        made = await asyncio.to_thread(pipeline.of_fabric, self.fabric)
        while True:
            ready(f"standby: fabric {self.fabric.name}, watches {len(self._observers)} switches; will serve jobs at "
                  f"{self.fabric.jobs}")
            reached = await self.wait()
            began = time.monotonic()
            log.warning("no controller on %s: taking over", ", ".join(sorted(reached)))
            controller = Controller(self.fabric, pipeline=made, insecure=self._insecure, needed=reached)
            try:
                async with controller:
                    ready(f"ready: took over {self.fabric.name} in {1e3 * (time.monotonic() - began):.0f} ms, jobs at "
                          f"{self.fabric.jobs}")
                    await controller.run()
            except Superseded as error:
                log.warning("%s; waiting as standby again", error)
            except StartError as error:
                log.warning("could not take over: %s", error)

    async def wait(self) -> set[str]:
        """Wait for the death of the first controller.  Returns the switches that can be reached."""
        tasks = [asyncio.create_task(observer.run(), name=f"standby on {observer.name}")
                 for observer in self._observers]
        try:
            seen, began = False, time.monotonic()
            while True:
                self._changed.clear()
                seen |= any(observer.has_primary for observer in self._observers)
                settle = SETTLE if seen else max(SETTLE, began + PATIENCE - time.monotonic())
                gone = self._gone()
                try:
                    async with asyncio.timeout(settle if gone else None):
                        await self._changed.wait()
                except TimeoutError:
                    return gone
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for observer in self._observers:
                observer.has_primary = None

    def _gone(self) -> set[str]:
        """The switches that can be reached, if none of them has a primary and they are more than half; else none."""
        reached = {observer.name for observer in self._observers if observer.has_primary is not None}
        if any(observer.has_primary for observer in self._observers) or 2 * len(reached) <= len(self._observers):
            return set()
        return reached

    def _observer(self, switch: Switch, on_change: Callable[[], None]) -> Observer:
        return Observer(switch.name, switch.grpc, switch.device_id, credentials.of(self.fabric, switch), on_change)

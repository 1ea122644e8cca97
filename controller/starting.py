# SPDX-License-Identifier: Apache-2.0
"""The switches that a controller needs when it starts.  Where some hold a running job's entries, its ranks need this
controller more than it needs the rest: it goes on without the others then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from netfold.controller.jobs.adoption import Adoption
from netfold.controller.serving import StartError
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target

log = logging.getLogger("netfold.controller")

JOBS_PATIENCE: Final = 1.0
"""Seconds that a controller which has found running jobs waits for one more switch."""


async def wait_for_switches(
    fabric: str, targets: Mapping[str, Target], needed: Collection[str], adoption: Adoption, *, timeout: float
) -> None:
    """Wait until the switches that are needed are up, or, where there are jobs, until JOBS_PATIENCE seconds after the
    last one that came.  Raises StartError."""
    waiting = {name: asyncio.create_task(targets[name].wait_up(timeout)) for name in sorted(needed)}
    pending = set(waiting.values())
    while pending:
        patience = JOBS_PATIENCE if adoption.has_found else None
        came, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not came:
            break
    for task in pending:
        task.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    problems = [str(targets[name].problem if task.cancelled() else task.exception())
                for name, task in waiting.items() if task.cancelled() or task.exception() is not None]
    if not problems:
        return
    count = f"{len(problems)} of {len(needed)} switches of the fabric {fabric}"
    if not adoption.has_found or len(problems) == len(waiting):
        raise StartError(f"{count} did not come up:\n" + "\n".join(problems))
    log.warning("going on without %s, since others hold entries of running jobs: %s", count, "; ".join(problems))


async def check_cpu_ports(fabric: str, targets: Collection[Target], adoption: Adoption) -> None:
    """Have each switch that is up answer a packet of the controller's.  Raises StartError, or where there are jobs,
    warns: without a CPU port no link is found up, and no slot can be looked at."""

    async def problem(target: Target) -> str:
        for last in (False, False, True):  # a machine may be too busy for the first packets
            try:
                await target.client.probe_all([0])
                return ""
            except SwitchError as error:
                if last or not target.is_up:
                    return str(error) if target.is_up else ""
        return ""

    up = [target for target in targets if target.is_up]
    problems = [said for said in await asyncio.gather(*map(problem, up)) if said]
    if not problems:
        return
    count = f"{len(problems)} of {len(up)} switches of the fabric {fabric}"
    text = "\n".join([f"{count} pass the controller no packets:", *problems])
    if not adoption.has_found:
        raise StartError(text)
    log.warning("going on without links and slots of switches: %s", text)

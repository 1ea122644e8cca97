# SPDX-License-Identifier: Apache-2.0
"""Parts of the desired state on all switches that they belong on, or on none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from netfold.controller.switch.entities import Entity
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target

CONFIRM_TIMEOUT: Final = 2.0
"""Seconds that switches have to say whether another client has taken them."""


class Installer:
    """Writes parts of the desired state to a fabric's switches.

    targets  the switches by name
    """

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = targets

    async def install(self, parts: Mapping[str, Mapping[str, Sequence[Entity]]]) -> None:
        """Write parts, by name and switch, to all their switches at once; if one fails, remove them from all and raise
        SwitchError."""
        wanted: dict[str, dict[str, Sequence[Entity]]] = {}
        for part, entities in parts.items():
            for name, those in entities.items():
                wanted.setdefault(name, {})[part] = those
        outcomes = await asyncio.gather(
            *(self._targets[name].install(those) for name, those in wanted.items()), return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self.uninstall(parts)
            for failure in failures:
                if not isinstance(failure, SwitchError):
                    raise failure
            raise SwitchError("; ".join(map(str, failures)))

    async def uninstall(self, parts: Collection[str]) -> None:
        """Remove parts everywhere; a switch that is down loses them when it comes back."""
        await asyncio.gather(*(target.uninstall(parts) for target in self._targets.values()))

    async def confirm(self) -> None:
        """Hear from every switch that is up, before anything else is done, if another client has taken it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_TIMEOUT):
                await asyncio.gather(*(target.hear() for target in self._targets.values() if target.is_up),
                                     return_exceptions=True)

    def session(self, switch: str) -> int:
        """Number of the current session with a switch; after a change, the switch may have lost its slots."""
        return self._targets[switch].sessions

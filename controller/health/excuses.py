# SPDX-License-Identifier: Apache-2.0
"""Probes that were lost on the way from the far end's CPU port to this controller tell nothing of their link.

Such losses are counted: at the switch, by the meter of the port (p4src/punt.p4), and on the stream to the controller,
by the switch and by the session.  The count of a link's end is taken when its first probe is missing, and again when
the link is about to be judged: if it has risen, the link is not judged, and its missing probes are counted anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from netfold.controller.health.links import Links
from netfold.controller.switch import tables
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.graph import End

log = logging.getLogger("netfold.controller")

COUNT_TIMEOUT: Final = 0.1
"""Seconds for a switch's answer on the packets that its meter dropped: one that hangs is not excused."""


class _Dropped(NamedTuple):
    """Packets for the controller that were dropped so far."""

    by_meter: int | None
    """By the meter of one port; None: the switch did not tell."""
    on_stream: int
    """Between the switch and the controller."""

    def since(self, before: _Dropped) -> int:
        """How many since then; counts that began anew tell nothing."""
        by_meter = 0 if self.by_meter is None or before.by_meter is None else self.by_meter - before.by_meter
        return max(by_meter, 0) + max(self.on_stream - before.on_stream, 0)


class Excuses:
    """Packets dropped at the ends of links whose probes are missing."""

    def __init__(self, targets: Mapping[str, Target], links: Links) -> None:
        self._targets = targets
        self._links = links
        self._before: dict[End, _Dropped] = {}
        """End of a link -> packets that had been dropped there when its first probe was missing."""

    async def consider(self) -> None:
        """Count the missing probes of those links anew that are about to be judged while packets were dropped at the
        end where their probes should have arrived."""
        missing = self._links.missing()
        for end in self._before.keys() - missing.keys():
            del self._before[end]
        asked = [end for end, last_one in missing.items()
                 if self._targets[end.node].is_heard and (last_one or end not in self._before)]
        for end, dropped in zip(asked, await asyncio.gather(*map(self._dropped, asked)), strict=True):
            if count := dropped.since(self._before.setdefault(end, dropped)):
                self._links.excuse(end)
                del self._before[end]
                log.warning("the link at %s is not judged by the probes that it lost: %d packets for the controller "
                            "were dropped there meanwhile", end, count)

    async def _dropped(self, end: End) -> _Dropped:
        """Packets dropped at this end so far."""
        client = self._targets[end.node].client
        try:
            async with asyncio.timeout(COUNT_TIMEOUT):
                return _Dropped(await client.read_cell(tables.OVER_RATE, end.port), client.packets_dropped)
        except (SwitchError, TimeoutError) as error:
            log.debug("drops at %s are not known: %s", end, error or f"no answer within {COUNT_TIMEOUT:g} s")
            return _Dropped(None, client.packets_dropped)

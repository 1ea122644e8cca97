# SPDX-License-Identifier: Apache-2.0
"""The outages that were told: each one, its end, and each change of its reason is logged and recorded once."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from netfold.controller.switch.target import Target
from netfold.fabric.graph import Fabric
from netfold.wire.operator import Note

log = logging.getLogger("netfold.controller")


class Outages:
    """The outages of one fabric's switches and links that were told last.

    note  records what went down and came up
    """

    def __init__(self, fabric: Fabric, targets: Mapping[str, Target], note: Note) -> None:
        self._fabric = fabric
        self._targets = targets
        self._note = note
        self.links: dict[int, str] = {}
        """The reasons, by the number of a link that is down."""
        self._switches: set[str] = set()

    def tell_links(self, now: dict[int, str]) -> None:
        """Tell which links went down or came up, and which are down for another reason.

        now  as of `Liveness.links_down`
        """
        before, self.links = self.links, now
        for number in sorted(now.keys() | before.keys()):
            link = self._fabric.links[number]
            name, why = f"{link.a} - {link.b}", now.get(number)
            if why is None:
                log.warning("link %s is up", name)
                self._note("link up", name, "probes come through" if self._fabric.probe else "")
            elif number not in before:
                log.warning("link %s is down: %s", name, why)
                self._note("link down", name, why)
            elif why != before[number]:
                log.warning("link %s is still down: %s", name, why)
                self._note("link down", name, f"still: {why}")

    def note_switches(self) -> set[str]:
        """Record which switches went down or came up.  Returns those that are down."""
        down = {name for name, target in self._targets.items() if not target.is_up}
        for name in sorted(down ^ self._switches):
            target = self._targets[name]
            if name in down:
                self._note("down", name, target.problem.removeprefix(f"{name}: "))
            else:
                self._note("up", name, f"holds {target.entries} entries")
        self._switches = down
        return down

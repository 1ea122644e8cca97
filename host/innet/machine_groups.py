# SPDX-License-Identifier: Apache-2.0
"""The way to reduce tensors on devices inside this rank's machine: a process group of its ranks, or shared memory.

A group is opened, tried and measured when the first such tensor comes, by all ranks of the machine.  It is used where
NetReduce's condition holds for its rate and the link's; where ranks ask for it, it is used in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from netfold.host import shared_log
from netfold.host.collectives.open_on_all import Unfit, agreed_over, open_on_all
from netfold.host.errors import TransportError
from netfold.host.innet.machine_windows import MachinePlace
from netfold.host.innet.netreduce_conditions import beats_ring
from netfold.host.mesh.mesh import Mesh
from netfold.host.selection.peers import Peers

log = logging.getLogger("netfold")


class Found(NamedTuple):
    """The fate of a kind of group."""

    group: Any = None
    """A ``staging.device_step.MachineGroup``; None: there is none."""
    rate: float = 0.0
    """Bytes a second that a rank reduces by it, its copies included."""
    forced: bool = False
    """True if the ranks asked for it."""
    why: str = ""
    """Why there is none."""


class MachineGroups:
    """The groups of one machine, by kind.

    peers    all ranks
    local    those of this machine, in the order of their ``place``
    address  of the machine on the fabric
    timeout  of a collective, in seconds
    link     bytes a second of the machine's link; 0: not known
    memory   bytes a second that a rank reduces through shared memory
    """

    def __init__(
        self, peers: Peers, local: Mesh, place: MachinePlace, address: str, timeout: float, *, link: float,
        memory: float,
    ) -> None:
        self._peers, self._local, self._place = peers, local, place
        self._address, self._timeout = address, timeout
        self._link, self._memory = link, memory
        self.found: dict[str, Found] = {}
        """By kind of backend."""

    def of(self, opener: Any, operation: Callable[[], AbstractContextManager[object]]) -> Any | None:
        """See ``FoldingRail.inside``."""
        if self._local.size == 1:
            return None
        found = self.found.get(opener.kind)
        if found is None:
            with operation():
                found = self.found[opener.kind] = self._open(opener)
        return found.group if found.group is not None and (found.forced or self._pays(found.rate)) else None

    def describe(self) -> str:
        """See ``FoldingRail.devices``."""
        return ", and ".join(self._say(kind, found) for kind, found in self.found.items())

    def close(self) -> None:
        """Ends all groups."""
        for found in self.found.values():
            if found.group is not None:
                found.group.close()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _open(self, opener: Any) -> Found:
        with self._peers.operation(f"the ranks of each machine open {opener.kind}"):
            opened = open_on_all(
                agreed_over(self._local), lambda: opener.open(self._local, self._address, self._timeout),
                lambda group: group.close(),
            )
            if not isinstance(opened, Unfit):
                return Found(opened, 1 / opener.measure(opened, self._place.folding).beta, opener.forced)
        lacking = Unfit({self._place.ranks[rank]: why for rank, why in opened.lacking.items()}, opened.own)
        why = lacking.say("cannot reduce tensors on its device itself")
        if opener.forced:
            raise TransportError(why)
        log.log(shared_log.level(self._place.local), "%s: those of its machine go through shared memory", why)
        return Found(why=why)

    def _pays(self, rate: float) -> bool:
        """True if NetReduce's condition holds for this rate inside; where the link's is known neither from the plan nor
        as measured: if it is higher than that of shared memory."""
        measured = self._peers.chooser.measured
        link = self._link or (1 / measured.link.beta if measured is not None and measured.link.beta else 0.0)
        return beats_ring(self._peers.size, self._place.largest, rate, link) if link else rate > self._memory

    def _say(self, kind: str, found: Found) -> str:
        if found.group is None:
            return f"go through shared memory: {found.why}"
        if found.forced:
            return f"are reduced there, as asked for: {found.rate / 1e9:.3g} GB/s by {kind}"
        way = "are reduced there" if self._pays(found.rate) else "go through shared memory"
        return f"{way}: {found.rate / 1e9:.3g} GB/s by {kind}"

# SPDX-License-Identifier: Apache-2.0
"""How a fold goes on over TCP where no trees are left: what is under way ends over a rank that stands in for the
switches, and later operations go between the hosts.

    rank    Resume: the last operation that it has begun, and where it would stand in  ---.
    ...                                                                                  controller: no trees
    rank    <--- Plan: who stands in, and the last operation that any rank has begun  ----'

The controller decides, once all ranks stand still, so that all ranks go on alike: operations up to that number fold
over the stand-in, whether a rank has finished them, is in them, or has yet to call them; later ones do not fold.
"""

from __future__ import annotations

import logging
import socket

from netfold.host import shared_log
from netfold.host.errors import TreesLost
from netfold.host.forked import own_pair
from netfold.host.innet.core import Core
from netfold.host.innet.stand_in import PURPOSE, Broken, StandIn, connect
from netfold.host.innet.stand_in_link import StandInLink
from netfold.host.mesh.handshake import HandshakeRefused, Identity
from netfold.host.mesh.sockets import listen
from netfold.wire.plan import Plan

log = logging.getLogger("netfold")


class Fallback:
    """One rank's way to go on over TCP.  Used under the fold's lock.

    address  of this rank on the fabric
    timeout  seconds that the rank which stands in may take to answer
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._listener: socket.socket | None = None
        self._stand_in: StandIn | None = None
        self._link: StandInLink | None = None
        self._until = 0
        self._who = ""
        self.why = ""
        """Why the switches no longer fold; empty while they do."""

    def offer(self) -> str:
        """Where this rank would stand in, as ADDRESS:PORT; it listens there from now on.  Raises TransportError."""
        if self._listener is None:
            self._listener = listen(self._address)
        return "{}:{}".format(*self._listener.getsockname())

    def decline(self) -> None:
        """There are other trees: nobody stands in."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def begin(self, plan: Plan, core: Core) -> None:
        """Connects this rank to the one that stands in, by a plan that names it; one of the ranks begins to be it.
        Raises TreesLost."""
        self._who = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        streams = [stream for tree in plan.trees for stream in (tree.agreement, tree.data)]
        ranks = fold_ranks(plan)
        me = Identity.of_plan(plan, PURPOSE)
        try:
            if plan.rank == ranks[0]:
                if self._listener is None:
                    raise Broken("it does not listen")
                near, sock = own_pair()
                self._stand_in = StandIn(self._listener, me, ranks, [stream.slots for stream in streams], near)
                self._listener = None
            else:
                sock = connect(plan.stand_in, me, ranks[0], self._timeout)
        except (OSError, Broken, HandshakeRefused) as error:
            raise TreesLost(
                f"{self._who}: {plan.reason}; and rank {ranks[0]}, which stands in for the switches over TCP at "
                f"{plan.stand_in}, cannot be reached: {error}"
            ) from error
        finally:
            self.decline()
        self._link = StandInLink(core, sock, streams)
        self._until = plan.folds_until
        self.why = fell_back(plan)
        log.log(shared_log.level(plan.rank), "%s: %s; rank %d stands in for the switches until then", self._who,
                self.why, ranks[0])

    def takes(self, number: int) -> bool:
        """True if this operation folds: any operation while there are trees, afterwards only those that some rank had
        begun."""
        return not self.why or number <= self._until

    def run(self, until: int) -> int:
        """Runs the fold over the stand-in (``StandInLink.run``).  Raises TreesLost."""
        assert self._link is not None
        try:
            return self._link.run(until)
        except (Broken, OSError) as error:
            raise TreesLost(
                f"{self._who}: {self.why}; and the rank that stands in for the switches until then is gone: {error}"
            ) from error

    def close(self) -> None:
        """Closes the connection, and ends standing in; safe to call twice."""
        self.decline()
        if self._link is not None:
            self._link.close()
        if self._stand_in is not None:
            self._stand_in.close()
            self._stand_in = None


def fell_back(plan: Plan) -> str:
    """Why the switches no longer fold, and since when, according to a plan that names the rank in their place."""
    return (
        f"no trees are left ({plan.reason}): operations after {plan.folds_until} go over TCP between the hosts; "
        "join anew to fold again"
    )


def fold_ranks(plan: Plan) -> list[int]:
    """The ranks that fold together with this one, itself included: those with the same place on their machines."""
    for machine in plan.machines:
        if plan.rank in machine:
            place = machine.index(plan.rank)
            return [ranks[place] for ranks in plan.machines]
    return list(range(plan.world))

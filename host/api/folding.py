# SPDX-License-Identifier: Apache-2.0
"""Opens the folding rail of a communicator: on all ranks, or on none."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from netfold.host.client.membership import Membership
from netfold.host.collectives.open_on_all import Agreement, Unfit, agreed_over, open_on_all
from netfold.host.innet.fold import FoldRail
from netfold.host.mesh.connection import printable
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.rail import FoldingRail
from netfold.host.selection.peers import Peers
from netfold.host.tracing.timeline import Timeline


def connect(
    membership: Membership, rail: str, address: str, timeout: float, timeline: Timeline | None, lane_bits: LaneBits
) -> FoldRail | None:
    """Opens the rail "verbs", whose queue pairs it connects with those of all other RC ranks: they wait for each other,
    and what one of them lacks, the controller tells the others.  None for all other kinds of rails.  Raises what
    ``VerbsRail`` raises.

    lane_bits  lane width of the job, in bits
    """
    if rail != "verbs":
        return None
    from netfold.host.verbs.devices import port_of
    from netfold.host.verbs.rail import VerbsRail

    return VerbsRail(
        membership.plan, address, port_of(address), timeout=timeout, control=membership.fold_control(timeout),
        timeline=timeline, lane_bits=lane_bits,
    )


def open_fold(
    membership: Membership, peers: Peers, address: str, receiver: socket.socket | None, connected: FoldRail | None,
    timeout: float, timeline: Timeline | None, *, falls_back: bool, lane_bits: LaneBits,
) -> FoldingRail:
    """Opens the rail over the plan's trees.  All ranks call it together, whatever kinds of rails they have.

    receiver    socket bound to the rank's UDP port, for a rail of windowed end points; taken over
    connected   the rail of an RC rank (``connect``); taken over
    falls_back  as of ``FoldRail``
    lane_bits   lane width of the job, in bits
    Raises Unfit on all ranks if one of them cannot fold.
    """
    plan = membership.plan
    agree = _agreement(membership, peers.mesh, timeout)

    def open_() -> FoldRail:
        return connected if connected is not None else FoldRail(
            plan, address, receiver=receiver, timeout=timeout, control=membership.fold_control(timeout),
            timeline=timeline, falls_back=falls_back, lane_bits=lane_bits,
        )

    if any(len(ranks) > 1 for ranks in plan.machines):
        from netfold.host.innet.parallel import ParallelFold

        return ParallelFold(
            plan, peers, agree, address, receiver, timeout=timeout, control=membership.fold_control(timeout),
            timeline=timeline, falls_back=falls_back,
        )
    with peers.mesh.operation(Call(0, "the ranks open what they fold with")):
        opened = open_on_all(agree, open_, FoldRail.close)
    if isinstance(opened, Unfit):
        raise opened
    return opened


def _agreement(membership: Membership, mesh: Mesh, timeout: float) -> Agreement:
    """How the ranks exchange their obstacles: through the controller, or over the mesh if no controller watches
    them."""
    if membership.client is None:
        return agreed_over(mesh)

    def agree(lacks: str) -> Mapping[int, str]:
        return {rank: printable(why) for rank, why in membership.opened(lacks, timeout).items()}

    return agree

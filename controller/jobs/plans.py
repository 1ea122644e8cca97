# SPDX-License-Identifier: Apache-2.0
"""Makes the plans that a job's ranks get, from what the controller has decided about the job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from netfold.controller.jobs import fabric_key, ticket
from netfold.controller.jobs.adoption import record_of
from netfold.controller.jobs.job import Job
from netfold.fabric.folding import slots
from netfold.fabric.generate.grids import mesh_of, ring_along
from netfold.fabric.graph import Fabric, Host
from netfold.fabric.placement.machines import machines, slowest
from netfold.fabric.placement.ring import ring_order
from netfold.wire.plan import Peer, Plan, RankStream, RankTree, Secret, SharedParts, pack
from netfold.wire.roce import OPERATION_BITS

MESSAGES: Final = 4
"""Messages for which a stream has slots in a job with RC ranks: two may be under way, and what is behind them, in the
switches and on links, may be as many (docs/protocol.md)."""


def hosts_of(fabric: Fabric, job: Job) -> list[Host]:
    """The hosts of the ranks, in order of ranks."""
    at = {host.address: host for host in fabric.hosts}
    return [at[join.address] for _, join in sorted(job.joins.items()) if join.address in at]


def make(fabric: Fabric, key: bytes, job: Job, staying: Collection[int] = ()) -> list[Plan]:
    """A plan for each rank, with the streams that the ranks are to know, and with a new ticket (``job.ticket``).

    key      the fabric key, by which rank secrets are derived and the ticket is sealed
    staying  epochs of the trees whose switches hold what they held under the plan before
    """
    job.ticket = ticket.seal(key, record_of(job, fabric.name))
    return before_connecting(fabric, key, job, job.announced, job.rounds, staying)


def before_connecting(
    fabric: Fabric, key: bytes, job: Job, streams: Sequence[slots.Stream], number: int, staying: Collection[int] = ()
) -> list[Plan]:
    """A plan for each rank, which is for RC ranks alone until they have connected their queue pairs.  The ticket is the
    one before, which the switches still bear out: there is none at first.

    key      as above
    streams  what the ranks are to know
    number   of the recovery round
    staying  as above
    """
    hosts = hosts_of(fabric, job)
    job.rate = slowest(fabric, job.hosts) if job.rate is None else job.rate
    addresses = [fabric.jobs, *([fabric.standby] if fabric.standby else [])]
    job.shared = job.shared or pack(_shared(fabric, job))
    message = streams[0].slots // MESSAGES if streams and job.rc_ranks else 0
    holders = ticket.holders(job) if job.ticket.value else frozenset()
    mine: dict[int, list[tuple[slots.Stream, int]]] = {rank: [] for rank in range(job.world)}
    for stream in streams:
        for place, rank in enumerate(stream.ranks):
            mine[rank].append((stream, place))
    return [
        Plan(job.name, job.epoch, rank, job.world, [], rank_trees(fabric, mine[rank], hosts, staying), job.reason, [],
             job.rate, [], [], _path_mtu(fabric, job), number, job.secret,
             fabric_key.rank_secret(key, job.tenant.name, job.name, job.epoch, rank),
             job.ticket if rank in holders else Secret(), bool(holders) and rank not in holders, addresses,
             fold_address=fabric.fold_address(hosts[rank]) if job.joins[rank].kind == "rc" else "",
             verb="send" if message else "write", message=message, change=job.change,
             presence=fabric.engine == "softswitch" and not job.rc_ranks, inside=bool(streams) and not mine[rank],
             shared=job.shared)
        for rank in range(job.world)
    ]


def _shared(fabric: Fabric, job: Job) -> SharedParts:
    """The common parts of all plans of the job."""
    names = {host.address: host.name for host in fabric.hosts}
    peers = [Peer(rank, join.address, join.tcp, join.udp_port, names.get(join.address, ""), join.rails)
             for rank, join in sorted(job.joins.items())]
    places: list[list[int]] = []
    order: list[int] = []
    if not job.is_group:  # the ranks of a group have those of their job
        places = mesh_of(fabric.graph(), job.hosts)
        order = ring_along(places) if places else ring_order(
            ((a.node, b.node) for a, b in (link.ends for link in fabric.links)), job.hosts)
    return SharedParts(peers, machines(job.hosts), order, places)


def _path_mtu(fabric: Fabric, job: Job) -> int:
    """The path MTU in bytes that all ranks of the job have joined with; admission.py refuses ranks that differ."""
    return next((join.path_mtu for join in job.joins.values() if join.path_mtu), fabric.path_mtu)


def rank_trees(
    fabric: Fabric, mine: Sequence[tuple[slots.Stream, int]], hosts: Sequence[Host], staying: Collection[int] = ()
) -> list[RankTree]:
    """The trees as one rank sees them: it sends contributions to the next rank that folds with it, and receives
    results at its own queue pair as if from the rank before.  It learns of no other rank's numbers.

    mine     its streams, and its place among the ranks of each
    staying  epochs of the trees that stay
    """

    def view(stream: slots.Stream, here: int) -> RankStream:
        after, before = stream.successor(here), stream.predecessor(here)
        if here in stream.rc_ranks:
            return RankStream(fabric.fold_address(hosts[stream.ranks[after]]), 0, 0, 0, stream.psn, stream.slots,
                              hosts[stream.ranks[before]].address, 0)
        to, own = (stream.connections[place] << OPERATION_BITS for place in (after, here))
        return RankStream(
            hosts[stream.ranks[after]].address, to, own, stream.source_ports[here], stream.psn, stream.slots,
            hosts[stream.ranks[before]].address, stream.source_ports[before], stream.udp_ports[after],
        )

    pairs = zip(mine[::2], mine[1::2], strict=True)
    return [RankTree(data[0].tree.root, data[0].tree.weight, view(*data), view(*agreement), data[0].epoch in staying)
            for data, agreement in pairs]

# SPDX-License-Identifier: Apache-2.0
"""Makes the plans that a job's ranks get, from what the controller has decided about the job."""

from __future__ import annotations

from collections.abc import Sequence

from netfold.controller.jobs import fabric_key, ticket
from netfold.controller.jobs.adoption import record_of
from netfold.controller.jobs.job import Job
from netfold.fabric import slots
from netfold.fabric.graph import Fabric, Host
from netfold.fabric.machines import machines, slowest
from netfold.fabric.ring import ring_order
from netfold.wire.jobs import Peer, Plan, RankStream, RankTree
from netfold.wire.roce import OPERATION_BITS


def hosts_of(fabric: Fabric, job: Job) -> list[Host]:
    """The hosts of the ranks, in order of ranks."""
    hosts = [fabric.host_at(join.address) for _, join in sorted(job.joins.items())]
    return [host for host in hosts if host is not None]


def make(fabric: Fabric, key: bytes, job: Job) -> list[Plan]:
    """A plan for each rank, with the streams that the ranks are to know.

    key  the fabric key, by which rank secrets are derived and the ticket is sealed
    """
    hosts, shared = hosts_of(fabric, job), machines(job.hosts)
    rate = slowest(fabric.graph(), job.hosts)
    peers = [Peer(rank, join.address, join.tcp) for rank, join in sorted(job.joins.items())]
    sealed = ticket.seal(key, record_of(job, fabric.name))
    addresses = [fabric.jobs, *([fabric.standby] if fabric.standby else [])]
    order = ring_order(((a.node, b.node) for a, b in (link.ends for link in fabric.links)), job.hosts)
    return [
        Plan(job.name, job.epoch, rank, job.world, peers, _trees(job.announced, hosts, rank), job.reason, shared,
             rate, order, fabric.path_mtu, job.rounds, job.secret,
             fabric_key.rank_secret(key, job.tenant.name, job.name, job.epoch, rank), sealed, addresses)
        for rank in range(job.world)
    ]


def _trees(streams: Sequence[slots.Stream], hosts: Sequence[Host], rank: int) -> list[RankTree]:
    """The trees as one rank sees them: it sends contributions to the next rank that folds with it, and receives
    results at its own queue pair as if from the rank before.  It learns of no other rank's numbers."""

    def view(stream: slots.Stream) -> RankStream:
        here = stream.ranks.index(rank)
        after, before = (here + 1) % len(stream.ranks), here - 1
        to, own = (stream.connections[place] << OPERATION_BITS for place in (after, here))
        return RankStream(
            hosts[stream.ranks[after]].address, to, own, stream.source_ports[here], stream.psn, stream.slots,
            hosts[stream.ranks[before]].address, stream.source_ports[before],
        )

    mine = [stream for stream in streams if rank in stream.ranks]
    pairs = zip(mine[::2], mine[1::2], strict=True)
    return [RankTree(data.tree.root, data.tree.weight, view(data), view(agreement)) for data, agreement in pairs]

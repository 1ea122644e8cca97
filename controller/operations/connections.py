# SPDX-License-Identifier: Apache-2.0
"""The meaning of destination queue pairs on the links of jobs' trees, so that captured packets can be named.

A rank addresses its contributions to the next rank of its ring, and gets results under its own queue pair, as if from
the rank before it (docs/protocol.md, "Connections").  So one queue pair is a contribution on one link and a result on
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netfold.fabric.folding.slots import Stream
from netfold.fabric.folding.trees import Child, Fold
from netfold.wire.operator import QueuePairUse
from netfold.wire.roce import OPERATION_BITS, LaneOperation


def of_child(job: str, hosts: Sequence[str], stream: Stream, fold: Fold, child: Child) -> Iterator[QueuePairUse]:
    """The queue pairs on the link between a switch of a stream's tree and one of its children: those of the child's
    contributions, and of its results.  There are none for a NIC that has not connected yet.

    hosts  names of the job's hosts, by rank
    """

    def made(queue_pair: int, operation: str, up: bool, who: str) -> QueuePairUse:
        return QueuePairUse(f"{fold.switch}:{child.port}", queue_pair, operation, job, stream.tree.root, stream.kind,
                          stream.slots, up, who)

    if child.rank is None:
        yield made(stream.up[child.node] << OPERATION_BITS, "", True, child.node)
        yield made(stream.down[child.node] << OPERATION_BITS, "", False, child.node)
        return
    rank = stream.ranks[child.rank]
    who = f"rank {rank} ({hosts[rank]})" if rank < len(hosts) else f"rank {rank}"
    if child.rank not in stream.rc_ranks:
        after = (child.rank + 1) % len(stream.ranks)
        yield made(stream.connections[after] << OPERATION_BITS, "", True, who)
        yield made(stream.connections[child.rank] << OPERATION_BITS, "", False, who)
    elif stream.rc:
        operation = LaneOperation(stream.operation).name
        yield made(stream.rc[stream.successor(child.rank)].in_qp, operation, True, who)
        yield made(stream.rc[child.rank].in_qp, operation, False, who)

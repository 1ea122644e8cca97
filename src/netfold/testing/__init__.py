# SPDX-License-Identifier: Apache-2.0
"""Helpers for testing programs that use NetFold: ranks in one process, without a controller, switches or root.

    from netfold import testing

    with testing.loopback_job(4) as comms:                          # communicators, which fold in a switch in Python
        sums = testing.on_every_rank(comms, lambda comm: comm.allreduce(gradient[comm.rank]))

    testing.MemoryFabric(4).run(lambda mesh: my_collective(mesh))   # messages in memory, time counted, faults on order

docs/host.md, section "Testing", has more.
"""

from netfold.host.innet.slot_switch import Packet, SlotSwitch, combine
from netfold.host.mesh.memory import Killed, MemoryFabric, MemoryMesh
from netfold.testing.loopback import LoopbackSwitch, loopback_job, on_every_rank
from netfold.testing.subnets import subnet

__all__ = [
    "Killed",
    "LoopbackSwitch",
    "MemoryFabric",
    "MemoryMesh",
    "Packet",
    "SlotSwitch",
    "combine",
    "loopback_job",
    "on_every_rank",
    "subnet",
]

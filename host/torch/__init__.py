# SPDX-License-Identifier: Apache-2.0
"""NetFold under torch.distributed: backend "netfold", and a communication hook for DistributedDataParallel.

    import netfold.torch                                    # registers the backend
    dist.init_process_group("netfold")                      # torchrun's variables, NETFOLD_CONTROLLER
    model = DistributedDataParallel(model)                  # unchanged

or keep another backend and reduce only the gradients with NetFold:

    model.register_comm_hook(NetfoldState(netfold.torch.join()), netfold_hook)

    join.py            a communicator from the environment: the controller's plan, or one made through torch's store
    tensors.py         tensors as numpy arrays of the same memory
    pieces.py          all-gather and reduce-scatter of tensors
    beside.py          reduce-scatters that join the all-gather before them, as in FSDP's backward pass
    flat.py            copies of several tensors, in wider dtypes, or multiplied, which are reduced instead
    movement.py        broadcast, reduce, gather, scatter and all-to-all of tensors
    messenger.py       send and receive, beside the collectives
    completion.py      started operations, and torch's futures of them
    work.py            torch's work objects of started operations
    reducer.py         asynchronous collectives
    inside_group.py    the process group by which ranks of a machine reduce tensors on their devices
    staged.py          calls with tensors on a device, by copies in pinned memory (host/staging)
    arguments.py       the arguments that torch passes to a process group's methods
    process_group.py   the backend
    calls.py           adds to each call the profiler's event, its number, its time-out
    adapting.py        adapts decisions that torch makes by the backend's name
    forked.py          groups in forked children
    creation.py        creates the groups that torch asks for
    hook.py            the communication hook
    feedback.py        error feedback: the residuals of narrow lanes, which are added to the next gradients
    priority.py        an optimizer whose gradients travel first layers first, beside the next forward pass
    verbs.py           Horovod's broadcast_parameters and broadcast_optimizer_state
    distributed_optimizer.py  Horovod's DistributedOptimizer
    refusal.py         the error with which a program ends whose group is refused
    recording.py       a training recorded for `netfold what-if`
    launch.py          runs a script with NetFold's process groups, unchanged
    renamed.py         groups of ours for programs that ask for gloo's by name
"""

from __future__ import annotations

import torch.distributed as dist

from netfold.host.staging.device import devices
from netfold.host.torch.adapting import adapt
from netfold.host.torch.creation import create
from netfold.host.torch.distributed_optimizer import Compression, DistributedOptimizer
from netfold.host.torch.hook import NetfoldState, netfold_hook
from netfold.host.torch.join import STORE, Options, join
from netfold.host.torch.priority import PriorityOptimizer
from netfold.host.torch.process_group import NetfoldGroup
from netfold.host.torch.recording import record
from netfold.host.torch.verbs import broadcast_optimizer_state, broadcast_parameters

BACKEND = "netfold"

__all__ = [
    "BACKEND",
    "STORE",
    "Compression",
    "DistributedOptimizer",
    "NetfoldGroup",
    "NetfoldState",
    "Options",
    "PriorityOptimizer",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "join",
    "netfold_hook",
    "record",
    "register",
]


def register() -> None:
    """Registers "netfold" as a backend of torch.distributed, for tensors on the CPU and on torch's accelerator. A
    second call does nothing."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=devices())
        adapt(BACKEND)

# SPDX-License-Identifier: Apache-2.0
"""NetFold: the network folds the gradients.

    import netfold
    netfold.init()         # NETFOLD_JOB, RANK, WORLD_SIZE, NETFOLD_ADDRESS, NETFOLD_CONTROLLER
    netfold.allreduce(gradient, out=gradient, op="average")
    netfold.shutdown()

or, with several jobs in one process, ``netfold.Communicator.join(...)``.  Importing this costs nothing: numpy, gRPC and
the native engine come with the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netfold.host.api.communicator import Communicator
    from netfold.host.api.objects import share_state
    from netfold.host.api.verbs import (
        Average,
        Max,
        Min,
        Product,
        Sum,
        allgather,
        allgather_object,
        allreduce,
        barrier,
        broadcast,
        broadcast_object,
        broadcast_parameters,
        init,
        is_initialized,
        local_rank,
        rank,
        shutdown,
        size,
    )
    from netfold.host.errors import NetFoldError

__all__ = [
    "Average",
    "Communicator",
    "Max",
    "Min",
    "NetFoldError",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "init",
    "is_initialized",
    "local_rank",
    "rank",
    "share_state",
    "shutdown",
    "size",
]

_HOME = {"Communicator": "netfold.host.api.communicator", "NetFoldError": "netfold.host.errors",
         "share_state": "netfold.host.api.objects"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'netfold' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOME.get(name, "netfold.host.api.verbs")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

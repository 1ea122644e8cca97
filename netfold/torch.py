# SPDX-License-Identifier: Apache-2.0
"""``import netfold.torch`` makes "netfold" a backend of torch.distributed; see ``netfold.host.torch``."""

from netfold.host.torch import (
    BACKEND,
    STORE,
    NetfoldGroup,
    NetfoldState,
    Options,
    PriorityOptimizer,
    broadcast_optimizer_state,
    broadcast_parameters,
    join,
    netfold_hook,
    register,
)

__all__ = [
    "BACKEND",
    "STORE",
    "NetfoldGroup",
    "NetfoldState",
    "Options",
    "PriorityOptimizer",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "join",
    "netfold_hook",
    "register",
]

register()

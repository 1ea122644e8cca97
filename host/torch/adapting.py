# SPDX-License-Identifier: Apache-2.0
"""Adapts decisions that torch makes by a backend's name to this backend."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from netfold.host.torch.process_group import NetfoldGroup


def adapt(backend: str) -> None:
    """Replaces three functions of torch; for all other backends they stay as they were.

    backend  our name

    The first reads a group's backends.  It raises ValueError if ours is beside another: here a group has one backend,
    and torch would drop the others silently, without a report to any backend.  The second installs
    DistributedDataParallel's built-in FP16 hook.  For our groups it takes torch's equivalent hook in Python, since the
    built-in one in C++ accepts only futures of backends in C++.  The third sets a group's time-out: torch would change
    that of our inner gloo group alone.
    """
    reads, registers = dist.distributed_c10d.BackendConfig.__init__, DistributedDataParallel._register_builtin_comm_hook
    sets = dist.distributed_c10d._set_pg_timeout

    @wraps(reads)
    def read(self: Any, asked: Any) -> None:
        name = str(asked).lower()
        named = {part.rpartition(":")[2] for part in name.split(",")}
        if backend in re.split("[:,]", name) and named != {backend}:
            raise ValueError(
                f"backend={str(asked)!r}: a group of backend {backend!r} is for tensors on all devices, and torch "
                f"would drop the other backend: expected {backend!r}, or the same for each device, as "
                f"'cpu:{backend},cuda:{backend}'; give the other backend a group of its own, by new_group"
            )
        reads(self, asked)

    @wraps(registers)
    def register(self: Any, comm_hook_type: Any) -> None:
        ours = isinstance(self.process_group, NetfoldGroup)
        if ours and comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS:
            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            registers(self, comm_hook_type)

    @wraps(sets)
    def set_timeout(timeout: timedelta, group: dist.ProcessGroup | None = None) -> None:
        ours = dist.group.WORLD if group is None else group
        if isinstance(ours, NetfoldGroup):
            ours.set_timeout(timeout)
        else:
            sets(timeout, group)

    dist.distributed_c10d.BackendConfig.__init__ = read
    dist.distributed_c10d._set_pg_timeout = set_timeout
    DistributedDataParallel._register_builtin_comm_hook = register

# SPDX-License-Identifier: Apache-2.0
"""Makes the groups of backend "netfold", each with a communicator of its own."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import wraps
from typing import Any

import torch.distributed as dist

from netfold.host.torch.join import JOB_VARIABLE, STORE, Options, join
from netfold.host.torch.process_group import NetfoldGroup


def create(opts: Any, options: Options | None) -> NetfoldGroup:
    """Makes a group; torch calls it.

    opts     torch's _DistributedBackendOptions
    options  pg_options= of init_process_group or new_group
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: expected netfold.torch.Options")
    options = options or Options()
    if dist.is_initialized():
        options = _of_a_subgroup(options, opts.group_id)
    together = options.goes_together()
    communicator = join(
        replace(options, together=None),
        rank=opts.group_rank,
        world=opts.group_size,
        store=opts.store,
        timeout=opts.timeout.total_seconds(),
    )
    try:
        return NetfoldGroup(opts.store, communicator, opts.timeout, together=together)
    except BaseException:
        communicator.close()
        raise


def _of_a_subgroup(options: Options, group: str) -> Options:
    """The options of a group beside the default one, which becomes a job of its own name.  A host's address folds for
    one job at a time, so where the default group is of this backend, others ask for no trees unless they are told to.
    """
    job = options.job or f"{os.environ.get(JOB_VARIABLE) or 'default'}.{group}"
    controller = options.controller
    if controller is None and isinstance(dist.group.WORLD, NetfoldGroup):
        controller = STORE
    return replace(options, job=job, controller=controller)


def refuse_beside_others(backend: str) -> None:
    """Makes torch raise ValueError where a group is asked for that has this backend for anything but CPU tensors, or
    another backend for other devices: a group is of one backend here, and torch would drop the others silently.

    backend  its name; torch tells a backend nothing of the others, so the check is where it reads what was asked for
    """
    reads = dist.distributed_c10d.BackendConfig.__init__

    @wraps(reads)
    def read(self: Any, asked: Any) -> None:
        if backend in re.split("[:,]", str(asked).lower()) and str(asked).lower() not in (backend, f"cpu:{backend}"):
            raise ValueError(
                f"backend={str(asked)!r}: a group of backend {backend!r} is for tensors on the CPU alone: expected "
                f"{backend!r} or 'cpu:{backend}'; give tensors on other devices a group of their own, by new_group"
            )
        reads(self, asked)

    dist.distributed_c10d.BackendConfig.__init__ = read

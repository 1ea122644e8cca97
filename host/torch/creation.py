# SPDX-License-Identifier: Apache-2.0
"""Creates the groups of backend "netfold", each with a communicator of its own."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from functools import cache
from typing import Any

import torch.distributed as dist

from netfold.host import shared_log
from netfold.host.errors import JoinRefused
from netfold.host.torch.ahead import check_device
from netfold.host.torch.join import JOB_VARIABLE, STORE, Options, join
from netfold.host.torch.process_group import NetfoldGroup
from netfold.host.torch.refusal import without_traceback

log = logging.getLogger("netfold")


def create(opts: Any, options: Options | None) -> NetfoldGroup:
    """Creates a group; torch calls it.

    A group beside the default one is a job of its own name.  The controller plans it if the default group is of another
    backend or the options name a controller.  Otherwise its ranks exchange addresses through torch's store, since they
    may run its collectives beside the default group's; they fold as a group of the default group's communicator.

    opts     torch's _DistributedBackendOptions
    options  pg_options= of init_process_group or new_group
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options is a {type(options).__name__}: expected netfold.torch.Options")
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        warn_of_details(opts.group_rank)
    options = options or Options()
    group_of = None
    if dist.is_initialized():
        world = dist.group.WORLD
        if options.controller is None and isinstance(world, NetfoldGroup):
            ranks = list(opts.global_ranks_in_group) or list(range(opts.group_size))
            options, group_of = replace(options, controller=STORE), (world.communicator, ranks)
        job = options.job or f"{os.environ.get(JOB_VARIABLE) or 'default'}.{opts.group_id}"
        options = replace(options, job=job)
    together, ahead = options.goes_together(), options.runs_ahead()
    if ahead:
        check_device()
    try:
        communicator = join(
            replace(options, together=None, wait=None),
            rank=opts.group_rank,
            world=opts.group_size,
            store=opts.store,
            timeout=opts.timeout.total_seconds(),
            group_of=group_of,
        )
    except JoinRefused as refused:
        without_traceback(refused)
        raise
    try:
        return NetfoldGroup(opts.store, communicator, opts.timeout, together=together, inside=options.inside,
                            ahead=ahead)
    except BaseException:
        communicator.close()
        raise


@cache
def warn_of_details(rank: int) -> None:
    """Warns, once and on rank 0, that torch's checks of this debug mode exist for its own backends only."""
    log.log(
        shared_log.level(rank),
        "TORCH_DISTRIBUTED_DEBUG=DETAIL: torch does not put its checks around groups of backend 'netfold': no barrier "
        "names late ranks before each collective, and shapes of as many elements are not compared. NetFold compares "
        "each operation's number, kind, dtype and elements itself, and its time-outs name the ranks that are missing"
    )

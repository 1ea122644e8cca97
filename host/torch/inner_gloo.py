# SPDX-License-Identifier: Apache-2.0
"""The gloo group inside a process group, which does what the communicator lacks."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

from netfold.host.api.communicator import Communicator


def open_gloo(store: dist.Store, communicator: Communicator, timeout: timedelta) -> dist.ProcessGroupGloo:
    """A gloo group on the communicator's address, with its time-out; by default gloo takes the address of the host's
    name, which may be on another network.

    timeout  to wait for the other ranks here
    """
    rank, size = communicator.rank, communicator.size
    if "GLOO_SOCKET_IFNAME" in os.environ:
        group = dist.ProcessGroupGloo(store, rank, size, timeout)
    else:
        address = next(peer.address for peer in communicator.plan.peers if peer.rank == rank)
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timeout
        group = dist.ProcessGroupGloo(store, rank, size, options)
    group._set_default_timeout(timedelta(seconds=communicator.timeout))
    return group

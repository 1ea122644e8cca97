# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions for torch that give all ranks the same start.

They use the communicator that is passed, or else the process's own (``netfold.init``).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from netfold.host.api import verbs
from netfold.host.api.communicator import Communicator
from netfold.host.api.device_arrays import ending_with
from netfold.host.staging.device import device_of
from netfold.host.torch.tensors import as_array

Parameters = Mapping[str, Any] | Iterable[torch.Tensor | tuple[str, torch.Tensor]]


def broadcast_parameters(
    parameters: Parameters, root_rank: int = 0, *, communicator: Communicator | None = None
) -> None:
    """Fills every rank's tensors with the root's, in place.

    parameters  model.state_dict(), model.named_parameters(), or tensors; in the same order on all ranks.  Other values
                of a state are left unchanged
    """
    comm = communicator or verbs.communicator()
    values = parameters.values() if isinstance(parameters, Mapping) else parameters
    for value in values:
        tensor = value[1] if isinstance(value, tuple) else value
        if not isinstance(tensor, torch.Tensor):
            continue
        if device_of(tensor) is None:
            comm.broadcast(as_array(tensor)[0], root=root_rank)
            continue
        with ending_with(tensor.device, comm):
            host = tensor.detach().cpu()
            comm.broadcast(as_array(host)[0], root=root_rank)
            if comm.rank != root_rank:
                tensor.detach().copy_(host)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, *, communicator: Communicator | None = None
) -> None:
    """Gives every rank the root's state of an optimizer (moments, steps, hyperparameters), as after loading a
    checkpoint on the root alone."""
    comm = communicator or verbs.communicator()
    data = b""
    if comm.rank == root_rank:
        file = io.BytesIO()
        with ending_with("saving the optimizer's state", comm):
            torch.save(optimizer.state_dict(), file)
        data = file.getvalue()
    size = comm.broadcast(np.array([len(data)], np.int64), root=root_rank)[0]
    received = np.empty(size, np.uint8)
    if comm.rank == root_rank:
        received[:] = np.frombuffer(data, np.uint8)
    comm.broadcast(received, root=root_rank)
    if comm.rank != root_rank:
        optimizer.load_state_dict(torch.load(io.BytesIO(received.tobytes()), weights_only=True, map_location="cpu"))

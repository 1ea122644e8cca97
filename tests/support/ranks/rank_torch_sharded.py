# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of FSDP whose reduce-scatters join all-gathers, by gloo and by us, folded.

    torchrun rank_torch_sharded.py SUBNET SERVICE FOLDER        writes FOLDER/RANK.json, and what was warned of when a
                                                                group was made, folded and by the store: RANK.folds,
                                                                RANK.store
"""

import json
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from netfold.host.api.joinable import Next
from netfold.host.torch import beside
from netfold.torch import Options

LAYERS, WIDTH, STEPS = 3, 256, 2


class PatientFollowing(beside.Following):
    """Has every all-gather wait, before its first part, for the program to call the next collective or to wait.  So
    which ones go together does not depend on the machine's load."""

    def __init__(self) -> None:
        super().__init__()
        self._settled = threading.Event()

    def follow(self, after: Any) -> None:
        super().follow(after)
        self._settled.set()

    def awaited(self) -> None:
        super().awaited()
        self._settled.set()

    def known(self) -> Next:
        assert self._settled.wait(60), "FSDP has neither waited for an all-gather nor called anything after it"
        return super().known()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def sharded(group: dist.ProcessGroup, asynchronous: bool) -> nn.Module:
    """FSDP2: each layer by itself; its next all-gather is under way while a layer computes, or not."""
    model: Any = network()
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model._set_unshard_async_op(asynchronous)
    return model


def wrapped(group: dist.ProcessGroup) -> nn.Module:
    """FSDP1 with its defaults."""
    return FullyShardedDataParallel(
        network(), process_group=group, device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({nn.Linear})
    )


def train(model: nn.Module, group: dist.ProcessGroup) -> dict[str, list[float]]:
    """Losses of every step, and how many operations of each were made together."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    losses: list[float] = []
    together: list[float] = []
    for step in range(STEPS):
        before = made(group)
        random = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = (model(torch.randn(4, WIDTH, generator=random)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        together.append(len(made(group) - before))
    return {"losses": losses, "together": together}


def made(group: Any) -> set[int]:
    """Numbers of a group's operations that were made together."""
    if not hasattr(group, "communicator"):
        return set()
    return {one.number for one in group.communicator.flight() if one.name == "together"}


def main(subnet: str, service: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    os.environ["NETFOLD_ADDRESS"] = f"{subnet}.{rank + 1}"
    warnings.simplefilter("ignore")  # torch's own, about what it will call otherwise
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    gloo: Any = dist.group.WORLD
    warned: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("netfold").addHandler(listener)
    options = Options(controller=service, rail="innet", together=True)
    ours = dist.new_group(backend="netfold", pg_options=options)
    (Path(folder) / f"{rank}.folds").write_text(json.dumps(warned))
    warned.clear()
    dist.new_group(backend="netfold", pg_options=Options(controller="store", together=True))
    (Path(folder) / f"{rank}.store").write_text(json.dumps(warned))
    beside.Following = PatientFollowing  # type: ignore[misc]
    from netfold.host.torch import process_group, reducer

    process_group.Following = reducer.Following = PatientFollowing  # type: ignore[misc]
    found = {
        "gloo": train(sharded(gloo, True), gloo),
        "prefetch": train(sharded(ours, True), ours),
        "default": train(sharded(ours, False), ours),
        "fsdp1": train(wrapped(ours), ours),
    }
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""A linear model trained by Ray Train's TorchTrainer, two workers, with NetFold's process group.

    python rank_ray.py FOLDER SUBNET SHORT      # workers at addresses of this subnet; Ray's sockets in a short path
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

WORKERS, STEPS = 2, 10


class Addressed(TorchConfig):
    """Gives each worker an address of its own, as if each were on a machine of its own."""

    @property
    def backend_cls(self) -> Any:
        net = sys.argv[2]

        class Backend(super().backend_cls):  # type: ignore[misc]
            def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
                for rank in range(WORKERS):
                    worker_group.execute_single(
                        rank, lambda address: os.environ.update(NETFOLD_ADDRESS=address), f"{net}.{rank + 1}")
                super().on_start(worker_group, backend_config)

        return Backend


def data(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's inputs and targets of a step."""
    torch.manual_seed(100 * rank + step)
    return torch.randn(16, 8), torch.randn(16, 2)


def network() -> torch.nn.Module:
    """The model, with the same weights each time."""
    torch.manual_seed(1)
    return torch.nn.Linear(8, 2)


def train(settings: dict[str, str]) -> None:
    """Trains, and writes what group it was and the weights at the end into a file of the rank's."""
    rank = dist.get_rank()
    model = prepare_model(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = data(rank, step)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    told = {"backend": dist.get_backend(), "weights": model.module.weight.flatten().tolist()}
    (Path(settings["folder"]) / f"{rank}.json").write_text(json.dumps(told))


def alone() -> list[float]:
    """The weights of one process that has all ranks' data."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*(data(rank, step) for rank in range(WORKERS)), strict=True))
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    weights: list[float] = model.weight.flatten().tolist()
    return weights


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    ours = {name: value for name, value in os.environ.items() if name.startswith(("NETFOLD_", "PYTHONPATH"))}
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, _node_ip_address="127.0.0.1",
             _temp_dir=sys.argv[3], object_store_memory=80 << 20,
             runtime_env={"env_vars": ours, "worker_process_setup_hook": "netfold.torch.register"})
    TorchTrainer(
        train, train_loop_config={"folder": str(folder)}, torch_config=Addressed(backend="netfold"),
        scaling_config=ScalingConfig(num_workers=WORKERS), run_config=RunConfig(storage_path=str(folder / "results")),
    ).fit()
    (folder / "alone.json").write_text(json.dumps(alone()))

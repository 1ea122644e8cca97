# SPDX-License-Identifier: Apache-2.0
"""Every collective and message of torch.distributed, for programs that make all of them in several modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

Make = Callable[[Tensor], Tensor]
"""Makes the tensor that a call gets of one with its values."""
COUNT: Final = 6
"""Elements of each rank's tensor."""


def calls(rank: int, world: int, make: Make) -> dict[str, Callable[[], list[Tensor]]]:
    """Each by name; a call returns the tensors that it has filled on this rank."""

    def mine(count: int = COUNT) -> Tensor:
        return make(torch.full((count,), rank + 1.0))

    def parts() -> list[Tensor]:
        return [make(torch.zeros(COUNT)) for _ in range(world)]

    def column(count: int = COUNT) -> Tensor:
        return make(torch.zeros(count, 2))[:, 0]

    def into(fill: Callable[[Tensor], object], tensor: Tensor) -> list[Tensor]:
        fill(tensor)
        return [tensor]

    def into_parts(fill: Callable[[list[Tensor]], object]) -> list[Tensor]:
        several = parts()
        fill(several)
        return several

    def message(tensor: Tensor) -> list[Tensor]:
        if rank == 1:
            dist.send(mine(), 0)
        elif rank == 0:
            dist.recv(tensor, 1)
        return [tensor] if rank == 0 else []

    def objects() -> list[Tensor]:
        told: list[int | None] = [None] * world
        dist.all_gather_object(told, rank)
        return [torch.tensor(told)]

    def gathered() -> list[Tensor]:
        several = parts() if rank == 0 else None
        dist.gather(mine(), several)
        return several or []

    def scattered(tensor: Tensor) -> list[Tensor]:
        return into(lambda one: dist.scatter(one, [mine() for _ in range(world)] if rank == 0 else None), tensor)

    def barrier() -> list[Tensor]:
        dist.barrier()
        return []

    return {
        "all_reduce": lambda: into(dist.all_reduce, mine()),
        "all_reduce_coalesced": lambda: into(lambda one: dist.all_reduce_coalesced([one]), mine()),
        "broadcast": lambda: into(lambda one: dist.broadcast(one, 1), mine()),
        "broadcast, strided": lambda: into(lambda one: dist.broadcast(one, 1), column()),
        "reduce": lambda: into(lambda one: dist.reduce(one, 0), mine())[: rank == 0],
        "gather": gathered,
        "scatter": lambda: scattered(mine()),
        "scatter, strided": lambda: scattered(column()),
        "all_gather": lambda: into_parts(lambda several: dist.all_gather(several, mine())),
        "all_gather_into_tensor": lambda: into(
            lambda one: dist.all_gather_into_tensor(one, mine()), mine(COUNT * world)
        ),
        "all_gather, strided": lambda: into(
            lambda one: dist.all_gather_into_tensor(one, mine()), column(COUNT * world)
        ),
        "reduce_scatter": lambda: into(lambda one: dist.reduce_scatter(one, [mine() for _ in range(world)]), mine()),
        "reduce_scatter_tensor": lambda: into(lambda one: dist.reduce_scatter_tensor(one, mine(COUNT * world)), mine()),
        "reduce_scatter, strided": lambda: into(
            lambda one: dist.reduce_scatter_tensor(one, mine(COUNT * world)), column()
        ),
        "all_to_all": lambda: into_parts(lambda several: dist.all_to_all(several, [mine() for _ in range(world)])),
        "all_to_all_single": lambda: into(
            lambda one: dist.all_to_all_single(one, mine(COUNT * world)), mine(COUNT * world)
        ),
        "objects": objects,
        "send": lambda: message(mine()),
        "send, strided": lambda: message(column()),
        "barrier": barrier,
    }

# SPDX-License-Identifier: Apache-2.0
"""Checks of collectives of tensors on the device, in several ways, beside their right results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from netfold.bench.ranks.accelerator.device import LONG, Later, device, finish, late, rank_and_world, same, values
from netfold.topo.processes.failures import WrongData

if TYPE_CHECKING:
    import torch

def calls(dtype: torch.dtype, count: int) -> Iterator[tuple[str, Callable[[], tuple[Any, Later]]]]:
    """Collectives by name: each begins, and returns its work and a check of what it has filled."""
    import torch
    import torch.distributed as dist

    rank, world = rank_and_world()
    every = [values(one, count, dtype) for one in range(world)]
    total = torch.stack(every).to(torch.float64).sum(0).to(dtype)

    def empty(*shape: int) -> torch.Tensor:
        return torch.full(shape, 77, device=device()).to(dtype)

    def rows(each: int) -> torch.Tensor:
        return torch.cat([values(each + one, count, dtype) for one in range(world)])

    def in_place(name: str, op: Any, expected: torch.Tensor) -> tuple[Any, Later]:
        mine = late(rank, count, dtype)
        return dist.all_reduce(mine, op, async_op=True), lambda: same(name, mine, expected)

    yield "all_reduce, sum", lambda: in_place("all_reduce, sum", dist.ReduceOp.SUM, total)
    yield "all_reduce, max", lambda: in_place("all_reduce, max", dist.ReduceOp.MAX, torch.stack(every).amax(0))

    def broadcast() -> tuple[Any, Later]:
        mine = late(rank, count, dtype)
        return dist.broadcast(mine, 1, async_op=True), lambda: same("broadcast", mine, every[1])

    def reduce() -> tuple[Any, Later]:
        mine = late(rank, count, dtype)
        work = dist.reduce(mine, 2 % world, async_op=True)

        def check() -> None:
            if rank == 2 % world:
                same("reduce", mine, total)
            elif dtype != torch.int8:  # gloo's, which leaves parts of the sum elsewhere
                same("reduce", mine, every[rank])

        return work, check

    def gather() -> tuple[Any, Later]:
        into = [empty(count) for _ in range(world)] if rank == 1 else None
        work = dist.gather(late(rank, count, dtype), into, dst=1, async_op=True)

        def check() -> None:
            for one, right in zip(into or [], every, strict=False):
                same("gather", one, right)

        return work, check

    def scatter() -> tuple[Any, Later]:
        mine = empty(count)
        given = [late(one, count, dtype) for one in range(world)] if rank == 1 else None
        return dist.scatter(mine, given, src=1, async_op=True), lambda: same("scatter", mine, every[rank])

    def all_gather() -> tuple[Any, Later]:
        into = [empty(count) for _ in range(world)]
        work = dist.all_gather(into, late(rank, count, dtype), async_op=True)  # whose memory is free for others at once
        return work, lambda: same("all_gather", torch.stack(into), torch.stack(every))

    def all_gather_into() -> tuple[Any, Later]:
        into = empty(world * count)
        work = dist.all_gather_into_tensor(into, late(rank, count, dtype), async_op=True)
        return work, lambda: same("all_gather_into_tensor", into, torch.cat(every))

    def reduce_scatter() -> tuple[Any, Later]:
        mine = empty(count)
        given = [late(rank, count, dtype) + one for one in range(world)]
        work = dist.reduce_scatter(mine, given, async_op=True)
        return work, lambda: same("reduce_scatter", mine, total + rank * world)

    def reduce_scatter_tensor() -> tuple[Any, Later]:
        mine = empty(count)
        work = dist.reduce_scatter_tensor(mine, late(rank, world * count, dtype), async_op=True)
        whole = torch.stack([values(one, world * count, dtype) for one in range(world)]).to(torch.float64).sum(0)
        return work, lambda: same("reduce_scatter_tensor", mine, whole[rank * count : (rank + 1) * count].to(dtype))

    def all_to_all() -> tuple[Any, Later]:
        into = [empty(count) for _ in range(world)]
        work = dist.all_to_all(into, [late(rank + one, count, dtype) for one in range(world)], async_op=True)
        expected = torch.stack([values(one + rank, count, dtype) for one in range(world)])
        return work, lambda: same("all_to_all", torch.stack(into), expected)

    def all_to_all_single() -> tuple[Any, Later]:
        into, given = empty(world * count), rows(rank).to(device())
        work = dist.all_to_all_single(into, given, async_op=True)
        return work, lambda: same("all_to_all_single", into, rows(rank))

    def message() -> tuple[Any, Later]:
        into = empty(count)
        sent = dist.isend(late(rank, count, dtype), (rank + 1) % world)
        received = dist.irecv(into, (rank - 1) % world)

        def check() -> None:
            if sent is not None:  # None of a rank outside of the group
                sent.wait()
            same("message", into, every[(rank - 1) % world])

        return received, check

    named = (broadcast, reduce, gather, scatter, all_gather, all_gather_into, reduce_scatter, reduce_scatter_tensor,
             all_to_all, all_to_all_single, message)
    for call in named:
        yield call.__name__, call


def collectives() -> str:
    """Every collective and message: of each dtype, behind much work of the default stream and of another one."""
    import torch

    done = 0
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.int8):
        for count in (1, 3000):
            with aside(count == 3000):
                for _, call in calls(dtype, count):
                    work, check = call()
                    work.wait()
                    check()
                    done += 1
    with aside(True):
        for name, call in calls(torch.float32, LONG):
            if name.startswith("all_reduce"):
                work, check = call()
                work.wait()
                check()
                done += 1
    return f"{done} calls"


@contextmanager
def aside(elsewhere: bool) -> Iterator[None]:
    """Works on a stream of its own, where asked to."""
    import torch

    if not elsewhere or device().type == "cpu":
        yield
        return
    stream = torch.Stream(device=device())
    with torch.get_device_module(device()).stream(stream):
        yield
    torch.accelerator.current_stream().wait_stream(stream)


def overlap() -> str:
    """200 calls under way at once, waited for in another order; their inputs' memory is given to others at once."""
    import torch

    begun = []
    for turn in range(200 // 13 + 1):
        with aside(turn % 2 == 1):
            begun += [call() for _, call in calls(torch.float32, 500 + 1000 * turn)]
    for work, check in sorted(begun, key=lambda one: id(one[0])):
        work.wait()
        check()
    return f"{len(begun)} calls"


def coalesced() -> str:
    """Many small tensors in one call, object collectives, futures and what comes after them, and a barrier."""
    import torch
    import torch.distributed as dist

    rank, world = rank_and_world()
    several = [late(rank, 10 + place % 7, torch.float32) if place == 0 else
               values(rank, 10 + place % 7, torch.float32).to(device()) for place in range(3000)]
    spent = []
    for some in ([torch.ones_like(tensor) for tensor in several], several):  # the first ones measure links as well
        begin = time.monotonic()
        with dist._coalescing_manager():
            for tensor in some:
                dist.all_reduce(tensor)
        finish()
        spent.append(time.monotonic() - begin)
    for tensor in several:
        count = tensor.numel()
        same("coalesced", tensor, sum(values(one, count, torch.float32) for one in range(world)))
    told: list[Any] = [None] * world
    dist.all_gather_object(told, {"rank": rank})
    if told != [{"rank": one} for one in range(world)]:
        raise WrongData(f"all_gather_object: {told}")
    mine = late(rank, LONG, torch.float32)
    work = dist.all_reduce(mine, async_op=True)
    half = work.get_future().then(lambda future: future.value()[0] / 2).wait()
    same("a future's callback", half, sum(values(one, LONG, torch.float32) for one in range(world)) / 2)
    dist.barrier()
    finish()
    if not (work.is_completed() and work.is_success()):
        raise WrongData("a work whose device is done is not completed")
    return f"3000 tensors in {spent[0]:.3f} s, again in {spent[1]:.3f} s"

# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of what torch.distributed moves between ranks: all by gloo and by us, over TCP and folded.

    torchrun rank_torch_moves.py SUBNET SERVICE FOLDER        writes FOLDER/RANK.json
"""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.torch import Options
from support.ranks.rank_torch import Lines

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64, torch.bool, torch.complex64)
Told = list[Any]


def tensor(dtype: torch.dtype, rank: int, count: int = 37) -> torch.Tensor:
    """Values that fit every dtype, and differ between ranks."""
    return (torch.arange(count) * (2 * rank + 1) % 5).to(dtype)


def carried(group: dist.ProcessGroup, dtype: torch.dtype) -> torch.dtype:
    """The dtype to move in a dtype's place: gloo does not take all, and has float64 instead."""
    ours = isinstance(group, netfold.torch.NetfoldGroup)
    return dtype if ours or dtype not in (torch.complex64, torch.bool, torch.bfloat16) else torch.float64


def strided(tensor: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The tensor for us, a contiguous copy for gloo, which refuses others."""
    return tensor if isinstance(group, netfold.torch.NetfoldGroup) else tensor.contiguous()


def told(*tensors: torch.Tensor) -> Told:
    """Tensors as plain values of JSON."""
    return [[str(t.dtype), list(t.shape), str(t.tolist())] for t in tensors]


def broadcasts(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    said = []
    for root, dtype in enumerate(DTYPES):
        moved = carried(group, dtype)
        mine = tensor(moved, rank)
        dist.broadcast(mine, root % world, group=group)
        columns = tensor(moved, rank, 36).reshape(4, 9).clone()
        if isinstance(group, netfold.torch.NetfoldGroup):
            dist.broadcast(columns.T[::2], root % world, group=group)  # not contiguous: every other column
        else:
            dense = columns[:, ::2].clone()
            dist.broadcast(dense, root % world, group=group)
            columns[:, ::2] = dense
        said += told(mine.to(dtype), columns.to(dtype))
    empty, whole = torch.empty(0), torch.tensor(float(rank))
    dist.broadcast(empty, 1, group=group)
    dist.broadcast(whole, 1, group=group)
    objects = [{"rank": rank}, None] if rank == 2 else [None, None]
    dist.broadcast_object_list(objects, 2, group=group)
    return [*said, *told(empty, whole), objects]


def reductions_to_one(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    said = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
            mine = tensor(dtype, rank)
            dist.reduce(mine, 3 % world, op, group=group)
            said += told(mine) if rank == 3 % world else []
    bits = tensor(torch.int32, rank)
    dist.reduce(bits, 0, dist.ReduceOp.BOR, group=group)
    return said + (told(bits) if rank == 0 else [])


def gathered_and_scattered(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    said: Told = []
    for dtype in DTYPES:
        moved = carried(group, dtype)
        mine = strided(tensor(moved, rank, 12).reshape(3, 4).T, group)
        outputs = [torch.empty(4, 3, dtype=moved) for _ in range(world)] if rank == 1 else None
        dist.gather(mine, outputs, 1, group=group)
        said += told(*(output.to(dtype) for output in outputs or []))
        into = strided(torch.zeros(3, 4, dtype=moved).T, group)
        inputs = [tensor(moved, place + 1, 12).reshape(4, 3) for place in range(world)] if rank == 2 else None
        dist.scatter(into, inputs, 2, group=group)
        said += told(into.to(dtype))
    objects: list[Any] = [None] * world
    dist.gather_object({"of": rank}, objects if rank == 0 else None, 0, group=group)
    taken: list[Any] = [None]
    dist.scatter_object_list(taken, [f"for {place}" for place in range(world)] if rank == 0 else [None], 0, group=group)
    return [*said, objects, taken]


def exchanges(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    said = []
    for dtype in DTYPES:
        whole = tensor(carried(group, dtype), rank, 3 * world * 2).reshape(2 * world, 3)
        out = torch.empty_like(whole)
        dist.all_to_all_single(out, whole, group=group)
        said += told(out.to(dtype))
    rows = [(rank + place) % 3 for place in range(world)]  # as many as the other gives back
    given = tensor(torch.float32, rank, 2 * sum(rows)).reshape(sum(rows), 2)
    taken = torch.empty(sum(rows), 2)
    work = dist.all_to_all_single(taken, given, rows, rows, group=group, async_op=True)
    assert work is not None
    work.wait()
    return said + told(taken)


def lists(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    """all_to_all of lists, which gloo learned only lately: by rows here where it has not."""
    counts = [1 + (rank + place) % 3 for place in range(world)]
    given = [torch.full((count,), 10.0 * rank + place) for place, count in enumerate(counts)]
    taken = [torch.empty(count) for count in counts]
    if isinstance(group, netfold.torch.NetfoldGroup):
        dist.all_to_all(taken, given, group=group)
    else:
        into = torch.empty(sum(counts))
        dist.all_to_all_single(into, torch.cat(given), counts, counts, group=group)
        taken = list(into.split(counts))
    return told(*taken)


def messages(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    right, left = (rank + 1) % world, (rank - 1) % world
    said: Told = []
    for receive_first in (True, False):  # large, so that nothing fits into the kernel's buffers
        given, taken = torch.full((1 << 20,), float(rank)), torch.empty(1 << 20)
        ops = [dist.P2POp(dist.irecv, taken, left, group), dist.P2POp(dist.isend, given, right, group)]
        for work in dist.batch_isend_irecv(ops if receive_first else ops[::-1]):
            work.wait()
        said.append([float(taken.min()), float(taken.max())])
    for dtype in DTYPES:
        moved = carried(group, dtype)
        mine, into = tensor(moved, rank, 12), strided(torch.zeros(3, 4, dtype=moved).T, group)
        work = dist.isend(mine, right, group=group)
        source = dist.recv(into, left, group=group)
        assert work is not None
        work.wait()
        said += [source, *told(into.to(dtype))]
    # Tags in another order than they were sent in, around a collective which both sides call in between.
    first, second = torch.tensor([1.0 + rank]), torch.tensor([2.0 + rank])
    takes = [torch.empty(1), torch.empty(1)]
    early = dist.irecv(takes[1], left, group=group, tag=7)
    sends = [dist.isend(first, right, group=group, tag=3), dist.isend(second, right, group=group, tag=7)]
    dist.barrier(group=group)
    late = dist.irecv(takes[0], left, group=group, tag=3)
    for work in (early, late, *sends):
        assert work is not None
        work.wait()
    said += told(*takes)
    if rank == 0:
        froms = []
        for _ in range(world - 1):
            one = torch.empty(2)
            froms.append((dist.recv(one, group=group, tag=5), one.tolist()))
        said.append(sorted(froms))
    else:
        dist.send(torch.tensor([float(rank), 1.0]), 0, group=group, tag=5)
    if rank == 1:
        dist.send_object_list([{"a": rank}, "b"], 2, group=group)
    elif rank == 2:
        objects: list[Any] = [None, None]
        dist.recv_object_list(objects, 1, group=group)
        said.append(objects)
    return said


def order(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    """Asynchronous operations of every kind, of which the last is waited for first."""
    moved, total = torch.tensor([float(rank)]), torch.tensor([1.0 + rank])
    pieces = [torch.empty(1) for _ in range(world)]
    works = [dist.broadcast(moved, 1, group=group, async_op=True), dist.reduce(total, 0, group=group, async_op=True)]
    if not isinstance(group, netfold.torch.NetfoldGroup):
        works[0].wait()  # gloo runs several at once
    works.append(dist.all_gather(pieces, moved, group=group, async_op=True))  # of what the broadcast brings
    works.append(dist.barrier(group=group, async_op=True))
    for work in works[::-1]:
        assert work is not None
        work.wait()
        assert work.is_completed()
    return [*told(moved, *pieces), total.tolist() if rank == 0 else []]


def checkpointed(group: dist.ProcessGroup, rank: int, world: int) -> Told:
    """A model of which DistributedDataParallel gives all ranks the first one's start, saved and loaded by DCP."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), process_group=group)
    begun = [parameter.detach().clone() for parameter in model.parameters()]
    state = model.module.state_dict()
    name = "ours" if isinstance(group, netfold.torch.NetfoldGroup) else "gloo"
    where = str(Path(sys.argv[3]) / f"checkpoint-{name}-{group.group_name}")
    dcp.save(state, checkpoint_id=where, process_group=group)
    for value in state.values():
        value.zero_()
    dcp.load(state, checkpoint_id=where, process_group=group)
    model.module.load_state_dict(state)
    model(torch.randn(5, 4)).sum().backward()
    assert all(torch.equal(mine, was) for mine, was in zip(model.parameters(), begun, strict=True))
    return told(*begun)


KINDS: list[Callable[[dist.ProcessGroup, int, int], Told]] = [
    broadcasts, reductions_to_one, gathered_and_scattered, exchanges, lists, messages, order, checkpointed,
]


def main(subnet: str, service: str, folder: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["NETFOLD_ADDRESS"] = f"{subnet}.{rank + 1}"
    os.environ["NETFOLD_CONTROLLER"] = netfold.torch.STORE
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = Lines()
    logging.getLogger("netfold").addHandler(lines)
    logging.getLogger("netfold").setLevel(logging.INFO)
    dist.init_process_group("netfold")
    assert dist.group.WORLD is not None
    gloo = dist.new_group(backend="gloo")
    innet = dist.new_group(backend="netfold", pg_options=Options(controller=service, rail="innet"))
    groups = {"gloo": gloo, "tcp": dist.group.WORLD, "innet": innet}
    found: dict[str, Any] = {f.__name__: {way: f(group, rank, world) for way, group in groups.items()} for f in KINDS}
    found["said"] = lines.lines
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

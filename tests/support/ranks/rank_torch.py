# SPDX-License-Identifier: Apache-2.0
"""One rank of the torch tests: both examples by gloo and by every way of ours, and what the backend does with the rest.

    torchrun rank_torch.py SUBNET SERVICE FOLDER        writes FOLDER/RANK.json
"""

import contextlib
import importlib
import io
import json
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netfold.torch
from netfold.torch import NetfoldState, Options, netfold_hook
from support.hosts.host import impatient

ALL = {"torch_cnn": "network", "torch_lm": "Transformer"}
"""Examples, and what makes the model of each."""
STEPS, LONG = 6, 60
BUCKET = 0.02
"""MiB of gradients in a bucket: several for these small models."""
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def command(example: str, turn: int) -> str:
    """The output of an example that is run by itself."""
    # torch's own way to meet again at the same store: the keys of every attempt are others
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(turn)
    arguments, sys.argv = sys.argv, [example, "--steps", "2"]
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            importlib.import_module(example).main()
    finally:
        sys.argv = arguments
    return printed.getvalue()


class Lines(logging.Handler):
    """A log handler that keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def train(
    example: str, group: dist.ProcessGroup, state: NetfoldState | None = None, steps: int = STEPS
) -> list[float]:
    """An example's losses with its gradients over a group, or a hook's communicator."""

    def wrap(model: nn.Module) -> nn.Module:
        parallel = DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET)
        if state is not None:
            parallel.register_comm_hook(state, netfold_hook)
        return parallel

    losses: list[float] = importlib.import_module(example).train(steps, wrap)
    return losses


def reductions(group: dist.ProcessGroup, reference: dist.ProcessGroup) -> dict[str, Any]:
    """The difference between a group's results and gloo's for the same tensors: largest differences, by kind."""
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    floats = torch.randn(3001, generator=generator)
    differences = {}

    def compare(name: str, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        ours, theirs = tensor.clone(), tensor.clone()
        dist.all_reduce(ours, op, group=group)
        dist.all_reduce(theirs, op, group=reference)
        differences[name] = float((ours.double() - theirs.double()).abs().max())

    compare("sum of float32", floats)
    compare("sum of int32", (floats * 1e6).to(torch.int32))
    compare("sum of float64", floats.double())
    compare("sum of float64 again", floats.double())
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        compare(f"max of {dtype}", (floats * 100).to(dtype), dist.ReduceOp.MAX)
        compare(f"min of {dtype}", (floats * 100).to(dtype), dist.ReduceOp.MIN)
    compare("sum of int64", (floats * 1e15).to(torch.int64))
    compare("product of uint8", (floats * 10).to(torch.uint8), dist.ReduceOp.PRODUCT)
    compare("bitwise or of int32", (floats * 1e6).to(torch.int32), dist.ReduceOp.BOR)
    for dtype in (torch.float16, torch.bfloat16):
        half, wide = floats.to(dtype), floats.to(dtype).double()
        dist.all_reduce(half, group=group)
        dist.all_reduce(wide, group=reference)
        differences[f"half: sum of {dtype}"] = float(((half.double() - wide).abs() / wide.abs().clip(1)).max())
    average = floats.clone()
    work = dist.all_reduce(average, dist.ReduceOp.AVG, group=group, async_op=True)
    assert work is not None
    work.wait()
    total = floats.clone()
    dist.all_reduce(total, group=reference)
    differences["average of float32"] = float((average - total / world).abs().max())
    columns = floats[:3000].reshape(30, 100).clone()
    dist.all_reduce(columns.T[::2], group=group)  # not contiguous: every other column
    expected = floats[:3000].reshape(30, 100).clone()
    summed = expected[:, ::2].clone()
    dist.all_reduce(summed, group=reference)
    expected[:, ::2] = summed
    differences["sum of every other column"] = float((columns - expected).abs().max())
    said: list[Any] = [None] * world
    dist.all_gather_object(said, rank, group=group)
    assert said == list(range(world))
    dist.barrier(group=group)
    return differences


def sharded(way: str, group: dist.ProcessGroup) -> list[float]:
    """Losses of a small model whose parameters, gradients and moments are spread over a group's ranks by FSDP."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    if way == "FullyShardedDataParallel":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, process_group=group, device_id=torch.device("cpu"))
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (model[0], model[2], model):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = []
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))[rank::world]
    for _ in range(4):
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def unusual(group: dist.ProcessGroup) -> None:
    """Tensors of every shape and kind are gathered and scattered; what cannot be is refused by name."""
    rank, world = dist.get_rank(), dist.get_world_size()
    uneven = [torch.full((place,), -1, dtype=torch.int64) for place in range(world)]
    dist.all_gather(uneven, torch.full((rank,), rank), group=group)  # rank 0 has none
    assert [tensor.tolist() for tensor in uneven] == [[place] * place for place in range(world)]
    mine = torch.arange(12.0).reshape(3, 4).T + rank  # not contiguous, and what it goes to neither
    whole = torch.empty(3, 4 * world).T
    dist.all_gather_into_tensor(whole, mine, group=group)
    expected = torch.cat([torch.arange(12.0).reshape(3, 4).T + place for place in range(world)])
    assert torch.equal(whole, expected)
    dist.reduce_scatter_tensor(mine, whole, group=group)
    assert torch.equal(mine, world * expected[4 * rank : 4 * rank + 4])
    piece = torch.empty(rank)
    dist.reduce_scatter(piece, [torch.full((place,), 1.0 + place) for place in range(world)], group=group)
    assert piece.tolist() == [world * (1.0 + rank)] * rank
    place = torch.zeros(2 * world)  # in place: the input is a part of the output
    place[2 * rank : 2 * rank + 2] = rank
    work = dist.all_gather_into_tensor(place, place[2 * rank : 2 * rank + 2], group=group, async_op=True)
    assert work is not None
    work.wait()
    assert place.tolist() == [float(half // 2) for half in range(2 * world)]
    for dtype in (torch.bool, torch.complex64, torch.bfloat16, torch.float8_e4m3fn):
        kept = [torch.empty(2, dtype=dtype) for _ in range(world)]
        dist.all_gather(kept, torch.tensor([0, rank]).to(dtype), group=group)
        assert [tensor.to(torch.complex64).real.tolist() for tensor in kept] == [
            torch.tensor([0, place]).to(dtype).to(torch.complex64).real.tolist() for place in range(world)
        ]
    dist.reduce_scatter_tensor(torch.empty(0), torch.empty(0), group=group)
    dist.all_gather([torch.empty(0) for _ in range(world)], torch.empty(0), group=group)
    for call, said in (
        (lambda: dist.all_reduce(torch.ones(2, device="meta"), group=group), "on meta: expected one on the CPU"),
        (lambda: dist.broadcast(torch.ones(2, device="meta"), 0, group=group), "on meta: expected one on the CPU"),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2), group=group), f"of {2 * world} elements"),
        (lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(2), group=group), f"of {3 * world} elements"),
        (lambda: dist.all_gather([torch.ones(1)], torch.ones(1), group=group), f"expected {world}, one for each rank"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


def abandoned() -> str:
    """The error of a backward pass if the last rank stays away; "" on that rank."""
    group = dist.new_group(backend="netfold")
    assert isinstance(group, netfold.torch.NetfoldGroup)
    model = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    impatient([group.communicator], 1.0)
    said = ""
    if dist.get_rank() < dist.get_world_size() - 1:
        try:
            model(torch.ones(1, 3)).sum().backward()
        except RuntimeError as error:
            said = str(error)
    return said


def main(subnet: str, service: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    os.environ["NETFOLD_ADDRESS"] = f"{subnet}.{rank + 1}"
    os.environ["NETFOLD_CONTROLLER"] = netfold.torch.STORE
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    printed = {example: command(example, turn) for turn, example in enumerate(ALL, start=1)}
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "0"
    lines = Lines()
    logging.getLogger("netfold").addHandler(lines)
    logging.getLogger("netfold").setLevel(logging.INFO)
    dist.init_process_group("netfold")
    tcp = dist.group.WORLD
    assert isinstance(tcp, netfold.torch.NetfoldGroup)
    gloo = dist.new_group(backend="gloo")
    innet = dist.new_group(backend="netfold", pg_options=Options(controller=service, rail="innet"))
    assert isinstance(innet, netfold.torch.NetfoldGroup)
    state = NetfoldState(tcp.communicator)
    ways = {"gloo": partial(train, group=gloo), "tcp": partial(train, group=tcp), "innet": partial(train, group=innet),
            "hook": partial(train, group=gloo, state=state)}
    losses = {example: {way: run(example) for way, run in ways.items()} for example in ALL}
    long = {"gloo": train("torch_cnn", gloo, steps=LONG)}
    for bits in (16, 8):
        narrow = NetfoldState(innet.communicator, lane_bits=bits)
        long[f"{bits} bits"] = train("torch_cnn", gloo, narrow, steps=LONG)
        narrow.close()
    differences = {"tcp": reductions(tcp, gloo), "innet": reductions(innet, gloo)}
    stats = innet.communicator.stats()
    # fully_shard is public from torch 2.6 on
    kinds = ["FullyShardedDataParallel", *(["fully_shard"] if hasattr(torch.distributed.fsdp, "fully_shard") else [])]
    groups = {"gloo": gloo, "tcp": tcp, "innet": innet}
    sharding = {way: {name: sharded(way, group) for name, group in groups.items()} for way in kinds}
    unusual(tcp)
    error = abandoned()
    dist.barrier(group=gloo)  # the rank that stayed away lives on until the others have noticed
    models = [getattr(importlib.import_module(example), model)() for example, model in ALL.items()]
    result = {
        "printed": printed,
        "parameters": sum(p.numel() for model in models for p in model.parameters()),
        "error": error,
        "losses": losses,
        "long": long,
        "differences": differences,
        "sharded": sharding,
        "rails": {"tcp": tcp.communicator.rail, "innet": innet.communicator.rail},
        "folded": {"operations": stats.operations, "bytes": sum(t.bytes_reduced for t in stats.by_tree.values())},
        "said": lines.lines,
    }
    state.close()
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of what programs for torch's own backends expect of one: names, modes, hooks.

    torchrun rank_torch_drop_in.py SUBNET SERVICE FOLDER        writes FOLDER/RANK.json
"""

import gc
import json
import logging
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from netfold.torch import NetfoldGroup
from support.ranks.rank_torch import Lines
from support.ranks.torch_calls import Make, calls

MIXED = ("cpu:netfold,cuda:gloo", "cuda:gloo,cpu:netfold", "netfold,cuda:nccl", "cuda:nccl,cpu:netfold")
"""Backends of groups of which only a part would be ours."""


def refusal(call: Callable[[], object]) -> str:
    """The error that a call ends with, by its class's name and text; "" where it ends without one."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def names(rank: int, world: int) -> dict[str, Any]:
    """The default group is of "cpu:netfold", and folds; a group beside it, and a mesh's, come about as well."""
    total, part, both = torch.ones(1000), torch.ones(3), torch.ones(3)
    dist.all_reduce(total)
    dist.all_reduce(part, group=dist.new_group())
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("x",), backend_override={"x": "cpu:netfold"})  # type: ignore[arg-type]
    dist.all_reduce(part, group=mesh.get_group())
    dist.all_reduce(both, group=dist.new_group(backend="cpu:netfold,cuda:netfold"))
    refused = {name: refusal(partial(dist.new_group, backend=name)) for name in MIXED}
    refused["a mesh's"] = refusal(
        lambda: init_device_mesh("cpu", (world,), mesh_dim_names=("y",), backend_override={"y": MIXED[0]})  # type: ignore[arg-type]
    )
    assert isinstance(dist.group.WORLD, NetfoldGroup)
    sums = [tensor[0].item() for tensor in (total, part, both)]
    return {"rail": dist.group.WORLD.communicator.rail, "sums": sums, "refused": refused}


def forked(rank: int, world: int) -> dict[str, Any]:
    """A destroyed group is gone at once; one that nobody needs is not freed by a forked child that collects garbage.
    """
    gc.disable()
    group = dist.new_group()
    assert isinstance(group, NetfoldGroup)
    dist.all_reduce(torch.ones(10), group=group)
    dist.barrier(group=group)
    pieces = [torch.empty(2) for _ in range(world)]
    dist.all_gather(pieces, torch.ones(2), group=group)
    if rank:
        dist.send(torch.ones(1), group=group, group_dst=0)
    else:
        dist.recv(torch.ones(1), group=group, group_src=1)
    there = weakref.ref(group)
    dist.destroy_process_group(group)
    refused = refusal(partial(group.allreduce, [torch.ones(1)]))
    del group
    gone = there() is None
    ring: list[Any] = [dist.new_group()]
    ring.append(ring)
    dist.all_reduce(torch.ones(10), group=ring[0])
    dist.destroy_process_group(ring[0])
    del ring  # garbage, which the child finds first
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    gc.enable()
    child = os.fork()
    if child == 0:
        errors = [refusal(partial(call, torch.ones(1))) for call in (dist.all_reduce, partial(dist.send, dst=1 - rank))]
        dist.destroy_process_group()
        os._exit(sum("belongs to the process that forked this one" not in error for error in errors))
    _, uses = os.waitpid(child, 0)
    dist.barrier()
    return {"gone": gone, "child's status": status, "refused": refused, "child's uses": uses}


def unwritable(rank: int, world: int) -> dict[str, Any]:
    """A message into memory that several elements share, and what comes after it."""
    if rank:
        dist.send(torch.full((4,), 7.0), 0)
        return {}
    refused = refusal(partial(dist.recv, torch.zeros(1).expand(4), 1))
    into = torch.zeros(4)
    dist.recv(into, 1)
    return {"refused": refused, "next": into.tolist()}


def requiring(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, as a parameter is."""
    return tensor.requires_grad_()


def for_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that was made in inference mode."""
    with torch.inference_mode():
        return tensor.clone()


def usual(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that was made outside of inference mode."""
    with torch.inference_mode(mode=False):
        return tensor.clone()


MODES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Make]] = {
    "inference": (torch.inference_mode, lambda tensor: tensor),
    "inference, of other tensors": (torch.inference_mode, usual),
    "of inference tensors": (nullcontext, for_inference),
    "no_grad": (torch.no_grad, requiring),
    "requires grad": (nullcontext, requiring),
    "autocast": (partial(torch.autocast, "cpu", torch.bfloat16), lambda tensor: tensor),
}


def modes(rank: int, world: int) -> dict[str, Any]:
    """The result of each call in each mode; in no mode first."""
    found: dict[str, Any] = {}
    for mode, (context, make) in {"none": (nullcontext, usual), **MODES}.items():
        with context():
            for name, call in calls(rank, world, make).items():
                said: list[Any] = []
                error = refusal(lambda call=call, said=said: said.extend(one.tolist() for one in call()))  # type: ignore[misc]
                found.setdefault(name, {})[mode] = error or said
    return found


def seen(rank: int, world: int) -> dict[str, Any]:
    """The profiler's record of each call: its events' shapes, and whether they end on another thread."""
    found: dict[str, Any] = {}
    for name, call in calls(rank, world, usual).items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
            call()
        found[name] = [
            [event.name, event.input_shapes, event.is_async]
            for event in profiler.events() if event.name.startswith("netfold:")
        ]
    return found


def timed(rank: int, world: int) -> dict[str, Any]:
    """Rank 0 calls and waits as long as each call allows; the other one calls once that is over."""
    group, store = dist.group.WORLD, dist.distributed_c10d._get_default_store()
    assert isinstance(group, NetfoldGroup)
    short, x = timedelta(milliseconds=50), torch.ones(3)
    options, barrier = dist.AllreduceOptions(), dist.BarrierOptions()
    options.timeout = barrier.timeout = short
    begun = group._get_sequence_number_for_group()
    works: list[Any] = []

    def started(work: Any) -> Any:
        works.append(work)
        return work

    said: dict[str, Any] = {}
    if rank == 0:
        said = {
            "barrier": refusal(lambda: started(group.barrier(timeout=short)).wait()),
            "barrier's options": refusal(lambda: started(group.barrier(barrier)).wait()),
            "argument": refusal(lambda: started(group.allreduce(x, dist.ReduceOp.SUM, short)).wait()),
            "options": refusal(lambda: started(group.allreduce([x], options)).wait()),
            "future": refusal(lambda: started(group.allreduce([x], options)).get_future().wait()),
            "wait": refusal(lambda: started(group.allreduce([x])).wait(short)),
            "broadcast": refusal(lambda: started(group.broadcast(x, 1, short)).wait()),
            "result": started(group.allreduce([x], options)).get_future_result().wait(),
            "duration": refusal(lambda: works[-1]._get_duration()),
        }
        store.set("timed out", "")
    else:
        store.wait(["timed out"])
        for _ in range(2):
            started(group.barrier())
        for _ in range(4):
            started(group.allreduce([x]))
        started(group.broadcast(x, 1))
        started(group.allreduce([x]))
    last = started(group.barrier())
    last.wait()
    done = all(work.is_completed() for work in works)
    said["done"] = [last.get_future_result().wait(), last._get_duration() > 0, done]
    said["counted"] = group._get_sequence_number_for_group() - begun
    return said


def hooked(rank: int, world: int) -> dict[str, Any]:
    """The sum of all parameters after steps with each of torch's own hooks, by gloo and by us."""
    found: dict[str, Any] = {}
    for way, group in (("gloo", dist.new_group(backend="gloo")), ("ours", dist.new_group())):
        hooks: dict[str, Callable[[DistributedDataParallel], object]] = {
            "none": lambda model: None,
            "ALLREDUCE": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE),
            "FP16_COMPRESS": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
            "fp16": lambda model, group=group: model.register_comm_hook(group, fp16_compress_hook),  # type: ignore[misc]
            "PowerSGD": lambda model, group=group: model.register_comm_hook(  # type: ignore[misc]
                PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook
            ),
        }
        for name, register in hooks.items():
            torch.manual_seed(0)
            model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4)), process_group=group)
            register(model)
            torch.manual_seed(rank)
            for _ in range(4):
                model(torch.randn(4, 16)).pow(2).mean().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.05 * parameter.grad
                        parameter.grad = None
            found.setdefault(name, {})[way] = float(sum(one.abs().sum() for one in model.parameters()))
    return found


def detailed(rank: int, world: int) -> dict[str, Any]:
    """The log of two groups that are made in torch's debug mode DETAIL, and True if they work."""
    lines = Lines()
    logging.getLogger("netfold").addHandler(lines)
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    total = torch.ones(2)
    for _ in range(2):
        dist.all_reduce(total, group=dist.new_group())
    dist.set_debug_level(dist.DebugLevel.OFF)
    logging.getLogger("netfold").removeHandler(lines)
    return {"said": [line for line in lines.lines if "DETAIL" in line], "sum": total.tolist()}


CASES: list[Callable[[int, int], dict[str, Any]]] = [names, forked, unwritable, modes, seen, timed, hooked, detailed]


def main(subnet: str, service: str, folder: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["NETFOLD_ADDRESS"] = f"{subnet}.{rank + 1}"
    os.environ["NETFOLD_CONTROLLER"] = service
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("cpu:netfold")
    found = {case.__name__: case(rank, world) for case in CASES}
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

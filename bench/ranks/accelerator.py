# SPDX-License-Identifier: Apache-2.0
"""One rank of `bench/scripts/accelerator.py`: executes commands on tensors of a device that all ranks share.

    python -m netfold.bench.ranks.accelerator            commands on standard input; RANK, NETFOLD_*, DEVICE ... set
    python -m netfold.bench.ranks.accelerator death      one rank of a job of its own, of which rank 1 dies

Commands are lines of JSON, and each is answered by one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from netfold.topo.processes.failures import WrongData
from netfold.topo.processes.rank_program import print_message, run_rank

if TYPE_CHECKING:
    import torch
    from torch import nn

DEATH_SECONDS: Final = 45.0
LONG: Final = 6 << 20
"""Elements of a tensor that is reduced in several parts."""
STEPS: Final = 6
BOUND: Final = 1e-4
"""Largest relative difference of a step's loss from gloo's."""
BACKLOG: Final = 12
"""Matrix products of 2048 x 2048 before a tensor is filled, so that the device is far behind the host."""


def device() -> torch.device:
    """The device of all ranks."""
    import torch

    return torch.device(os.environ["DEVICE"], None if os.environ["DEVICE"] == "cpu" else 0)


def rank_and_world() -> tuple[int, int]:
    """This rank, and how many there are."""
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def finish() -> None:
    """Waits until the device has done all it was given."""
    import torch

    if device().type != "cpu":
        torch.accelerator.synchronize()


# ---- values that are known on every rank -----------------------------------------------------------------------------
def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's tensor, on the CPU; sums over 8 ranks are exact in each dtype."""
    import torch

    return ((torch.arange(count) * 7 + rank * 3) % 11).to(dtype)


def late(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The same on the device, filled only after much other work of the current stream."""
    import torch

    there = values(rank, count, dtype).to(device())
    tensor = torch.full((count,), 99, device=device()).to(dtype)
    busy = torch.ones(2048, 2048, device=device()) / 2048 if device().type != "cpu" else torch.ones(8, 8) / 8
    for _ in range(BACKLOG):
        busy = busy @ busy
    return tensor.copy_(there + (busy[0, 0] * 0).to(dtype))


def same(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises WrongData unless the tensor has these elements."""
    import torch

    got = got.detach().cpu()
    if got.shape != expected.shape or not torch.equal(got.to(torch.float64), expected.to(torch.float64)):
        wrong = (got.to(torch.float64) != expected.to(torch.float64)).nonzero().flatten()[:3].tolist()
        raise WrongData(f"rank {rank_and_world()[0]}, {what}: elements {wrong} ... of {got.numel()} are wrong: got "
                        f"{got.flatten()[wrong].tolist()}, expected {expected.flatten()[wrong].tolist()}")


Later = Callable[[], None]


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


# ---- checks ----------------------------------------------------------------------------------------------------------
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


def model(width: int = 256) -> nn.Module:
    """A small model, the same on every rank, on the device."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(width, 10)).to(device())


def losses(step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[float]:
    """Mean losses over the ranks of some steps, each on this rank's samples."""
    import torch
    import torch.distributed as dist

    found = []
    rank, world = rank_and_world()
    for turn in range(STEPS):
        generator = torch.Generator().manual_seed(100 + turn)
        inputs = torch.randn(16 * world, 256, generator=generator)[rank::world].to(device())
        targets = torch.randint(0, 10, (16 * world,), generator=generator)[rank::world].to(device())
        loss = step(inputs, targets).detach().clone()
        dist.all_reduce(loss)
        found.append(float(loss) / world)
    return found


def trained(make: Callable[[nn.Module], tuple[Callable[[torch.Tensor], torch.Tensor], Any]]) -> list[float]:
    """The losses of a model that ``make`` wraps, with the optimizer that it returns."""
    import torch

    forward, optimizer = make(model())

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    return losses(step)


def alike(what: str, got: list[float], expected: list[float], bound: float = BOUND) -> str:
    """How far losses are from gloo's.  Raises WrongData beyond the bound."""
    off = max(abs(one - right) / abs(right) for one, right in zip(got, expected, strict=True))
    if not off <= bound:
        raise WrongData(f"{what}: losses {got}: expected {expected} within {bound:g}")
    return f"{what} {off:.0e}"


def sgd(wrapped: nn.Module) -> Any:
    """The optimizer of every way."""
    import torch

    return torch.optim.SGD(wrapped.parameters(), 0.05, momentum=0.9)


def beside_gloo(hook: str = "") -> list[float]:
    """The losses over gloo, with this communication hook."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    group = dist.new_group(backend="gloo")

    def make(inner: nn.Module) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(inner, process_group=group, bucket_cap_mb=1)
        if hook == "powersgd":
            wrapped.register_comm_hook(PowerSGDState(group, 2, start_powerSGD_iter=2), powerSGD_hook)
        return wrapped, sgd(wrapped)

    return trained(make)


def ddp() -> str:
    """DistributedDataParallel: plain, by our hook in whole and narrow lanes, by torch's FP16 and PowerSGD hooks."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    from netfold.torch import NetfoldState, netfold_hook

    comm: Any = dist.group.WORLD.communicator
    right, found = beside_gloo(), []

    def make(hook: str, inner: nn.Module) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(inner, bucket_cap_mb=1)
        if hook.isdecimal():
            lanes: Any = int(hook)
            wrapped.register_comm_hook(NetfoldState(comm, lane_bits=lanes), netfold_hook)
        elif hook == "fp16":
            wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        elif hook == "powersgd":
            wrapped.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2), powerSGD_hook)
        return wrapped, sgd(wrapped)

    for hook, bound in (("", BOUND), ("32", BOUND), ("16", 0.01), ("8", 0.05), ("fp16", 0.01)):
        found.append(alike(hook or "plain", trained(partial(make, hook)), right, bound))
    found.append(alike("powersgd", trained(partial(make, "powersgd")), beside_gloo("powersgd"), 0.01))
    return ", ".join(found)


def fsdp() -> str:
    """fully_shard, and tensors that DTensor shards and gathers."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(dist.group.WORLD, device().type)

    def make(inner: nn.Module) -> tuple[Any, Any]:
        for layer in inner:
            fully_shard(layer, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        return inner, sgd(inner)

    found = alike("fully_shard", trained(make), beside_gloo())
    whole = torch.arange(48.0, device=device()).view(12, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same("DTensor", (sharded * 2).redistribute(mesh, [Replicate()]).to_local(), whole.cpu() * 2)
    same("DTensor's sum", sharded.sum().full_tensor().reshape(1), whole.cpu().sum().reshape(1))
    return f"{found}, DTensor"


def optimizers() -> str:
    """DistributedOptimizer and PriorityOptimizer."""
    import torch.distributed as dist

    from netfold.torch import DistributedOptimizer, PriorityOptimizer, broadcast_parameters

    comm: Any = dist.group.WORLD.communicator
    right = beside_gloo()

    def horovod(inner: nn.Module) -> tuple[Any, Any]:
        broadcast_parameters(inner.state_dict(), communicator=comm)
        return inner, DistributedOptimizer(sgd(inner), inner.named_parameters(), communicator=comm)

    made: list[Any] = []

    def priority(inner: nn.Module) -> tuple[Any, Any]:
        made.append(PriorityOptimizer(sgd(inner), inner, comm))
        return inner, made[0]

    found = [alike("DistributedOptimizer", trained(horovod), right)]
    forward, optimizer = priority(model())
    import torch

    seen = []
    rank, world = rank_and_world()
    for turn in range(STEPS):  # its communicator is its own between steps
        generator = torch.Generator().manual_seed(100 + turn)
        inputs = torch.randn(16 * world, 256, generator=generator)[rank::world].to(device())
        targets = torch.randint(0, 10, (16 * world,), generator=generator)[rank::world].to(device())
        loss = torch.nn.functional.cross_entropy(forward(inputs), targets)
        loss.backward()
        optimizer.step()
        seen.append(loss.detach().clone())
    optimizer.close()
    means = []
    for loss in seen:
        dist.all_reduce(loss)
        means.append(float(loss) / world)
    found.append(alike("PriorityOptimizer", means, right))
    return ", ".join(found)


def arrays() -> str:
    """Communicator.allreduce of arrays of other libraries on the device."""
    import torch
    import torch.distributed as dist

    comm: Any = dist.group.WORLD.communicator
    rank, world = rank_and_world()
    right = sum(values(one, 5000, torch.float32) for one in range(world))
    found = []
    mine = late(rank, 5000, torch.float32)
    same("a tensor", torch.as_tensor(comm.allreduce(mine)), right)
    own: Any = mine if device().type != "cpu" else mine.numpy()
    comm.allreduce(own, out=own)
    same("a tensor in place", mine, right)
    found.append("torch")
    for name in ("cupy", "jax") if device().type == "cuda" else ():
        try:
            library = __import__(f"{name}.numpy" if name == "jax" else name, fromlist=["asarray"])
        except ImportError:
            found.append(f"no {name}")
            continue
        array = library.asarray(values(rank, 5000, torch.float32).numpy())
        result = comm.iallreduce(array).wait()
        if type(result) is not type(array):
            raise WrongData(f"{name}: the result is a {type(result)}: expected a {type(array)}")
        same(name, torch.from_dlpack(result), right)
        if name == "cupy":
            comm.allreduce(array, out=array)
            same("cupy in place", torch.from_dlpack(array), right)
        found.append(name)
    return ", ".join(found)


def lanes() -> str:
    """Narrow lanes that the device makes are those of the native library, to the last bit, and so are their sums."""
    import numpy as np
    import torch
    import torch.distributed as dist

    from netfold.host.innet import quantise
    from netfold.host.innet.native import library
    from netfold.host.staging.lanes import NarrowLanes, blocks_of, scales_of
    from netfold.torch import NetfoldState

    rank, world = rank_and_world()
    random = np.random.default_rng(rank)
    given = (random.standard_normal(1 << 20) * 10.0 ** random.integers(-20, 20, 1 << 20)).astype(np.float32)
    given[:256] = np.float32(3e38)
    blocks = blocks_of(torch.from_numpy(given).to(device()))
    own = quantise.scales(given, 8)
    same("scales", scales_of(blocks), torch.from_numpy(own.view(np.int32)))
    for bits in (8, 16):
        for key in (None, int(library().nf_key(3, 5, rank))):
            how = NarrowLanes(bits, world, key)
            made = how.integers(blocks, scales_of(blocks), 0)
            native = quantise.narrow(given, own, world, bits, key=key)
            same(f"{bits}-bit lanes", made.view(-1), torch.from_numpy(native))
            words = how.packed(made) * world
            wide = quantise.widen(native * world, own, world, bits, 3.0)
            same("values", how.widened(words, scales_of(blocks), 3.0).view(-1), torch.from_numpy(wide))
    comm: Any = dist.group.WORLD.communicator
    found = []
    for width in (16, 8):
        state: Any = NetfoldState(comm, lane_bits=width)
        with closing(state) as here, closing(NetfoldState(comm, lane_bits=state.lane_bits)) as there:
            count = 3 * LONG // 2
            mine = torch.from_numpy(np.resize(given[256:], count))
            left, right = torch.zeros(count), torch.zeros(count, device=device())
            result = mine.to(device(), copy=True)
            there.reduce(result, feedback=right).wait()
            here.reduce(mine, feedback=left).wait()
            same(f"an average in {width}-bit lanes", result, mine)
            same("residuals", right, left)
            found.append(str(width))
    return f"{', '.join(found)} bits, alike to the last bit"


def graphs() -> str:
    """A capture is refused by name, and what comes after it is right."""
    import torch
    import torch.distributed as dist

    if device().type != "cuda":
        return "no graphs of this device are known here"
    mine = torch.ones(10, device=device())
    said = ""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            mine.add_(0)
            try:
                dist.all_reduce(mine)
            except ValueError as error:
                said = str(error)
    except RuntimeError as error:
        said = said or f"RuntimeError: {error}"
    if "while a graph is captured" not in said:
        raise WrongData(f"all_reduce in a capture: {said or 'was not refused'}")
    dist.all_reduce(mine)
    same("after the capture", mine, torch.full((10,), float(rank_and_world()[1])))
    return "refused by name"


def machine() -> str:
    """The device, its torch, and how fast pinned and other memory are copied."""
    import torch

    if device().type == "cpu":
        return f"torch {torch.__version__}"
    module = torch.get_device_module(device())
    there, rates = torch.ones(64 << 20, dtype=torch.uint8, device=device()), []
    for pinned in (True, False):
        here = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=pinned)
        for into, source in ((here, there), (there, here)):
            times = []
            for _ in range(4):
                finish()
                begin = time.perf_counter()
                into.copy_(source, non_blocking=True)
                finish()
                times.append(time.perf_counter() - begin)
            rates.append(there.nbytes / min(times) / 1e9)
    return (f"torch {torch.__version__}, {module.get_device_name(0)}; GB/s, all ranks at once: pinned out "
            f"{rates[0]:.1f}, in {rates[1]:.1f}; other memory out {rates[2]:.1f}, in {rates[3]:.1f}")


def death() -> str:
    """Rank 1 dies while all others wait for tensors on the device: each hears it in time, and its device goes on."""
    done = subprocess.run(
        [sys.executable, "-m", "netfold.bench.ranks.accelerator", "death"], capture_output=True, text=True,
        timeout=DEATH_SECONDS, check=False,
        env={**os.environ, "NETFOLD_JOB": "death", "MASTER_PORT": "29710", "NETFOLD_TIMEOUT": "10"},
    )
    if rank_and_world()[0] != 1 and done.returncode:
        raise WrongData(f"status {done.returncode}: {done.stderr[-600:]}")
    return done.stdout.strip()


def die() -> None:
    """One rank of the job of which rank 1 dies."""
    import torch
    import torch.distributed as dist

    import netfold.torch  # noqa: F401

    rank, world = rank_and_world()
    dist.init_process_group("netfold", timeout=timedelta(seconds=10))
    mine = torch.ones(LONG, device=device())
    dist.all_reduce(mine)
    works = [dist.all_reduce(torch.ones(LONG, device=device()), async_op=True) for _ in range(5)]
    if rank == 1:
        os._exit(9)
    begin = time.monotonic()
    try:
        for work in works:
            work.wait()
    except RuntimeError as error:
        finish()
        same("what had come before", mine, torch.full((LONG,), float(world)))
        if "1" not in str(error):
            raise
        print(f"{type(error).__name__} after {time.monotonic() - begin:.1f} s", flush=True)
        os._exit(0)
    raise WrongData("a rank died, and no error came")


CHECKS: Final[dict[str, Callable[[], str]]] = {
    check.__name__: check for check in (
        machine, collectives, coalesced, overlap, ddp, fsdp, optimizers, arrays, lanes, graphs, death)
}
"""By name, in the order in which they are made."""


# ---- measurements ----------------------------------------------------------------------------------------------------
def allreduce(nbytes: int, calls: int, warmup: int, part: float, place: str, lanes: Any) -> dict[str, float]:
    """Seconds of a call, what the host waited for it and its processor time, the means of some."""
    import torch
    import torch.distributed as dist

    from netfold.host.staging import copies
    from netfold.torch import NetfoldState

    copies.PART = int(part * (1 << 20)) or 16 << 20
    mine = torch.ones(nbytes // 4, device=device() if place == "device" else "cpu")
    group: Any = dist.group.WORLD
    with_lanes = nullcontext() if lanes == 32 else closing(NetfoldState(
        group.communicator, lane_bits=lanes, average=False, error_feedback=False))
    with with_lanes as state:
        for turn in range(warmup + calls):
            if turn == warmup:
                dist.barrier()
                finish()
                begin, cpu, waited = time.perf_counter(), time.process_time(), 0.0
            started = time.perf_counter()
            if state is None:
                dist.all_reduce(mine)
            else:
                state.reduce(mine).wait()
            waited = (waited if turn >= warmup else 0.0) + time.perf_counter() - started
            finish()
        seconds = (time.perf_counter() - begin) / calls
        cpu = (time.process_time() - cpu) / calls
    return {"seconds": seconds, "cpu": cpu, "wait": waited / calls}


@contextmanager
def closing(state: Any) -> Iterator[Any]:
    """Closes a hook's state at the end."""
    try:
        yield state
    finally:
        state.close()


def gpt2(steps: int, lanes: Any) -> dict[str, Any]:
    """Seconds and losses of steps of a model of GPT-2's size under DistributedDataParallel."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from netfold.torch import NetfoldState, netfold_hook

    width, depth, words, length = (768, 12, 50257, 128) if device().type != "cpu" else (64, 2, 500, 16)
    torch.manual_seed(1)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
            for table in (self.words, self.places):
                nn.init.normal_(table.weight, std=0.02)
            layer = nn.TransformerEncoderLayer(width, 12 if width == 768 else 4, 4 * width, 0.0, "gelu",
                                               batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            found = self.words(text) + self.places.weight[: text.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
            whole: torch.Tensor = self.layers(found, mask=mask, is_causal=True) @ self.words.weight.T
            return whole

    inner, (rank, world) = Model().to(device()), rank_and_world()
    wrapped = DistributedDataParallel(inner)
    group: Any = dist.group.WORLD
    if lanes != 32:
        wrapped.register_comm_hook(NetfoldState(group.communicator, lane_bits=lanes), netfold_hook)
    optimizer = torch.optim.AdamW(inner.parameters(), 3e-4)
    seconds, seen = [], []
    for turn in range(steps + 1):
        generator = torch.Generator().manual_seed(turn)
        text = torch.randint(0, words, (4 * world, length + 1), generator=generator)[rank::world].to(device())
        finish()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        finish()
        seconds.append(time.perf_counter() - begin)
        seen.append(loss.detach().clone())
    means = []
    for loss in seen:
        dist.all_reduce(loss)
        means.append(float(loss) / world)
    return {"seconds": seconds, "losses": means, "parameters": sum(p.numel() for p in inner.parameters())}


# ---- commands --------------------------------------------------------------------------------------------------------
def answer(command: dict[str, Any]) -> dict[str, Any]:
    """Executes a command."""
    import torch.distributed as dist

    import netfold.torch  # noqa: F401

    do = command.pop("do")
    if do == "join":
        os.environ["MASTER_PORT"] = str(command["port"])
        rank, world = rank_and_world()
        dist.init_process_group(command["backend"], rank=rank, world_size=world, timeout=timedelta(seconds=40))
        return {}
    if do == "check":
        try:
            return {"found": CHECKS[command["name"]](), "error": ""}
        except Exception as error:
            traceback.print_exc()
            return {"found": "", "error": f"{type(error).__name__}: {error}"[:1500]}
    return allreduce(**command) if do == "allreduce" else gpt2(**command)


def main(kind: str = "") -> None:
    """Executes commands."""
    import torch

    torch.set_num_threads(1)
    if kind == "death":
        die()
        return
    if device().type != "cpu":
        torch.zeros(1, device=device())
        finish()
    print_message({})
    for line in sys.stdin:
        print_message(answer(json.loads(line)))
    os._exit(0)  # without the destructors of what was kept


if __name__ == "__main__":
    run_rank(main, *sys.argv[1:])

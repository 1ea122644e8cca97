# SPDX-License-Identifier: Apache-2.0
"""Checks of arrays of other libraries, of lanes made on the device, of graphs, and the rates of its copies."""

from __future__ import annotations

import time
from typing import Any

from netfold.bench.ranks.accelerator.device import LONG, closing, device, finish, late, rank_and_world, same, values
from netfold.topo.processes.failures import WrongData


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

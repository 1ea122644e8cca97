# SPDX-License-Identifier: Apache-2.0
"""The same allreduce by another way over the same links: NetFold's rails, or gloo.

    python -m netfold.topo.race '{"way": "gloo", "elements": 1000000}'               # RANK, WORLD_SIZE, NETFOLD_* set
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np

Way = Literal["innet", "tcp", "gloo"]


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to run, the same on every rank."""

    way: Way
    elements: int
    """float32 elements of each allreduce."""
    repeats: int = 10
    warmup: int = 2
    master: str = ""
    """gloo: ADDRESS:PORT where rank 0 gathers the others."""
    timeout: float = 20.0
    """Seconds for one allreduce."""


class Times(msgspec.Struct, frozen=True):
    """One rank's times, in seconds, of the timed allreduces."""

    rank: int
    seconds: list[float]
    error: float
    """Largest difference from the exact sum, relative to its largest element."""


def main(spec: Spec) -> None:
    """One rank: prints its `Times` as a line of JSON."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    inputs = [np.random.default_rng(r).standard_normal(spec.elements, np.float32) for r in range(world)]
    exact = np.sum(inputs, axis=0, dtype=np.float64)
    array = inputs[rank]
    allreduce, finish = (_gloo if spec.way == "gloo" else _netfold)(spec, rank, world)
    seconds = []
    result = array
    for turn in range(spec.warmup + spec.repeats):
        # a small one first lines the ranks up, as a barrier would
        allreduce(np.zeros(1, np.float32))
        start = time.perf_counter()
        result = allreduce(array)
        if turn >= spec.warmup:
            seconds.append(time.perf_counter() - start)
    finish()
    error = float(np.max(np.abs(result - exact)) / np.max(np.abs(exact)))
    print(msgspec.json.encode(Times(rank, seconds, error)).decode(), flush=True)


Reduce = Callable[[np.ndarray[tuple[int], np.dtype[np.float32]]], np.ndarray[tuple[int], np.dtype[np.float32]]]


def _netfold(spec: Spec, rank: int, world: int) -> tuple[Reduce, Callable[[], None]]:
    from netfold.host import verbs

    comm = verbs.init(rail="tcp" if spec.way == "tcp" else "innet", algorithm="ring", timeout=spec.timeout)
    return comm.allreduce, verbs.shutdown


def _gloo(spec: Spec, rank: int, world: int) -> tuple[Reduce, Callable[[], None]]:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    host, _, port = spec.master.rpartition(":")
    # gloo would take the address that the host's name resolves to, which is the machine's; a fabric's host has one link
    link = next(name for _, name in socket.if_nameindex() if name != "lo")
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=port, GLOO_SOCKET_IFNAME=link)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=spec.timeout))

    def allreduce(array: np.ndarray[tuple[int], np.dtype[np.float32]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        tensor = torch.from_numpy(array.copy())
        dist.all_reduce(tensor)
        result: np.ndarray[tuple[int], np.dtype[np.float32]] = tensor.numpy()
        return result

    return allreduce, dist.destroy_process_group


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Spec))

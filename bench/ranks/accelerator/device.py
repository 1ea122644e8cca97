# SPDX-License-Identifier: Apache-2.0
"""The device, and values that are known on every rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from netfold.topo.processes.failures import WrongData

if TYPE_CHECKING:
    import torch

LONG: Final = 6 << 20
"""Elements of a tensor that is reduced in several parts."""
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


def values(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A rank's tensor, on the CPU; sums over 8 ranks are exact in each dtype."""
    import torch

    return ((torch.arange(count) * 7 + rank * 3) % 11).to(dtype)


def late(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The same on the device, filled only after much other work of the current stream."""
    return behind_work(values(rank, count, dtype).to(device()))


def behind_work(there: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor on the device, filled only after much other work of the current stream, for which the host
    does not wait."""
    import torch

    tensor = torch.full(there.shape, 99, device=device()).to(there.dtype)
    busy = torch.ones(2048, 2048, device=device()) / 2048 if device().type != "cpu" else torch.ones(8, 8) / 8
    for _ in range(BACKLOG):
        busy = busy @ busy
    return tensor.copy_(there + (busy[0, 0] * 0).to(there.dtype))


def same(what: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises WrongData unless the tensor has these elements."""
    import torch

    got = got.detach().cpu()
    if got.shape != expected.shape or not torch.equal(got.to(torch.float64), expected.to(torch.float64)):
        wrong = (got.to(torch.float64) != expected.to(torch.float64)).nonzero().flatten()[:3].tolist()
        raise WrongData(f"rank {rank_and_world()[0]}, {what}: elements {wrong} ... of {got.numel()} are wrong: got "
                        f"{got.flatten()[wrong].tolist()}, expected {expected.flatten()[wrong].tolist()}")


Later = Callable[[], None]
NOT_RUN: Final = "not run: "
"""Begins what a check says which this machine cannot make."""


@contextmanager
def closing(state: Any) -> Iterator[Any]:
    """Closes a hook's state at the end."""
    try:
        yield state
    finally:
        state.close()

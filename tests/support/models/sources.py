# SPDX-License-Identifier: Apache-2.0
"""Contributions of ranks to a fold over the slot model, and the cost of folding them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.host.innet.abi import AGREEMENT, DATA
from support.models.slot_model import Fabric


def integers(world: int, size: int, seed: int) -> list[NDArray[Any]]:
    """An int32 array for every rank."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-(2**31), 2**31, size, dtype=np.int64).astype(np.int32) for _ in range(world)]


def floats(world: int, size: int, seed: int) -> list[NDArray[Any]]:
    """A float32 array for every rank, over many magnitudes."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.integers(-20, 20, size))
    return [(rng.standard_normal(size) * scale).astype(np.float32) for _ in range(world)]


def retransmissions(fabric: Fabric) -> int:
    """Number of packets that all ranks have sent again."""
    return sum(
        core.state(tree, kind).counters.retransmitted
        for core in fabric.cores
        for tree, kind in product(range(len(core.trees)), (AGREEMENT, DATA))
    )

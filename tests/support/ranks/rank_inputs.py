# SPDX-License-Identifier: Apache-2.0
"""The arrays that ranks of the end-to-end tests sum: every rank can make every rank's arrays, and so tell the right
sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.topo.processes.rank_program import check_data


def integers(comm: Any, seed: int, length: int) -> list[NDArray[np.int32]]:
    """The input of every rank: int32 over the whole range."""
    return [np.random.default_rng([seed, rank, length]).integers(-(2**31), 2**31, length, np.int32)
            for rank in range(comm.size)]


def floats(comm: Any, seed: int, length: int) -> list[NDArray[np.float32]]:
    """The input of every rank: float32, normally distributed."""
    return [np.random.default_rng([seed, rank, length]).standard_normal(length, np.float32)
            for rank in range(comm.size)]


def exact_sum(comm: Any, sources: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The allreduce of these; raises WrongData where it is not numpy's sum, wrapping as int32 does."""
    total: NDArray[np.int32] = comm.allreduce(sources[comm.rank])
    expected = np.sum(sources, axis=0, dtype=np.int64).astype(np.int32)
    check_data(total, expected, rank=comm.rank, operation=f"sum of int32[{len(total)}]")
    return total

# SPDX-License-Identifier: Apache-2.0
"""Every allreduce algorithm against numpy, over the in-memory mesh."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from helpers_collectives import expected, inputs, values
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netfold.host.collectives import ALLREDUCE, flow
from netfold.host.collectives.elements import NAMES, Reduction, ReduceOp
from netfold.host.collectives.flow import run
from netfold.host.mesh import Call, Flat, Mesh
from netfold.host.mesh_memory import MemoryFabric

CALL = Call(1, "allreduce")


def allreduce(fabric: MemoryFabric, name: str, arrays: list[Flat], reduction: Reduction, **options: Any) -> list[Flat]:
    """Every rank's result."""

    def work(mesh: Mesh) -> Flat:
        data = arrays[mesh.rank].copy()
        with mesh.operation(CALL):
            run(mesh, ALLREDUCE[name](mesh, data, reduction, **options))
        reduction.finish(data, len(arrays))
        return data

    return values(fabric.run(work))


@pytest.mark.parametrize("name", sorted(ALLREDUCE))
@settings(max_examples=40, deadline=None)
@given(ranks=st.integers(1, 9), size=st.integers(0, 70), seed=st.integers(0, 2**32), segment=st.sampled_from([8, 64, 1 << 18]))
@example(ranks=9, size=0, seed=0, segment=64)
@example(ranks=7, size=5, seed=1, segment=8)
def test_every_algorithm_sums_like_numpy(name: str, ranks: int, size: int, seed: int, segment: int) -> None:
    """Any number of ranks, any size, also fewer elements than ranks, long and short segments: exact sums everywhere."""
    arrays = inputs(ranks, size, "float32", seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "SEGMENT", segment)
        patch.setattr("netfold.host.collectives.double_binary_tree.TREE_SEGMENT", segment)
        results = allreduce(MemoryFabric(ranks, seed=seed), name, arrays, Reduction("sum", "float32"))

    for result in results:
        np.testing.assert_array_equal(result, expected(arrays, "sum", "float32"))

# SPDX-License-Identifier: Apache-2.0
"""The memory that switches are given for the results of rows (host/selection/rows.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest, RowsRequest
from netfold.host.selection.rows import RowsDispatch


class Doubling:
    """Switches that fold anything: each sum is twice this rank's element."""

    fallback, name, retransmissions = "", "innet", 0

    def __init__(self) -> None:
        self.apart: list[bool] = []
        """By request: whether the results go to memory that the source does not share."""

    def takes(self, *_: object) -> bool:
        return True

    def begin(self, _: int) -> bool:
        return True

    def collect(self, request: RowsRequest) -> None:
        self.apart.append(not np.may_share_memory(request.source, request.out))
        request.out[...] = 2 * request.source[request.out_first :][: request.out.size]


@pytest.mark.parametrize("place", [0, 3, 8], ids=["other elements", "some of both", "its own"])
def test_results_that_overlap_what_is_sent_are_written_once_all_is_folded(place: int) -> None:
    """A packet of the source may be sent again after results have come: they must not be in its elements by then."""
    switches = Doubling()
    rows = RowsDispatch(cast(Any, SimpleNamespace(rank=1, size=2)), cast(Any, switches), always=True)
    source = np.arange(16, dtype=np.float32)
    out = source[place : place + 8]
    request = AllreduceRequest(source, out, Reduction("sum", "float32"), 1)
    assert rows.reduce_scatter(request, [slice(0, 8), slice(8, 16)])
    assert (switches.apart, out.tolist()) == ([True], [2.0 * element for element in range(8, 16)])
    apart, ones = np.zeros(8, np.float32), np.ones(16, np.float32)
    assert rows.reduce_scatter(AllreduceRequest(ones, apart, request.reduction, 2), [slice(0, 8), slice(8, 16)])
    assert apart.tolist() == [2.0] * 8

# SPDX-License-Identifier: Apache-2.0
"""Words by which ranks compare the reproducible reductions that they have called."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.errors import RankMismatch
from netfold.host.exact import signature
from netfold.host.operation.reduction import NAMES, REDUCE_OPS, Reduction

reductions = st.builds(Reduction, st.sampled_from(["sum", "max", "min", "product"]), st.sampled_from(NAMES))


@given(st.integers(0, 2**40), reductions, st.integers(0, 2**40), reductions)
def test_ranks_agree_where_they_have_called_the_same(
    size: int, reduction: Reduction, other_size: int, other: Reduction
) -> None:
    """The maximum of two ranks' words tells whether sizes and reductions are equal, and names what is not."""
    agreed = np.maximum(signature.signature(size, reduction), signature.signature(other_size, other))
    if (size, reduction) == (other_size, other):
        signature.check(agreed, "here")
        return
    with pytest.raises(RankMismatch, match="here: ") as told:
        signature.check(agreed, "here")
    if reduction != other:
        assert {f"{one.op} of {one.element}" in str(told.value) for one in (reduction, other)} == {True}


@pytest.mark.parametrize("code", [len(NAMES) * 8, len(NAMES) * 8 + 1, len(REDUCE_OPS), 7, 2**31 - 1])
def test_words_of_something_else_are_told_as_such(code: int) -> None:
    """A code of no dtype, or of no reduction, is another rank's other operation, and no error of Python's."""
    ours = signature.signature(3, Reduction("sum", "float32"))
    theirs = np.array([3, -3, 0, 0, code, -code], np.int32)
    with pytest.raises(RankMismatch, match="this rank called a reproducible reduction, and another one something else"):
        signature.check(np.maximum(ours, theirs), "here")

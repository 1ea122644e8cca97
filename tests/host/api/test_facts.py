# SPDX-License-Identifier: Apache-2.0
"""Answers of a group about its calls for which nothing is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netfold.testing import loopback_job


@pytest.mark.parametrize("reproducible", ["0", "1"])
@pytest.mark.parametrize(("asked", "error", "says"), [
    (("foo",), ValueError, r"op='foo': expected one of sum, average"),
    ((200000,), ValueError, r"op=200000: expected one of sum, average"),
    (("sum", "foo"), TypeError, r"elements of 'foo': expected one of float32"),
    (("sum", np.float32), TypeError, r"elements of .*float32.*: expected one of float32"),
    (("average", "int32"), TypeError, r"an average of integers is no integer"),
])
def test_a_path_is_told_for_what_an_allreduce_takes_alone(
    monkeypatch: pytest.MonkeyPatch, reproducible: str, asked: tuple[Any, ...], error: type[Exception], says: str
) -> None:
    """Other operations and dtypes are refused by name, as the call would: they have no path."""
    monkeypatch.setenv("NETFOLD_REPRODUCIBLE", reproducible)
    with loopback_job(2) as comms:
        with pytest.raises(error, match=says):
            comms[0].path(*asked)
        assert comms[0].path("max", "int32") == "innet"


@pytest.mark.parametrize(("nbytes", "says"), [(-1, "nbytes=-1"), (64e6, "nbytes=64000000.0"), ("sum", "nbytes='sum'")])
def test_a_size_that_no_collective_has_is_not_explained(nbytes: Any, says: str) -> None:
    """Bytes are a whole number of 0 or more, also one of numpy's."""
    with loopback_job(2) as comms:
        with pytest.raises(ValueError, match=f"{says}: expected the bytes"):
            comms[0].explain(nbytes)
        assert comms[0].explain(np.int64(8)) == comms[0].explain(8)

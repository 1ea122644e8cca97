# SPDX-License-Identifier: Apache-2.0
"""The errors as seen by programs that know nothing of NetFold."""

from __future__ import annotations

import copy
import inspect

import pytest

from netfold.host import errors

KINDS = [
    one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.NetFoldError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_a_runtime_error(kind: type[Exception]) -> None:
    """Programs on torch.distributed catch those."""
    assert issubclass(kind, RuntimeError)


def test_each_is_also_what_python_has_for_it() -> None:
    """A time-out, a lost connection, an error of the system with its number."""
    assert issubclass(errors.CollectiveTimeout, TimeoutError)
    assert issubclass(errors.PeerLost, ConnectionError)
    refused = errors.TransportError(98, "in use")
    assert (refused.errno, str(refused)) == (98, "[Errno 98] in use")


def test_a_time_out_says_so_once() -> None:
    """Its message begins with "Timed out", also where it is told again in other words, or copied."""
    first = errors.CollectiveTimeout("rank 1 has not called")
    assert str(first) == "Timed out: rank 1 has not called"
    assert str(errors.CollectiveTimeout(f"{first} (so rank 2 found)")) == f"{first} (so rank 2 found)"
    assert str(copy.copy(first)) == str(first)

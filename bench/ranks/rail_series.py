# SPDX-License-Identifier: Apache-2.0
"""One rank's part of a series of sums over all rails, each call told by itself: what a rail's failure looks like in
time."""

from __future__ import annotations

import time

import msgspec
import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.host.rails.multirail import MultiRail


class SeriesCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Make ``calls`` sums of ``nbytes``, one after the other, over all rails that are up."""

    nbytes: int
    calls: int


class SeriesCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of a rank."""

    begun: float
    """Seconds of CLOCK_MONOTONIC, which all processes of a machine share."""
    seconds: float
    carried: list[int]
    """Bytes that each rail carried in it."""
    wrong: int
    """Wrong elements; sums of int32 are exact."""


class SeriesResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `SeriesCommand`: every call in order."""

    calls: list[SeriesCall]


def series(comm: Communicator, rails: MultiRail, command: SeriesCommand) -> SeriesResult:
    """Make the sums, with a check of each result between two calls.  Raises what an allreduce raises."""
    source = np.arange(command.nbytes // 4, dtype=np.int32) * np.int32(comm.rank + 1)
    expected = np.arange(source.size, dtype=np.int32) * np.int32(comm.size * (comm.size + 1) // 2)
    out = np.empty_like(source)
    calls = []
    for _ in range(command.calls):
        before = [use.nbytes for use in rails.use()]
        begun = time.monotonic()
        comm.allreduce(source, out)
        seconds = time.monotonic() - begun
        carried = [use.nbytes - then for use, then in zip(rails.use(), before, strict=True)]
        calls.append(SeriesCall(begun, seconds, carried, int(np.count_nonzero(out != expected))))
        out[:] = 0
    return SeriesResult(calls)

# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench rails`: reads commands as lines of JSON and answers each by a line of JSON.

    python -m netfold.bench.ranks.rails TIMEOUT    with RANK, WORLD_SIZE, NETFOLD_PLANES, NETFOLD_RAILS, ... set

The first command must be `OpenCommand`, which makes a communicator of all rails after closing the one before.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec
import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.host.rails.joining import START_VARIABLE
from netfold.host.rails.multirail import MultiRail, RailUse, State
from netfold.host.rails.policy import Start
from netfold.host.selection.calibration import COST_VARIABLE
from netfold.topo.rank_program import print_message


class OpenCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Make a new communicator, and time its first ``calls`` sums of ``nbytes`` one by one.

    figures  file with measurements of an earlier job, to which this one writes its own; "": none
    """

    job: str
    start: Start
    figures: str
    nbytes: int
    calls: int


class OpenResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to join and measure, and of each of the first sums."""

    join: float
    first: list[float]
    uses: list[RailUse]


class SumsCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Time ``iterations`` sums of ``nbytes``, after ``warmup`` others."""

    nbytes: int
    iterations: int = 1
    warmup: int = 0
    rail: int | None = None
    """The only rail to use, by its number; None: all of them."""
    announce: bool = False
    """Whether to answer first with an `Announcement` of when the sums begin."""


class SumsResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `SumsCommand`."""

    seconds: float
    """Time of one sum."""
    wrong: int
    """Wrong elements of the last sum, which is exact in int32."""
    path: str
    states: list[State]
    """States of the rails afterwards."""
    begun: float


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the sums begin: seconds of CLOCK_MONOTONIC, which all processes of a machine share."""

    at: float


def serve(timeout: float) -> None:
    """Execute commands until the input ends."""
    comm: Communicator | None = None
    try:
        for line in sys.stdin:
            command = msgspec.json.decode(line, type=OpenCommand | SumsCommand)
            if isinstance(command, OpenCommand):
                if comm is not None:
                    comm.close()
                comm, begun = _begin(command, timeout)
                print_message(begun)
            elif comm is None:
                raise ValueError("the first command must be OpenCommand")
            else:
                print_message(_measure(comm, command))
    finally:
        if comm is not None:
            comm.close()


def _begin(command: OpenCommand, timeout: float) -> tuple[Communicator, OpenResult]:
    rank, world, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NETFOLD_ADDRESS"]
    os.environ |= {START_VARIABLE: command.start, COST_VARIABLE: command.figures}
    begin = time.monotonic()
    comm = Communicator.join(command.job, rank, world, address=address, timeout=timeout)
    join = time.monotonic() - begin
    first = [_measure(comm, SumsCommand(command.nbytes)).seconds for _ in range(command.calls)]
    return comm, OpenResult(join, first, _rails(comm).use())


def _measure(comm: Communicator, turn: SumsCommand) -> SumsResult:
    source = _data(comm.rank, turn.nbytes // 4)
    out = np.empty_like(source)
    _rails(comm).pin(turn.rail)
    for _ in range(turn.warmup):
        comm.allreduce(source, out)
    comm.barrier()
    begin = time.monotonic()
    if turn.announce:
        print_message(Announcement(begin))
    for _ in range(turn.iterations):
        comm.allreduce(source, out)
    seconds = (time.monotonic() - begin) / turn.iterations
    comm.barrier()
    _rails(comm).pin(None)
    expected = np.sum([_data(rank, source.size) for rank in range(comm.size)], axis=0, dtype=np.int32)
    states = [use.state for use in _rails(comm).use()]
    return SumsResult(seconds, int(np.sum(out != expected)), comm.explain(turn.nbytes), states, begin)


def _rails(comm: Communicator) -> MultiRail:
    if comm.rails is None:
        raise ValueError("NETFOLD_RAILS must name several rails")
    return comm.rails


def _data(rank: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    # cheap to compute, so that checking does not dominate; differs between ranks and between elements
    return np.arange(size, dtype=np.int32) * np.int32(2 * rank + 1)



if __name__ == "__main__":
    serve(float(sys.argv[1]))

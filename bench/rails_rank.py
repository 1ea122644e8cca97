# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench rails`: commands come as lines of JSON, answers go out the same way.

    python -m netfold.bench.rails_rank TIMEOUT      RANK, WORLD_SIZE, NETFOLD_PLANES, NETFOLD_RAILS, ... set

``Begin`` comes first: it makes the communicator of all rails, after it has closed the one before.
"""

from __future__ import annotations

import os
import sys
import time

import msgspec
import numpy as np

from netfold.host.api.communicator import Communicator
from netfold.host.rails.joining import START_VARIABLE
from netfold.host.rails.multirail import MultiRail, RailUse, Start, State
from netfold.host.selection.calibration import COST_VARIABLE


class Begin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A new communicator, and its first ``calls`` sums of ``nbytes``, one by one.

    figures  file in which this job keeps what it measured and looks for what another has; "": none
    """

    job: str
    start: Start
    figures: str
    nbytes: int
    calls: int


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of joining and measuring, and of each of the first sums."""

    join: float
    first: list[float]
    uses: list[RailUse]


class RailsTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Sums of ``nbytes``."""

    nbytes: int
    iterations: int = 1
    warmup: int = 0
    rail: int | None = None
    """This one alone, with nothing around it."""
    announce: bool = False
    """Say the time of the beginning first, by CLOCK_MONOTONIC, which all processes of a machine share."""


class RailsTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn on one rank."""

    seconds: float
    """Of one sum."""
    wrong: int
    """Elements of the last sum, which is exact in int32."""
    path: str
    states: list[State]
    """Of the rails, after it."""
    begun: float


class Announced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to ``announce``."""

    at: float


def serve(timeout: float) -> None:
    """Commands, until the input ends."""
    comm: Communicator | None = None
    try:
        for line in sys.stdin:
            command = msgspec.json.decode(line, type=Begin | RailsTurn)
            if isinstance(command, Begin):
                if comm is not None:
                    comm.close()
                comm, begun = _begin(command, timeout)
                _say(msgspec.json.encode(begun))
            else:
                assert comm is not None, "Begin comes first"
                _say(msgspec.json.encode(_measure(comm, command)))
    finally:
        if comm is not None:
            comm.close()


def _begin(command: Begin, timeout: float) -> tuple[Communicator, Begun]:
    rank, world, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NETFOLD_ADDRESS"]
    os.environ |= {START_VARIABLE: command.start, COST_VARIABLE: command.figures}
    begin = time.monotonic()
    comm = Communicator.join(command.job, rank, world, address=address, timeout=timeout)
    join = time.monotonic() - begin
    first = [_measure(comm, RailsTurn(command.nbytes)).seconds for _ in range(command.calls)]
    return comm, Begun(join, first, _rails(comm).use())


def _measure(comm: Communicator, turn: RailsTurn) -> RailsTimes:
    source = _data(comm.rank, turn.nbytes // 4)
    out = np.empty_like(source)
    _rails(comm).pin(turn.rail)
    for _ in range(turn.warmup):
        comm.allreduce(source, out)
    comm.barrier()
    begin = time.monotonic()
    if turn.announce:
        _say(msgspec.json.encode(Announced(begin)))
    for _ in range(turn.iterations):
        comm.allreduce(source, out)
    seconds = (time.monotonic() - begin) / turn.iterations
    comm.barrier()
    _rails(comm).pin(None)
    expected = np.sum([_data(rank, source.size) for rank in range(comm.size)], axis=0, dtype=np.int32)
    states = [use.state for use in _rails(comm).use()]
    return RailsTimes(seconds, int(np.sum(out != expected)), comm.explain(turn.nbytes), states, begin)


def _rails(comm: Communicator) -> MultiRail:
    assert comm.rails is not None, "NETFOLD_RAILS names several rails"
    return comm.rails


def _data(rank: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    # cheap, so that checking does not dominate: every rank's tensor differs, and so does every element
    return np.arange(size, dtype=np.int32) * np.int32(2 * rank + 1)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(float(sys.argv[1]))

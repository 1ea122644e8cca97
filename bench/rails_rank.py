# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench rails`: commands come as lines of JSON, answers go out the same way.

    python -m netfold.bench.rails_rank TIMEOUT RAILS...      RANK, WORLD_SIZE, NETFOLD_PLANES, ... set

Each RAILS, "innet@a" or "innet@a+tcp@b", becomes a communicator.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from netfold.host.communicator import Communicator
from netfold.host.rails.multirail import RailUse, State


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sums of ``nbytes`` by one communicator."""

    nbytes: int
    iterations: int = 1
    warmup: int = 0
    way: int = 0
    announce: bool = False
    """Say the time of the beginning first, by CLOCK_MONOTONIC, which all processes of a machine share."""


class Took(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn on one rank."""

    seconds: float
    """Of one sum."""
    wrong: int
    """Elements of the last sum, which is exact in int32."""
    path: str
    states: list[State]
    """Of the rails, after it; none for a single one."""
    begun: float


class Begun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to ``announce``."""

    at: float


def serve(timeout: float, ways: Sequence[str]) -> None:
    """Turns, until the input ends."""
    rank, world, address = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NETFOLD_ADDRESS"]
    with contextlib.ExitStack() as stack:
        comms = [
            stack.enter_context(
                Communicator.join(f"bench-{way}", rank, world, address=address, timeout=timeout, rails=way)
            )
            for way in ways
        ]
        _say(msgspec.json.encode([use for comm in comms if comm.rails is not None for use in comm.rails.use()]))
        for line in sys.stdin:
            turn = msgspec.json.decode(line, type=Turn)
            _say(msgspec.json.encode(_measure(comms[turn.way], turn)))


def _measure(comm: Communicator, turn: Turn) -> Took:
    source = _data(comm.rank, turn.nbytes // 4)
    out = np.empty_like(source)
    for _ in range(turn.warmup):
        comm.allreduce(source, out)
    comm.barrier()
    begin = time.monotonic()
    if turn.announce:
        _say(msgspec.json.encode(Begun(begin)))
    for _ in range(turn.iterations):
        comm.allreduce(source, out)
    seconds = (time.monotonic() - begin) / turn.iterations
    comm.barrier()
    expected = np.sum([_data(rank, source.size) for rank in range(comm.size)], axis=0, dtype=np.int32)
    states = [] if comm.rails is None else [use.state for use in comm.rails.use()]
    return Took(seconds, int(np.sum(out != expected)), comm.explain(turn.nbytes), states, begin)


def uses(line: bytes) -> list[RailUse]:
    """What a rank says first."""
    return msgspec.json.decode(line, type=list[RailUse])


def _data(rank: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    # cheap, so that checking does not dominate: every rank's tensor differs, and so does every element
    return np.arange(size, dtype=np.int32) * np.int32(2 * rank + 1)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(float(sys.argv[1]), sys.argv[2:])

# SPDX-License-Identifier: Apache-2.0
"""One rank of `netfold bench rails`: reads commands as lines of JSON and answers each by a line of JSON.

    python -m netfold.bench.ranks.rails TIMEOUT    with RANK, WORLD_SIZE, NETFOLD_PLANES, NETFOLD_RAILS, ... set

The first command must be `OpenCommand`, which makes a communicator of all rails after closing the one before.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from netfold.bench.ranks.rail_series import SeriesCommand, series
from netfold.bench.ranks.rail_training import KEPT, RailTrainingCommand, training
from netfold.host.api.communicator import Communicator
from netfold.host.rails.account import RailUse, State
from netfold.host.rails.joining import START_VARIABLE
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.policy import Start
from netfold.host.rails.shares import BLOCK
from netfold.host.selection.calibration import COST_VARIABLE
from netfold.topo.processes.rank_program import print_message

LARGEST = 64 << 20
"""Bytes up to which the threshold is looked for."""


class OpenCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Make a new communicator, and time its first ``calls`` sums of ``nbytes`` one by one.

    figures  file with measurements of an earlier job, to which this one writes its own; "": none
    sizes    in bytes, of which each rail's share is told
    """

    job: str
    start: Start
    figures: str
    nbytes: int
    calls: int
    sizes: list[int] = []


class OpenResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds to join and measure, and of each of the first sums."""

    join: float
    first: list[float]
    uses: list[RailUse]
    before: list[list[float]]
    """By size: each rail's share before the first sums, 0 to 1."""
    after: list[list[float]]
    """... and after them."""
    threshold: int | None
    """Smallest tensor in bytes that is cut after them; None: none up to ``LARGEST``."""


class SumsCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Time ``iterations`` sums of ``nbytes``, after ``warmup`` others."""

    nbytes: int
    iterations: int = 1
    warmup: int = 0
    rail: int | None = None
    """The only rail to use, by its number; None: all of them."""
    announce: bool = False
    """True if the rank should first announce, with an `Announcement`, when the sums begin."""


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
    processor: float
    """Processor seconds of this rank's process for one sum, all of its threads."""
    carried: list[int]
    """Bytes that each rail has carried in the timed sums."""
    rail_processor: list[float]
    """Processor seconds of each rail's thread for one sum, as far as it was cut."""


class Announcement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the sums begin: seconds of CLOCK_MONOTONIC, which all processes of a machine share."""

    at: float


COMMANDS = OpenCommand | SumsCommand | SeriesCommand | RailTrainingCommand


def serve(timeout: float) -> None:
    """Execute commands until the input ends."""
    comm: Communicator | None = None
    try:
        for line in sys.stdin:
            command = msgspec.json.decode(line, type=COMMANDS)
            if isinstance(command, OpenCommand):
                if comm is not None:
                    comm.close()
                comm, begun = _begin(command, timeout)
                print_message(begun)
            elif comm is None:
                raise ValueError("the first command must be OpenCommand")
            elif isinstance(command, SeriesCommand):
                print_message(series(comm, _rails(comm), command))
            elif isinstance(command, RailTrainingCommand):
                print_message(training(comm, _rails(comm), command))
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
    rails = _rails(comm)
    before = _shares(rails, command.sizes)
    first = [_measure(comm, SumsCommand(command.nbytes)).seconds for _ in range(command.calls)]
    return comm, OpenResult(join, first, rails.use(), before, _shares(rails, command.sizes), _threshold(rails))


def _shares(rails: MultiRail, sizes: Sequence[int]) -> list[list[float]]:
    """By size: the part that each rail would carry now."""
    splits = [rails.shares.preview(nbytes, rails.live) for nbytes in sizes]
    return [[part / nbytes for part in split.nbytes] for nbytes, split in zip(sizes, splits, strict=True)]


def _threshold(rails: MultiRail) -> int | None:
    """The smallest tensor that would be cut now, in steps of a tenth."""
    nbytes = BLOCK
    while nbytes <= LARGEST:
        if not rails.shares.preview(nbytes, rails.live).whole:
            return nbytes
        nbytes = max(nbytes + BLOCK, round(nbytes * 1.1 / BLOCK) * BLOCK)
    return None


def _measure(comm: Communicator, turn: SumsCommand) -> SumsResult:
    source = _data(comm.rank, turn.nbytes // 4)
    out = np.empty_like(source)
    _rails(comm).pin(turn.rail)
    for _ in range(turn.warmup):
        comm.allreduce(source, out)
    comm.barrier()
    used = _rails(comm).use()
    begin, processor = time.monotonic(), time.process_time()
    if turn.announce:
        print_message(Announcement(begin))
    for _ in range(turn.iterations):
        comm.allreduce(source, out)
    seconds = (time.monotonic() - begin) / turn.iterations
    processor = (time.process_time() - processor) / turn.iterations
    uses = list(zip(used, _rails(comm).use(), strict=True))
    carried = [now.nbytes - then.nbytes for then, now in uses]
    threads = [(now.processor - then.processor) / turn.iterations for then, now in uses]
    comm.barrier()
    _rails(comm).pin(None)
    expected = np.sum([_data(rank, source.size) for rank in range(comm.size)], axis=0, dtype=np.int32)
    states = [use.state for use in _rails(comm).use()]
    return SumsResult(
        seconds, int(np.sum(out != expected)), comm.explain(turn.nbytes), states, begin, processor, carried, threads
    )


def _rails(comm: Communicator) -> MultiRail:
    if comm.rails is None:
        raise ValueError("NETFOLD_RAILS must name several rails")
    return comm.rails


def _data(rank: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    # cheap to compute, so that checking does not dominate; differs between ranks and between elements
    return np.arange(size, dtype=np.int32) * np.int32(2 * rank + 1)


def main() -> None:
    """Be a rank, as the arguments say."""
    serve(float(sys.argv[1]))
    if KEPT:
        sys.stdout.flush()
        os._exit(0)  # without the destructors of what was kept


if __name__ == "__main__":
    main()

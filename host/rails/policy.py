# SPDX-License-Identifier: Apache-2.0
"""Settings of a ``MultiRail``: how to use its rails, how to reach the other ranks, and whom to inform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from netfold.host.errors import NetFoldError
from netfold.host.opening.open_mesh import PathChoice
from netfold.host.operation.coding import LaneBits
from netfold.host.rails.rail_set import STALL_SECONDS
from netfold.host.rails.rank_state import OutOfBandChannel, RankState
from netfold.host.rails.shares import LONG_BYTES, Figure
from netfold.host.tracing.timeline import Timeline

Start = Literal["hot", "cold"]
"""Start of the rails: their rates are measured before the first operation ("hot"), or by the first long ones
("cold")."""
WARMUP_CALLS: Final = 3
"""Number of short calls on each rail before those that are measured."""
LATENCY: Final = (1024,) * 5
RATE: Final = (LONG_BYTES, 4 * LONG_BYTES)
"""Sizes in bytes of the first calls, from which each rail's cost is measured."""


@dataclass(frozen=True)
class RailOptions:
    """A user's settings for all rails (``Communicator.join``).

    timeout       seconds without progress after which ranks count as missing
    join_timeout  seconds to wait for the other ranks
    lane_bits     lane width of the job; in a job with RC queue pairs, sums have lanes of this width only
    algorithm     of operations between the hosts; None: $NETFOLD_ALGO, or the cheapest
    path_mtu      payload bytes of a packet; a plane with another value refuses it; None: each plane's own
    paths         choice of paths between the hosts (``open_mesh.path_choice``)
    token         of the planes' controllers, the same for all; "": the environment's
    """

    timeout: float = 10.0
    join_timeout: float = 30.0
    lane_bits: LaneBits = 32
    algorithm: str | None = None
    path_mtu: int | None = None
    token: str = ""
    paths: PathChoice | None = None


@dataclass(frozen=True)
class OutOfBand:
    """How a rank reaches the others besides its rails.

    state      answers for this rank
    channel    asks the others
    job_error  returns what has ended the job on all planes, or None; given whether ranks that have left in order end it
    """

    state: RankState
    channel: OutOfBandChannel
    job_error: Callable[[bool], NetFoldError | None] = lambda left: None


@dataclass(frozen=True)
class RailPolicy:
    """How rails are used and given up; the same on all ranks, except ``known``.

    start     "hot": begins with the shares that follow from ``known``, and measures at the start whatever no rank
              knows; "cold": measures latencies alone, begins on the quickest rail, and gives the others a trial
    known     each rail's figures from an earlier run, or None; empty: none are known
    stall     seconds without progress after which a rail counts as dead (``rail_set.STALL_SECONDS``)
    timeout   seconds without an answer or any progress after which a call gives up
    overhead  initial estimate in seconds of what splitting a call costs (``shares``)
    """

    start: Start = "hot"
    known: Sequence[Figure | None] = ()
    stall: float = STALL_SECONDS
    timeout: float = 10.0
    overhead: float = 0.0003


@dataclass(frozen=True)
class RailListeners:
    """The functions and records that are informed of what rails do.

    me        job and rank, for errors; default: the rank
    job       the job's name, for messages
    hosts     of all ranks, for messages
    note      called with which rail carries what share of a call, and why
    timeline  records what each rail carries when, where one was asked for
    keep      called with the rails' figures at the end, to be saved for the next run
    """

    me: str = ""
    job: str = "default"
    hosts: Sequence[str] = ()
    note: Callable[[str], None] = lambda path: None
    timeline: Timeline | None = None
    keep: Callable[[list[Figure]], None] = lambda figures: None


DEFAULT_POLICY: Final = RailPolicy()
NO_LISTENERS: Final = RailListeners()


def first_calls(start: Start) -> list[tuple[bool, int]]:
    """The first calls on each rail that is not known: whether each one is measured, and its bytes."""
    sizes = LATENCY + (RATE if start == "hot" else ())
    return [(False, 1024)] * WARMUP_CALLS + [(True, nbytes) for nbytes in sizes]

# SPDX-License-Identifier: Apache-2.0
"""The figures of `netfold bench rails`, as --rows writes them.  Times are in seconds."""

from __future__ import annotations

import msgspec


class MptcpRow(msgspec.Struct, frozen=True):
    """One size over Multipath TCP on all planes.  Times are in seconds, and medians of turns."""

    seconds: float
    over: float
    """The rails' ``together`` over these seconds: the median over the turns."""
    quartiles: list[float]
    """Quartiles of ``over`` over the turns."""
    shares: list[float]
    """Part of the bytes that each plane carried, headers included."""
    processor: float
    """Processor seconds of a rank for one sum."""
    subflows: int
    """Besides the first, of the connection that has the fewest."""
    wrong: int


class RailsRow(msgspec.Struct, frozen=True):
    """One size.  Times are in seconds, and medians of turns."""

    nbytes: int
    single: list[float]
    """Time of each rail alone."""
    together: float
    of_best: float
    """``together`` over the best single rail's seconds."""
    quartiles: list[float]
    """Quartiles of ``of_best`` over the turns."""
    of_sum: float
    """Rate over the sum of the single rails' rates."""
    speedup: float
    """Best single rail's seconds over ``together``."""
    turns: int
    wrong: int
    path: str
    shares: list[float]
    """Part of the bytes that each rail has carried in the turns of all, 0 to 1."""
    processor: list[float]
    """Processor seconds of a rank for one sum, by each rail alone and by all."""
    threads: list[float]
    """Processor seconds of each rail's thread for one sum by all; 0 where no sum was cut."""
    mptcp: MptcpRow | None = None


class Started(msgspec.Struct, frozen=True):
    """One kind of start; seconds are medians of rounds."""

    name: str
    join: float
    """Until all rails are connected and the measurements that a start makes are done."""
    first: list[float]
    """The first sums of ``cut_bytes``."""
    before: list[list[float]]
    """By size: each rail's share before the first sums, of the last round."""
    after: list[list[float]]
    """... and after them."""
    threshold: int | None
    """Smallest tensor in bytes that is cut after them; None: none is."""


class PlaneCut(msgspec.Struct, frozen=True):
    """A plane that failed in the middle of a call.  Times in seconds."""

    at: float
    """Seconds into the call."""
    seconds: float
    ideal: float
    extra: float
    wrong: int
    back: float
    """Seconds from the plane's return to the first call that used it."""


class RailTrainingRow(msgspec.Struct, frozen=True):
    """Training over one rail, over all, or over gloo; figures are medians of rounds."""

    way: str
    """The rail's name, "together", or "gloo", over the first plane."""
    step: float
    """Time of a step of the slowest rank: the median of a round's steps."""
    samples: float
    """Samples of all ranks a second."""
    of_best: float
    """Samples a second over those of the best single rail, of the same round."""
    processor: float
    """Processor time of a rank for a step, computing included."""
    loss: float
    """Mean of the ranks' losses in the last step."""
    alike: bool
    """True if all ranks ended with the same weights, in every round."""


class DeathCall(msgspec.Struct, frozen=True):
    """One call of a series of sums, during which the last plane failed and came back."""

    at: float
    """Since the first call began, when the first rank began this one."""
    took: float
    """Until the last rank was done."""
    carried: list[int]
    """Bytes of rank 0 that each rail carried."""
    wrong: int
    """Wrong elements on all ranks."""


class RailDeath(msgspec.Struct, frozen=True):
    """A series of sums of which the last plane missed a part."""

    nbytes: int
    cut: float
    """When the plane failed, since the first call began."""
    back: float
    """When it was mended."""
    calls: list[DeathCall]


class RailsReport(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    rails: str
    rates: list[str]
    ranks: int
    engine: str
    congestion: str
    algorithm: str
    starts: list[Started]
    rows: list[RailsRow]
    cuts: list[PlaneCut]
    parameters: int = 0
    """Parameters of the model that was trained; 0: none was."""
    training: list[RailTrainingRow] = []
    death: RailDeath | None = None

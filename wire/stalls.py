# SPDX-License-Identifier: Apache-2.0
"""Messages of the operator service about open slots: those of a switch, and what a job that stalls waits for."""

from __future__ import annotations

from typing import Final

import msgspec

from netfold.wire.bounds import Name

LINES: Final = 8
"""Number of culprits that a stall report lists one by one; those of the oldest slots suffice to find the cause."""


class OpenSlot(msgspec.Struct, frozen=True):
    """A slot on a switch that waits for contributions or for its parent's result."""

    switch: str
    tree: str
    """Name of the tree's root switch."""
    operation: str
    """Lane operation of the contributions that have arrived: SUM32, MAX32, ...; presence, where none has lanes."""
    slot: int
    psn: int
    bitmap: int
    present: list[str]
    """Children whose contributions have arrived: "rank 3 (h4)", or a switch's name."""
    missing: list[str]
    """Children whose contributions have not arrived; empty where the slot is complete and waits for its parent's
    result."""


class Culprit(msgspec.Struct, frozen=True):
    """The cause for which an open slot waits, found by following the tree downwards or upwards."""

    slot: OpenSlot
    """The open slot nearest to the cause."""
    ranks: list[int]
    """Ranks whose contribution is missing; empty where a packet between two switches is missing."""
    why: str


class Stall(msgspec.Struct, frozen=True):
    """A job's open slots, the oldest first, and what the oldest slot of each stream waits for."""

    job: str
    epoch: int
    missing: list[int]
    """Ranks that any slot waits for."""
    open: int
    """Number of open slots on all switches."""
    culprits: list[Culprit]

    def __str__(self) -> str:
        head = f"job {self.job!r}, epoch {self.epoch}"
        if not self.culprits:
            return f"{head}: no slot waits for anybody"
        ranks = f"rank{'s' if len(self.missing) > 1 else ''} {', '.join(map(str, self.missing))}"
        who = f"waits for {ranks}" if self.missing else "waits for packets"
        lines = [f"{head}: {who}; {self.open} slots are open"]
        lines += [f"  {culprit.why}" for culprit in self.culprits[:LINES]]
        if len(self.culprits) > LINES:
            lines.append(f"  and {len(self.culprits) - LINES} streams more")
        return "\n".join(lines)


class AskSlots(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for the open slots of one switch."""

    switch: Name
    job: Name | None = None
    """The job asked about; None: every job."""


class JobSlots(msgspec.Struct, frozen=True):
    """The open slots of one job on one switch."""

    job: str
    epoch: int
    probed: int
    """Number of slots that the job holds on the switch, all of which were read."""
    open: list[OpenSlot]
    first: int = 0
    """The lowest of the slots that it holds there."""


class SwitchSlots(msgspec.Struct, frozen=True):
    """The answer to AskSlots."""

    jobs: list[JobSlots]


class AskStall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for what a job waits for."""

    job: Name


class Stalls(msgspec.Struct, frozen=True):
    """The answer to AskStall: one for each incarnation of the job that holds slots."""

    stalls: list[Stall]

# SPDX-License-Identifier: Apache-2.0
"""The explored model: the sizes of a fabric and its job, and the rules of the protocol, each of which can be broken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

WINDOWED = "w"
RC = "r"
Departure = Literal["asked", "at once", "unasked"]
"""When a rank leaves after its last operation.

asked    when all others have reported, after it asked, that they lack nothing of the operations that they have begun
at once  without waiting for the others
unasked  when all others have reported that at any time, also before it asked
"""
GoesBack = Literal["all", "oldest"]
"""Packets that an RC sender repeats when its timer fires or a NAK arrives: all from the first one on that is not
acknowledged, as rdma_rxe and most NICs do, or only that packet, until it is acknowledged."""


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol (docs/protocol.md).  The defaults are the protocol; every other value breaks it."""

    checks_age: bool = True
    """A contribution older than what its slot holds changes nothing; False: it takes the slot over."""
    repeat: Literal["onward", "asker"] = "onward"
    """Receiver of the stored result when an RC child repeats a contribution: its successor in the ring, or the
    child."""
    nak: Literal["acknowledged", "expected"] = "acknowledged"
    """The PSN of a switch's NAK to an RC child: the first that its successor has not acknowledged, or the first whose
    contribution the switch lacks."""
    late: Literal["acknowledge", "drop", "pass on"] = "acknowledge"
    """Treatment of an RC child's repeat that is already acknowledged, or whose slot has moved on.  "acknowledge": the
    switch repeats the successor's acknowledgement; "drop": nothing; "pass on": it is routed unchanged to the
    successor."""
    on_the_way_back: Literal["lowest", "none", "all"] = "lowest"
    """Which repeats a switch takes of an RC child that it has told of a gap, until the gap is filled: the first that
    the successor has not acknowledged alone, as the child repeats the others for the switch, which has them; none; or
    all."""
    waits_for_acknowledgement: bool = True
    """An RC sender posts message i + 2 when message i has its results and is acknowledged; False: has its results."""
    passes_asks_on: bool = True
    """A switch that has sent its sum up, and is asked for the result, asks its parent."""
    tells_what_is_missing: bool = True
    """A switch that is asked by a child whose contribution it lacks tells that child so (NAK)."""
    asks_the_child_for_what_cannot_be_made: bool = True
    """A switch cannot make a packet with immediate data from its slot: who asks for it is told to repeat its
    contribution, which then is answered or passed on; False: asks pass on to a parent that can do nothing with them."""
    sum_only_until_done: bool = True
    """A leaf asked by its parent sends the stored words up only while they are its own sum; False: also the result."""
    keeps_content: bool = True
    """A slot keeps to which children the acknowledgement is enough; False: the last contribution says it for all."""
    content_if_all: bool = True
    """A leaf's sum says that the acknowledgement is enough if it is for all its children; False: for any."""
    stores_first_lanes: bool = True
    """The first lanes that come into a slot of presence are stored; False: added to what an older PSN left there."""
    presence_adds_nothing: bool = True
    """Presence leaves a slot's lanes as they are; False: it stores zeros, as a contribution would itself."""
    presence_goes_on_with_lanes: bool = True
    """Presence that completes a slot goes on with the slot's lanes; False: as presence."""
    one_start: bool = True
    """After a switch's loss all ranks begin at the lowest PSN that any lacks; False: each where it lacks one itself."""
    new_queue_pairs: bool = True
    """A new epoch has queue pairs and connections of its own; False: packets of the old one still count."""
    guarded: bool = True
    """A contribution that finds no entry is dropped; False: it is routed to the address that it carries."""
    ends_acknowledged: bool = False
    """An RC rank's operation ends when it has all results; True: and its sends are acknowledged."""
    settles_acknowledged: bool = False
    """An RC rank says that it lacks nothing when it has all results; True: and its sends are acknowledged.  Where
    operations end only then, so must this, or it breaks the protocol."""
    departure: Departure = "asked"


@dataclass(frozen=True)
class ModelFabric:
    """A fabric and its job.

    ``leaves`` has one string a leaf with one letter a rank: ``w`` windowed, ``r`` RC.  A single leaf is the root;
    several are below a spine.  The RC ranks form a ring in the order of their numbers.
    """

    leaves: tuple[str, ...]
    slots: int
    psns: int
    window: int = 0
    """Packets that a windowed rank may have without a result."""
    message: int = 0
    """Packets of a message.  RC ranks may have two outstanding; a new epoch begins where a message of any rank does."""
    goes_back: GoesBack = "oldest"
    """Packets that the RC ranks' NICs repeat."""
    kept: int = 0
    """How many of its last packets a rank keeps, to send them again in a new epoch; 0: all."""
    psn_bits: int = 24
    """Bits of a PSN: in the model they count on, but switches compare them in serial arithmetic."""
    replans: int = 0
    """How many times the switches may lose their state, all at once, and the ranks begin again in a new epoch."""
    restarts: int = 0
    """How many times a single switch may lose its state and have its old entries again before the ranks are told."""
    immediate: frozenset[int] = frozenset()
    """PSNs whose packets have immediate data, which slots do not hold."""
    each: int = 0
    """PSNs of an operation; 0: all PSNs are one operation, and no rank leaves."""
    lanes: tuple[int, ...] = ()
    """The ranks that contribute lanes, as bits, of each PSN; the others are present.  Empty: all contribute."""
    content: tuple[int, ...] = ()
    """The ranks to which the acknowledgement is enough, as bits, of each PSN.  Empty: all want the lanes."""
    unbounded: frozenset[int] = frozenset()
    """Ranks that cheat: they send whatever they like of all PSNs, at any time."""

    def __post_init__(self) -> None:
        if len(self.rc) == 1:
            raise ValueError("one RC rank has no ring: give it company, or make it windowed")
        if (self.windowed and not self.window) or (self.rc and not self.message):
            raise ValueError("windowed ranks need a window, RC ranks a message length")
        if self.each and self.psns % self.each:
            raise ValueError(f"{self.psns} PSNs are no whole number of operations of {self.each}")
        if any(len(roles) not in (0, self.psns) for roles in (self.lanes, self.content)):
            raise ValueError(f"lanes {self.lanes} and content {self.content}: expected {self.psns} each, or none")
        for r in self.rc:
            if any(not lanes >> r & 1 for lanes in self.lanes) or any(content >> r & 1 for content in self.content):
                raise ValueError(f"rank {r} is RC: it contributes lanes and wants them, whatever the PSN")

    @cached_property
    def kinds(self) -> str:
        return "".join(self.leaves)

    @cached_property
    def ranks(self) -> int:
        return len(self.kinds)

    @cached_property
    def everyone(self) -> int:
        """All ranks, as bits."""
        return (1 << self.ranks) - 1

    @property
    def leftover(self) -> int:
        """The bit of words that an older PSN left in a slot."""
        return 1 << self.ranks

    def contributors(self, psn: int) -> int:
        """The ranks that contribute lanes to a PSN, as bits."""
        return self.lanes[psn] if self.lanes else self.everyone

    def is_content(self, rank: int, psn: int) -> bool:
        """True if a rank needs only the acknowledgement of a PSN."""
        return bool(self.content and self.content[psn] >> rank & 1)

    @cached_property
    def rc(self) -> tuple[int, ...]:
        return tuple(r for r, kind in enumerate(self.kinds) if kind == RC)

    @cached_property
    def windowed(self) -> tuple[int, ...]:
        return tuple(r for r, kind in enumerate(self.kinds) if kind == WINDOWED)

    @cached_property
    def successor(self) -> tuple[int, ...]:
        """Successor of each RC rank; -1 for other ranks."""
        after = dict(zip(self.rc, (*self.rc[1:], *self.rc[:1]), strict=True))
        return tuple(after.get(r, -1) for r in range(self.ranks))

    @cached_property
    def predecessor(self) -> tuple[int, ...]:
        before = {s: r for r, s in enumerate(self.successor) if s >= 0}
        return tuple(before.get(r, -1) for r in range(self.ranks))

    @cached_property
    def leaf_of(self) -> tuple[int, ...]:
        return tuple(leaf for leaf, kinds in enumerate(self.leaves) for _ in kinds)

    @cached_property
    def ranks_of(self) -> tuple[range, ...]:
        """Ranks of each leaf."""
        firsts = [sum(map(len, self.leaves[:leaf])) for leaf in range(len(self.leaves))]
        return tuple(range(first, first + len(kinds)) for first, kinds in zip(firsts, self.leaves, strict=True))

    @cached_property
    def neighbourhood(self) -> tuple[tuple[int, ...], ...]:
        """For each leaf: the ranks that its results may reach, its own and the successors of its RC ranks."""
        return tuple(tuple({*ranks, *(self.successor[r] for r in ranks if self.successor[r] >= 0)})
                     for ranks in self.ranks_of)

    @cached_property
    def spine(self) -> int:
        """The number of the spine among the switches; -1 where a single leaf is the root."""
        return len(self.leaves) if len(self.leaves) > 1 else -1

    @cached_property
    def full(self) -> tuple[int, ...]:
        """For each switch: all its children, as bits."""
        leaves = [(1 << len(kinds)) - 1 for kinds in self.leaves]
        return (*leaves, (1 << len(leaves)) - 1) if self.spine >= 0 else tuple(leaves)

    @cached_property
    def part(self) -> tuple[int, ...]:
        """For each leaf: its ranks, as bits."""
        return tuple(sum(1 << r for r in ranks) for ranks in self.ranks_of)

    @cached_property
    def credit(self) -> tuple[tuple[int, ...], ...]:
        """``credit[start][through]``: the PSN before which an RC rank posts, once all below ``through`` is through.

        Messages have ``message`` packets, counted from ``start``, and end where an operation does.
        """
        return tuple(tuple(self._credit(start, through) for through in range(self.psns + 1))
                     for start in range(self.psns + 1))

    def _credit(self, start: int, through: int) -> int:
        ends: list[int] = []
        psn = start
        while psn < self.psns:
            operation_end = (psn // self.each + 1) * self.each if self.each else self.psns
            psn = min(psn + self.message, operation_end)
            ends.append(psn)
        open_messages = [end for end in ends if end > through]
        return open_messages[:2][-1] if open_messages else self.psns

    def message_start(self, psn: int) -> int:
        """The PSN where the message begins that holds a PSN; the PSN itself without messages."""
        if not self.message or psn == self.psns:
            return psn
        first = psn // self.each * self.each if self.each else 0
        return psn - (psn - first) % self.message

    def age(self, psn: int, other: int) -> int:
        """How far ``psn`` is ahead of ``other`` in serial arithmetic on wire PSNs, as in the P4 program."""
        half = 1 << (self.psn_bits - 1)
        return (psn - other + half) % (half * 2) - half
